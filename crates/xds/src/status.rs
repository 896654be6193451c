//! What the proxies that are connected to this server have, for people: which types are in sync and
//! since when, what they refused and why, what is not served.
//!
//! One entry a stream, which lives as long as the stream. It holds numbers, the last refusal of each
//! type, and references to what the stream has anyway: its snapshot and its resources.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use legate_model::Tenancy;
use legate_proxycfg::{ProxyId, Snapshot};
use legate_resources::ResourceSet;
use legate_runtime::Clock;

use crate::ResourceType;
use crate::session::{Nack, Progress, Session};

/// So many of the names in a refused response are kept.
const NAMES: usize = 10;

/// How far a stream is with one type of resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeStatus {
    /// What the session knows.
    pub progress: Progress,
    /// Since when it is in sync, or is not.
    pub since: SystemTime,
    /// When the last response was sent.
    pub sent: Option<SystemTime>,
    /// When the client last accepted one.
    pub accepted: Option<SystemTime>,
    /// Names that the client has refused and not been given otherwise since; ten at most.
    pub refused: Vec<Arc<str>>,
    /// What the client refused last, on this stream.
    pub refusal: Option<Arc<Refusal>>,
}

/// A response that a client refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// When.
    pub at: SystemTime,
    /// What was in it, any of which may be the reason; ten names at most.
    pub resources: Vec<Arc<str>>,
    /// How many were in it.
    pub count: usize,
    /// The gRPC status code that the client gave.
    pub code: i32,
    /// What the client said; a long text is cut.
    pub reason: String,
}

/// One proxy that is connected.
#[derive(Clone, Debug)]
pub struct ProxyStatus {
    /// Its registration.
    pub proxy: ProxyId,
    /// Since when.
    pub connected: SystemTime,
    /// By [`ResourceType`], in the order of [`ResourceType::ALL`].
    pub types: [TypeStatus; ResourceType::ALL.len()],
    /// What it is made for and what was made; `None` until the first time.
    pub configuration: Option<(Arc<Snapshot>, Arc<ResourceSet>)>,
}

impl ProxyStatus {
    /// Whether the proxy has everything that can be made for it.
    pub fn in_sync(&self) -> bool {
        self.configuration.is_some() && self.types.iter().all(|one| one.progress.in_sync())
    }

    /// Since when that is so, or not.
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

/// The proxies that are connected. Clones are the same list.
#[derive(Clone, Debug)]
pub struct Proxies {
    clock: Clock,
    list: Arc<Mutex<List>>,
}

#[derive(Debug, Default)]
struct List {
    /// By the order in which their streams were opened.
    streams: BTreeMap<u64, Arc<Mutex<ProxyStatus>>>,
    opened: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is complete before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxies {
    /// A list without proxies.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            list: Arc::default(),
        }
    }

    /// All of them, in the order of their nodes and ids. Of several streams of a proxy the newest.
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

    /// The one of this registration.
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

/// The entry of one stream, until it is dropped.
#[derive(Debug)]
pub(crate) struct Connected {
    proxies: Proxies,
    number: u64,
    status: Arc<Mutex<ProxyStatus>>,
}

impl Connected {
    /// Notes how far the stream is.
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

    /// Notes what the client should have from now on.
    pub(crate) fn configured(&self, snapshot: &Arc<Snapshot>, resources: &Arc<ResourceSet>) {
        let configuration = (Arc::clone(snapshot), Arc::clone(resources));
        lock(&self.status).configuration = Some(configuration);
    }

    /// Notes a refusal.
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
