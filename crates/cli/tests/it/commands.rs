//! Commands of `consul`, run against an agent of ours.

use std::path::Path;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::agent::{Agent, LIMIT};

async fn legate(agent: &Agent, folder: &Path, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    let command = command.args(words).current_dir(folder).kill_on_drop(true);
    command.env("CONSUL_HTTP_ADDR", agent.http.to_string());
    let output: Output = command.output().await.expect("legate runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code().unwrap_or(-1),
        text(&output.stdout),
        text(&output.stderr),
    )
}

#[tokio::test]
async fn registered_services_are_in_the_catalog() {
    let agent = Agent::start("").await;
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    std::fs::write(
        folder.join("web.hcl"),
        "service { name = \"web\" port = 80 }",
    )
    .expect("a file");
    let (code, out, error) = legate(&agent, folder, &["services", "register", "web.hcl"]).await;
    assert_eq!(
        (code, out.as_str()),
        (0, "Registered service: web\n"),
        "{error}"
    );
    let (_, out, _) = legate(&agent, folder, &["catalog", "services"]).await;
    assert!(out.lines().any(|line| line == "web"), "{out}");
    let (_, out, _) = legate(&agent, folder, &["catalog", "nodes", "-service=web"]).await;
    assert!(out.starts_with("Node"), "{out}");
    let (_, out, _) = legate(&agent, folder, &["services", "deregister", "-id", "web"]).await;
    assert_eq!(out, "Deregistered service: web\n");
    let (_, out, _) = legate(&agent, folder, &["members", "-status", "alive"]).await;
    assert!(out.contains("n1"), "{out}");
    let (code, ..) = legate(&agent, folder, &["members", "-status", "failed"]).await;
    assert_eq!(code, 2);
}

#[tokio::test]
async fn an_invalid_command_line_exits_with_consuls_codes() {
    let agent = Agent::start("").await;
    let folder = tempfile::tempdir().expect("a folder");
    for (words, expected, text) in [
        (&["nonsense"][..], 127, "nonsense"),
        (&["kv", "nonsense"][..], 1, "nonsense"),
        (
            &["kv", "get", "-x", "a"][..],
            1,
            "flag provided but not defined: -x",
        ),
        (
            &["kv", "get", "a", "b"][..],
            1,
            "Too many arguments (expected 1, got 2)",
        ),
        (&["keyring", "-list"][..], 1, "keyring is not supported"),
        (
            &["exec", "-tag", "x", "ls"][..],
            1,
            "Cannot provide tag filter without service filter",
        ),
        (&["kv", "get", "-h"][..], 0, ""),
    ] {
        let (code, _, error) = legate(&agent, folder.path(), words).await;
        assert_eq!(code, expected, "{words:?}: {error}");
        assert!(error.contains(text), "{words:?}: {error}");
    }
}

#[tokio::test]
async fn a_signal_lets_the_program_of_a_watch_end_by_itself() {
    let agent = Agent::start("").await;
    let program = "trap 'echo ended; exit' TERM; echo begun; while :; do sleep 0.1; done";
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    command.args([
        "watch",
        "-type=services",
        "-shell=false",
        "sh",
        "-c",
        program,
    ]);
    command.env("CONSUL_HTTP_ADDR", agent.http.to_string());
    let mut watch = command
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("legate runs");
    let mut lines = BufReader::new(watch.stdout.take().expect("a pipe")).lines();
    let mut next = async || timeout(LIMIT, lines.next_line()).await.expect("in time");
    assert_eq!(next().await.expect("text").as_deref(), Some("begun"));
    let id = i32::try_from(watch.id().expect("it runs")).expect("a number");
    kill(Pid::from_raw(id), Signal::SIGTERM).expect("a signal");
    assert_eq!(next().await.expect("text").as_deref(), Some("ended"));
    let status = timeout(LIMIT, watch.wait()).await.expect("in time");
    assert!(status.expect("a status").success());
}

#[tokio::test]
async fn the_bootstrap_has_deprecated_tags_of_metrics_unless_omitted() {
    let agent = Agent::start("service { name = \"web\" port = 80 connect { sidecar_service {} } }");
    let agent = agent.await;
    let folder = tempfile::tempdir().expect("a folder");
    let words = ["connect", "envoy", "-sidecar-for", "web", "-bootstrap"];
    for (more, expected) in [(&[][..], true), (&["-omit-deprecated-tags"][..], false)] {
        let words = [&words[..], more].concat();
        let (code, out, error) = legate(&agent, folder.path(), &words).await;
        assert_eq!(code, 0, "{error}");
        let document: serde_json::Value = serde_json::from_str(&out).expect("JSON");
        let tags = document["stats_config"]["stats_tags"].as_array();
        let names = tags.expect("tags").iter().map(|tag| &tag["tag_name"]);
        let names: Vec<_> = names.collect();
        assert!(names.contains(&&"consul.destination.service".into()));
        assert_eq!(names.contains(&&"consul.service".into()), expected);
    }
}

#[tokio::test]
async fn a_command_runs_on_nodes_that_permit_it() {
    let agent = Agent::start("disable_remote_exec = false").await;
    let folder = tempfile::tempdir().expect("a folder");
    let run = async |words: &[&str]| legate(&agent, folder.path(), words).await;
    let (code, out, error) = run(&["exec", "-verbose", "echo one; echo two >&2; exit 3"]).await;
    assert_eq!(code, 2, "{out}{error}");
    for part in [
        "==> n1: acknowledged\n",
        "    n1: one\n    n1: two\n",
        "==> n1: finished with exit code 3\n1 / 1 node(s) completed / acknowledged\n",
    ] {
        assert!(out.contains(part), "{out}");
    }
    let args = ["exec", "-shell=false", "-node=^n", "echo", "a  b"];
    let (code, out, error) = run(&args).await;
    assert_eq!(code, 0, "{error}");
    assert!(
        out.starts_with("    n1: a  b\n    n1:\n==> n1: finished"),
        "{out}"
    );
    let (_, out, _) = run(&["exec", "-node=^m", "-wait=200ms", "ls"]).await;
    assert_eq!(out, "0 / 0 node(s) completed / acknowledged\n");
    // Nothing is left.
    let (status, keys) = agent.ask(http::Method::GET, "/v1/kv/?keys", None).await;
    assert_eq!(
        (status, keys),
        (http::StatusCode::OK, serde_json::json!([]))
    );
    assert_eq!(agent.get("/v1/session/list").await, serde_json::json!([]));
    agent.stop().await;

    let agent = Agent::start("").await;
    let words = ["exec", "-wait=200ms", "ls"];
    let (code, out, _) = legate(&agent, folder.path(), &words).await;
    assert_eq!(
        (code, out.as_str()),
        (0, "0 / 0 node(s) completed / acknowledged\n")
    );
    agent.stop().await;
}
