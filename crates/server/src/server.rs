//! Builds the parts of a server, starts them in order and shuts them down together. Serves no requests itself.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use legate_ca::{Ca, CaError, CaManager, LeafStore, ServiceLeaves};
use legate_checks::{Reports, Runner};
use legate_model::ServiceInstance;
use legate_model::name::{validate_datacenter, validate_node_name};
use legate_proxycfg::{Manager, ManagerConfig, ProxyId};
use legate_resources::Generator;
use legate_runtime::metrics::Registry;
use legate_runtime::{CancellationToken, Clock, Scope, Spawner, StopError, TaskError, file_limit};
use legate_store::{ReadTxn, Store};
use legate_wan::Wan;
use legate_xds::Proxies;
use rustls::ServerConfig as TlsConfig;
use tokio::net::{TcpListener, UdpSocket, UnixListener};

use crate::acl::{self, AgentTokens};
use crate::agent::{Agent, Reload, ReloadError};
use crate::audit::Audit;
use crate::certificate::{self, Files, Renewed};
use crate::config::{Definitions, ServerConfig, WanSettings};
use crate::dns::CurrentDns;
use crate::federation::Federation;
use crate::handles::Handles;
use crate::net::{self, ConnectionLimits};
use crate::peering::Peerings;
use crate::primary_ca::PrimaryCa;
use crate::problems::Problems;
use crate::rates::Rates;
use crate::start_error::StartError;
use crate::{
    dns, federation, gateway_reports, grpc, http, mirror, peering, replication, seed, sessions,
    telemetry, tenants, wan,
};

/// Paths of a certificate chain and its private key.
type FilePair = (PathBuf, PathBuf);

/// Attempts to find a free port for DNS, which needs the same number for UDP and TCP.
const DNS_PORT_ATTEMPTS: u32 = 16;

/// What fails while the mesh has no CA.
const NO_CA: &str = "certificate authority";

/// Time the store gets to finish pending writes at shutdown.
const STORAGE_STOP: Duration = Duration::from_secs(10);

/// Dependencies of a server that callers, mostly tests, can replace.
#[derive(Debug, Clone)]
pub struct Parts {
    /// A store that outlives the server. `None`: open the one from the settings.
    pub store: Option<Store>,
    /// The clock.
    pub clock: Clock,
    /// How to reload the configuration files. `None`: there are no files.
    pub reload: Option<Reload>,
}

impl Default for Parts {
    /// The store from the settings and the system clock.
    fn default() -> Self {
        Self {
            store: None,
            clock: Clock::system(),
            reload: None,
        }
    }
}

/// A running control plane.
///
/// Dropping it aborts everything immediately; [`Server::stop`] shuts down gracefully.
#[derive(Debug)]
pub struct Server {
    scope: Scope,
    storage: Scope,
    store: Store,
    ca: Ca,
    manager: Manager,
    config: Arc<ServerConfig>,
    audit: Audit,
    wan: Option<Wan>,
    agent: Arc<Agent>,
}

fn check_names(config: &ServerConfig) -> Result<(), StartError> {
    validate_datacenter(&config.datacenter)?;
    if let Some(primary) = config.primary() {
        validate_datacenter(primary)?;
    }
    validate_node_name(&config.node_name)?;
    let wan = config.wan.as_ref();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let is_label = config.node_name.len() <= 63 && config.node_name.bytes().all(is_plain);
    if wan.is_some_and(|wan| wan.through_gateways.is_some()) && !is_label {
        return Err(StartError::NodeBehindGateways(config.node_name.clone()));
    }
    Ok(())
}

fn manager_config(config: &ServerConfig) -> ManagerConfig {
    ManagerConfig {
        agent_ipv6: net::has_ipv6(),
        dns_domains: config.dns_domains.names().map(Into::into).collect(),
        coalesce: config.update_coalesce,
        max_updates_per_second: config.update_max_per_second,
        ..ManagerConfig::new(config.datacenter.as_str(), config.intention_default())
    }
}

fn manager(config: &ServerConfig, store: &Store, leaves: &LeafStore, scope: &Scope) -> Manager {
    let settings = manager_config(config);
    Manager::new(store.reader(), leaves.clone(), scope.spawner(), settings)
}

/// Starts the health checks of this node. Returns the handle that reports results of TTL checks.
fn run_checks(config: &ServerConfig, store: &Store, scope: &Scope) -> Reports {
    let (reader, writer) = (store.reader(), store.writer());
    let settings = config.agent.check_settings.clone();
    let (checks, reports) =
        Runner::new(&config.node_name, reader, writer, exposes_checks, settings);
    scope.spawn("checks", checks.run(scope.token()));
    reports
}

