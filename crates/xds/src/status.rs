//! Status of the proxies connected to this server: which types are in sync and since when,
//! rejections with their reasons, and resources that are not served.
//!
//! One entry per stream, with the lifetime of the stream. It contains numbers, the last rejection of
//! each type, and references to the stream's snapshot and resources.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use legate_model::Tenancy;
use legate_proxycfg::{ProxyId, Snapshot};
use legate_resources::ResourceSet;
use legate_runtime::Clock;
use tokio::sync::Notify;

use crate::ResourceType;
use crate::gateway::{self, GatewayOutcome};
use crate::session::{Nack, Progress, Session};

/// Maximum number of names stored for a rejected response.
const NAMES: usize = 10;

/// Status of one type of resource on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeStatus {
    /// The session's progress.
    pub progress: Progress,
    /// When the type last became in sync or out of sync.
    pub since: SystemTime,
    /// Time of the last response.
    pub sent: Option<SystemTime>,
    /// Time of the client's last ACK.
    pub accepted: Option<SystemTime>,
    /// Names that the client rejected and that were not replaced since; at most ten.
    pub refused: Vec<Arc<str>>,
    /// The last rejection on this stream.
    pub refusal: Option<Arc<Refusal>>,
}

/// A response that a client rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Time of the rejection.
    pub at: SystemTime,
    /// The names in it, at most ten. Any of them may be the cause.
    pub resources: Vec<Arc<str>>,
    /// Number of resources in it.
    pub count: usize,
    /// The client's gRPC status code.
    pub code: i32,
    /// The client's error message, possibly truncated.
    pub reason: String,
}

/// A connected proxy.
#[derive(Clone, Debug)]
pub struct ProxyStatus {
    /// Its registration.
    pub proxy: ProxyId,
    /// When the stream was opened.
    pub connected: SystemTime,
    /// By [`ResourceType`], in the order of [`ResourceType::ALL`].
    pub types: [TypeStatus; ResourceType::ALL.len()],
    /// The snapshot and its resources; `None` before the first one.
    pub configuration: Option<(Arc<Snapshot>, Arc<ResourceSet>)>,
    /// For a proxy of a gateway of a cluster what it has made of its configuration; `None` before
    /// that is known.
    pub gateway: Option<GatewayOutcome>,
}

impl ProxyStatus {
    /// Whether the proxy has all resources that can be generated for it.
    pub fn in_sync(&self) -> bool {
        self.configuration.is_some() && self.types.iter().all(|one| one.progress.in_sync())
    }

    /// When the proxy last became in sync or out of sync.
    pub fn since(&self) -> SystemTime {
        let in_sync = self.in_sync();
        let all = self.types.iter();
        let alike = all.filter(|one| one.progress.in_sync() == in_sync);
        let times = alike.map(|one| one.since);
        let since = match in_sync {
            true => times.max(),
            false => times.min(),
        };
        since.unwrap_or(self.connected)
    }
}

/// The list of connected proxies. Clones share it.
#[derive(Clone, Debug)]
pub struct Proxies {
    clock: Clock,
    list: Arc<Mutex<List>>,
    /// The outcome of a gateway is another.
    outcomes: Arc<Notify>,
}

