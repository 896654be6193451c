//! The work of the relay as a whole process, between a server that pushes and this program in place
//! of Envoy, so that only the dataplane is measured.

use std::convert::Infallible;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use legate_api::type_url::CLUSTER;
use legate_runtime::Scope;
use legate_testkit::certs::{ServerTls, TestCa};
use legate_testkit::fake_server::{AdsStream, FakeServer};
use legate_testkit::network::free_port;
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status, Streaming};

use crate::Options;
use legate_tests::program::{Program, Running};
use legate_tests::table::Table;

const MIB: usize = 1024 * 1024;
/// The size of a push in MiB, and of its resources in KiB.
const PUSHES: [(usize, usize); 4] = [(32, 64), (32, 4), (64, 64), (64, 4)];
/// The number of updates per turn.
const TURN: u32 = 1_000;
/// The name in the server's certificate.
pub(crate) const SERVER_NAME: &str = "server.test";
/// The size of an updated resource in bytes.
const UPDATED: usize = 1_024;
/// The deadline of every step, with a wide margin.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const POLL: Duration = Duration::from_millis(5);

pub(crate) async fn measure(programs: &[Program], options: &Options) {
    updates(programs, options.updates).await;
    pushes(programs).await;
}

/// CPU time for updates that Envoy acknowledges one by one.
async fn updates(programs: &[Program], turns: u32) {
    let mut sidecars = Vec::new();
    for program in programs {
        sidecars.push(Sidecar::start(program).await);
    }
    let mut costs = vec![Vec::new(); programs.len()];
    let mut version = 0;
    // The first turn is a warm-up for caches and buffers.
    for turn in 0..=turns {
        for (sidecar, costs) in sidecars.iter_mut().zip(&mut costs) {
            let before = sidecar.running.processor_time();
            for _ in 0..TURN {
                version += 1;
                sidecar
                    .push(vec![resource("updated", version, UPDATED)])
                    .await
                    .expect("an update passes");
            }
            if turn > 0 {
                costs.push(sidecar.running.processor_time() - before);
            }
        }
    }
    let title = format!("CPU of {TURN} updates of {UPDATED} bytes, {turns} turns, ms");
    let table = Table::new(&title, programs, 1);
    table.medians("median", &costs);
    table.largest("largest", &costs);
}

/// Peak memory and CPU time for one large response.
async fn pushes(programs: &[Program]) {
    let mut rows = Vec::new();
    for (megabytes, kilobytes) in PUSHES {
        let (mut peaks, mut costs) = (Vec::new(), Vec::new());
        for program in programs {
            let mut sidecar = Sidecar::start(program).await;
            let before = sidecar.running.processor_time();
            let size = kilobytes * 1024;
            let count = megabytes * MIB / size;
            let resources = (0..count).map(|number| resource(&format!("name-{number}"), 1, size));
            let passed = sidecar.push(resources.collect()).await;
            let cost = sidecar.running.processor_time() - before;
            peaks.push(passed.as_ref().map(|()| sidecar.running.peak() / 1024.0));
            costs.push(passed.map(|()| cost));
        }
        rows.push((
            format!("{megabytes} MiB in resources of {kilobytes} KiB"),
            peaks,
            costs,
        ));
    }
    let table = Table::new("peak resident memory of a push, MiB", programs, 1);
    for (label, peaks, _) in &rows {
        table.row(label, peaks);
    }
    let table = Table::new("CPU of a push, ms", programs, 0);
    for (label, _, costs) in &rows {
        table.row(label, costs);
    }
    for (program, place) in programs.iter().zip(0..) {
        let refused = rows.iter().filter(|(_, peaks, _)| peaks[place].is_none());
        for (label, ..) in refused {
            println!("{} does not relay {label}.", program.name);
        }
    }
}

fn resource(name: &str, version: u64, size: usize) -> Resource {
    Resource {
        name: name.to_owned(),
        version: format!("{version:064x}"),
        resource: Bytes::from(vec![b'x'; size]),
        aliases: Vec::new(),
    }
}

/// A dataplane whose Envoy is simulated by this program; the Envoy executable only sleeps.
struct Sidecar {
    running: Running,
    ads: AdsStream,
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Responses,
    nonce: u64,
    _scope: Scope,
    _server: FakeServer,
    _ca: TestCa,
    _folder: TempDir,
}

