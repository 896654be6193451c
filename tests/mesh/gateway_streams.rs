//! What takes long at a gateway survives that its Envoy is replaced and that it ends: requests with late
//! responses, WebSockets, gRPC streams and TCP connections end by themselves, and no message is lost.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_runtime::{BoxError, Scope};
use legate_tests::wait::LIMIT;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, app, client, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::gateway_end::{PORT, only_one_envoy, start};
use crate::grpc::{Application, SLOW, SLOW_MESSAGES, answers, channel};
use crate::mesh_gateway::{connect, server_names};
use crate::terminating::outside;
use crate::websockets::{leads, open, say, serve};
use legate_tests::client::line;

/// How long Envoy drains: everything here takes longer.
const DRAIN_SECONDS: u32 = 2;
/// How long the application waits before it responds.
const LATE: Duration = Duration::from_secs(8);
const PAUSE: Duration = Duration::from_millis(50);

const API: (&str, u16) = ("api", 8000);
const CHAT: (&str, u16) = ("chat", 8001);
const CALLS: (&str, u16) = ("calls", 8002);
const DB: (&str, u16) = ("db", 8003);

const fn spec(service: &'static str, protocol: &'static str) -> ServiceSpec {
    ServiceSpec {
        service,
        instance: service,
        protocol,
        upstreams: &[],
    }
}

/// What one client has done so far.
#[derive(Debug, Default)]
struct Progress(AtomicUsize);

