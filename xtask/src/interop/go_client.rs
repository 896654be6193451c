//! The test suite of the official Go client, compiled from the Go module proxy, against the program named
//! `consul`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::Environment;
use crate::workspace::{run, variable};

const MODULE: &str = "github.com/hashicorp/consul/api";
const VERSION: &str = "v1.32.1";

/// The module of test utilities, which the client requires from a folder that is not in its release.
const UTILITIES: &str = "github.com/hashicorp/consul/sdk";

/// The number of concurrent processes of the suite, whose tests mostly wait.
const WORKERS: usize = 3;

/// The number of tests per process.
const BATCH: usize = 12;

/// The time limit of a process.
const LIMIT: &str = "240s";

/// The document that lists failing tests with reasons.
const DOCUMENT: &str = "docs/consul-clients.md";

/// Runs the matching tests. Without a pattern, failures must be exactly those in the document.
pub(super) fn run_all(place: &Environment, pattern: &str) -> anyhow::Result<()> {
    let binary = compile(place)?;
    certificates(place)?;
    let names = names(&binary, pattern)?;
    ensure!(
        !names.is_empty(),
        "no test of the suite matches {pattern:?}"
    );
    let batches = names.chunks(BATCH).map(<[String]>::to_vec).collect();
    let mut verdicts = in_parallel(place, &binary, batches);
    // Some tests depend on fixed times, which a busy machine may miss: retry them alone.
    let passed = |verdicts: &Verdicts, name: &String| {
        verdicts.get(name).is_some_and(|verdict| verdict.passed)
    };
    for name in names
        .iter()
        .filter(|name| !passed(&verdicts, name))
        .cloned()
        .collect::<Vec<_>>()
    {
        let again = run_batch(place, &binary, std::slice::from_ref(&name));
        println!("{name}: again, alone");
        verdicts.extend(again);
    }
    let failed = names.iter().filter(|name| !passed(&verdicts, name));
    let failed: BTreeSet<&str> = failed.map(String::as_str).collect();
    for name in &failed {
        let text = verdicts
            .get(*name)
            .map_or("it did not complete", |verdict| &verdict.text);
        println!("\n== {name}\n{}", without_log(text));
    }
    println!(
        "\ngo: {} of {} tests pass",
        names.len() - failed.len(),
        names.len()
    );
    if !pattern.is_empty() {
        ensure!(failed.is_empty(), "failed: {}", join(&failed));
        return Ok(());
    }
    compare(&place.root.join(DOCUMENT), &failed)
}

/// The result of a test.
#[derive(Default)]
struct Verdict {
    passed: bool,
    text: String,
}

type Verdicts = BTreeMap<String, Verdict>;

/// The compiled suite, built once for each version.
fn compile(place: &Environment) -> anyhow::Result<PathBuf> {
    let folder = place.folder.join(format!("go-{VERSION}"));
    let binary = folder.join("suite.test");
    if binary.is_file() {
        return Ok(binary);
    }
    println!("compiling the tests of {MODULE} {VERSION}");
    let module = format!("{MODULE}@{VERSION}");
    let answer = go(&place.folder, &["mod", "download", "-json", &module])
        .output()
        .context("cannot start go, which compiles the client's tests: install Go 1.24 or newer")?;
    let answer: Value = serde_json::from_slice(&answer.stdout).context("go mod download failed")?;
    let source = answer["Dir"].as_str();
    let source =
        source.with_context(|| format!("cannot download {module}: {}", answer["Error"]))?;
    // The module cache is read-only, and cp preserves the mode.
    let _ = fs::remove_dir_all(&folder);
    run(Command::new("cp")
        .args(["-r", "--no-preserve=mode", source])
        .arg(&folder))?;
    run(&mut go(
        &folder,
        &["mod", "edit", "-dropreplace", UTILITIES],
    ))?;
    run(&mut go(&folder, &["mod", "tidy"]))?;
    run(&mut go(&folder, &["test", "-c", "-o", "suite.test", "."]))?;
    Ok(binary)
}

/// The suite reads certificates from a folder that is not in the module's release. They are created here with
/// the tested program.
fn certificates(place: &Environment) -> anyhow::Result<()> {
    let made = place.folder.join("certificates");
    let _ = fs::remove_dir_all(&made);
    fs::create_dir_all(&made)?;
    let tls = |args: &[&str]| {
        let mut command = Command::new(place.consul());
        command.current_dir(&made).arg("tls").args(args);
        run(command.stdout(Stdio::null()))
    };
    tls(&["ca", "create"])?;
    tls(&[
        "cert",
        "create",
        "-server",
        "-additional-dnsname=consul.test",
    ])?;
    tls(&["cert", "create", "-client"])?;
    let (ca, server, client) = (
        "consul-agent-ca",
        "dc1-server-consul-0",
        "dc1-client-consul-0",
    );
    for (from, to) in [
        (format!("{ca}.pem"), "client_certs/rootca.crt"),
        (format!("{server}.pem"), "client_certs/server.crt"),
        (format!("{server}-key.pem"), "client_certs/server.key"),
        (format!("{client}.pem"), "client_certs/client.crt"),
        (format!("{client}-key.pem"), "client_certs/client.key"),
        (format!("{client}.pem"), "hostname/Alice.crt"),
        (format!("{client}-key.pem"), "hostname/Alice.key"),
        (format!("{ca}.pem"), "hostname/CertAuth.crt"),
        (format!("{ca}.pem"), "ca_path/root.pem"),
    ] {
        let to = place.folder.join("test").join(to);
        fs::create_dir_all(to.parent().unwrap_or(&place.folder))?;
        fs::copy(made.join(&from), to).with_context(|| format!("{from} was not made"))?;
    }
    Ok(())
}

