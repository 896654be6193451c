//! Attacks on a sidecar by clients on the same host.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::discovery::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use legate_api::type_url::ENDPOINT;
use legate_runtime::Scope;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use super::target::{HARD_FILES, Ports, SOFT_FILES};

/// The size of the long name in bytes, which exceeds the servers' message limit.
const LONG: usize = 55_000_000;
/// The number of requests of one stream, and the number of names in each.
const REQUESTS: usize = 13;
const NAMES: usize = 100_000;
/// The number of metrics readers that never read the response.
const READERS: usize = 100;
/// A connection that takes longer counts as failed.
const CONNECT: Duration = Duration::from_secs(1);
/// The number of consecutive failed connections before a port is abandoned.
const REFUSALS: usize = 3;

pub(crate) enum Attack {
    /// A resource name on the xDS port that exceeds every server's limit.
    LongName,
    /// Names of nonexistent resources on the xDS port.
    ManyNames,
    /// This many connections per port, each with an incomplete request.
    HalfOpen(usize),
    /// This many idle connections per port.
    Silent(usize),
    /// Metrics requests whose responses are never read.
    SlowReaders,
}

impl Attack {
    /// All attacks, with this many connections per port.
    pub(crate) fn all(each: usize) -> [Attack; 5] {
        [
            Attack::LongName,
            Attack::ManyNames,
            Attack::HalfOpen(each),
            Attack::Silent(each),
            Attack::SlowReaders,
        ]
    }
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attack::LongName => write!(f, "a name of {} MB on the xDS port", LONG / 1_000_000),
            Attack::ManyNames => write!(f, "{} names on the xDS port", REQUESTS * NAMES),
            Attack::HalfOpen(each) => write!(
                f,
                "{each} half-open requests on each of 5 ports, at most {SOFT_FILES} (hard {HARD_FILES}) files"
            ),
            Attack::Silent(each) => write!(
                f,
                "{each} silent peers on each of 5 ports, at most {SOFT_FILES} (hard {HARD_FILES}) files"
            ),
            Attack::SlowReaders => write!(f, "{READERS} readers of a 20 MB page that do not read"),
        }
    }
}

/// The clients of one attack. Dropping them ends it.
pub(crate) struct Attackers {
    connections: Vec<TcpStream>,
    /// Owns the streams on the xDS port.
    streams: Scope,
    requests: Vec<mpsc::Sender<DeltaDiscoveryRequest>>,
}

impl Attackers {
    pub(crate) async fn begin(attack: &Attack, ports: &Ports) -> Attackers {
        let mut attackers = Attackers {
            connections: Vec::new(),
            streams: Scope::new("attackers"),
            requests: Vec::new(),
        };
        match attack {
            Attack::LongName => {
                let names = vec!["x".repeat(LONG)];
                attackers.ask(ports.xds, vec![names]).await;
            }
            Attack::ManyNames => {
                let names = |request| {
                    let numbers = request * NAMES..(request + 1) * NAMES;
                    numbers
                        .map(|number| format!("no-such-{number:010}"))
                        .collect()
                };
                attackers
                    .ask(ports.xds, (0..REQUESTS).map(names).collect())
                    .await;
            }
            Attack::HalfOpen(each) => {
                for port in ports.all() {
                    attackers
                        .connect(port, *each, half_a_request(port, ports))
                        .await;
                }
            }
            Attack::Silent(each) => {
                for port in ports.all() {
                    attackers.connect(port, *each, b"").await;
                }
            }
            Attack::SlowReaders => {
                let request = b"GET /stats/prometheus HTTP/1.1\r\nhost: x\r\n\r\n";
                attackers.connect(ports.merged, READERS, request).await;
            }
        }
        attackers
    }

    /// Opens a stream on the xDS port that subscribes to these names, request by request.
    async fn ask(&mut self, xds: SocketAddr, requests: Vec<Vec<String>>) {
        let endpoint = Endpoint::from_shared(format!("http://{xds}")).expect("an address");
        let channel = timeout(CONNECT, endpoint.connect()).await;
        let channel = channel.expect("a connection in time").expect("it listens");
        let mut client = AggregatedDiscoveryServiceClient::new(channel);
        let (sender, receiver) = mpsc::channel(requests.len());
        for names in requests {
            let request = DeltaDiscoveryRequest {
                node: b"\x0a\x03web".as_slice().into(),
                type_url: ENDPOINT.to_owned(),
                resource_names_subscribe: names,
                ..DeltaDiscoveryRequest::default()
            };
            sender.send(request).await.expect("there is room");
        }
        // The stream stays open until the sender is dropped.
        self.requests.push(sender);
        self.streams.spawn("stream", async move {
            let requests = ReceiverStream::new(receiver);
            if let Ok(answer) = client.delta_aggregated_resources(requests).await {
                let mut responses = answer.into_inner();
                while let Ok(Some(_)) = responses.message().await {}
            }
            Ok::<_, Infallible>(())
        });
    }

    /// Opens connections that each send `beginning`.
    async fn connect(&mut self, port: SocketAddr, count: usize, beginning: &[u8]) {
        let mut refusals = 0;
        for _ in 0..count {
            if refusals == REFUSALS {
                return;
            }
            match timeout(CONNECT, TcpStream::connect(port)).await {
                Ok(Ok(mut stream)) => {
                    // A connection that was closed at once is counted as not held at the end.
                    let _ = stream.write_all(beginning).await;
                    self.connections.push(stream);
                    refusals = 0;
                }
                _ => refusals += 1,
            }
        }
    }

    /// The number of accepted connections.
    pub(crate) fn count(&self) -> usize {
        self.connections.len() + self.requests.len()
    }

    /// The number of connections that the sidecar has not closed.
    pub(crate) fn held(&self) -> usize {
        let open = |stream: &&TcpStream| {
            let mut read = [0; 1];
            // Unread data means that the connection is open.
            match stream.try_read(&mut read) {
                Ok(length) => length > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            }
        };
        let streams = self.requests.iter().filter(|stream| !stream.is_closed());
        self.connections.iter().filter(open).count() + streams.count()
    }
}

/// An incomplete request for this port, as a slow client might send it.
fn half_a_request(port: SocketAddr, ports: &Ports) -> &'static [u8] {
    if port == ports.xds {
        b"PRI * HTTP/2.0\r\n"
    } else if port == ports.dns {
        b"\x00"
    } else {
        b"GET /ready HTTP/1.1\r\nhost: "
    }
}