impl Server {
    /// Starts a server. When this returns, all listeners accept connections.
    ///
    /// # Errors
    /// [`StartError`] names the setting at fault. No task is left running.
    pub async fn start(config: ServerConfig, parts: Parts) -> Result<Self, StartError> {
        check_names(&config)?;
        let (store, clock, reload) = (parts.store, parts.clock, parts.reload);
        let listening = Listening::open(&config).await?;
        let config = Arc::new(ServerConfig {
            connections: connection_limits(config.connections),
            ..listening.with_addresses(config)
        });
        let audit = Audit::open(&config.audit, &clock)?;
        let (registry, scope) = (Registry::new(), Scope::new("server"));
        let rates = Rates::new(config.request_limits, &registry)?;
        let lost = telemetry::lost_counter(&registry)?;
        let traces = telemetry::start(&config, &clock, &registry, lost, &scope)?;
        // The store has its own scope: requests write to it until the last one is answered.
        let storage = scope.spawner().child_with_own_token("storage");
        let store = open_store(store, &config, &storage, &registry).await?;
        let (ca, ca_manager) = open_ca(&config, &store, &clock, &scope).await?;
        let leaves = ca.leaves(&scope.spawner());
        let problems = Problems::new(clock.clone());
        let seeded = seed_now(&config, &store, &clock).await?;
        let wan = wan::new(&config, &store, &clock, scope.spawner())?;
        let manager = manager(&config, &store, &leaves, &scope);
        let reports = run_checks(&config, &store, &scope);
        let tokens = Arc::new(agent_tokens(&config)?);
        let dns = CurrentDns::new(config.dns_settings.clone());
        let agent = Agent::new(
            config.clone(),
            store.clone(),
            reload,
            tokens.clone(),
            rates.clone(),
            dns.clone(),
        );
        let peerings = Peerings::new(
            config.clone(),
            store.clone(),
            clock.clone(),
            scope.spawner(),
        );
        peering::register_metrics(&registry, &store, &clock)?;
        let handles = Handles {
            dns,
            agent: Arc::new(agent.with_problems(problems.clone())),
            problems,
            reports,
            rates,
            audit: audit.clone(),
            traces,
            config: config.clone(),
            store: store.clone(),
            rights: acl::Rights::new(store.reader(), clock.clone(), config.clone(), tokens),
            ca: ca.clone(),
            ca_manager,
            leaves: ServiceLeaves::new(ca.clone(), leaves),
            proxies: Proxies::new(clock.clone()),
            clock,
            manager: manager.clone(),
            methods: Arc::new(acl::Methods::new(store.reader())),
            generator: Arc::new(Generator::new()),
            replication: replication::Status::of(&config, &registry)?,
            registry,
            peerings,
            mirror: wan.as_ref().map(|_| store.mirror()),
            wan: wan.clone(),
            spawner: scope.spawner(),
        };
        let server = Self {
            scope,
            storage,
            store,
            ca,
            manager,
            config,
            audit,
            wan,
            agent: handles.agent.clone(),
        };
        server.spawn(&handles, listening).await?;
        server.repair(&handles, seeded);
        Ok(server)
    }

    async fn spawn(&self, handles: &Handles, listening: Listening) -> Result<(), StartError> {
        let stop = self.scope.token();
        let mut certificates = Vec::new();
        let mut tls = async |listeners: Vec<TcpListener>, files, policy| {
            if listeners.is_empty() {
                return Ok(None);
            }
            let tls = self.tls(files, handles, &mut certificates).await?;
            let tls = certificate::with_policy(&tls, policy)?;
            Ok::<_, StartError>(Some((listeners, tls)))
        };
        let config = &self.config;
        let grpc_tls = tls(
            listening.grpc_tls,
            &config.grpc_tls_files,
            &config.grpc_tls_policy,
        )
        .await?;
        let https = tls(listening.https, &config.https_files, &config.https_policy).await?;
        let tls_for_peers = match &grpc_tls {
            Some(_) if config.connect => Some(self.tls(&None, handles, &mut certificates).await?),
            _ => None,
        };
        self.maintain(handles, &stop);
        self.follow_primary(handles)?;
        self.federate(handles, &stop);
        let listeners = http::Listeners {
            plain: listening.http,
            sockets: listening.http_sockets,
            tls: https.map(|(listeners, tls)| (listeners, certificate::for_http(&tls))),
        };
        let api = http::Api::new(handles)?;
        if let Some((wan, listener)) = self.wan.as_ref().zip(listening.servers) {
            wan.serve(listener, api.for_servers());
            if let Some(mirror) = handles.mirror.clone() {
                mirror::keep(mirror, wan.clone(), &handles.spawner);
            }
        }
        if !listeners.is_empty() {
            let api = api.serve(handles, listeners, stop.clone());
            self.scope.spawn("HTTP API", api);
        }
        if !listening.grpc.is_empty() || grpc_tls.is_some() {
            let listeners = grpc::Listeners {
                plain: listening.grpc,
                tls: grpc_tls,
                tls_for_peers,
            };
            let api = grpc::serve(handles.clone(), listeners, stop.clone());
            self.scope.spawn("gRPC API", api);
        }
        for (udp, tcp) in listening.dns {
            let api = dns::serve(
                handles.responder(),
                self.scope.spawner(),
                udp,
                tcp,
                stop.clone(),
            );
            self.scope.spawn("DNS", api);
        }
        Ok(())
    }

