//! What is done to a sidecar, by clients that anything on its host could run.

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

/// Bytes of the one long name: more than servers take in a message.
const LONG: usize = 55_000_000;
/// Requests of one stream, and how many names each has.
const REQUESTS: usize = 13;
const NAMES: usize = 100_000;
/// Readers of the metrics page that read nothing of it.
const READERS: usize = 100;
/// A connection that takes longer was not made.
const CONNECT: Duration = Duration::from_secs(1);
/// Connections that fail one after the other until a port is given up.
const REFUSALS: usize = 3;

pub(crate) enum Attack {
    /// A resource name that no server takes, on the xDS port.
    LongName,
    /// Names of resources that do not exist, on the xDS port.
    ManyNames,
    /// That many connections on each port, each with the beginning of a request.
    HalfOpen(usize),
    /// That many connections on each port that say nothing.
    Silent(usize),
    /// Requests for metrics whose answers nobody reads.
    SlowReaders,
}

impl Attack {
    /// All of them, with so many connections on each port.
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

/// The attackers of one attack. Dropping them ends it.
pub(crate) struct Attackers {
    connections: Vec<TcpStream>,
    /// Has the streams on the xDS port.
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

    /// Opens a stream on the xDS port that asks for these names, request by request.
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
        // The stream stays open as long as this is held.
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

    /// Opens connections that each begin like this.
    async fn connect(&mut self, port: SocketAddr, count: usize, beginning: &[u8]) {
        let mut refusals = 0;
        for _ in 0..count {
            if refusals == REFUSALS {
                return;
            }
            match timeout(CONNECT, TcpStream::connect(port)).await {
                Ok(Ok(mut stream)) => {
                    // One that was closed at once counts as one that is not connected in the end.
                    let _ = stream.write_all(beginning).await;
                    self.connections.push(stream);
                    refusals = 0;
                }
                _ => refusals += 1,
            }
        }
    }

    /// Those that got a connection.
    pub(crate) fn count(&self) -> usize {
        self.connections.len() + self.requests.len()
    }

    /// Those whose connection the sidecar has not ended.
    pub(crate) fn held(&self) -> usize {
        let open = |stream: &&TcpStream| {
            let mut read = [0; 1];
            // What was sent and not read is no end.
            match stream.try_read(&mut read) {
                Ok(length) => length > 0,
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            }
        };
        let streams = self.requests.iter().filter(|stream| !stream.is_closed());
        self.connections.iter().filter(open).count() + streams.count()
    }
}

/// What a slow client of this port might begin with.
fn half_a_request(port: SocketAddr, ports: &Ports) -> &'static [u8] {
    if port == ports.xds {
        b"PRI * HTTP/2.0\r\n"
    } else if port == ports.dns {
        b"\x00"
    } else {
        b"GET /ready HTTP/1.1\r\nhost: "
    }
}
