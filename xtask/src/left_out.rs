//! The tests that were left out because the machine lacks what they need: their records, the report at the end, and
//! another run of them where nothing may be missing.
//!
//! The tests write the records themselves: see `requirement` in `crates/testkit`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::workspace::{self, Workspace};

/// The name of the file of records, below the target directory.
pub(crate) const FILE: &str = "left-out.jsonl";
/// The tests that may be left out in CI.
const ALLOWED: &str = "tests/may-be-left-out";

/// The records of a run.
pub(crate) struct Records {
    file: PathBuf,
    /// Whether tests that may not be left out fail instead.
    strict: bool,
}

/// The tests of one program by name, with what each lacks.
type Tests = BTreeMap<String, Vec<Missing>>;

/// What a test lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Missing {
    name: String,
    reason: String,
    how: String,
}

impl Records {
    /// No records. Those of an earlier run are removed.
    pub(crate) fn start(workspace: &Workspace, strict: bool) -> anyhow::Result<Self> {
        let file = workspace.target.join(FILE);
        fs::write(&file, "").with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Self { file, strict })
    }

    /// Makes the tests of a command write their records here.
    pub(crate) fn apply(&self, command: &mut Command) {
        command.env("LEGATE_LEFT_OUT", &self.file);
        if self.strict {
            command.env("LEGATE_STRICT", "1");
        }
    }

    /// A line for each thing that is missing, and one with the number of tests; empty if there are no records.
    pub(crate) fn report(&self) -> anyhow::Result<String> {
        let tests = read(&self.file)?;
        Ok(report(&tests, &self.file))
    }
}

/// The tests of a file of records, by target.
fn read(file: &Path) -> anyhow::Result<BTreeMap<String, Tests>> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut targets: BTreeMap<String, Tests> = BTreeMap::new();
    for line in text.lines() {
        let record: Value = serde_json::from_str(line).context("a record is JSON")?;
        let text = |value: &Value| value.as_str().map(str::to_owned).context("a text");
        let missing = record["missing"].as_array().context("a list")?.iter();
        let missing = missing.map(|part| {
            Ok(Missing {
                name: text(&part["name"])?,
                reason: text(&part["reason"])?,
                how: text(&part["how"])?,
            })
        });
        let missing = missing.collect::<anyhow::Result<Vec<_>>>()?;
        let tests = targets.entry(text(&record["target"])?).or_default();
        tests.insert(text(&record["test"])?, missing);
    }
    Ok(targets)
}

fn report(targets: &BTreeMap<String, Tests>, file: &Path) -> String {
    let tests = || targets.values().flatten();
    let mut needed: BTreeMap<&Missing, usize> = BTreeMap::new();
    for missing in tests().flat_map(|(_, missing)| missing) {
        *needed.entry(missing).or_default() += 1;
    }
    if needed.is_empty() {
        return String::new();
    }
    let mut lines = vec![format!(
        "left out: {} tests, whose names are in {}:",
        tests().count(),
        file.display()
    )];
    lines.extend(needed.iter().map(|(part, count)| {
        let Missing { name, reason, how } = part;
        format!("{count:>5} need {name}: {reason}; to run them: {how}")
    }));
    lines.join("\n")
}

/// Runs the tests that a run on another machine left out, as `records` demands.
pub(crate) fn run_again(
    workspace: &Workspace,
    earlier: &Path,
    records: &Records,
    environment: &[(&str, PathBuf)],
) -> anyhow::Result<()> {
    let binaries = test_binaries(workspace)?;
    check_list(workspace, &binaries)?;
    for (target, tests) in read(earlier)? {
        println!("\n{target}: {} tests that were left out", tests.len());
        let binary = find(workspace, &binaries, &target)?;
        let mut command = Command::new(&binary.program);
        command
            .current_dir(&binary.folder)
            .arg("--exact")
            .args(tests.keys())
            .envs(environment.iter().map(|(name, value)| (name, value)));
        records.apply(&mut command);
        let text = workspace::output(&mut command)?;
        println!("{text}");
        let expected = format!("test result: ok. {} passed", tests.len());
        ensure!(
            text.contains(&expected),
            "{target}: expected `{expected}`: tests that were left out have other names in this build"
        );
    }
    Ok(())
}

