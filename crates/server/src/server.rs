//! Puts the parts of a server together, starts them in order and stops them in one step. It serves
//! nothing itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use legate_ca::{Ca, CaError};
use legate_checks::Runner;
use legate_model::{Invalid, ServiceInstance};
use legate_proxycfg::{Manager, ManagerConfig, ProxyId};
use legate_resources::Generator;
use legate_runtime::metrics::Registry;
use legate_runtime::{Clock, Scope, StopError, TaskError, file_limit};
use legate_store::{OpenError, ReadTxn, Store, WriteError};
use legate_xds::Proxies;
use rustls::ServerConfig as TlsConfig;
use tokio::net::{TcpListener, UdpSocket};

use crate::acl;
use crate::certificate::{self, CertificateError, Files, Renewed};
use crate::config::ServerConfig;
use crate::handles::Handles;
use crate::net::{self, ConnectionLimits};
use crate::{dns, grpc, http, seed};

/// Files of a certificate chain and its key.
type FilePair = (PathBuf, PathBuf);

/// How many free ports are tried for DNS, which needs the same one for UDP and TCP.
const DNS_PORT_ATTEMPTS: u32 = 16;

/// How long the store gets to finish what it is writing when the server stops.
const STORAGE_STOP: Duration = Duration::from_secs(10);

/// What a server stands on and tests want to have in their hands.
#[derive(Debug, Clone)]
pub struct Parts {
    /// A store that outlives the server, instead of the one of the settings.
    pub store: Option<Store>,
    /// The time.
    pub clock: Clock,
}

