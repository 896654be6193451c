//! Servers of several datacenters: who they are, whether they answer, and requests between them.
//!
//! Each server has a port for servers. A connection is mutual TLS with the certificates of servers, and its ALPN
//! name is one of two: servers exchange lists of the servers that they know (`membership`, the protocol without IO), or
//! one asks another one for what it would answer itself, over HTTP/2 (`links`, `port`).
//!
//! What a request means is not known here: the HTTP API of a server is what it answers to others.

#![warn(missing_docs)]

mod arrivals;
mod dial;
mod exchange;
mod executor;
mod gateways;
mod join;
mod links;
mod membership;
mod port;
mod probe;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{Request, Response};
use hyper::body::Incoming;
use legate_identity::tls::{AgentFiles, TlsError};
use legate_runtime::{Clock, Spawner};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use self::dial::Identity;
pub use self::gateways::{GatewayAddress, GatewaySettings, InvalidGatewayAddress, KnownGateways};
pub use self::join::JoinError;
use self::links::{Failure, Links};
use self::membership::{Description, Membership};
pub use self::membership::{Member, ServerName, Status};
pub use self::port::{Body, Caller, Service};
use self::probe::OpenConnections;

/// The time between pings of an idle connection, and for their answer.
pub(crate) const PING: Duration = Duration::from_secs(10);
/// The time in which a server that leaves sends its list to the others.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// What a connection is for. The protocols are not those of Consul, whose servers are refused by the names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Which servers there are.
    Members,
    /// Requests and answers.
    Requests,
}

/// The ALPN names.
pub(crate) const PROTOCOLS: [&str; 2] = ["legate/members", "legate/requests"];

impl Protocol {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Members => PROTOCOLS[0],
            Self::Requests => PROTOCOLS[1],
        }
    }

    fn of(name: Option<&[u8]>) -> Option<Self> {
        let all = [Self::Members, Self::Requests];
        let name = name?;
        all.into_iter()
            .find(|protocol| protocol.name().as_bytes() == name)
    }
}

/// The settings of a server that others reach.
#[derive(Debug, Clone)]
pub struct WanConfig {
    /// The datacenter of this server.
    pub datacenter: String,
    /// The name of its node.
    pub node: String,
    /// The domain in the names of certificates. Consul's default: `consul`.
    pub domain: String,
    /// Where servers of other datacenters reach the port for servers.
    pub advertise: SocketAddr,
    /// What others see of it, as in `members -wan -detailed`.
    pub tags: BTreeMap<String, String>,
    /// The certificate, its key and the CA.
    pub files: AgentFiles,
    /// Servers to join at the start: host names or addresses, with or without a port.
    pub join: Vec<String>,
    /// The time between two attempts to join one of them. Consul's default: 30 s.
    pub retry_interval: Duration,
    /// The number of attempts. 0 means no limit.
    pub retry_max: u32,
    /// If other datacenters are reached through mesh gateways only. Then `join` is not used.
    pub gateways: Option<GatewaySettings>,
}

/// The servers of all datacenters, and requests to them. Clones share them.
#[derive(Clone)]
pub struct Wan(Arc<Shared>);

struct Shared {
    config: WanConfig,
    membership: Mutex<Membership>,
    /// Notified when a server may have to be probed earlier.
    changed: Notify,
    identity: Identity,
    /// The mesh gateways that lead to servers.
    known_gateways: ArcSwap<KnownGateways>,
    /// Notified when they change.
    new_gateways: Notify,
    /// For probes.
    connections: OpenConnections,
    /// For requests of this server.
    links: Links,
    /// For requests of clients, who may read answers slowly: they must not hold up those of this server.
    forwards: Links,
    spawner: Spawner,
}

impl std::fmt::Debug for Wan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Wan")
    }
}

