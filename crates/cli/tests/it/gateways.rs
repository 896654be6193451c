//! `legate connect envoy -gateway`: registers a gateway and becomes its Envoy.

use std::process::Stdio;

use legate_testkit::envoy;
use legate_testkit::network::free_port;
use legate_testkit::wait::until;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::agent::Agent;

/// Services, and entries of the gateways. `INGRESS` and `API` are the ports of listeners.
const FILE: &str = r#"
    service { name = "db" port = 5432 }
    service { name = "web" port = 8080 connect { sidecar_service {} } }
    config_entries { bootstrap = [
      { kind = "terminating-gateway" name = "terminating-gateway" services = [{ name = "db" }] },
      { kind = "ingress-gateway" name = "ingress-gateway"
        listeners = [{ port = INGRESS services = [{ name = "web" }] }] },
      { kind = "api-gateway" name = "api-gateway"
        listeners = [{ name = "one" port = API protocol = "tcp" }] },
      { kind = "tcp-route" name = "one" parents = [{ name = "api-gateway" }] services = [{ name = "web" }] },
    ] }
"#;

fn gateway(agent: &Agent, kind: &str, port: u16) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    command
        .args(["connect", "envoy", "-register"])
        .arg(format!("-http-addr={}", agent.http))
        .arg(format!("-gateway={kind}"))
        .arg(format!("-address=127.0.0.1:{port}"))
        .arg(format!("-admin-bind=127.0.0.1:{}", free_port()))
        .arg(format!("-envoy-binary={}", envoy::binary().display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command.spawn().expect("legate runs")
}

async fn listens(port: u16) {
    until(async || {
        let connected = TcpStream::connect(("127.0.0.1", port)).await;
        connected.map_err(|error| format!("port {port}: {error}"))
    })
    .await;
}

#[tokio::test]
async fn every_kind_is_registered_and_listens() {
    let ingress = free_port();
    let api = free_port();
    let file = FILE.replace("INGRESS", &ingress.to_string());
    let agent = Agent::start(&file.replace("API", &api.to_string())).await;
    let mut running = Vec::new();
    for kind in ["mesh", "terminating", "ingress", "api"] {
        let own = free_port();
        let mut gateway = gateway(&agent, kind, own);
        listens(match kind {
            "ingress" => ingress,
            "api" => api,
            _ => own,
        })
        .await;
        assert_eq!(gateway.try_wait().expect("a child"), None);
        running.push(gateway);
        let name = format!("{kind}-gateway");
        let found = agent.get(&format!("/v1/catalog/service/{name}")).await;
        assert_eq!(found[0]["ServiceKind"], Value::from(name));
        assert_eq!(found[0]["ServicePort"], own);
    }
    for mut gateway in running {
        gateway.kill().await.expect("it ends");
    }
    agent.stop().await;
}
