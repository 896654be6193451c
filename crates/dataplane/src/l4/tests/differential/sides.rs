//! The two proxies, each with a network of its own, and the callers and backends around them.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use legate_api::discovery::{DeltaDiscoveryResponse, Resource};
use legate_api::type_url;
use legate_envoy::admin::AdminClient;
use legate_identity::tls::mesh::{MeshCertificate, MeshTls, MeshTrust};
use legate_identity::{Authority, LeafRequest, RootRequest};
use legate_runtime::{Readiness, Scope, Spawner};
use legate_testkit::wait;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::any;
use super::generate::{Behaviour, Client, ClientTls, IDENTITIES, Network, Served, backend};
use crate::l4::registry::Times;
use crate::l4::{BuiltIn, Options};
use crate::l4::{Pages, Parts};
use crate::relay::FromProxy;

/// How long a single step may take.
const LIMIT: Duration = Duration::from_secs(20);

const HOUR: Duration = Duration::from_secs(3600);

/// The authority, and the certificates of everybody.
pub(super) struct Certificates {
    root: Authority,
    callers: Vec<MeshCertificate>,
    pub(super) own: Value,
}

impl Certificates {
    pub(super) fn new() -> Certificates {
        let (root, other) = (root(), root());
        let mut callers: Vec<MeshCertificate> = IDENTITIES
            .iter()
            .map(|name| {
                let (chain, key) = leaf(&root, name);
                MeshCertificate::parse(&chain, &key, name).unwrap()
            })
            .collect();
        let (chain, key) = leaf(&other, "web");
        callers.push(MeshCertificate::parse(&chain, &key, "a stranger").unwrap());
        let (chain, key) = leaf(&root, "server");
        let own = json!({
            "tls_certificates": [{
                "certificate_chain": { "inline_string": chain },
                "private_key": { "inline_string": key },
            }],
            "validation_context": { "trusted_ca": { "inline_string": root.cert_pem() } },
        });
        Certificates { root, callers, own }
    }

    fn client(&self, client: &ClientTls) -> Arc<ClientConfig> {
        let tls = MeshTls {
            certificate: client.identity.map(|index| self.callers[index].clone()),
            trust: Some(MeshTrust::authorities(self.root.cert_pem(), "test").unwrap()),
            only_older: client.older,
            alpn: client.alpn.iter().map(|name| (*name).to_owned()).collect(),
            ..MeshTls::default()
        };
        Arc::clone(tls.client(client.name.is_some()).unwrap().config())
    }
}

fn root() -> Authority {
    Authority::generate_root(RootRequest {
        common_name: "test root".to_owned(),
        uri: "spiffe://test.consul".to_owned(),
        serial: 1,
        now: std::time::SystemTime::now() - HOUR,
        ttl: 24 * HOUR,
    })
    .unwrap()
}

fn leaf(root: &Authority, name: &str) -> (String, String) {
    let leaf = root.issue(LeafRequest {
        uris: vec![format!("spiffe://test.consul/ns/default/dc/dc1/svc/{name}")],
        dns_names: Vec::new(),
        ips: Vec::new(),
        serial: 2,
        now: std::time::SystemTime::now() - HOUR / 2,
        ttl: HOUR,
    });
    let leaf = leaf.unwrap();
    (leaf.cert_pem.clone(), leaf.key.to_pem())
}

/// Starts the backends of all sides: one socket for all addresses. The result is its port.
pub(super) async fn backends(spawner: &Spawner) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = spawner.clone();
    spawner.spawn("backends", async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn("backend", async move {
                // The proxy may have gone.
                let _ = answer(stream).await;
                Ok::<(), io::Error>(())
            });
        }
        Ok::<(), io::Error>(())
    });
    port
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let SocketAddr::V4(own) = stream.local_addr()? else {
        return Ok(());
    };
    let (behaviour, label) = backend(own.ip().octets());
    let mut buffer = [0; 1024];
    if stream.read(&mut buffer).await? == 0 {
        return Ok(());
    }
    if behaviour == Behaviour::Resets {
        return SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    }
    stream.write_all(format!("<{label}>").as_bytes()).await?;
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// A stream that keeps what it has received: the text of a backend that a proxy has passed TLS on to.
struct Recorded {
    stream: TcpStream,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Recorded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let mut seen = self.seen.lock().unwrap();
        seen.extend(&buffer.filled()[before..]);
        polled
    }
}

impl AsyncWrite for Recorded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection as its caller sees it.
pub(super) struct Connected {
    /// Who has answered; `None` if it was closed.
    pub(super) label: Option<String>,
    /// Open as long as this lives.
    _stream: Option<Box<dyn Stream>>,
}