/// Why a request to another datacenter failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No server of the datacenter is known.
    #[error("No path to datacenter {datacenter:?}: no server of it is known; {advice}")]
    Unknown {
        /// The datacenter.
        datacenter: String,
        /// What can be done.
        advice: &'static str,
    },
    /// None of its servers can be reached.
    #[error("No path to datacenter {datacenter:?}: {reasons}")]
    Unreachable {
        /// The datacenter.
        datacenter: String,
        /// What failed at each server.
        reasons: String,
    },
    /// A server did not answer; it may have acted on the request.
    #[error(
        "{server} did not answer: {reason}; it is not known whether it has acted on the request"
    )]
    Unanswered {
        /// The server.
        server: ServerName,
        /// What failed.
        reason: String,
    },
}

impl Wan {
    /// Prepares a server. It takes part once [`Self::serve`] runs. All tasks end with the scope of `spawner`.
    ///
    /// # Errors
    /// [`TlsError`] names the file at fault.
    pub fn new(config: WanConfig, clock: &Clock, spawner: Spawner) -> Result<Self, TlsError> {
        let identity = Identity::read(config.files.clone(), config.domain.clone())?;
        if config.gateways.is_some() {
            identity.check_node(&config.node, &config.datacenter)?;
        }
        let started = clock.now().duration_since(std::time::UNIX_EPOCH);
        let own = Description {
            node: config.node.clone(),
            datacenter: config.datacenter.to_ascii_lowercase(),
            address: config.advertise,
            incarnation: u64::try_from(started.unwrap_or_default().as_millis()).unwrap_or_default(),
            left: false,
            tags: config.tags.clone(),
        };
        Ok(Self(Arc::new(Shared {
            config,
            membership: Mutex::new(Membership::new(own)),
            changed: Notify::new(),
            identity,
            known_gateways: ArcSwap::default(),
            new_gateways: Notify::new(),
            connections: OpenConnections::default(),
            links: Links::new(spawner.clone()),
            forwards: Links::new(spawner.clone()),
            spawner,
        })))
    }

    /// Serves the port, probes the other servers, and joins those of the settings, until the scope stops.
    pub fn serve(&self, listener: TcpListener, service: Service) {
        let spawner = &self.0.spawner;
        let stop = spawner.token();
        let serve = port::serve(
            self.clone(),
            listener,
            service,
            spawner.clone(),
            stop.clone(),
        );
        spawner.spawn("port for servers", async move {
            serve.await;
            Ok::<_, Infallible>(())
        });
        let probing = self.clone();
        spawner.spawn_until_stop(
            "probes of servers",
            async move { probing.probe_all().await },
        );
        let (reading, ending) = (self.clone(), stop);
        spawner.spawn("certificate of this server", async move {
            reading.identity().keep(ending).await;
            Ok::<_, Infallible>(())
        });
        if let Some(settings) = self.0.config.gateways.clone() {
            let joining = self.clone();
            let join = async move { joining.join_through_gateways(settings).await };
            spawner.spawn_until_stop("joins", join);
        } else if !self.0.config.join.is_empty() {
            let joining = self.clone();
            spawner.spawn_until_stop("joins", async move { joining.join_until_done().await });
        }
    }

    /// This server.
    pub fn own(&self) -> Member {
        let membership = self.membership();
        let own = membership.own();
        Member {
            name: own.name(),
            address: own.address,
            tags: own.tags.clone(),
            status: match own.left {
                true => Status::Left,
                false => Status::Alive,
            },
            round_trip: None,
            error: None,
            gateway: None,
        }
    }

    /// Sets the mesh gateways that lead to servers, for new connections.
    pub fn set_gateways(&self, gateways: KnownGateways) {
        self.0.known_gateways.store(Arc::new(gateways));
        self.0.new_gateways.notify_one();
    }

    fn is_behind_gateways(&self) -> bool {
        self.0.config.gateways.is_some()
    }

    /// The gateways that lead to servers of another datacenter, in two groups; see [`gateways::routes`].
    fn routes(&self, datacenter: &str) -> [Vec<GatewayAddress>; 2] {
        let settings = self.0.config.gateways.as_ref();
        let known = self.0.known_gateways.load();
        settings.map_or_else(Default::default, |settings| {
            gateways::routes(datacenter, settings, &known)
        })
    }

