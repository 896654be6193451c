//! The command line: `consul` and `legate`, run with the same arguments against the same server, have the same
//! output and exit code. The command lines are data in `commands/`.
//!
//! The output of Consul's program with an agent of Consul is recorded there as well. `legate`, started as `consul`
//! with an agent of its own, has the same output except for the differences listed with reasons in
//! `commands/*.intended`. `LEGATE_RECORD=1` updates the recordings.

mod recorded;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use legate_testkit::envoy::workspace_binary;
use legate_tests::interop::Pair;
use regex::Regex;
use serde_json::Value;
use tokio::process::Command;

use self::recorded::Recorded;
use crate::consul_catalog::consul;

/// The deadline for one command.
const LIMIT: Duration = Duration::from_secs(60);
/// The name that each program uses for its objects, of equal length so that tables are aligned equally.
const NAMES: [&str; 2] = ["aone", "btwo"];
/// The prefix of a reason for lines in another order.
const ORDER: &str = "order: ";

/// A list of command lines with their environment.
struct List {
    lines: &'static str,
    /// The file with Consul's output.
    recording: &'static str,
    /// The file with intended differences and their reasons.
    intended: &'static str,
    /// Settings of the agent, in HCL.
    settings: &'static str,
    token: Option<&'static str>,
}