/// The text of a backend.
fn label(bytes: &[u8]) -> Option<String> {
    let text = bytes.strip_prefix(b"<")?.strip_suffix(b">")?;
    Some(String::from_utf8_lossy(text).into_owned())
}

async fn read_label(mut stream: impl Stream + 'static) -> io::Result<Connected> {
    // Envoy cannot say before the fifth byte that this is no TLS; the built-in proxy can at the first.
    stream.write_all(b"hello").await?;
    stream.flush().await?;
    let mut bytes = Vec::new();
    while label(&bytes).is_none() {
        if stream.read_buf(&mut bytes).await? == 0 {
            break;
        }
    }
    let label = label(&bytes);
    let stream: Option<Box<dyn Stream>> = match label {
        Some(_) => Some(Box::new(stream)),
        None => None,
    };
    Ok(Connected {
        label,
        _stream: stream,
    })
}

/// Where the resources of a side come from.
enum Source {
    Envoy {
        _child: Child,
        folder: PathBuf,
        written: BTreeMap<String, String>,
    },
    BuiltIn {
        _scope: Scope,
        responses: mpsc::Sender<DeltaDiscoveryResponse>,
        requests: mpsc::Receiver<FromProxy>,
        clusters: Vec<String>,
        nonce: u64,
    },
}

/// A proxy with its network.
pub(super) struct Side {
    pub(super) network: Network,
    pub(super) admin: AdminClient,
    /// The number of connections that were made to see which version is served.
    pub(super) probes: u64,
    next: u16,
    source: Source,
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap().to_owned()
}

impl Side {
    /// A real Envoy, which reads its resources from files of this folder.
    pub(super) async fn envoy(network: Network, folder: &Path, first: &Served) -> Side {
        let mut written = BTreeMap::new();
        write_files(folder, &mut written, &network, first);
        let address = folder.join("admin");
        let path = |name: &str| {
            let path = folder.join(name).to_str().unwrap().to_owned();
            json!({ "resource_api_version": "V3", "path_config_source": { "path": path } })
        };
        let document = json!({
            "node": { "id": "web-proxy", "cluster": "web" },
            "admin": { "address": { "socket_address": { "address": "127.0.0.1", "port_value": 0 } } },
            "dynamic_resources": { "cds_config": path("clusters"), "lds_config": path("listeners") },
        });
        let child = Command::new(legate_testkit::envoy::binary())
            .args(["--disable-hot-restart", "--concurrency", "1"])
            .args(["--log-level", "error", "--drain-time-s", "1"])
            .args(["--file-flush-interval-msec", "2"])
            .arg("--admin-address-path")
            .arg(&address)
            .arg("--config-yaml")
            .arg(document.to_string())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let admin = wait::until(async || {
            let text = std::fs::read_to_string(&address).map_err(|error| error.to_string())?;
            let admin = text
                .trim()
                .parse()
                .map_err(|error| format!("{error}: {text}"))?;
            Ok(AdminClient::new(admin))
        })
        .await;
        let mut side = Side {
            network,
            admin,
            probes: 0,
            next: 0,
            source: Source::Envoy {
                _child: child,
                folder: folder.to_owned(),
                written,
            },
        };
        side.until_served(first).await;
        side
    }

    /// The built-in proxy.
    pub(super) async fn built_in(network: Network, first: &Served) -> Side {
        let scope = Scope::new("built-in side");
        let spawner = scope.spawner();
        let built_in = BuiltIn::new(&Options {
            threads: 1,
            files: 4096,
            host_name: String::new(),
            times: Times {
                half_closed: None,
                drain: Duration::from_secs(1),
            },
        });
        let (to_server, requests) = mpsc::channel(64);
        let (responses, from_server) = mpsc::channel(64);
        let ready = Readiness::new().register("proxy");
        built_in.start_on((to_server, from_server), ready, &spawner);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let admin = AdminClient::new(listener.local_addr().unwrap());
        let parts = Parts {
            built_in,
            bootstrap: json!({ "node": { "id": "web-proxy", "cluster": "web" } }),
            drain_time: Duration::ZERO,
            quit: Box::new(|| {}),
            envoy: watch::channel(None).1,
        };
        Pages::new(parts, &spawner).serve(listener, &spawner);
        let mut side = Side {
            network,
            admin,
            probes: 0,
            next: 0,
            source: Source::BuiltIn {
                _scope: scope,
                responses,
                requests,
                clusters: Vec::new(),
                nonce: 0,
            },
        };
        side.change(first).await;
        side
    }