impl Sidecar {
    async fn start(program: &Program) -> Sidecar {
        // Without TLS Consul's dataplane sends an empty authority, which this server refuses.
        let ca = TestCa::new();
        let config = ca.server_config(&[SERVER_NAME], ServerTls::default());
        let server = FakeServer::tls(config).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let xds = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let mut arguments = arguments(&server, &sleeper(folder.path()), xds);
        arguments.push(format!("-ca-certs={}", ca.ca_file().display()));
        arguments.push(format!("-tls-server-name={SERVER_NAME}"));
        let log = folder.path().join("log");
        let mut running = Running::start(&program.path, &arguments, log);
        // It would not become ready to relay without an Envoy to start.
        let started = async {
            while running.children().is_empty() {
                running.check();
                sleep(POLL).await;
            }
        };
        if timeout(LIMIT, started).await.is_err() {
            panic!("{} starts no Envoy:\n{}", program.name, running.log());
        }
        let scope = Scope::new("in Envoy's place");
        let (requests, responses) = connect(xds, &scope).await;
        let ads = server.accept_ads().await;
        Sidecar {
            running,
            ads,
            requests,
            responses,
            nonce: 0,
            _scope: scope,
            _server: server,
            _ca: ca,
            _folder: folder,
        }
    }

    /// Pushes resources and returns Envoy's ACK. `None` if they do not arrive.
    async fn push(&mut self, resources: Vec<Resource>) -> Option<()> {
        self.nonce += 1;
        let nonce = self.nonce.to_string();
        self.ads.send_resources(CLUSTER, &nonce, resources).await;
        let response = timeout(LIMIT, self.responses.next()).await;
        let response = response.expect("a response in time")?;
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        self.requests.send(answer).await.ok()?;
        while self.ads.next_of(CLUSTER).await.response_nonce != nonce {}
        Some(())
    }
}

/// An executable that only sleeps.
pub(crate) fn sleeper(folder: &Path) -> PathBuf {
    let file = folder.join("envoy");
    fs::write(&file, "#!/bin/sh\nexec sleep 600\n").expect("the program can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("it is ours");
    file
}

pub(crate) fn arguments(server: &FakeServer, envoy: &Path, xds: SocketAddr) -> Vec<String> {
    let address = server.address();
    vec![
        format!("-addresses={}", address.ip()),
        format!("-grpc-port={}", address.port()),
        "-server-watch-disabled".to_owned(),
        "-proxy-id=web-proxy".to_owned(),
        "-proxy-node-name=node-1".to_owned(),
        format!("-envoy-executable-path={}", envoy.display()),
        format!("-envoy-admin-bind-port={}", free_port()),
        format!("-graceful-port={}", free_port()),
        format!("-xds-bind-port={}", xds.port()),
    ]
}

/// The responses of a stream. A relay may respond to the call only with the first message.
enum Responses {
    Called(oneshot::Receiver<Result<Response<Stream>, Status>>),
    Open(Box<Stream>),
}

type Stream = Streaming<DeltaDiscoveryResponse>;

impl Responses {
    async fn next(&mut self) -> Option<DeltaDiscoveryResponse> {
        if let Responses::Called(call) = self {
            let answer = call.await.ok()?.ok()?;
            *self = Responses::Open(Box::new(answer.into_inner()));
        }
        match self {
            Responses::Called(_) => None,
            Responses::Open(stream) => stream.message().await.ok()?,
        }
    }
}

/// Opens a stream with Envoy's flow control windows and subscribes to all clusters.
async fn connect(
    xds: SocketAddr,
    scope: &Scope,
) -> (mpsc::Sender<DeltaDiscoveryRequest>, Responses) {
    let endpoint = Endpoint::from_shared(format!("http://{xds}"))
        .expect("an address")
        .initial_stream_window_size(16 * MIB as u32)
        .initial_connection_window_size(24 * MIB as u32);
    let connected = async {
        loop {
            if let Ok(channel) = endpoint.connect().await {
                return channel;
            }
            sleep(POLL).await;
        }
    };
    let channel: Channel = timeout(LIMIT, connected).await.expect("the relay listens");
    let client = AggregatedDiscoveryServiceClient::new(channel);
    let mut client = client.max_decoding_message_size(usize::MAX);
    let (requests, receiver) = mpsc::channel(16);
    let first = DeltaDiscoveryRequest {
        node: Bytes::from_static(b"\x0a\x03web"),
        type_url: CLUSTER.to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    requests.send(first).await.expect("the channel is open");
    let (answer, call) = oneshot::channel();
    scope.spawn("call", async move {
        let requests = ReceiverStream::new(receiver);
        // The receiver is dropped after the measurement.
        let _ = answer.send(client.delta_aggregated_resources(requests).await);
        Ok::<_, Infallible>(())
    });
    (requests, Responses::Called(call))
}
