//! Starting and stopping whole servers.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use http::StatusCode;
use legate_model::{Secret, TrustDomain};
use legate_server::{Parts, Server, ServerConfig, StartError};
use legate_testkit::state::State;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::http_client::{Client, start};
use crate::running::Running;

const STOP: Duration = Duration::from_secs(10);

fn everything() -> ServerConfig {
    let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    ServerConfig {
        http: free,
        grpc: free,
        grpc_tls: free,
        dns: free,
        ..ServerConfig::default()
    }
}

#[tokio::test]
async fn the_same_ports_serve_again_right_after_a_stop() {
    let first = Running::start(everything(), |_| {}, Parts::default()).await;
    let first = first.unwrap();
    let config = ServerConfig {
        http: first.http_addr(),
        grpc: first.grpc_addr(),
        grpc_tls: first.grpc_tls_addr(),
        dns: first.dns_addr(),
        ..everything()
    };
    let client = Client {
        address: first.http_addr().unwrap(),
        token: String::new(),
    };
    // Open connections at shutdown must not keep the ports bound.
    let _open = TcpStream::connect(first.grpc_addr().unwrap())
        .await
        .unwrap();
    let _idle = TcpStream::connect(client.address).await.unwrap();
    client.get("/v1/status/leader").await.json();
    let domain: TrustDomain = first.ca().trust_domain();
    let index = first.store().state().index();
    let kept = first.stop_and_keep(STOP).await;
    assert!(
        TcpStream::connect(client.address).await.is_err(),
        "nobody listens"
    );

    let second = kept.start(config).await;
    assert_eq!(second.http_addr(), Some(client.address));
    client.get("/v1/status/leader").await.json();
    assert_eq!(
        second.ca().trust_domain(),
        domain,
        "the store carries the CA"
    );
    assert!(second.store().state().index() >= index);
    second.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn a_stop_answers_waiting_queries() {
    let (server, client) = start(|_| {}).await;
    let index = client.get("/v1/catalog/nodes").await.index();
    let mut stream = TcpStream::connect(client.address).await.unwrap();
    let request = format!(
        "GET /v1/catalog/nodes?index={index}&wait=10m HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    // `100 Continue`: the server has started to process the request.
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b" ").await.unwrap();

    let (stopped, answer) = tokio::join!(server.stop(STOP), async {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    });
    stopped.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("shutting down"), "{answer}");
}

#[tokio::test]
async fn a_port_that_is_taken_is_named() {
    let (_first, client) = start(|_| {}).await;
    let config = ServerConfig {
        http: Some(client.address),
        ..everything()
    };
    let error = Server::start(config, Parts::default()).await.unwrap_err();
    assert!(matches!(error, StartError::Listen { .. }));
    let text = error.to_string();
    assert!(
        text.contains("HTTP") && text.contains(&client.address.to_string()),
        "{text}"
    );
    // The error chain as programs print it.
    let chain = format!("{:#}", anyhow::Error::new(error).context("cannot start"));
    assert_eq!(
        chain.matches("Address already in use").count(),
        1,
        "{chain}"
    );
}

#[tokio::test]
async fn invalid_names_and_files_are_reported() {
    let text = async |change: &dyn Fn(&mut ServerConfig)| {
        let mut config = everything();
        change(&mut config);
        let error = Server::start(config, Parts::default()).await.unwrap_err();
        error.to_string()
    };
    let datacenter = text(&|config| config.datacenter = "DC 1".to_owned()).await;
    assert!(datacenter.contains("datacenter"), "{datacenter}");
    let node = text(&|config| config.node_name = String::new()).await;
    assert!(node.contains("node name"), "{node}");
    let files = text(&|config| {
        config.grpc_tls_files = Some((
            "/nonexistent/cert.pem".into(),
            "/nonexistent/key.pem".into(),
        ));
    });
    let files = files.await;
    assert!(files.contains("/nonexistent/cert.pem"), "{files}");
}

/// As in Consul, which discourages but accepts it.
#[tokio::test]
async fn the_first_token_need_not_be_a_uuid() {
    let (_server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.initial_management = Some(Secret::new("root"));
    })
    .await;
    let root = client.with_token("root");
    assert_eq!(root.get("/v1/acl/tokens").await.status, StatusCode::OK);
}

#[tokio::test]
async fn connections_per_client_are_limited() {
    let (_server, client) = start(|_| {}).await;
    let mut open = Vec::new();
    for _ in 0..200 {
        open.push(TcpStream::connect(client.address).await.unwrap());
    }
    let refused = client.get("/v1/status/leader").await;
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
    drop(open);
    let entry = json!({ "Kind": "service-defaults", "Name": "web" });
    // Permits are released once the server notices that the connections are closed.
    loop {
        let reply = client.put("/v1/config", &entry).await;
        if reply.status == StatusCode::OK {
            break;
        }
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn the_program_serves_until_sigterm_and_reports_errors() {
    let program = env!("CARGO_BIN_EXE_legate-server");
    let state = State::new().await;
    let mut running = Command::new(program)
        .args(["--http-port=0", "--grpc-port=0"])
        .args(["--grpc-tls-port=-1", "--dns-port=-1"])
        .args(state.flags())
        .env_remove("LEGATE_INITIAL_MANAGEMENT_TOKEN")
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut log = BufReader::new(running.stderr.take().unwrap()).lines();
    let started = loop {
        let line = log.next_line().await.unwrap().expect("it starts");
        if line.contains("started") {
            break line;
        }
    };
    let (_, address) = started.split_once("http=").unwrap();
    let client = Client {
        address: address.split(' ').next().unwrap().parse().unwrap(),
        token: String::new(),
    };
    client.get("/v1/status/leader").await.json();
    let id = running.id().expect("it runs").try_into().unwrap();
    kill(Pid::from_raw(id), Signal::SIGTERM).unwrap();
    assert!(running.wait().await.unwrap().success());

    for (flags, says) in [
        (["--bind=0.0.0.0", "--acl"], "--advertise"),
        (["--http-port=nonsense", "--acl"], "--http-port"),
        (["--datacenter=DC/1", "--acl"], "datacenter"),
    ] {
        let ended = Command::new(program).args(flags).output().await.unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert!(!ended.status.success(), "{text}");
        assert!(text.contains(says), "{text}");
    }
}