#[derive(Debug, Default)]
struct List {
    /// By number of the stream, in the order of opening.
    streams: BTreeMap<u64, Arc<Mutex<ProxyStatus>>>,
    opened: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic can leave a partial change.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxies {
    /// An empty list.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            list: Arc::default(),
            outcomes: Arc::default(),
        }
    }

    /// Waits until the [`ProxyStatus::gateway`] of a proxy is another than at the last call. For one
    /// caller. Cancel safe.
    pub async fn outcome_changed(&self) {
        self.outcomes.notified().await;
    }

    /// The outcomes of the proxies of gateways, with their services. If a proxy has several streams,
    /// that of the newest.
    pub fn outcomes(&self) -> Vec<(ProxyId, String, GatewayOutcome)> {
        let mut all = BTreeMap::new();
        self.visit(|status| {
            if let (Some((snapshot, _)), Some(outcome)) = (&status.configuration, &status.gateway) {
                let service = snapshot.proxy.instance.service.clone();
                all.insert(status.proxy.clone(), (service, outcome.clone()));
            }
        });
        let all = all.into_iter();
        all.map(|(proxy, (service, outcome))| (proxy, service, outcome))
            .collect()
    }

    /// All proxies, ordered by node and id. If a proxy has several streams, the newest.
    pub fn all(&self) -> Vec<ProxyStatus> {
        let streams: Vec<_> = lock(&self.list).streams.values().cloned().collect();
        let newest: BTreeMap<ProxyId, ProxyStatus> = streams
            .iter()
            .map(|stream| {
                let status = lock(stream).clone();
                (status.proxy.clone(), status)
            })
            .collect();
        newest.into_values().collect()
    }

    /// The proxy with this registration.
    pub fn get(&self, tenancy: &Tenancy, node: &str, service_id: &str) -> Option<ProxyStatus> {
        let streams: Vec<_> = lock(&self.list).streams.values().cloned().collect();
        let statuses = streams.iter().rev().map(|stream| lock(stream));
        let mut found = statuses.filter(|status| {
            let proxy = &status.proxy;
            proxy.tenancy == *tenancy
                && proxy.node.eq_ignore_ascii_case(node)
                && *proxy.service_id == *service_id
        });
        found.next().map(|status| status.clone())
    }

    /// Calls `visit` with the status of each stream, without a copy of it.
    pub(crate) fn visit(&self, mut visit: impl FnMut(&ProxyStatus)) {
        let streams: Vec<_> = lock(&self.list).streams.values().cloned().collect();
        for stream in streams {
            visit(&lock(&stream));
        }
    }

    /// The current time of the list's clock.
    pub(crate) fn now(&self) -> SystemTime {
        self.clock.now()
    }

    pub(crate) fn connect(&self, proxy: ProxyId) -> Connected {
        let now = self.clock.now();
        let kind = TypeStatus {
            progress: Progress::default(),
            since: now,
            sent: None,
            accepted: None,
            refused: Vec::new(),
            refusal: None,
        };
        let status = Arc::new(Mutex::new(ProxyStatus {
            proxy,
            connected: now,
            types: std::array::from_fn(|_| kind.clone()),
            configuration: None,
            gateway: None,
        }));
        let mut list = lock(&self.list);
        list.opened += 1;
        let number = list.opened;
        list.streams.insert(number, Arc::clone(&status));
        drop(list);
        Connected {
            proxies: self.clone(),
            number,
            status,
        }
    }
}

/// The entry of a stream, removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    proxies: Proxies,
    number: u64,
    status: Arc<Mutex<ProxyStatus>>,
}

impl Connected {
    /// Records the session's progress.
    pub(crate) fn progress(&self, session: &Session) {
        let mut status = lock(&self.status);
        let all = ResourceType::ALL.into_iter().zip(session.progress());
        for (before, (kind, now)) in status.types.iter_mut().zip(all) {
            if before.progress == now {
                continue;
            }
            let time = self.proxies.clock.now();
            if before.progress.in_sync() != now.in_sync() {
                before.since = time;
            }
            if before.progress.sent != now.sent {
                before.sent = Some(time);
            }
            if before.progress.accepted != now.accepted {
                before.accepted = Some(time);
            }
            before.refused = session.refused(kind).take(NAMES).cloned().collect();
            before.progress = now;
        }
    }

    /// Records the current configuration of the client.
    pub(crate) fn configured(&self, snapshot: &Arc<Snapshot>, resources: &Arc<ResourceSet>) {
        let configuration = (Arc::clone(snapshot), Arc::clone(resources));
        lock(&self.status).configuration = Some(configuration);
    }

    /// Records what a proxy of a gateway has made of its configuration.
    pub(crate) fn outcome(&self, session: &Session) {
        let mut status = lock(&self.status);
        let Some((snapshot, resources)) = &status.configuration else {
            return;
        };
        let before = status.gateway.as_ref();
        if let Some(outcome) = gateway::outcome((snapshot, resources), session, before) {
            status.gateway = Some(outcome);
            self.proxies.outcomes.notify_one();
        }
    }

    /// Records a rejection.
    pub(crate) fn refused(&self, nack: &Nack) {
        let refusal = Refusal {
            at: self.proxies.clock.now(),
            resources: nack.resources.iter().take(NAMES).cloned().collect(),
            count: nack.resources.len(),
            code: nack.code,
            reason: nack.message.clone(),
        };
        lock(&self.status).types[nack.kind as usize].refusal = Some(Arc::new(refusal));
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        lock(&self.proxies.list).streams.remove(&self.number);
    }
}