    /// Starts the tasks that remove what has expired or was deleted, keep the streams of peerings, and note reports.
    fn maintain(&self, handles: &Handles, stop: &CancellationToken) {
        if self.config.acl.enabled {
            let only_local = self.config.primary().is_some();
            let clock = handles.clock.clone();
            let sweep = acl::sweep(self.store.clone(), clock, only_local, stop.clone());
            self.scope.spawn("expired tokens", sweep);
        }
        let overdue = sessions::end_overdue(self.store.clone(), stop.clone());
        self.scope.spawn("expired sessions", overdue);
        let deleted = tenants::remove_deleted(self.store.clone(), stop.clone());
        self.scope.spawn("deleted tenants", deleted);
        handles.peerings.run(stop);
        let reports =
            gateway_reports::note(self.store.clone(), handles.proxies.clone(), stop.clone());
        self.scope.spawn("reports of gateways", reports);
    }

    /// Starts what makes this datacenter one of several: it says what its mesh gateways are, and finds its servers, and the
    /// routes to those of others.
    fn federate(&self, handles: &Handles, stop: &CancellationToken) {
        if self.config.connect {
            let federation = Federation {
                datacenter: self.config.datacenter.to_ascii_lowercase(),
                primary: self.config.primary().map(str::to_ascii_lowercase),
                store: self.store.clone(),
                wan: self.wan.clone(),
                rights: handles.rights(),
                clock: handles.clock.clone(),
                problems: handles.problems.clone(),
            };
            self.scope
                .spawn("federation states", federation.run(stop.clone()));
        }
        let Some((wan, settings)) = self.wan.as_ref().zip(self.config.wan.as_ref()) else {
            return;
        };
        let (store, stop) = (&self.store, || stop.clone());
        let join = federation::join_own_servers(store.clone(), wan.clone(), stop());
        self.scope.spawn("servers of this datacenter", join);
        if settings.through_gateways.is_some() {
            let routes = federation::keep_routes(store.clone(), wan.clone(), stop());
            self.scope.spawn("routes through gateways", routes);
        }
    }

    /// Starts to follow the primary datacenter, if it is another one.
    fn follow_primary(&self, handles: &Handles) -> Result<(), StartError> {
        let (Some(primary), Some(status)) = (self.config.primary(), &handles.replication) else {
            return Ok(());
        };
        let wan = self.wan.clone().ok_or_else(|| StartError::Alone {
            primary: primary.to_owned(),
        })?;
        let problems = handles.problems.clone();
        let report = move |error: Option<&CaError>| match error {
            Some(error) => problems.report(NO_CA, error),
            None => problems.solved(NO_CA),
        };
        let ca = PrimaryCa::new(wan.clone(), primary, handles.rights());
        let leadership = self.store.leadership().clone();
        let manager = handles.ca_manager.clone();
        let follow = manager.follow(ca, leadership, report, self.scope.token());
        self.scope
            .spawn("certificate authority of the primary", follow);
        let follower = replication::Follower {
            primary: primary.to_ascii_lowercase(),
            acls: self.config.acl.enabled,
            store: self.store.clone(),
            wan,
            rights: handles.rights(),
            clock: handles.clock.clone(),
            problems: handles.problems.clone(),
            status: status.clone(),
        };
        let run = follower.run(self.scope.token());
        self.scope.spawn("replication", run);
        Ok(())
    }