const PLAIN: List = List {
    lines: include_str!("commands/plain.txt"),
    recording: "plain.recorded",
    intended: include_str!("commands/plain.intended"),
    settings: "node_name = \"n1\"",
    token: None,
};
const WITH_ACLS: List = List {
    lines: include_str!("commands/acl.txt"),
    recording: "acl.recorded",
    intended: include_str!("commands/acl.intended"),
    settings: r#"
        node_name = "n1"
        acl { enabled = true default_policy = "deny" tokens { initial_management = "root" agent = "root" } }
    "#,
    token: Some("root"),
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_acls() {
    both(&PLAIN, "127.0.77.2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_acls() {
    both(&WITH_ACLS, "127.0.77.3").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_recorded_without_acls() {
    as_recorded(&PLAIN, "127.0.76.2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_recorded_with_acls() {
    as_recorded(&WITH_ACLS, "127.0.76.3").await;
}

async fn both(list: &List, address: &str) {
    let Some(program) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let (mut server, http) = consul(&program, address, list.settings).await;
    crate::recorded::wait_until_settled(http).await;
    match crate::recorded::set("LEGATE_RECORD") {
        true => record(list, &program, &http.to_string()).await,
        false => all_the_same(list, &program, &http.to_string()).await,
    }
    server.kill().await.expect("Consul ends");
}

/// How outputs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Text,
    /// As text, with lines in any order.
    Lines,
    Json,
    Code,
}

/// The outcome of a command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    code: Option<i32>,
    out: String,
    error: String,
}

/// Parses a line: how its output is compared, and the arguments.
fn asked(line: &str) -> (Compared, &str) {
    match line.split_once(": ") {
        Some(("json", line)) => (Compared::Json, line),
        Some(("code", line)) => (Compared::Code, line),
        _ => (Compared::Text, line),
    }
}

fn lines_of(list: &str) -> impl Iterator<Item = &str> {
    let lines = list.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Runs command lines with a program, one after the other.
struct Runner<'a> {
    program: PathBuf,
    name: &'static str,
    folder: tempfile::TempDir,
    server: &'a str,
    token: Option<&'a str>,
    changing: Changing,
}

impl<'a> Runner<'a> {
    fn new(program: PathBuf, name: &'static str, server: &'a str, token: Option<&'a str>) -> Self {
        let host = server.split(':').next().unwrap_or_default();
        Self {
            program,
            name,
            folder: folder(),
            server,
            token,
            changing: Changing::new(host),
        }
    }

    async fn run(&self, line: &str) -> Outcome {
        let words = words(&line.replace("{name}", self.name));
        let mut command = Command::new(&self.program);
        let command = command
            .arg0("consul")
            .args(words)
            .current_dir(self.folder.path())
            .env("CONSUL_HTTP_ADDR", self.server)
            .env("SHELL", "/bin/sh");
        if let Some(token) = self.token {
            command.env("CONSUL_HTTP_TOKEN", token);
        }
        let command = command.stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(LIMIT, command.output()).await;
        let output = output
            .unwrap_or_else(|_| panic!("{line}: no end"))
            .expect("it runs");
        Outcome {
            code: output.status.code(),
            out: self.changing.hidden(&output.stdout),
            error: self.changing.hidden(&output.stderr),
        }
    }
}

async fn all_the_same(list: &List, consul: &Path, server: &str) {
    let consul = Runner::new(consul.to_path_buf(), NAMES[0], server, list.token);
    let legate = Runner::new(workspace_binary("legate"), NAMES[1], server, list.token);
    let mut differ = Vec::new();
    for line in lines_of(list.lines) {
        let (compared, words) = asked(line);
        let outcomes = [consul.run(words).await, legate.run(words).await];
        if !same(&outcomes[0], &outcomes[1], compared) {
            differ.push(format!("{line}\n  {:?}\n  {:?}", outcomes[0], outcomes[1]));
        }
    }
    assert!(
        differ.is_empty(),
        "{}\n{} differ",
        differ.join("\n"),
        differ.len()
    );
}

/// Records the outcomes of Consul's program alone, without objects of another program.
async fn record(list: &List, consul: &Path, server: &str) {
    let runner = Runner::new(consul.to_path_buf(), NAMES[0], server, list.token);
    let mut recording = Vec::new();
    for line in lines_of(list.lines) {
        let (compared, words) = asked(line);
        let mut outcome = runner.run(words).await;
        if compared == Compared::Code {
            outcome = Outcome {
                code: outcome.code,
                ..Outcome::default()
            };
        }
        let line = line.to_owned();
        recording.push(Recorded { line, outcome });
    }
    recorded::write(list.recording, &recording);
}

/// Replays the recordings under the name `consul`: agent and commands are Legate's, and the expected outcomes are
/// Consul's.
async fn as_recorded(list: &List, address: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("consul");
    std::os::unix::fs::symlink(workspace_binary("legate"), &program).expect("a link");
    let (mut agent, http) = consul(&program, address, list.settings).await;
    crate::recorded::wait_until_settled(http).await;
    let server = http.to_string();
    let runner = Runner::new(program, NAMES[0], &server, list.token);
    let recording = recorded::read(list.recording);
    let lines: Vec<_> = lines_of(list.lines).collect();
    let recorded: Vec<_> = recording.iter().map(|one| one.line.as_str()).collect();
    assert_eq!(lines, recorded, "record the commands again");
    let intended = intended(list);
    let mut differ = Vec::new();
    for one in &recording {
        let (compared, words) = asked(&one.line);
        let outcome = runner.run(words).await;
        let is_same = |compared| same(&one.outcome, &outcome, compared);
        let wrong = match intended.get(one.line.as_str()) {
            None => (!is_same(compared)).then_some("differs"),
            Some(reason) if reason.starts_with(ORDER) => {
                (!is_same(Compared::Lines)).then_some("differs in more than the order")
            }
            Some(_) if is_same(compared) => Some("is listed as different, and is the same"),
            Some(_) => (!is_same(Compared::Code)).then_some("ends with another code"),
        };
        if let Some(wrong) = wrong {
            let (line, recorded) = (&one.line, &one.outcome);
            differ.push(format!("{line}: {wrong}\n  {recorded:?}\n  {outcome:?}"));
        }
    }
    agent.kill().await.expect("the agent ends");
    assert!(
        differ.is_empty(),
        "{}\n{} of {} differ",
        differ.join("\n"),
        differ.len(),
        lines.len()
    );
}

/// The command lines with intended differences and their reasons.
fn intended(list: &List) -> BTreeMap<&'static str, &'static str> {
    let all: BTreeMap<_, _> = lines_of(list.intended)
        .map(|line| line.split_once(" | ").expect("a command line and a reason"))
        .collect();
    for line in all.keys() {
        let mut lines = lines_of(list.lines);
        assert!(lines.any(|one| one == *line), "the list has no {line}");
    }
    all
}

fn same(one: &Outcome, other: &Outcome, compared: Compared) -> bool {
    let json = |outcome: &Outcome| serde_json::from_str::<Value>(&outcome.out).ok();
    match compared {
        Compared::Lines => {
            let sorted = |text: &str| -> Vec<String> {
                let lines = text
                    .lines()
                    .map(|line| line.trim_end().trim_end_matches(','));
                let mut lines: Vec<_> = lines.map(str::to_owned).collect();
                lines.sort();
                lines
            };
            one.code == other.code
                && sorted(&one.out) == sorted(&other.out)
                && sorted(&one.error) == sorted(&other.error)
        }
        Compared::Text => {
            let lines = |text: &str| -> Vec<String> {
                let lines = text.trim_end().lines();
                lines.map(|line| line.trim_end().to_owned()).collect()
            };
            one.code == other.code
                && lines(&one.out) == lines(&other.out)
                && lines(&one.error) == lines(&other.error)
        }
        Compared::Code => one.code == other.code,
        Compared::Json => one.code == other.code && json(one).is_some() && json(one) == json(other),
    }
}

/// A folder with the input files of commands.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let files = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("interop/commands/files");
    for file in std::fs::read_dir(files).expect("the files of commands") {
        let file = file.expect("a file").path();
        let name = file.file_name().expect("a name");
        std::fs::copy(&file, folder.path().join(name)).expect("it can be copied");
    }
    folder
}

/// Splits a line into words; quotes group words.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in line.split('\'').enumerate() {
        match i % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// Patterns for variable text: ids, times, indexes and the names of {name}. Times before this century are constants
/// and are kept.
struct Changing(Vec<(Regex, &'static str)>);

impl Changing {
    fn new(host: &str) -> Self {
        let host = regex::escape(host);
        let all = [
            (host.as_str(), "ADDRESS"),
            (r"aone|btwo", "NAME"),
            (r"(n1 +)[0-9a-f]{8} ", "${1}ID "),
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
            (r#"(Index"?: *|Index +|index )\d+"#, "${1}0"),
            (
                r"20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z| \+0000 UTC)?",
                "TIME",
            ),
            (r"\w+day, \d+-\w+-[2-6]\d [\d:]+ UTC", "TIME"),
            (r"Hash: +[0-9a-f]+", "HASH"),
            (r#""Hash": "[^"]*""#, "\"Hash\": \"\""),
            // The index of the state, in a table.
            (r"(true|false)  +3  +\d+", "$1  3  0"),
            // Consul's usage text after an error.
            (r"(?s)\n*Usage:.*", "\n"),
        ];
        let compiled = all.map(|(text, with)| (Regex::new(text).expect("it is one"), with));
        Self(compiled.into())
    }

    fn hidden(&self, output: &[u8]) -> String {
        let text = String::from_utf8_lossy(output).into_owned();
        self.0.iter().fold(text, |text, (changing, with)| {
            changing.replace_all(&text, *with).into_owned()
        })
    }
}

#[test]
fn quotes_hold_words_together() {
    assert_eq!(words("kv put 'a b' c"), ["kv", "put", "a b", "c"]);
}