impl Progress {
    /// The number of the next step.
    fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst)
    }

    fn steps(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Says something again and again until `ends`. Each answer must be to what was said.
async fn talk(
    progress: &Progress,
    ends: &AtomicBool,
    mut exchange: impl AsyncFnMut(String) -> Result<String, BoxError>,
    instance: &str,
) -> Result<(), BoxError> {
    while !ends.load(Ordering::SeqCst) {
        let said = progress.next().to_string();
        let answer = timeout(LIMIT, exchange(said.clone())).await??;
        if answer != format!("{instance}: {said}") {
            return Err(format!("the answer of {instance} to {said} is {answer:?}").into());
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// A WebSocket, which its client closes.
async fn socket(
    server: SocketAddr,
    progress: &Progress,
    ends: &AtomicBool,
) -> Result<(), BoxError> {
    let mut socket = open(server, "/").await?;
    let exchange = async |text: String| say(&mut socket, &text).await;
    talk(progress, ends, exchange, CHAT.0).await?;
    socket.close(None).await?;
    while let Some(message) = timeout(LIMIT, socket.next()).await? {
        message?;
    }
    Ok(())
}

/// A bidirectional gRPC stream, which ends with its requests.
async fn call(server: SocketAddr, progress: &Progress, ends: &AtomicBool) -> Result<(), BoxError> {
    let (sender, requests) = mpsc::channel(1);
    let mut client = AggregatedDiscoveryServiceClient::new(channel(server));
    let requests = ReceiverStream::new(requests);
    let mut answers = client
        .delta_aggregated_resources(requests)
        .await?
        .into_inner();
    let exchange = async |response_nonce: String| {
        let message = DeltaDiscoveryRequest {
            response_nonce,
            ..DeltaDiscoveryRequest::default()
        };
        sender.send(message).await?;
        Ok(answers.message().await?.ok_or("it has ended")?.nonce)
    };
    talk(progress, ends, exchange, CALLS.0).await?;
    drop(sender);
    match timeout(LIMIT, answers.message()).await?? {
        None => Ok(()),
        Some(message) => Err(format!("another answer: {message:?}").into()),
    }
}

/// A gRPC stream of the server, which ends by itself.
async fn watch(server: SocketAddr, progress: &Progress) -> Result<(), BoxError> {
    let request = HealthCheckRequest {
        service: SLOW.to_owned(),
    };
    let mut client = HealthClient::new(channel(server));
    let mut messages = client.watch(request).await?.into_inner();
    let mut count = 0;
    while messages.message().await?.is_some() {
        progress.next();
        count += 1;
    }
    match count == SLOW_MESSAGES {
        true => Ok(()),
        false => Err(format!("{count} messages of {SLOW_MESSAGES}").into()),
    }
}

/// A request whose response comes late.
async fn request(server: SocketAddr) -> Result<(), BoxError> {
    let answer = client::transfer(LIMIT, Method::GET, server, "/late", Bytes::new()).await?;
    match answer.0.is_success() && answer.1 == "late" {
        true => Ok(()),
        false => Err(format!("{answer:?}").into()),
    }
}

/// A connection on which lines are echoed.
async fn lines(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    instance: &str,
    progress: &Progress,
    ends: &AtomicBool,
) -> Result<(), BoxError> {
    let mut stream = BufReader::new(stream);
    let exchange = async |text: String| {
        stream.write_all(format!("{text}\n").as_bytes()).await?;
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        Ok(line.trim_end().to_owned())
    };
    talk(progress, ends, exchange, instance).await
}

/// Opens one of each at the gateway, and makes a change once all are in use. Returns when they have
/// ended by themselves.
async fn during(gateway: IpAddr, late: &Progress, change: impl Future<Output = ()>) {
    let [chat, calls, messages, said] = &<[Progress; 4]>::default();
    let of = |(_, port): (&str, u16)| SocketAddr::new(gateway, port);
    let (ends, asked) = (AtomicBool::new(false), late.steps());
    let by_themselves = async {
        let all = tokio::try_join!(request(of(API)), watch(of(CALLS), messages));
        ends.store(true, Ordering::SeqCst);
        all
    };
    let clients = async {
        let stream = TcpStream::connect(of(DB)).await?;
        tokio::try_join!(
            by_themselves,
            socket(of(CHAT), chat, &ends),
            call(of(CALLS), calls, &ends),
            lines(stream, DB.0, said, &ends),
        )
    };
    let change = async {
        let steps = || async { [chat, calls, messages, said].map(Progress::steps) };
        let open =
            |steps: &[usize; 4]| steps.iter().all(|steps| *steps > 5) && late.steps() > asked;
        let before = eventually("everything is in use", steps, open).await;
        change.await;
        let goes_on = |steps: &[usize; 4]| {
            steps
                .iter()
                .zip(before)
                .all(|(steps, before)| *steps > before)
        };
        eventually("everything goes on", steps, goes_on).await;
        assert!(!ends.load(Ordering::SeqCst), "it took too long");
    };
    let (result, ()) = tokio::join!(clients, change);
    result.expect("nothing is lost");
}

/// An application that responds late to `/late`, and counts these requests.
async fn respond_late(address: SocketAddr, late: &Arc<Progress>, scope: &Scope) {
    let listener = TcpListener::bind(address).await.expect("a free address");
    let late = Arc::clone(late);
    let answer = async move || {
        late.next();
        sleep(LATE).await;
        "late"
    };
    let router = Router::new()
        .route("/late", get(answer))
        .fallback(async || "at once");
    let stop = scope.token().cancelled_owned();
    scope.spawn("app api", async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

/// Starts the services behind the gateway, and the gateway with these entries.
async fn scenario(kind: &str, entries: &[Value]) {
    let (scope, late) = (Scope::new("applications"), Arc::new(Progress::default()));
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut sidecars = Vec::new();
    mesh.intend("edge", "*", "allow").await;
    respond_late(mesh.application(API.0), &late, &scope).await;
    serve(CHAT.0, mesh.application(CHAT.0), &scope).await;
    Application::serve(CALLS.0, mesh.application(CALLS.0), &scope).await;
    app::tcp(DB.0, mesh.application(DB.0), &scope).await;
    for ((service, _), protocol) in [(API, "http"), (CHAT, "http"), (CALLS, "grpc"), (DB, "tcp")] {
        let spec = spec(service, protocol);
        mesh.register_dead(&spec).await;
        sidecars.push(mesh.join(&spec).await);
    }
    for entry in entries {
        mesh.entry(entry.clone()).await;
    }
    let mut gateway = start(&mut mesh, kind, "edge", "edge", DRAIN_SECONDS).await;
    let of = |(_, port): (&str, u16)| SocketAddr::new(gateway.address, port);
    let ready = |answer: &Result<client::Answer, String>| matches!(answer, Ok((status, _)) if status.is_success());
    let ask = || async {
        client::get(of(API), "/")
            .await
            .map_err(|error| error.to_string())
    };
    eventually("the gateway answers", ask, ready)
        .await
        .expect("accepted");
    drop(leads(of(CHAT), "/", CHAT.0).await);
    answers(of(CALLS), "1", CALLS.0).await;
    let says = |reply: &String| !reply.is_empty();
    eventually("a line comes back", || line(of(DB), "hello"), says).await;

    during(gateway.address, &late, restart(&gateway)).await;
    // The old Envoy has served them to their end.
    assert_eq!(envoys(&gateway).await, 2);
    only_one_envoy(&gateway).await;
    let began = Instant::now();
    let end = async { gateway.signal(Signal::SIGTERM) };
    during(gateway.address, &late, end).await;
    // It ends with the last of them, long before its time.
    assert!(gateway.exit().await.success(), "{}", gateway.log());
    assert!(began.elapsed() < LATE * 3, "{:?}", began.elapsed());

    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    scope.stop(LIMIT).await.expect("the applications stop");
    mesh.stop().await;
}

async fn restart(gateway: &Sidecar) {
    let (status, text) = gateway.restart().await;
    assert!(status.is_success(), "{status}: {text}");
}

async fn envoys(gateway: &Sidecar) -> usize {
    let status = gateway.status().await;
    status["envoy"]["epochs"].as_array().map_or(0, Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_an_ingress_gateway() {
    let listener = |(service, port): (&str, u16), protocol: &str| {
        let mut service = json!({"Name": service});
        if protocol != "tcp" {
            service["Hosts"] = json!(["*"]);
        }
        json!({"Port": port, "Protocol": protocol, "Services": [service]})
    };
    let listeners = json!([
        listener(API, "http"),
        listener(CHAT, "http"),
        listener(CALLS, "grpc"),
        listener(DB, "tcp"),
    ]);
    let entry = json!({"Kind": "ingress-gateway", "Name": "edge", "Listeners": listeners});
    scenario("ingress-gateway", &[entry]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_an_api_gateway() {
    let listener = |(name, port): (&str, u16), protocol: &str| json!({"Name": name, "Port": port, "Protocol": protocol});
    let route = |(name, _): (&str, u16), kind: &str, services: &str, value: Value| {
        json!({
            "Kind": kind, "Name": name, "Parents": [{"Name": "edge", "SectionName": name}],
            services: value,
        })
    };
    let http = |of: (&str, u16)| {
        let rules = json!([{"Services": [{"Name": of.0}]}]);
        route(of, "http-route", "Rules", rules)
    };
    let listeners = json!([
        listener(API, "http"),
        listener(CHAT, "http"),
        listener(CALLS, "http"),
        listener(DB, "tcp"),
    ]);
    let entries = [
        json!({"Kind": "api-gateway", "Name": "edge", "Listeners": listeners}),
        http(API),
        http(CHAT),
        http(CALLS),
        route(DB, "tcp-route", "Services", json!([{"Name": DB.0}])),
    ];
    scenario("api-gateway", &entries).await;
}

const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "tcp",
    upstreams: &["raw", CHAT.0],
};

/// A mesh gateway and a terminating one, with connections and a WebSocket through them.
struct Between {
    mesh: Mesh,
    gateways: [Sidecar; 2],
    /// The server name of the service behind the mesh gateway.
    name: String,
}

impl Between {
    async fn during(&self, change: impl Future<Output = ()>) {
        let counts = <[Progress; 3]>::default();
        let ends = AtomicBool::new(false);
        let clients = async {
            let mesh_gateway = SocketAddr::new(self.gateways[0].address, PORT);
            let inside = connect(&self.mesh, mesh_gateway, "web", &self.name).await?;
            let outside = TcpStream::connect(self.mesh.upstream("web", 0)).await?;
            tokio::try_join!(
                lines(inside, DB.0, &counts[0], &ends),
                lines(outside, "raw", &counts[1], &ends),
                socket(self.mesh.upstream("web", 1), &counts[2], &ends),
            )
        };
        let change = async {
            let steps = || async { counts.each_ref().map(Progress::steps) };
            let open = |steps: &[usize; 3]| steps.iter().all(|steps| *steps > 5);
            eventually("all are in use", steps, open).await;
            change.await;
            sleep(LATE).await;
            ends.store(true, Ordering::SeqCst);
        };
        let (result, ()) = tokio::join!(clients, change);
        result.expect("nothing is lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_mesh_gateway_and_a_terminating_gateway() {
    let scope = Scope::new("outside");
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    app::tcp("raw", mesh.application("raw"), &scope).await;
    serve(CHAT.0, mesh.application(CHAT.0), &scope).await;
    for (name, protocol) in [("raw", "tcp"), (CHAT.0, "http")] {
        let address = mesh.application(name);
        outside(&mesh, name, protocol, address).await;
    }
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "egress",
        "Services": [{"Name": "raw"}, {"Name": CHAT.0}],
    }))
    .await;
    mesh.intend("web", "*", "allow").await;
    let mut sidecars = [mesh.add(&spec(DB.0, "tcp")).await, mesh.add(&WEB).await];
    let kinds = [
        ("mesh-gateway", "mesh-gateway"),
        ("terminating-gateway", "egress"),
    ];
    let mut gateways = Vec::new();
    for (kind, name) in kinds {
        gateways.push(start(&mut mesh, kind, name, name, DRAIN_SECONDS).await);
    }
    let says = |reply: &String| !reply.is_empty();
    let upstream = mesh.upstream("web", 0);
    eventually("a line comes back", || line(upstream, "hello"), says).await;
    drop(leads(mesh.upstream("web", 1), "/", CHAT.0).await);
    let name = server_names(&mesh).await(DB.0);
    let mesh_gateway = SocketAddr::new(gateways[0].address, PORT);
    let connects = || async { connect(&mesh, mesh_gateway, "web", &name).await.is_ok() };
    eventually("the mesh gateway forwards", connects, |is| *is).await;
    let gateways = gateways.try_into().unwrap_or_else(|_| unreachable!("two"));
    let mut between = Between {
        mesh,
        gateways,
        name,
    };

    between
        .during(async {
            for gateway in &between.gateways {
                restart(gateway).await;
            }
        })
        .await;
    for gateway in &between.gateways {
        assert_eq!(envoys(gateway).await, 2);
        only_one_envoy(gateway).await;
    }
    between
        .during(async {
            for gateway in &between.gateways {
                gateway.signal(Signal::SIGTERM);
            }
        })
        .await;
    for gateway in &mut between.gateways {
        assert!(gateway.exit().await.success(), "{}", gateway.log());
    }
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    scope.stop(LIMIT).await.expect("the service ends");
    between.mesh.stop().await;
}