/// A line of the list of tests that may be left out names a test.
fn check_list(workspace: &Workspace, binaries: &[Binary]) -> anyhow::Result<()> {
    let list = fs::read_to_string(workspace.root.join(ALLOWED))?;
    for (target, listed) in listed(&list)? {
        let binary = find(workspace, binaries, target)?;
        let text = workspace::output(Command::new(&binary.program).arg("--list"))?;
        let known: BTreeSet<&str> = text
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .collect();
        let unknown: Vec<&str> = listed.difference(&known).copied().collect();
        ensure!(
            unknown.is_empty(),
            "{ALLOWED} has tests that {target} does not have: {}",
            unknown.join(", ")
        );
    }
    Ok(())
}

/// The tests of the list by target.
fn listed(list: &str) -> anyhow::Result<BTreeMap<&str, BTreeSet<&str>>> {
    let mut targets: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let lines = list.lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, target, test] = words[..] else {
            anyhow::bail!(
                "{ALLOWED}: a line has what is missing, the target and the test: {line:?}"
            );
        };
        targets.entry(target).or_default().insert(test);
    }
    Ok(targets)
}

/// A built test program.
pub(crate) struct Binary {
    pub(crate) program: PathBuf,
    /// The folder of its package, in which cargo runs it.
    pub(crate) folder: PathBuf,
    name: String,
}

/// The test program of a target: the folder of a package, relative to the repository, and a name.
pub(crate) fn find<'a>(
    workspace: &Workspace,
    binaries: &'a [Binary],
    target: &str,
) -> anyhow::Result<&'a Binary> {
    let (folder, name) = target.rsplit_once('/').context("a target has a folder")?;
    let folder = workspace.root.join(folder);
    let found = binaries
        .iter()
        .find(|binary| binary.folder == folder && binary.name == name);
    found.with_context(|| format!("there is no test program {target}"))
}

/// All test programs, built if necessary. Selecting packages would rebuild their dependencies with the features that
/// these need.
pub(crate) fn test_binaries(workspace: &Workspace) -> anyhow::Result<Vec<Binary>> {
    let mut command = workspace.cargo(&["test", "--workspace", "--locked", "--no-run"]);
    let text = workspace::output(command.arg("--message-format=json"))?;
    let lines = text.lines().filter(|line| !line.is_empty());
    let messages: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
    let tests = messages
        .iter()
        .filter(|message| message["profile"]["test"] == true);
    let binary = |message: &Value| {
        Some(Binary {
            program: message["executable"].as_str()?.into(),
            folder: Path::new(message["manifest_path"].as_str()?)
                .parent()?
                .into(),
            name: message["target"]["name"].as_str()?.to_owned(),
        })
    };
    Ok(tests.filter_map(binary).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str = r#"{"target":"tests/mesh","test":"a","missing":[{"name":"root","reason":"no","how":"be"}]}
{"target":"tests/mesh","test":"a","missing":[{"name":"root","reason":"no","how":"be"}]}
{"target":"tests/mesh","test":"b","missing":[{"name":"root","reason":"no","how":"be"},{"name":"nft","reason":"none","how":"get it"}]}
"#;

    #[test]
    fn the_report_has_a_line_for_each_thing_that_is_missing() {
        let file = std::env::temp_dir().join(format!("legate-records-{}", std::process::id()));
        fs::write(&file, RECORDS).unwrap();
        let tests = read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let expected = "left out: 2 tests, whose names are in records:\n    \
                        1 need nft: none; to run them: get it\n    \
                        2 need root: no; to run them: be";
        assert_eq!(report(&tests, Path::new("records")), expected);
        assert_eq!(report(&BTreeMap::new(), Path::new("records")), "");
    }

    #[test]
    fn the_list_of_the_repository_is_valid() {
        let list = include_str!("../../tests/may-be-left-out");
        let targets = listed(list).unwrap();
        assert_eq!(
            targets.keys().copied().collect::<Vec<_>>(),
            ["tests/interop"]
        );
        assert!(listed("consul tests/interop").is_err());
    }
}