impl Default for Parts {
    /// The store of the settings and the system's clock.
    fn default() -> Self {
        Self {
            store: None,
            clock: Clock::system(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened at.
    #[error(
        "{api} cannot listen at {address}: {reason}; choose another address or port, or end what uses it"
    )]
    Listen {
        /// Which API.
        api: &'static str,
        /// The address from the settings.
        address: SocketAddr,
        /// What the system says. It is no source: the text holds it, and a chain of causes would
        /// tell it twice.
        reason: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("the store cannot be opened: {0}")]
    Store(#[from] OpenError),
    /// The mesh CA cannot be set up.
    #[error("the mesh CA cannot start: {0}")]
    Ca(#[from] CaError),
    /// There is no certificate for a listener with TLS.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A name in the settings cannot be used.
    #[error("{0}; check the datacenter and node name in the settings")]
    Name(#[from] legate_model::name::InvalidName),
    /// The initial management token cannot be used.
    #[error("the initial management token (LEGATE_INITIAL_MANAGEMENT_TOKEN) cannot be used: {0}")]
    Token(#[from] Invalid),
    /// A service, check or config entry of the settings cannot be registered.
    #[error("{what} of the settings cannot be registered: {reason}")]
    Registration {
        /// Which one.
        what: String,
        /// Why not.
        reason: String,
    },
    /// The server's own node or token cannot be stored.
    #[error("the store refuses {what}: {source}")]
    Refused {
        /// What was to be written.
        what: &'static str,
        /// Why not.
        source: WriteError,
    },
}

/// A running control plane.
///
/// Dropping it ends everything at once; [`Server::stop`] lets open requests finish.
#[derive(Debug)]
pub struct Server {
    scope: Scope,
    storage: Scope,
    store: Store,
    ca: Ca,
    manager: Manager,
    config: Arc<ServerConfig>,
}

impl Server {
    /// Starts a server. When this returns, its addresses accept connections.
    ///
    /// # Errors
    /// [`StartError`] names the setting to look at. Nothing is left running then.
    pub async fn start(config: ServerConfig, parts: Parts) -> Result<Self, StartError> {
        legate_model::name::validate_datacenter(&config.datacenter)?;
        legate_model::name::validate_node_name(&config.node_name)?;
        let Parts { store, clock } = parts;
        let listening = Listening::open(&config).await?;
        let config = Arc::new(ServerConfig {
            connections: connection_limits(config.connections),
            ..listening.with_addresses(config)
        });
        let scope = Scope::new("server");
        // It is written to until the last request has been answered.
        let storage = scope.spawner().child_with_own_token("storage");
        let store = match store {
            Some(store) => store,
            None => Store::open(config.store.clone(), &storage.spawner()).await?,
        };
        let ca = Ca::initialise(&store, &config.datacenter, clock.clone(), config.ca).await?;
        seed::seed(&config, &store, &clock).await?;
        let manager = Manager::new(
            store.reader(),
            ca.leaves(&scope.spawner()),
            scope.spawner(),
            ManagerConfig {
                agent_ipv6: net::has_ipv6(),
                coalesce: config.update_coalesce,
                max_updates_per_second: config.update_max_per_second,
                ..ManagerConfig::new(config.datacenter.as_str(), config.intention_default())
            },
        );
        let (reader, writer) = (store.reader(), store.writer());
        let (checks, reports) = Runner::new(&config.node_name, reader, writer, exposes_checks);
        scope.spawn("checks", checks.run(scope.token()));
        let handles = Handles {
            reports,
            config: config.clone(),
            store: store.clone(),
            rights: acl::Rights::new(store.reader(), clock.clone(), config.clone()),
            ca: ca.clone(),
            proxies: Proxies::new(clock.clone()),
            clock,
            manager: manager.clone(),
            methods: Arc::new(acl::Methods::new(store.reader())),
            generator: Arc::new(Generator::new()),
            registry: Registry::new(),
            spawner: scope.spawner(),
        };
        let server = Self {
            scope,
            storage,
            store,
            ca,
            manager,
            config,
        };
        server.spawn(&handles, listening)?;
        Ok(server)
    }

    fn spawn(&self, handles: &Handles, listening: Listening) -> Result<(), StartError> {
        let stop = self.scope.token();
        let mut certificates = Vec::new();
        let mut tls = |listener: Option<TcpListener>, files| match listener {
            Some(listener) => {
                let tls = self.tls(files, &handles.clock, &mut certificates)?;
                Ok::<_, StartError>(Some((listener, tls)))
            }
            None => Ok(None),
        };
        let grpc_tls = tls(listening.grpc_tls, &self.config.grpc_tls_files)?;
        let https = tls(listening.https, &self.config.https_files)?;
        if self.config.acl.enabled {
            let sweep = acl::sweep(self.store.clone(), handles.clock.clone(), stop.clone());
            self.scope.spawn("expired tokens", sweep);
        }
        if listening.http.is_some() || https.is_some() {
            let listeners = http::Listeners {
                plain: listening.http,
                tls: https.map(|(listener, tls)| (listener, certificate::for_http(&tls))),
            };
            let api = http::serve(handles.clone(), listeners, stop.clone());
            self.scope.spawn("HTTP API", api);
        }
        if listening.grpc.is_some() || grpc_tls.is_some() {
            let listeners = grpc::Listeners {
                plain: listening.grpc,
                tls: grpc_tls,
            };
            let api = grpc::serve(handles.clone(), listeners, stop.clone());
            self.scope.spawn("gRPC API", api);
        }
        if let Some((udp, tcp)) = listening.dns {
            let api = dns::serve(
                dns::Responder::new(handles),
                self.scope.spawner(),
                udp,
                tcp,
                stop,
            );
            self.scope.spawn("DNS", api);
        }
        Ok(())
    }

    /// The certificate of these files, or of the mesh CA. `made` has those that are kept up to date
    /// already, so that each is read or signed once.
    fn tls(
        &self,
        files: &Option<FilePair>,
        clock: &Clock,
        made: &mut Vec<(Option<FilePair>, Arc<TlsConfig>)>,
    ) -> Result<Arc<TlsConfig>, StartError> {
        if let Some((_, tls)) = made.iter().find(|(known, _)| known == files) {
            return Ok(tls.clone());
        }
        let stop = self.scope.token();
        let tls = match files {
            Some((cert, key)) => {
                let (files, tls) = Files::open(cert, key)?;
                self.scope.spawn("certificate files", files.keep(stop));
                tls
            }
            None => {
                let (renewed, tls) = Renewed::issue(&self.ca, clock, &self.config)?;
                let keep = renewed.keep(self.store.reader(), stop);
                self.scope.spawn("certificate", keep);
                tls
            }
        };
        made.push((files.clone(), tls.clone()));
        Ok(tls)
    }

    /// Where the HTTP API listens.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.config.http
    }

    /// Where the HTTP API listens with TLS.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.config.https
    }

    /// Where gRPC without TLS listens.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.config.grpc
    }

    /// Where gRPC with TLS listens.
    pub fn grpc_tls_addr(&self) -> Option<SocketAddr> {
        self.config.grpc_tls
    }

    /// Where DNS answers, over UDP and TCP.
    pub fn dns_addr(&self) -> Option<SocketAddr> {
        self.config.dns
    }

    /// The tables.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The mesh CA.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The proxies that have a snapshot now.
    pub fn proxies(&self) -> Vec<ProxyId> {
        self.manager.proxies()
    }

    /// Returns when a part of the server has failed; until then it waits. Cancel safe.
    pub async fn failed(&self) -> TaskError {
        self.scope.failed().await
    }

    /// Stops: refuses new connections, ends streams and waiting queries, lets requests that are
    /// being answered finish, and after the deadline ends the rest. The ports are free afterwards.
    ///
    /// # Errors
    /// [`StopError`] names the parts that did not end in time, or that had failed before.
    pub async fn stop(self, deadline: Duration) -> Result<(), StopError> {
        let stopped = self.scope.stop(deadline).await;
        stopped.and(self.storage.stop(STORAGE_STOP).await)
    }
}

/// Whether a sidecar exposes the checks of its service.
fn exposes_checks(txn: &ReadTxn<'_>, sidecar: &ServiceInstance) -> bool {
    let merged = legate_proxycfg::merge_central_config(sidecar, txn);
    merged.proxy.expose.checks
}

/// The limits from the settings, as far as the process may open files.
fn connection_limits(asked: ConnectionLimits) -> ConnectionLimits {
    let files = match file_limit::current() {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files is not known");
            return asked;
        }
    };
    let limits = asked.within(files);
    if limits != asked {
        tracing::warn!(
            files,
            http = limits.http.in_all,
            grpc = limits.grpc.in_all,
            dns = limits.dns.in_all,
            "the process may open too few files for the connection limits of the settings, so they \
             are lowered: raise the limit of open files (ulimit -n, LimitNOFILE)"
        );
    }
    limits
}

/// Sockets that are bound, before anything is served.
struct Listening {
    http: Option<TcpListener>,
    https: Option<TcpListener>,
    grpc: Option<TcpListener>,
    grpc_tls: Option<TcpListener>,
    dns: Option<(UdpSocket, TcpListener)>,
}

impl Listening {
    async fn open(config: &ServerConfig) -> Result<Self, StartError> {
        Ok(Self {
            http: listen("the HTTP API", config.http)?,
            https: listen("the HTTP API with TLS", config.https)?,
            grpc: listen("the gRPC API", config.grpc)?,
            grpc_tls: listen("the gRPC API with TLS", config.grpc_tls)?,
            dns: listen_dns(config.dns).await?,
        })
    }

