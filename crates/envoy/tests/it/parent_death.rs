//! An Envoy does not outlive the process that started it, and does not see its secrets.
//!
//! The test runs its own executable again as the parent. Parent and child write to one pipe, so
//! that the end of the pipe means that both have ended.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use legate_envoy::process::{DrainStrategy, EnvoyLog, Launch};
use legate_runtime::logging::Level;
use tokio::time::Instant;

const PROGRAM: &str = "LEGATE_TEST_PROGRAM";
/// Lifetime of an orphan.
const LIFE: Duration = Duration::from_secs(120);

#[test]
#[ignore = "only of use as the parent in the other test"]
#[expect(
    clippy::disallowed_methods,
    reason = "the other test passes the program this way"
)]
fn parent() {
    let Some(program) = std::env::var_os(PROGRAM) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let launch = Launch {
            executable: program.into(),
            bootstrap: "{}".to_owned(),
            log: EnvoyLog {
                level: Level::Info,
                json: false,
            },
            concurrency: 1,
            drain_time: Duration::ZERO,
            drain_strategy: DrainStrategy::Immediate,
            extra_args: Vec::new(),
        };
        let mut process = launch.spawn(None, false).unwrap();
        process.wait().await;
    });
}

#[test]
fn envoy_dies_with_its_parent_and_sees_no_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("envoy");
    let script = format!(
        "#!/bin/sh\nenv\necho started\nexec sleep {}\n",
        LIFE.as_secs()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "parent_death::parent",
            "--ignored",
            "--nocapture",
        ])
        .env(PROGRAM, &program)
        .env("DP_CREDENTIAL_STATIC_TOKEN", "hidden-1")
        .env("DP_CREDENTIAL_LOGIN_BEARER_TOKEN", "hidden-2")
        .env("DP_PROXY_ID", "shown")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(parent.stdout.take().unwrap());
    let mut seen = String::new();
    while !seen.ends_with("started\n") {
        assert!(
            output.read_line(&mut seen).unwrap() > 0,
            "ended early: {seen}"
        );
    }
    assert!(seen.contains("DP_PROXY_ID=shown"), "{seen}");
    assert!(!seen.contains("hidden"), "{seen}");

    let killed = Instant::now();
    parent.kill().unwrap();
    parent.wait().unwrap();
    output.read_to_string(&mut seen).unwrap();
    assert!(killed.elapsed() < LIFE / 4, "the child outlived its parent");
}
