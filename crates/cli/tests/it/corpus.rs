//! Configuration files with which `legate validate` and `legate agent` agree: both accept a file, or both
//! refuse it with the same words.

use std::path::Path;
use std::process::{Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::agent::LIMIT;

/// Files that start an agent, each with a part of the note that the agent logs about it, or nothing.
const ACCEPTED: &[(&str, &str)] = &[
    ("", ""),
    (r#"service { name = "web" port = 80 }"#, ""),
    (
        r#"service { name = "web" port = 80 connect { sidecar_service { proxy { upstreams = [
             { destination_name = "db" datacenter = "dc2" local_bind_port = 1 }] } } } }"#,
        "",
    ),
    // Everything of a registration that the API takes, also what has no effect.
    (
        r#"service { name = "web" port = 80 token = "a-secret"
             checks = [{ ttl = "10s" token = "a-secret" }] }"#,
        "service[0].Token has no effect: the agent registers everything in its files",
    ),
    (
        r#"check { id = "disk" ttl = "10s" token = "a-secret" }"#,
        "check[0].Token has no effect",
    ),
    (
        r#"services { name = "web" port = 80 connect { sidecar_service { proxy {
             config { envoy_nonsense = "1" protocol = "http" nested { a = [1, 2] } } } } } }"#,
        "Proxy.Config.envoy_nonsense has no effect",
    ),
    (
        r#"service { name = "web-proxy" kind = "connect-proxy" port = 1
             proxy { destination_service_name = "web" expose { paths = [{ path = "/m" listener_port = 2
             local_path_port = 3 protocol = "http" }] } mode = "transparent"
             transparent_proxy { outbound_listener_port = 4 dialed_directly = true } } }"#,
        "",
    ),
    (
        r#"service { name = "gate" kind = "mesh-gateway" port = 443 }"#,
        "",
    ),
    (
        r#"service { name = "gate" kind = "terminating-gateway" port = 443 }"#,
        "",
    ),
    (
        r#"service { name = "gate" kind = "ingress-gateway" port = 443 }"#,
        "",
    ),
    (
        r#"service { name = "gate" kind = "api-gateway" port = 443 }"#,
        "",
    ),
    (
        r#"service { name = "web" port = 80 connect { sidecar_service { proxy {
             mesh_gateway { mode = "local" } upstreams = [{ destination_name = "db" local_bind_port = 1
             mesh_gateway { mode = "remote" } config { passive_health_check { max_failures = 1 } } }] } } } }"#,
        "",
    ),
    (
        r#"service { name = "web" port = 80 weights { passing = 65535 warning = 0 }
             tagged_addresses { wan { address = "192.0.2.1" port = 1 } } meta { a = "b" }
             locality { region = "r" zone = "z" } enable_tag_override = true }"#,
        "",
    ),
    (r#"locality { region = "r" zone = "z" }"#, ""),
    (
        r#"services = [{ name = "a" port = 1 }, { name = "b" socket_path = "/s" }]"#,
        "",
    ),
    (
        r#"enable_local_script_checks = true check { name = "c" args = ["true"] interval = "1h" }"#,
        "",
    ),
    (
        r#"config_entries { bootstrap = [
             { kind = "service-defaults" name = "web" protocol = "http" },
             { kind = "service-router" name = "web" routes = [{ match { http { path_prefix = "/a" } } }] }] }"#,
        "",
    ),
    (r#"watches = [{ type = "nodes" handler = "true" }]"#, ""),
    (
        r#"watches = [{ type = "event" handler_type = "http" http_handler_config { path = "http://127.0.0.1:1/" } }]"#,
        "",
    ),
    (
        r#"disable_coordinates = true raft_protocol = 3"#,
        "raft_protocol has no effect",
    ),
    (
        r#"acl { enabled = true tokens { initial_management = "any-secret" } }"#,
        "",
    ),
];

