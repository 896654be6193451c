//! `legate agent`: registrations from files, checks, and refused settings.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http::response::Parts;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use legate_runtime::Scope;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::timeout;

/// The deadline for every step.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

fn command(args: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_legate"));
    command
        .arg("agent")
        .arg(format!("-config-dir={}", directory.display()))
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// A running agent.
pub(crate) struct Agent {
    child: Child,
    pub(crate) http: SocketAddr,
    scope: Scope,
}

impl Agent {
    /// Starts an agent in development mode on free ports, with one file.
    pub(crate) async fn start(file: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self::start_in(directory.path(), file).await
    }

    /// The same with the file in a given directory.
    async fn start_in(directory: &Path, file: &str) -> Self {
        std::fs::write(directory.join("agent.hcl"), file).unwrap();
        let ports = ["http", "grpc", "grpc-tls", "dns"].map(|api| format!("-{api}-port=0"));
        let mut args = vec!["-dev", "-node", "n1"];
        args.extend(ports.iter().map(String::as_str));
        let mut command = command(&args, directory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let started = async {
            let mut before = String::new();
            while let Some(line) = lines.next_line().await.unwrap() {
                let at = line.split_once(" http=").map(|(_, rest)| rest);
                if let Some(at) = at.filter(|_| line.contains("started")) {
                    let (at, _) = at.split_once(' ').unwrap();
                    return at.parse().unwrap();
                }
                before.push_str(&line);
            }
            panic!("the agent ended: {before}")
        };
        let http = timeout(LIMIT, started).await.expect("the agent starts");
        let line = timeout(LIMIT, said.next_line()).await.unwrap().unwrap();
        assert_eq!(line.as_deref(), Some("==> Legate agent running!"));
        let scope = Scope::new("test");
        // The log is read continuously, so that the agent does not block.
        scope.spawn("log", async move {
            while lines.next_line().await?.is_some() {}
            Ok::<_, std::io::Error>(())
        });
        Self { child, http, scope }
    }

    pub(crate) async fn ask(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (StatusCode, Value) {
        let (head, answer) = self.exchange(method, path, body).await;
        (head.status, answer)
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Value>) -> (Parts, Value) {
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "agent")
            .body(Full::new(Bytes::from(body)))
            .unwrap();
        let stream = TcpStream::connect(self.http).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .unwrap();
        self.scope.spawn("connection", async move {
            let _ = connection.await;
            Ok::<_, std::io::Error>(())
        });
        let answer = timeout(LIMIT, sender.send_request(request))
            .await
            .unwrap()
            .unwrap();
        let (head, body) = answer.into_parts();
        let text = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8(text.to_vec()).unwrap();
        (
            head,
            serde_json::from_str(&text).unwrap_or(Value::String(text)),
        )
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
        answer
    }

    async fn put(&self, path: &str, body: Option<Value>) {
        let (status, answer) = self.ask(Method::PUT, path, body).await;
        assert_eq!(status, StatusCode::OK, "{path}: {answer}");
    }

    /// Waits until a check has a status, and returns its output.
    async fn check(&self, id: &str, status: &str) -> String {
        let found = async {
            let mut path = "/v1/health/node/n1".to_owned();
            loop {
                let (head, checks) = self.exchange(Method::GET, &path, None).await;
                let checks = checks.as_array().unwrap().iter();
                let check = checks.clone().find(|check| check["CheckID"] == id);
                if let Some(check) = check.filter(|check| check["Status"] == status) {
                    return check["Output"].as_str().unwrap().to_owned();
                }
                let index = head.headers["x-consul-index"].to_str().unwrap();
                path = format!("/v1/health/node/n1?index={index}&wait=10s");
            }
        };
        let in_time = timeout(LIMIT, found).await;
        in_time.unwrap_or_else(|_| panic!("{id} is not {status}"))
    }

    pub(crate) async fn stop(mut self) {
        let pid = self.child.id().unwrap().cast_signed();
        kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
        let ended = timeout(LIMIT, self.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
}

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn files_add_services_and_entries_to_the_agents_own() {
    let agent = Agent::start(
        r#"
        datacenter = "east"
        services { name = "db" port = 5432 connect { sidecar_service {} } }
        config_entries { bootstrap { kind = "service-defaults" name = "db" protocol = "http" } }
        "#,
    )
    .await;
    let own = agent.get("/v1/health/service/consul").await;
    assert_eq!(own[0]["Node"]["Node"], "n1");
    assert_eq!(own[0]["Node"]["Datacenter"], "east");
    assert_eq!(own[0]["Checks"][0]["CheckID"], "serfHealth");
    assert_eq!(own[0]["Checks"][0]["Status"], "passing");
    let entry = agent.get("/v1/config/service-defaults/db").await;
    assert_eq!(entry["Protocol"], "http");
    let services = agent.get("/v1/agent/services").await;
    let ids: Vec<_> = services.as_object().unwrap().keys().collect();
    assert_eq!(
        ids,
        ["db", "db-sidecar-proxy"],
        "the agent's own is not among them"
    );
    assert_eq!(services["db-sidecar-proxy"]["Port"], 21000);
    let members = agent.get("/v1/agent/members?wan=1").await;
    assert_eq!(members[0]["Name"], "n1.east");
    let ports = &agent.get("/v1/agent/self").await["xDS"]["Ports"];
    assert!(ports["TLS"].as_i64() > Some(0) && ports["Plaintext"].as_i64() > Some(0));
    agent.stop().await;
}

#[tokio::test]
async fn every_type_of_check_is_run() {
    let agent = Agent::start("").await;
    let (http, http_at) = listen().await;
    let web = Router::new().route("/", get(|| async { "fine" }));
    agent
        .scope
        .spawn("web", async move { axum::serve(http, web).await });
    let (grpc, grpc_at) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let incoming = tonic::transport::server::TcpIncoming::from(grpc);
    let server = tonic::transport::Server::builder().add_service(health);
    agent.scope.spawn(
        "gRPC",
        async move { server.serve_with_incoming(incoming).await },
    );
    let (sidecar, sidecar_at) = listen().await;
    let definition = json!({
        "Name": "web", "Port": http_at.port(),
        "Checks": [
            { "CheckID": "http", "HTTP": format!("http://{http_at}/"), "Interval": "1s" },
            { "CheckID": "tcp", "TCP": http_at.to_string(), "Interval": "1s" },
            { "CheckID": "grpc", "GRPC": grpc_at.to_string(), "Interval": "1s" },
            { "CheckID": "ttl", "TTL": "1h" },
        ],
        "Connect": { "SidecarService": { "Port": sidecar_at.port() } },
    });
    agent
        .put("/v1/agent/service/register", Some(definition))
        .await;
    assert!(
        agent
            .check("http", "passing")
            .await
            .ends_with("Output: fine")
    );
    agent.check("tcp", "passing").await;
    agent.check("grpc", "passing").await;
    let listening = "service:web-sidecar-proxy:1";
    agent.check(listening, "passing").await;

    // The sidecar's alias check has the status of its service.
    let alias = "service:web-sidecar-proxy:2";
    agent.check(alias, "critical").await;
    let (status, health) = agent
        .ask(Method::GET, "/v1/agent/health/service/id/web", None)
        .await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(health["AggregatedStatus"], "critical");
    agent.put("/v1/agent/check/warn/ttl?note=soon", None).await;
    agent.check(alias, "warning").await;
    let by_name = "/v1/agent/health/service/name/web?format=text";
    let (status, text) = agent.ask(Method::GET, by_name, None).await;
    assert_eq!(
        (status, text),
        (StatusCode::TOO_MANY_REQUESTS, json!("warning"))
    );
    let update = json!({ "Status": "passing", "Output": "all good" });
    agent.put("/v1/agent/check/update/ttl", Some(update)).await;
    agent.check(alias, "passing").await;
    assert_eq!(agent.check("ttl", "passing").await, "all good");
    let passing = agent
        .get("/v1/health/connect/web?passing&ns=&partition=&peer=")
        .await;
    assert_eq!(passing.as_array().unwrap().len(), 1);

    drop(sidecar);
    agent.put("/v1/agent/service/deregister/web", None).await;
    assert_eq!(agent.get("/v1/agent/checks").await, json!({}));
    agent.stop().await;
}

#[tokio::test]
async fn a_check_goes_through_the_sidecar_that_exposes_it() {
    let agent = Agent::start("").await;
    // The listener that Envoy would have: the first of Consul's ports for exposed checks.
    let sidecar = TcpListener::bind("127.0.0.1:21500").await.unwrap();
    let web = Router::new().route("/health", get(|| async { "through the sidecar" }));
    agent
        .scope
        .spawn("web", async move { axum::serve(sidecar, web).await });
    let definition = |expose: bool| {
        json!({
            "Name": "web", "Port": 1,
            "Check": { "HTTP": "http://127.0.0.1:1/health", "Interval": "1s" },
            "Connect": { "SidecarService": { "Proxy": { "Expose": { "Checks": expose } } } },
        })
    };
    agent
        .put("/v1/agent/service/register", Some(definition(true)))
        .await;
    assert!(
        agent
            .check("service:web", "passing")
            .await
            .contains("through the sidecar")
    );
    let check = &agent.get("/v1/agent/checks").await["service:web"];
    assert_eq!(check["ExposedPort"], 21500);
    assert_eq!(check["Definition"]["HTTP"], "http://127.0.0.1:1/health");
    agent
        .put("/v1/agent/service/register", Some(definition(false)))
        .await;
    agent.check("service:web", "critical").await;
    let check = &agent.get("/v1/agent/checks").await["service:web"];
    assert_eq!(
        (&check["ExposedPort"], &check["Definition"]),
        (&json!(0), &json!({}))
    );
    // A config entry exposes checks for all proxies.
    let defaults =
        json!({ "Kind": "proxy-defaults", "Name": "global", "Expose": { "Checks": true } });
    agent.put("/v1/config", Some(defaults)).await;
    agent.check("service:web", "passing").await;
    agent.stop().await;
}

#[tokio::test]
async fn checks_by_themselves_expire_and_are_removed() {
    let agent = Agent::start("").await;
    let check = json!({ "Name": "beat", "TTL": "1s", "Status": "passing" });
    agent.put("/v1/agent/check/register", Some(check)).await;
    agent.check("beat", "passing").await;
    assert!(
        agent
            .check("beat", "critical")
            .await
            .contains("TTL expired")
    );
    agent.put("/v1/agent/check/pass/beat", None).await;
    agent.check("beat", "passing").await;
    agent.put("/v1/agent/check/deregister/beat", None).await;
    for (path, says) in [
        ("/v1/agent/check/pass/beat", "Unknown check ID"),
        ("/v1/agent/check/deregister/serfHealth", "Unknown check ID"),
        ("/v1/agent/service/deregister/consul", "Unknown service ID"),
    ] {
        let (status, text) = agent.ask(Method::PUT, path, None).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        assert!(text.as_str().unwrap().contains(says), "{text}");
    }
    let tcp = json!({ "Name": "tcp", "TCP": "127.0.0.1:1", "Interval": "1h" });
    agent.put("/v1/agent/check/register", Some(tcp)).await;
    let (status, text) = agent
        .ask(Method::PUT, "/v1/agent/check/pass/tcp", None)
        .await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        text.as_str()
            .unwrap()
            .contains("does not have associated TTL"),
        "{text}"
    );
    let own = json!({ "Name": "consul", "Port": 1 });
    let (status, _) = agent
        .ask(Method::PUT, "/v1/agent/service/register", Some(own))
        .await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    agent.stop().await;
}

#[tokio::test]
async fn a_service_is_waited_for_by_its_hash() {
    let agent = Agent::start("services { name = \"db\" port = 1 }").await;
    let first = agent.get("/v1/agent/service/db").await;
    let hash = first["ContentHash"].as_str().unwrap();
    let same = format!("/v1/agent/service/db?hash={hash}&wait=50ms");
    assert_eq!(agent.get(&same).await, first);
    let longer = format!("/v1/agent/service/db?hash={hash}&wait=60s");
    let change = async {
        // A changed check is not a change of the service.
        let check = json!({ "Name": "c", "ServiceID": "db", "TTL": "1h" });
        agent.put("/v1/agent/check/register", Some(check)).await;
        let other = json!({ "Name": "db", "Port": 2 });
        agent.put("/v1/agent/service/register", Some(other)).await;
    };
    let (next, ()) = tokio::join!(agent.get(&longer), change);
    assert_eq!(next["Port"], 2);
    assert_ne!(next["ContentHash"], first["ContentHash"]);
    agent.stop().await;
}

#[tokio::test]
async fn files_are_reloaded_on_sighup() {
    let directory = tempfile::tempdir().unwrap();
    let pid_file = directory.path().join("pid");
    let file = |service: &str| {
        let pid_file = pid_file.display();
        format!("services {{ name = \"{service}\" port = 1 }} pid_file = \"{pid_file}\"")
    };
    let agent = Agent::start_in(directory.path(), &file("one")).await;
    let pid: i32 = std::fs::read_to_string(&pid_file).unwrap().parse().unwrap();
    assert_eq!(Some(pid.unsigned_abs()), agent.child.id());
    std::fs::write(directory.path().join("agent.hcl"), file("two")).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGHUP).unwrap();
    let changed = async {
        let mut path = "/v1/catalog/services".to_owned();
        loop {
            let (head, services) = agent.exchange(Method::GET, &path, None).await;
            if services.get("two").is_some() && services.get("one").is_none() {
                break;
            }
            let index = head.headers["x-consul-index"].to_str().unwrap();
            path = format!("/v1/catalog/services?index={index}");
        }
    };
    timeout(LIMIT, changed)
        .await
        .expect("the files are read again");
    agent.stop().await;
    assert!(!pid_file.exists());
}

#[tokio::test]
async fn the_node_has_its_locality_and_a_coordinate() {
    let agent = Agent::start("locality { region = \"r\" zone = \"z\" }").await;
    let node = agent.get("/v1/catalog/node/n1").await;
    assert_eq!(
        node["Node"]["Locality"],
        json!({"Region": "r", "Zone": "z"})
    );
    let known = agent.get("/v1/coordinate/node/n1").await;
    assert_eq!(known[0]["Coord"]["Error"], 1.5);
    let mut rtt = Command::new(env!("CARGO_BIN_EXE_legate"));
    let rtt = rtt
        .args(["rtt", "n1"])
        .env("CONSUL_HTTP_ADDR", agent.http.to_string());
    let output = timeout(LIMIT, rtt.output()).await.unwrap().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "Estimated n1 <-> n1 rtt: 0.020 ms (using LAN coordinates)\n"
    );
    agent.stop().await;

    let agent = Agent::start("disable_coordinates = true").await;
    assert_eq!(agent.get("/v1/coordinate/nodes").await, json!([]));
    agent.stop().await;
}

#[tokio::test]
async fn a_watch_runs_a_program_or_calls_a_url_on_each_change() {
    let directory = tempfile::tempdir().unwrap();
    let seen = directory.path().join("seen");
    let (listener, address) = listen().await;
    let (sent, mut received) = tokio::sync::mpsc::unbounded_channel();
    let hook = async move |headers: http::HeaderMap, body: String| {
        let index = headers["x-consul-index"].to_str().unwrap().to_owned();
        sent.send((index, headers["x-own"].clone(), body)).unwrap();
    };
    let hooks = Router::new().route("/hook", axum::routing::post(hook));
    let file = format!(
        r#"watches = [
             {{ type = "key" key = "a" args = ["sh", "-c", "cat >> $0; echo $CONSUL_INDEX >> $0", {seen:?}] }},
             {{ type = "services" handler = "exit 3" }},
             {{ type = "key" key = "a" handler_type = "http"
                http_handler_config {{ path = "http://{address}/hook" header {{ x-own = ["1"] }} }} }},
           ]"#
    );
    let agent = Agent::start_in(directory.path(), &file).await;
    agent
        .scope
        .spawn("hooks", async move { axum::serve(listener, hooks).await });
    let (_, first, body) = timeout(LIMIT, received.recv()).await.unwrap().unwrap();
    assert_eq!((first.to_str().unwrap(), body.as_str()), ("1", "null"));
    let lines = async |number: usize| {
        let written = async {
            loop {
                let text = std::fs::read_to_string(&seen).unwrap_or_default();
                let lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
                if lines.len() >= number {
                    return lines;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LIMIT, written).await.expect("the program has run")
    };
    assert_eq!(lines(2).await[0], "null");
    agent.put("/v1/kv/a", Some(json!("x"))).await;
    let (index, _, body) = timeout(LIMIT, received.recv()).await.unwrap().unwrap();
    let pair: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(pair["Key"], "a");
    assert_eq!(index, pair["ModifyIndex"].to_string());
    let lines = lines(4).await;
    let seen: Value = serde_json::from_str(&lines[2]).unwrap();
    assert_eq!((seen, &lines[3]), (pair, &index));
    agent.stop().await;
}

#[tokio::test]
async fn unsupported_settings_end_it_with_file_and_key() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("a.json"), r#"{"segment": "x"}"#).unwrap();
    let output = command(&["-dev"], directory.path()).output();
    let output = timeout(LIMIT, output).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("a.json: segment is not supported"), "{text}");
}
