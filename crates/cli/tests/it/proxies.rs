//! `legate proxy list` and `status` of a server.

use std::process::Output;

use tokio::process::Command;

use crate::agent::Agent;

async fn legate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    let command = command.arg("proxy").args(args).kill_on_drop(true);
    command.output().await.expect("legate runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn a_server_is_asked_for_its_proxies() {
    let agent = Agent::start("").await;
    let address = agent.http.to_string();
    let list = legate(&["list", "--http-addr", &address]).await;
    assert!(list.status.success(), "{}", text(&list.stderr));
    assert_eq!(
        text(&list.stdout),
        "No proxy is connected to this server.\n"
    );
    let json = legate(&["list", "--http-addr", &address, "-o", "json"]).await;
    assert_eq!(text(&json.stdout), "[]\n");
    let unknown = legate(&["status", "web-proxy", "--http-addr", &address]).await;
    assert!(!unknown.status.success());
    let error = text(&unknown.stderr);
    assert!(
        error.contains("no proxy \"web-proxy\" is connected"),
        "{error}"
    );
    let unknown = legate(&["status", "n1/web proxy", "--http-addr", &address]).await;
    let error = text(&unknown.stderr);
    assert!(
        error.contains("no proxy \"n1/web proxy\" is connected"),
        "{error}"
    );
    let nowhere = legate(&["list", "--http-addr", "nowhere"]).await;
    assert!(text(&nowhere.stderr).contains("dial tcp nowhere:80"));
}