    /// The TLS configuration for these files or, for `None`, for a certificate of the mesh CA. `made` caches
    /// the configurations made so far, so that listeners with the same files share one.
    async fn tls(
        &self,
        files: &Option<FilePair>,
        handles: &Handles,
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
                let (renewed, tls) = Renewed::issue(&self.ca, &handles.clock, &self.config).await?;
                let keep = renewed.keep(self.store.reader(), handles.problems.clone(), stop);
                self.scope.spawn("certificate", keep);
                tls
            }
        };
        made.push((files.clone(), tls.clone()));
        Ok(tls)
    }

    /// Starts the tasks that catch up on what could not be done at the start.
    fn repair(&self, handles: &Handles, seeded: Result<Definitions, StartError>) {
        let stop = self.scope.token();
        match seeded {
            Ok(missing) => self.agent.define_later(missing, &handles.spawner),
            Err(error) => {
                tracing::error!(%error, "the server starts with what is stored, and tries again");
                let agent = Arc::clone(&self.agent);
                let later = agent.seed_later(handles.clock.clone(), handles.spawner.clone());
                self.scope.spawn("settings", later);
            }
        }
        if !self.ca.is_created() && self.config.primary().is_none() {
            let (ca, store, problems) = (
                self.ca.clone(),
                self.store.clone(),
                handles.problems.clone(),
            );
            self.scope
                .spawn("creation of the certificate authority", async move {
                    let create = ca.create(&store, |error| problems.report(NO_CA, error));
                    if stop.run_until_cancelled(create).await.is_some() {
                        problems.solved(NO_CA);
                    }
                    Ok::<_, Infallible>(())
                });
        }
    }

    /// The settings, with the actual bound ports.
    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    /// Spawns tasks of the program around the server. They end with the server, and a failure of one ends it.
    pub fn spawner(&self) -> Spawner {
        self.scope.spawner()
    }

    /// Address of the HTTP API without TLS.
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.config.http
    }

    /// Address of the HTTP API with TLS.
    pub fn https_addr(&self) -> Option<SocketAddr> {
        self.config.https
    }

    /// Address of the gRPC API without TLS.
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.config.grpc
    }

    /// Address of the gRPC API with TLS.
    pub fn grpc_tls_addr(&self) -> Option<SocketAddr> {
        self.config.grpc_tls
    }

    /// Address of DNS, over UDP and TCP.
    pub fn dns_addr(&self) -> Option<SocketAddr> {
        self.config.dns
    }

    /// Address of the port for servers.
    pub fn servers_addr(&self) -> Option<SocketAddr> {
        self.config.wan.as_ref().map(|wan| wan.listen)
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The mesh CA.
    pub fn ca(&self) -> &Ca {
        &self.ca
    }

    /// The proxies that currently have a snapshot.
    pub fn proxies(&self) -> Vec<ProxyId> {
        self.manager.proxies()
    }

    /// Marks the server's node as having left: its check `serfHealth` is critical until the next start, so that
    /// its services receive no traffic. Registrations on the node stay.
    ///
    /// # Errors
    /// When the store cannot be written.
    pub async fn leave(&self) -> Result<(), StartError> {
        if let Some(wan) = &self.wan {
            wan.leave().await;
        }
        seed::leave(&self.config, &self.store).await
    }

    /// Waits until a part of the server fails. Cancel safe.
    pub async fn failed(&self) -> TaskError {
        self.scope.failed().await
    }

    /// Reloads the configuration files and applies their definitions.
    ///
    /// # Errors
    /// [`ReloadError`] names the file or definition at fault.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        self.agent.reload().await
    }

    /// Waits until a client requests the server to leave. The caller should then stop it. Cancel safe.
    pub async fn left(&self) {
        self.agent.left().await;
    }

    /// Graceful shutdown: closes the listeners, ends streams and blocking queries, and lets requests in flight
    /// finish until `deadline`, after which they are aborted. All ports are free afterwards.
    ///
    /// # Errors
    /// [`StopError`] names the parts that missed the deadline or had failed before.
    pub async fn stop(self, deadline: Duration) -> Result<(), StopError> {
        let stopped = self.scope.stop(deadline).await;
        self.audit.flush();
        stopped.and(self.storage.stop(STORAGE_STOP).await)
    }
}

/// The given store, or that of the settings. Its refused writes are counted.
async fn open_store(
    given: Option<Store>,
    config: &ServerConfig,
    storage: &Scope,
    registry: &Registry,
) -> Result<Store, StartError> {
    let refused = telemetry::refused_writes(registry)?;
    let store = match given {
        Some(store) => store,
        None => Store::open(config.store.clone(), &storage.spawner()).await?,
    };
    store.count_refused_writes(refused);
    Ok(store)
}