    /// Serves another version.
    pub(super) async fn change(&mut self, next: &Served) {
        let network = &self.network;
        match &mut self.source {
            Source::Envoy {
                folder, written, ..
            } => {
                let before = written.clone();
                let folder = folder.clone();
                let counts = |changed: &[String]| {
                    let names = changed.iter().map(|name| match name.as_str() {
                        "clusters" => "cluster_manager.cds.update_success".to_owned(),
                        name => format!("cluster.{name}.update_success"),
                    });
                    names.collect::<Vec<_>>()
                };
                let mut after = before.clone();
                let changed = changed_files(&mut after, network, next);
                let names = counts(&changed);
                let mut former = BTreeMap::new();
                for name in &names {
                    former.insert(name.clone(), stat(&self.admin, name).await);
                }
                write_files(&folder, written, network, next);
                for name in &names {
                    wait::until(async || {
                        let now = stat(&self.admin, name).await;
                        (now > former[name])
                            .then_some(())
                            .ok_or(format!("{name} is {now:?}"))
                    })
                    .await;
                }
            }
            Source::BuiltIn {
                responses,
                requests,
                clusters,
                nonce,
                ..
            } => {
                let made = next.clusters(network);
                let names: Vec<String> = made.iter().map(|one| text(one, "name")).collect();
                let removed = clusters
                    .iter()
                    .filter(|name| !names.contains(name))
                    .cloned()
                    .collect();
                *clusters = names;
                let all = [
                    (type_url::CLUSTER, made, removed),
                    (type_url::ENDPOINT, next.endpoints(network), Vec::new()),
                    (type_url::LISTENER, vec![next.listener(network)], Vec::new()),
                ];
                for (url, resources, removed) in all {
                    *nonce += 1;
                    let response = response(url, &resources, removed, *nonce, next.version);
                    responses.send(response).await.unwrap();
                    answered(requests, &nonce.to_string()).await;
                }
            }
        }
        self.until_served(next).await;
    }

    /// Waits until new connections have this version.
    async fn until_served(&mut self, version: &Served) {
        let to = SocketAddr::from(([127, self.network.octet, 1, 250], self.network.port));
        let expected = version.label();
        let mut probes = 0;
        let (admin, log) = (&self.admin, &self.network.log);
        wait::until(async || {
            let rejected = stat(admin, "listener_manager.lds.update_rejected").await;
            assert_eq!(rejected.unwrap_or(0), 0, "Envoy has refused a listener");
            let stream = TcpStream::connect(to).await;
            let stream = stream.map_err(|error| error.to_string())?;
            probes += 1;
            let connected = read_label(stream).await.map_err(|error| {
                let log = std::fs::read_to_string(log).unwrap_or_default();
                format!("{error}; {:?}", log.lines().last())
            })?;
            match connected.label {
                Some(label) if label == expected => Ok(()),
                other => Err(format!("{other:?} instead of {expected}")),
            }
        })
        .await;
        self.probes += probes;
    }

    /// Makes a connection. The result is also by which name its lines in the access log begin.
    pub(super) async fn connect(
        &mut self,
        client: &Client,
        certificates: &Certificates,
    ) -> (String, Connected) {
        self.next += 1;
        let [third, fourth] = (self.next + 0xC000).to_be_bytes();
        let octet = self.network.octet;
        let own = Ipv4Addr::new(127, octet, third, fourth);
        let connecting = async {
            let socket = TcpSocket::new_v4()?;
            socket.bind((own, 0).into())?;
            let to = SocketAddr::from(([127, octet, 1, client.to], self.network.port));
            let stream = socket.connect(to).await?;
            let Some(tls) = &client.tls else {
                return read_label(stream).await;
            };
            let seen = Arc::new(Mutex::new(Vec::new()));
            let recorded = Recorded {
                stream,
                seen: Arc::clone(&seen),
            };
            let name = ServerName::try_from(tls.name.unwrap_or("unnamed.invalid")).unwrap();
            let connector = TlsConnector::from(certificates.client(tls));
            match connector.connect(name, recorded).into_fallible().await {
                Ok(stream) => read_label(stream).await,
                Err((_, recorded)) => {
                    let label = label(&seen.lock().unwrap());
                    Ok(Connected {
                        label,
                        _stream: Some(Box::new(recorded)),
                    })
                }
            }
        };
        let connected: io::Result<Connected> = timeout(LIMIT, connecting)
            .await
            .unwrap_or_else(|_| panic!("neither answered nor closed: {client:?}"));
        // How it was closed is a matter of time.
        let connected = connected.unwrap_or(Connected {
            label: None,
            _stream: None,
        });
        (own.to_string(), connected)
    }

