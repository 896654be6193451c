//! The command line: `consul` and `legate`, run with the same words against the same server, print the same
//! and end with the same code. The command lines are data, in `commands/`.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use legate_testkit::envoy::workspace_binary;
use legate_tests::interop::Pair;
use regex::Regex;
use serde_json::Value;
use tokio::process::Command;

use crate::consul_catalog::consul;

/// How long one command may take.
const LIMIT: Duration = Duration::from_secs(60);
/// What each program calls what it makes; the names are of equal length, so that tables are, too.
const NAMES: [&str; 2] = ["aone", "btwo"];
const ACL: &str = r#"
    acl { enabled = true default_policy = "deny" tokens { initial_management = "root" } }
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_acls() {
    let Some(program) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let (mut server, http) = consul(&program, "127.0.77.2", "node_name = \"n1\"").await;
    let lines = include_str!("commands/plain.txt");
    all_the_same(lines, &program, &http.to_string(), None).await;
    server.kill().await.expect("Consul ends");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_acls() {
    let Some(program) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let settings = format!("node_name = \"n1\"\n{ACL}");
    let (mut server, http) = consul(&program, "127.0.77.3", &settings).await;
    let lines = include_str!("commands/acl.txt");
    all_the_same(lines, &program, &http.to_string(), Some("root")).await;
    server.kill().await.expect("Consul ends");
}

/// How outputs are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Compared {
    Text,
    Json,
    Code,
}

/// What came of a command.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    code: Option<i32>,
    out: String,
    error: String,
}

async fn all_the_same(lines: &str, consul: &Path, server: &str, token: Option<&str>) {
    let programs = [consul.to_path_buf(), workspace_binary("legate")];
    let folders = [folder(), folder()];
    let changing = Changing::new();
    let mut differ = Vec::new();
    for line in lines.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (compared, line) = match line.split_once(": ") {
            Some(("json", line)) => (Compared::Json, line),
            Some(("code", line)) => (Compared::Code, line),
            _ => (Compared::Text, line),
        };
        let mut outcomes = Vec::new();
        for i in 0..2 {
            let words = words(&line.replace("{name}", NAMES[i]));
            let mut command = Command::new(&programs[i]);
            let command = command
                .arg0("consul")
                .args(words)
                .current_dir(folders[i].path());
            command
                .env("CONSUL_HTTP_ADDR", server)
                .env("SHELL", "/bin/sh");
            if let Some(token) = token {
                command.env("CONSUL_HTTP_TOKEN", token);
            }
            let command = command.stdin(Stdio::null()).kill_on_drop(true);
            let output = tokio::time::timeout(LIMIT, command.output()).await;
            let output = output
                .unwrap_or_else(|_| panic!("{line}: no end"))
                .expect("it runs");
            outcomes.push(Outcome {
                code: output.status.code(),
                out: changing.hidden(&output.stdout),
                error: changing.hidden(&output.stderr),
            });
        }
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

fn same(one: &Outcome, other: &Outcome, compared: Compared) -> bool {
    let json = |outcome: &Outcome| serde_json::from_str::<Value>(&outcome.out).ok();
    match compared {
        Compared::Text => one == other,
        Compared::Code => one.code == other.code,
        Compared::Json => one.code == other.code && json(one).is_some() && json(one) == json(other),
    }
}

/// A folder with the files that commands read.
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

/// The words of a line; those between quotes are one.
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

/// What is never the same: ids, times, indexes and the names of {name}.
struct Changing(Vec<(Regex, &'static str)>);

impl Changing {
    fn new() -> Self {
        let all = [
            (r"aone|btwo", "NAME"),
            (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
            (r#"(Index"?: *|Index +|index )\d+"#, "${1}0"),
            (
                r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z| \+0000 UTC)?",
                "TIME",
            ),
            (r"\w+day, \d+-\w+-\d+ [\d:]+ UTC", "TIME"),
            (r"Hash: +[0-9a-f]+", "HASH"),
            (r#""Hash": "[^"]*""#, "\"Hash\": \"\""),
            // The index of the state, in a table.
            (r"(true|false)  +3  +\d+", "$1  3  0"),
            // Consul's help after an error.
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