/// Opens the CA, and starts its maintenance.
async fn open_ca(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
    scope: &Scope,
) -> Result<(Ca, CaManager), StartError> {
    let settings = config.ca_settings();
    let ca = Ca::initialise(store, &config.datacenter, clock.clone(), settings).await?;
    let manager = CaManager::new(ca.clone(), store.writer());
    let leadership = store.leadership().clone();
    let tend = manager.clone().run(leadership, scope.token());
    scope.spawn("certificate authority", tend);
    Ok((ca, manager))
}

/// Writes the rows of the settings, and returns the definitions whose namespaces do not exist. If the rows cannot be
/// stored, but an earlier start has written some, returns the reason: what is stored can be served.
async fn seed_now(
    config: &ServerConfig,
    store: &Store,
    clock: &Clock,
) -> Result<Result<Definitions, StartError>, StartError> {
    match seed::seed(config, store, clock).await {
        Err(error) if error.is_unavailable() && seed::is_seeded(config, store) => Ok(Err(error)),
        seeded => seeded.map(Ok),
    }
}

fn agent_tokens(config: &ServerConfig) -> Result<AgentTokens, StartError> {
    let agent = &config.agent;
    let opened = AgentTokens::open(agent.tokens.clone(), agent.token_file.clone());
    opened.map_err(|reason| StartError::Tokens {
        file: agent
            .token_file
            .clone()
            .unwrap_or_default()
            .display()
            .to_string(),
        reason,
    })
}

/// Whether a sidecar exposes the checks of its service (`Expose.Checks`).
fn exposes_checks(txn: &ReadTxn<'_>, sidecar: &ServiceInstance) -> bool {
    let merged = legate_proxycfg::merge_central_config(sidecar, txn);
    merged.proxy.expose.checks
}

/// The connection limits from the settings, lowered to what the process's limit of open files permits.
fn connection_limits(asked: ConnectionLimits) -> ConnectionLimits {
    let files = match file_limit::current() {
        Ok(files) => files,
        Err(error) => {
            tracing::warn!(%error, "the limit of open files cannot be determined");
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
            "the limit of open files is too low for the configured connection limits, so they are \
             lowered: raise it (ulimit -n, LimitNOFILE)"
        );
    }
    limits
}

/// Bound sockets, before anything is served. The first listener of each API has its primary address.
struct Listening {
    http: Vec<TcpListener>,
    http_sockets: Vec<UnixListener>,
    servers: Option<TcpListener>,
    https: Vec<TcpListener>,
    grpc: Vec<TcpListener>,
    grpc_tls: Vec<TcpListener>,
    dns: Vec<(UdpSocket, TcpListener)>,
}

impl Listening {
    async fn open(config: &ServerConfig) -> Result<Self, StartError> {
        let more = &config.more_listeners;
        let mut dns = Vec::new();
        for address in config.dns.iter().chain(&more.dns) {
            dns.extend(listen_dns(Some(*address)).await?);
        }
        let sockets = more.http_sockets.iter().map(|socket| {
            net::listen_local(socket).map_err(|reason| StartError::Socket {
                path: socket.path.clone(),
                reason,
            })
        });
        let servers = config.wan.as_ref().map(|wan| wan.listen);
        Ok(Self {
            servers: listen("the port for servers", servers, &[])?.pop(),
            http: listen("the HTTP API", config.http, &more.http)?,
            https: listen("the HTTP API with TLS", config.https, &more.https)?,
            grpc: listen("the gRPC API", config.grpc, &more.grpc)?,
            grpc_tls: listen("the gRPC API with TLS", config.grpc_tls, &more.grpc_tls)?,
            dns,
            // Bound last: a server that fails to start must not have replaced another server's socket.
            http_sockets: sockets.collect::<Result<_, _>>()?,
        })
    }

    /// The settings with the actual bound ports.
    fn with_addresses(&self, config: ServerConfig) -> ServerConfig {
        let address = |listeners: &[TcpListener], asked: Option<SocketAddr>| {
            let bound = listeners.first()?.local_addr().ok();
            bound.or(asked)
        };
        let dns = self.dns.first();
        let wan = config.wan.map(|wan| WanSettings {
            listen: address(self.servers.as_slice(), Some(wan.listen)).unwrap_or(wan.listen),
            ..wan
        });
        ServerConfig {
            wan,
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
    first: Option<SocketAddr>,
    more: &[SocketAddr],
) -> Result<Vec<TcpListener>, StartError> {
    let addresses = first.iter().chain(more);
    let bound = addresses.map(|address| {
        net::listen(*address).map_err(|reason| StartError::Listen {
            api,
            address: *address,
            reason,
        })
    });
    bound.collect()
}

/// Binds DNS over UDP and TCP. With port 0, the port found for TCP may be taken for UDP; then another is tried.
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