    /// Waits until the connections of these callers are in the access logs.
    pub(super) async fn logged(&self, callers: &[String]) {
        wait::until(async || {
            let log = std::fs::read_to_string(&self.network.log).unwrap_or_default();
            let (log, _) = log.rsplit_once('\n').unwrap_or_default();
            let has = |caller: &str, which: &str| {
                let start = format!("{caller}|{which}|");
                log.lines().find(|line| line.starts_with(&start))
            };
            let missing = callers.iter().find(|caller| {
                let of_listener = has(caller, "L");
                // A connection without a chain has no other line.
                let chain = of_listener.and_then(|line| line.split('|').nth(5));
                chain.is_none_or(|chain| chain != "-" && has(caller, "T").is_none())
            });
            match missing {
                Some(caller) => Err(format!("no line of {caller} in {}", self.network.log)),
                None => Ok(()),
            }
        })
        .await;
    }
}

async fn stat(admin: &AdminClient, name: &str) -> Option<u64> {
    let page = admin.get(&format!("/stats?filter=^{name}$")).await.unwrap();
    let page = String::from_utf8(page.to_vec()).unwrap();
    page.trim().rsplit_once(": ")?.1.parse().ok()
}

/// The files of Envoy's resources.
fn files(
    network: &Network,
    config: &Served,
    folder: &str,
) -> Vec<(String, &'static str, Vec<Value>)> {
    let mut clusters = config.clusters(network);
    let mut files = Vec::new();
    for one in config.endpoints(network) {
        let name = text(&one, "cluster_name");
        let url = "envoy.config.endpoint.v3.ClusterLoadAssignment";
        files.push((name, url, vec![one]));
    }
    for cluster in &mut clusters {
        let name = text(cluster, "name");
        if let Some(eds) = cluster.get_mut("eds_cluster_config") {
            let path = format!("{folder}/{name}");
            eds["eds_config"] =
                json!({ "resource_api_version": "V3", "path_config_source": { "path": path } });
        }
    }
    files.push((
        "clusters".to_owned(),
        "envoy.config.cluster.v3.Cluster",
        clusters,
    ));
    let listeners = vec![config.listener(network)];
    files.push((
        "listeners".to_owned(),
        "envoy.config.listener.v3.Listener",
        listeners,
    ));
    files
}

/// The files but the listeners' that differ from those that were written.
fn changed_files(
    written: &mut BTreeMap<String, String>,
    network: &Network,
    config: &Served,
) -> Vec<String> {
    let files = files(network, config, &folder_of(network));
    let mut changed = Vec::new();
    for (name, _, resources) in files {
        let content = json!(resources).to_string();
        if written.insert(name.clone(), content.clone()).as_ref() != Some(&content)
            && name != "listeners"
        {
            changed.push(name);
        }
    }
    changed
}

fn folder_of(network: &Network) -> String {
    let folder = Path::new(&network.log).parent().unwrap();
    folder.to_str().unwrap().to_owned()
}

/// Writes the files that have changed, the listeners' last.
fn write_files(
    folder: &Path,
    written: &mut BTreeMap<String, String>,
    network: &Network,
    config: &Served,
) {
    for (name, message, mut resources) in files(network, config, &folder_of(network)) {
        let content = json!(resources).to_string();
        if written.get(&name) == Some(&content) {
            continue;
        }
        written.insert(name.clone(), content);
        for resource in &mut resources {
            resource["@type"] = format!("type.googleapis.com/{message}").into();
        }
        let version = config.version.to_string();
        let document = json!({ "version_info": version, "resources": resources });
        let temporary = folder.join(format!("{name}.new"));
        std::fs::write(&temporary, document.to_string()).unwrap();
        std::fs::rename(temporary, folder.join(name)).unwrap();
    }
}

fn response(
    url: &str,
    resources: &[Value],
    removed: Vec<String>,
    nonce: u64,
    version: u32,
) -> DeltaDiscoveryResponse {
    let message = url.strip_prefix("type.googleapis.com/").unwrap();
    let resources = resources.iter().map(|json| {
        let name = json.get("name").or(json.get("cluster_name")).unwrap();
        Resource {
            version: version.to_string(),
            resource: any(message, json).into(),
            name: name.as_str().unwrap().to_owned(),
            aliases: Vec::new(),
        }
    });
    DeltaDiscoveryResponse {
        system_version_info: String::new(),
        resources: resources.collect(),
        type_url: url.to_owned(),
        nonce: nonce.to_string(),
        removed_resources: removed,
    }
}

/// Waits until a response is acknowledged.
async fn answered(requests: &mut mpsc::Receiver<FromProxy>, nonce: &str) {
    loop {
        let sent = timeout(LIMIT, requests.recv()).await.unwrap().unwrap();
        let FromProxy::Request(request) = sent else {
            continue;
        };
        if request.response_nonce == nonce {
            assert!(request.error_detail.is_none(), "{:?}", request.error_detail);
            return;
        }
    }
}