    /// The settings with the ports that were really bound.
    fn with_addresses(&self, config: ServerConfig) -> ServerConfig {
        let address = |listener: &Option<TcpListener>, asked: Option<SocketAddr>| {
            let bound = listener.as_ref()?.local_addr().ok();
            bound.or(asked)
        };
        let dns = self.dns.as_ref();
        ServerConfig {
            http: address(&self.http, config.http),
            https: address(&self.https, config.https),
            grpc: address(&self.grpc, config.grpc),
            grpc_tls: address(&self.grpc_tls, config.grpc_tls),
            dns: dns.and_then(|(udp, _)| udp.local_addr().ok()),
            ..config
        }
    }
}

fn listen(
    api: &'static str,
    address: Option<SocketAddr>,
) -> Result<Option<TcpListener>, StartError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let bound = net::listen(address);
    bound.map(Some).map_err(|reason| StartError::Listen {
        api,
        address,
        reason,
    })
}

/// The port that is free for TCP may be taken for UDP: then another one is asked for.
async fn listen_dns(
    address: Option<SocketAddr>,
) -> Result<Option<(UdpSocket, TcpListener)>, StartError> {
    let Some(address) = address else {
        return Ok(None);
    };
    let failed = |reason| StartError::Listen {
        api: "DNS",
        address,
        reason,
    };
    let mut attempts = if address.port() == 0 {
        DNS_PORT_ATTEMPTS
    } else {
        1
    };
    loop {
        attempts -= 1;
        let tcp = net::listen(address).map_err(failed)?;
        match UdpSocket::bind(tcp.local_addr().map_err(failed)?).await {
            Ok(udp) => return Ok(Some((udp, tcp))),
            Err(error) if attempts == 0 => return Err(failed(error)),
            Err(_) => {}
        }
    }
}
