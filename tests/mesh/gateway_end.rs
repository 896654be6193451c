//! Gateways that are replaced and end while clients reuse their connections, as in a rolling update: the
//! load balancer in front of them sends new connections to another one.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use legate_runtime::Scope;
use legate_tests::wait::LIMIT;
use legate_tests::{Mesh, MeshOptions, Sidecar, client, eventually};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::API;

/// Port of the gateways' listener.
pub(crate) const PORT: u16 = 8443;
const CLIENTS: usize = 8;

/// What clients of a load balancer have seen.
#[derive(Debug, Default, Clone)]
struct Seen {
    answers: usize,
    /// How many connections were opened.
    connections: usize,
    failures: Vec<String>,
}

/// Clients that keep their connections until the server says that it closes them.
struct Clients {
    scope: Scope,
    /// Where new connections go.
    target: Arc<Mutex<SocketAddr>>,
    seen: Arc<Mutex<Seen>>,
}

impl Clients {
    fn start(target: SocketAddr) -> Self {
        let scope = Scope::new("clients");
        let target = Arc::new(Mutex::new(target));
        let seen = Arc::new(Mutex::new(Seen::default()));
        for _ in 0..CLIENTS {
            let (target, seen) = (Arc::clone(&target), Arc::clone(&seen));
            let stop = scope.token();
            scope.spawn("client", async move {
                while !stop.is_cancelled() {
                    let to = *target.lock().expect("no holder panics");
                    if let Err(error) = connection(to, &seen, || stop.is_cancelled()).await {
                        let mut seen = seen.lock().expect("no holder panics");
                        seen.failures.push(format!("{to}: {error}"));
                    }
                }
                Ok::<(), std::io::Error>(())
            });
        }
        Self {
            scope,
            target,
            seen,
        }
    }

    fn send_to(&self, target: SocketAddr) {
        *self.target.lock().expect("no holder panics") = target;
    }

    fn seen(&self) -> Seen {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// Waits until each client has been answered a few more times.
    async fn go_on(&self) {
        let before = self.seen().answers;
        eventually(
            "requests go on",
            || async { self.seen() },
            |seen| seen.answers > before + 50 * CLIENTS,
        )
        .await;
    }
}

/// Sends requests on one connection until the server closes it.
async fn connection(
    to: SocketAddr,
    seen: &Mutex<Seen>,
    stops: impl Fn() -> bool,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(TcpStream::connect(to).await?);
    seen.lock().expect("no holder panics").connections += 1;
    while !stops() {
        let closes = exchange(&mut stream).await?;
        seen.lock().expect("no holder panics").answers += 1;
        if closes {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// One request and its answer, which must be 200. Whether the server then closes the connection.
async fn exchange(stream: &mut BufReader<TcpStream>) -> std::io::Result<bool> {
    let other = |text: String| std::io::Error::other(text);
    let request = b"GET / HTTP/1.1\r\nhost: edge.example.com\r\n\r\n";
    stream.write_all(request).await?;
    let (mut length, mut closes, mut head) = (0, false, String::new());
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await? == 0 {
            return Err(other(format!("closed after {head:?}")));
        }
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.parse().map_err(|_| other(line.clone()))?;
        }
        closes |= line == "connection: close";
        head += &line;
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    match head.starts_with("http/1.1 200") {
        true => Ok(closes),
        false => Err(other(format!("{head}: {}", String::from_utf8_lossy(&body)))),
    }
}

/// Registers an instance of a gateway, and starts it with the flags of the chart.
pub(crate) async fn start(
    mesh: &mut Mesh,
    kind: &str,
    service: &str,
    instance: &'static str,
    drain_seconds: u32,
) -> Sidecar {
    let flags = mesh
        .flags(instance)
        .with("proxy-id", instance)
        .with("envoy-drain-time-seconds", drain_seconds.to_string())
        .with("shutdown-drain-listeners", "true")
        .with("shutdown-end-when-idle", "true")
        .with("shutdown-grace-period-seconds", "60");
    let address = flags.address.to_string();
    let service = json!({"Kind": kind, "ID": instance, "Service": service,
        "Address": address, "Port": PORT});
    mesh.catalog(json!({ "Service": service })).await;
    let mut sidecar = mesh.sidecar(instance, &flags);
    sidecar.ready().await;
    sidecar
}

/// An ingress gateway that answers.
async fn gateway(mesh: &mut Mesh, instance: &'static str) -> (Sidecar, SocketAddr) {
    let sidecar = start(mesh, "ingress-gateway", "edge", instance, 5).await;
    let target = SocketAddr::new(sidecar.address, PORT);
    eventually(
        "the gateway answers",
        || client::get(target, "/"),
        |answer| matches!(answer, Ok((status, _)) if status.is_success()),
    )
    .await
    .expect("an answer");
    (sidecar, target)
}

/// Waits until only the new Envoy of a restart runs.
pub(crate) async fn only_one_envoy(gateway: &Sidecar) {
    eventually(
        "the old Envoy is gone",
        || gateway.status(),
        |status| status["envoy"]["epochs"].as_array().map(Vec::len) == Some(1),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_replaced_and_ends_without_a_failed_request() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("edge", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    mesh.entry(
        json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": [{
            "Port": PORT, "Protocol": "http", "Services": [{"Name": "api", "Hosts": ["*"]}],
        }]}),
    )
    .await;
    let (mut first, to_first) = gateway(&mut mesh, "edge-1").await;
    let (mut second, to_second) = gateway(&mut mesh, "edge-2").await;
    let clients = Clients::start(to_first);
    clients.go_on().await;
    assert_eq!(clients.seen().connections, CLIENTS);

    // A new Envoy takes the sockets over, and the old one asks its clients to leave.
    let (status, text) = first.restart().await;
    assert!(status.is_success(), "{status}: {text}");
    only_one_envoy(&first).await;
    clients.go_on().await;
    let moved = clients.seen();
    assert_eq!(moved.failures, Vec::<String>::new());
    assert!(moved.connections >= 2 * CLIENTS, "{moved:?}");

    // It ends, and with the last connection before its time.
    clients.send_to(to_second);
    let began = Instant::now();
    first.signal(Signal::SIGTERM);
    assert!(first.exit().await.success(), "{}", first.log());
    assert!(began.elapsed() < Duration::from_secs(30));
    clients.go_on().await;
    let seen = clients.seen();
    assert_eq!(seen.failures, Vec::<String>::new(), "{}", first.log());
    assert!(seen.connections >= moved.connections + CLIENTS, "{seen:?}");
    clients.scope.stop(LIMIT).await.expect("the clients end");
    for sidecar in [&mut second, &mut api] {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