    /// All other servers.
    pub fn members(&self) -> Vec<Member> {
        self.membership().members()
    }

    /// All datacenters: the own one first, the others by the median of the round-trip times of their servers.
    pub fn datacenters(&self) -> Vec<String> {
        self.membership().datacenters()
    }

    /// The other datacenters with the medians of the round-trip times of their servers, the nearest first. `None`: it is not
    /// known yet.
    pub fn distances(&self) -> Vec<(String, Option<Duration>)> {
        self.membership().distances()
    }

    /// Declares that a server has left; a server that runs contradicts. `prune` hides it. Returns whether there is
    /// such a server.
    pub fn force_leave(&self, name: &ServerName, prune: bool) -> bool {
        let now = Instant::now();
        self.membership().force_leave(name, prune, now)
    }

    /// Sends the servers that are alive a list which says that this one leaves.
    pub async fn leave(&self) {
        self.membership().leave();
        let alive = self.members().into_iter();
        let alive = alive.filter(|member| member.status == Status::Alive);
        let exchanges = alive.map(|member| async move {
            if let Err(error) = self.exchange(&member.name, member.address).await {
                tracing::debug!(server = %member.name, %error, "a server does not know that this one leaves");
            }
        });
        let exchanges = futures_util::future::join_all(exchanges);
        // Servers that do not get it in time find that this one has failed.
        let _ = timeout(LEAVE_TIMEOUT, exchanges).await;
    }

    /// Sends a request to a server of a datacenter: the nearest that can be reached.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn request(
        &self,
        datacenter: &str,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, RequestError> {
        self.send(&self.0.links, datacenter, request).await
    }

    /// The same for a request of a client, which gets the answer as it comes.
    ///
    /// # Errors
    /// [`RequestError`].
    pub async fn forward(
        &self,
        datacenter: &str,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, RequestError> {
        self.send(&self.0.forwards, datacenter, request).await
    }

    async fn send(
        &self,
        links: &Links,
        datacenter: &str,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, RequestError> {
        let servers = self.membership().servers(datacenter);
        let mut reasons = Vec::new();
        let mut request = request;
        for server in &servers {
            match links.send(self, server, request).await {
                Ok(response) => return Ok(response),
                Err(Failure::Sent(error)) => {
                    return Err(RequestError::Unanswered {
                        server: server.name.clone(),
                        reason: error.to_string(),
                    });
                }
                Err(Failure::NotSent(unsent, error)) => {
                    reasons.push(format!("{}: {error}", server.name));
                    request = *unsent;
                }
            }
        }
        Err(self.no_path(datacenter, reasons))
    }

    fn no_path(&self, datacenter: &str, mut reasons: Vec<String>) -> RequestError {
        let datacenter = datacenter.to_owned();
        if reasons.is_empty() {
            let failed = self.members().into_iter().filter(|member| {
                member.status == Status::Failed
                    && member.name.datacenter.eq_ignore_ascii_case(&datacenter)
            });
            reasons.extend(failed.map(|member| {
                let error = member.error.unwrap_or_default();
                format!("{} does not answer: {error}", member.name)
            }));
        }
        match reasons.is_empty() {
            true => RequestError::Unknown {
                datacenter,
                advice: match self.0.config.gateways {
                    Some(_) => {
                        "it has to reach the primary through a mesh gateway (primary_gateways, -expose-servers)"
                    }
                    None => "join one (join -wan, retry_join_wan)",
                },
            },
            false => RequestError::Unreachable {
                datacenter,
                reasons: reasons.join("; "),
            },
        }
    }

    fn membership(&self) -> MutexGuard<'_, Membership> {
        let membership = self.0.membership.lock();
        membership.unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Merges the list of another server, and returns that of this one.
    pub(crate) fn merge_list(&self, list: Vec<Description>) -> Vec<Description> {
        let now = Instant::now();
        let mut membership = self.membership();
        membership.merge_list(list, now);
        self.0.changed.notify_one();
        membership.list()
    }
}

#[cfg(test)]
mod tests;