fn go(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("go");
    // The folder in the cache does not belong to a module of this repository.
    command
        .current_dir(folder)
        .args(args)
        .env("GOFLAGS", "-mod=mod");
    command
}

fn names(binary: &Path, pattern: &str) -> anyhow::Result<Vec<String>> {
    let pattern = if pattern.is_empty() { "." } else { pattern };
    let mut command = Command::new(binary);
    command.args(["-test.list", pattern]);
    let output = command
        .output()
        .context("cannot start the client's tests")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter(|line| line.starts_with("Test"));
    // `TestMain` is not a test but starts all others.
    let names = names.filter(|name| *name != "TestMain");
    Ok(names.map(str::to_owned).collect())
}

fn in_parallel(place: &Environment, binary: &Path, batches: VecDeque<Vec<String>>) -> Verdicts {
    let (batches, verdicts) = (Mutex::new(batches), Mutex::new(Verdicts::new()));
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(batch) = pop(&batches) {
                    let found = run_batch(place, binary, &batch);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts.extend(found);
                    }
                }
            });
        }
    });
    verdicts.into_inner().unwrap_or_default()
}

fn pop(batches: &Mutex<VecDeque<Vec<String>>>) -> Option<Vec<String>> {
    batches.lock().ok()?.pop_front()
}

/// Runs these tests in one process. A test without a verdict afterwards did not complete.
fn run_batch(place: &Environment, binary: &Path, names: &[String]) -> Verdicts {
    let mut path = place.bin.clone().into_os_string();
    if let Some(rest) = variable("PATH") {
        path.push(":");
        path.push(rest);
    }
    let mut command = Command::new(binary);
    command
        .current_dir(binary.parent().unwrap_or(&place.folder))
        .env("PATH", path)
        .args(["-test.v", "-test.timeout", LIMIT, "-test.run"])
        .arg(format!("^({})$", names.join("|")));
    match command.output() {
        Ok(output) => verdicts(&output),
        Err(error) => {
            println!("the client's tests cannot be started: {error}");
            Verdicts::new()
        }
    }
}

/// Parses the output of `go test -v`: a line for the start of each test, and one for its end. Parallel tests
/// print their names before their output.
fn verdicts(output: &Output) -> Verdicts {
    let text = String::from_utf8_lossy(&output.stdout);
    let mut verdicts = Verdicts::new();
    let mut current = String::new();
    for line in text.lines() {
        for start in ["=== RUN   ", "=== CONT  ", "=== NAME  "] {
            if let Some(name) = line.strip_prefix(start) {
                name.split('/')
                    .next()
                    .unwrap_or(name)
                    .clone_into(&mut current);
            }
        }
        if let Some((verdict, name)) = line
            .strip_prefix("--- ")
            .and_then(|rest| rest.split_once(": "))
        {
            let name = name.split(' ').next().unwrap_or(name);
            // A skipped test counts as passed.
            let passed = matches!(verdict, "PASS" | "SKIP");
            verdicts.entry(name.to_owned()).or_default().passed = passed;
        }
        let verdict = verdicts.entry(current.clone()).or_default();
        verdict.text.push_str(line);
        verdict.text.push('\n');
    }
    verdicts
}

/// Fails if a failing test is not listed in the document, and reports listed tests that pass.
fn compare(document: &Path, failed: &BTreeSet<&str>) -> anyhow::Result<()> {
    let text = fs::read_to_string(document)
        .with_context(|| format!("cannot read {}", document.display()))?;
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `Test"));
    let listed = cells.filter_map(|rest| rest.split_once('`'));
    let listed: BTreeSet<String> = listed.map(|(name, _)| format!("Test{name}")).collect();
    let listed: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    let new: BTreeSet<&str> = failed.difference(&listed).copied().collect();
    let over: BTreeSet<&str> = listed.difference(failed).copied().collect();
    ensure!(
        new.is_empty(),
        "these tests fail and {DOCUMENT} does not name them: {}",
        join(&new)
    );
    if !over.is_empty() {
        println!(
            "hint: these tests pass, remove them from {DOCUMENT}: {}",
            join(&over)
        );
    }
    Ok(())
}

fn join(names: &BTreeSet<&str>) -> String {
    names.iter().copied().collect::<Vec<_>>().join(", ")
}

/// The output of a test without the logs of its servers, limited to some lines.
fn without_log(text: &str) -> String {
    const LINES: usize = 40;
    let logged = |line: &&str| {
        ["[INFO]", "[WARN]", "[DEBUG]", "CONFIG JSON"]
            .iter()
            .any(|mark| line.contains(mark))
    };
    let lines = text.lines().filter(|line| !logged(line));
    lines.take(LINES).collect::<Vec<_>>().join("\n")
}