/// Files that neither accepts, each with a part of the error.
const REFUSED: &[(&str, &str)] = &[
    (r#"datacenter = "a b""#, "a b"),
    (r#"node_name = "a/b""#, "a/b"),
    (r#"service { port = 80 }"#, "Missing service name"),
    (r#"service { name = "web" colour = "red" }"#, "colour"),
    (
        r#"service { name = "consul" port = 1 }"#,
        "it is the server's own service",
    ),
    (r#"service { name = "web" address = "0.0.0.0" }"#, "0.0.0.0"),
    (
        r#"service { name = "web" port = 1 socket_path = "/s" }"#,
        "SocketPath",
    ),
    (r#"service { name = "web" partition = "east" }"#, "east"),
    (
        r#"service { name = "web" weights { passing = 65536 } }"#,
        "Weights.Passing: 65536 must be from 1 to 65535",
    ),
    (
        r#"service { name = "web" weights { passing = 1 warning = 65536 } }"#,
        "Weights.Warning: 65536",
    ),
    (
        r#"service { name = "web" locality { zone = "z" } }"#,
        "zone cannot be set without region",
    ),
    (
        r#"locality { zone = "z" }"#,
        "zone cannot be set without region",
    ),
    (
        r#"service { name = "web-proxy" kind = "connect-proxy" port = 1 }"#,
        "DestinationServiceName",
    ),
    (
        r#"service { name = "web" port = 80 connect { sidecar_service { id = "own" } } }"#,
        "Connect.SidecarService.ID",
    ),
    (
        r#"service { name = "web" port = 80 connect { sidecar_service { proxy { upstreams = [
             { destination_name = "db" destination_peer = "east" datacenter = "dc2" local_bind_port = 1 }] } } } }"#,
        "DestinationPeer",
    ),
    (
        r#"service { name = "web" checks = [{ http = "http://x" }] }"#,
        "Interval must be > 0",
    ),
    (
        r#"check { name = "c" args = ["true"] interval = "1s" }"#,
        "Scripts are disabled on this agent",
    ),
    (
        r#"check { name = "c" os_service = "spooler" interval = "1s" }"#,
        "OSService",
    ),
    (r#"check { ttl = "1s" }"#, "the check needs a name or an ID"),
    (r#"check { id = "serfHealth" ttl = "1s" }"#, "serfHealth"),
    (
        r#"config_entries { bootstrap { kind = "service-defaults" name = "web" protocol = "smoke" } }"#,
        "smoke",
    ),
    (
        r#"config_entries { bootstrap { kind = "service-router" name = "web" routes = [
             { match { http { path_prefix = "/a" } } }] } }"#,
        "web",
    ),
    (
        r#"connect { ca_config { leaf_cert_ttl = "1m" } }"#,
        "1h0m0s",
    ),
    (
        r#"telemetry { statsd_address = "nowhere" }"#,
        "telemetry.statsd_address",
    ),
    (
        r#"telemetry { otlp_endpoint = "ftp://x" }"#,
        "telemetry.otlp_endpoint",
    ),
    (r#"tls { grpc { tls_cipher_suites = "ROT13" } }"#, "ROT13"),
    (
        r#"watches = [{ type = "nodes" }]"#,
        "watches[0]: a handler is required",
    ),
    (
        r#"watches = [{ type = "key" handler = "true" }]"#,
        "watches[0]: Must specify a single key",
    ),
    (
        r#"watches = [{ type = "nodes" handler = "true" colour = "red" }]"#,
        "colour",
    ),
    (
        r#"ports { http = -1 } watches = [{ type = "nodes" handler = "true" }]"#,
        "watches requires the HTTP API without TLS",
    ),
    (
        r#"dns_config { udp_answer_limit = -1 }"#,
        "udp_answer_limit",
    ),
    (
        r#"primary_gateways = ["x"]"#,
        "primary_gateways requires connect.enable_mesh_gateway_wan_federation",
    ),
];

/// The settings of a server that starts in any directory and on any machine.
fn base(directory: &Path) -> String {
    let data = directory.join("data");
    format!(
        "server = true data_dir = {data:?}\n\
         ports {{ http = 0 grpc = -1 grpc_tls = 0 dns = 0 }}\n"
    )
}

async fn validated(directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    let command = command.arg("validate").arg(directory.join("files"));
    let output = command.kill_on_drop(true).output();
    timeout(LIMIT, output)
        .await
        .expect("it ends")
        .expect("legate runs")
}

/// Starts an agent. Returns whether it ran, and its log.
async fn ran(directory: &Path) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    let command = command
        .arg("agent")
        .arg("-config-dir")
        .arg(directory.join("files"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().expect("legate runs");
    let mut log = child.stderr.take().expect("it is piped");
    let mut said = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    let whole = async {
        let first = said.next_line().await.expect("text");
        if first.is_some() {
            let pid = child.id().expect("it runs").cast_signed();
            kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
        }
        let mut text = String::new();
        log.read_to_string(&mut text).await.expect("text");
        let ended = child.wait().await.expect("it ends");
        assert_eq!(ended.success(), first.is_some(), "{text}");
        (first.is_some(), text)
    };
    timeout(LIMIT, whole).await.expect("it starts or ends")
}

fn directory(file: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let files = directory.path().join("files");
    std::fs::create_dir(&files).expect("a directory");
    std::fs::write(files.join("1.hcl"), base(directory.path())).expect("a file");
    std::fs::write(files.join("2.hcl"), file).expect("a file");
    directory
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[tokio::test]
async fn validate_and_the_agent_accept_the_same_files() {
    for (file, note) in ACCEPTED {
        let directory = directory(file);
        let output = validated(directory.path()).await;
        assert!(output.status.success(), "{file}: {}", text(&output.stderr));
        let (runs, log) = ran(directory.path()).await;
        assert!(runs, "{file}: {log}");
        assert!(log.contains(note), "{file}: {log}");
        assert!(!log.contains("a-secret"), "{file}: {log}");
    }
}

#[tokio::test]
async fn validate_and_the_agent_refuse_the_same_files() {
    for (file, reason) in REFUSED {
        let directory = directory(file);
        let output = validated(directory.path()).await;
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{file}: {said}");
        assert!(said.contains(reason), "{file}: {said}");
        let (runs, log) = ran(directory.path()).await;
        assert!(!runs, "{file}");
        assert!(log.contains(reason), "{file}: {log}");
    }
}

/// What the files refer to is in the agent's store, which `validate` does not open.
#[tokio::test]
async fn validate_takes_for_granted_what_is_in_the_store() {
    for (file, starts, note) in [
        (
            r#"service { name = "web" port = 80 namespace = "team" }"#,
            true,
            "is not registered until its namespace exists",
        ),
        (
            r#"check { name = "c" ttl = "1s" service_id = "elsewhere" }"#,
            false,
            "elsewhere",
        ),
    ] {
        let directory = directory(file);
        let output = validated(directory.path()).await;
        assert!(output.status.success(), "{file}: {}", text(&output.stderr));
        let (runs, log) = ran(directory.path()).await;
        assert_eq!(runs, starts, "{file}: {log}");
        assert!(log.contains(note), "{file}: {log}");
    }
}
