//! Values of other datacenters, which this process keeps while readers use them.
//!
//! A reader reads a range of another datacenter like a row ([`ReadTxn::remote`]). The first read makes the range
//! wanted: a driver ([`Mirror`]) then asks a server of that datacenter, and sets the value whenever it changes. Until
//! its first attempt has ended, the range and every read that depends on it is pending. Afterwards it never is again: a
//! datacenter that is away leaves its ranges empty, or as they were last.
//!
//! Values are part of each published state, so that a transaction reads one picture. They are not rows: they are not
//! stored, have no index, and survive a restore. What is read is in use while a watch, a shared result or a cached value
//! depends on it.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use imbl::{OrdMap, OrdSet};
use legate_model::{CheckServiceNode, ServiceName, Tenancy};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::key::{Key, Table};
use crate::read::ReadTxn;
use crate::reader::Tables;

/// The maximum number of ranges. Further ones read as failed.
pub const MAX_RANGES: usize = 10_000;

/// How long a range stays that nobody uses.
pub const UNUSED: Duration = Duration::from_secs(60);

/// How long an owner may not be asked until readers take notice. Servers are replaced in less.
pub const AWAY: Duration = Duration::from_secs(5);

const NOT_JOINED: &str = "this server asks no other datacenter, because it has no port for servers";
const FULL: &str = "this server reads the maximum of 10,000 ranges of other datacenters";

/// What is read of another datacenter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    /// The owner, in lower case.
    pub datacenter: Arc<str>,
    /// What it is asked for.
    pub what: RangeKind,
}

/// A list of instances.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RangeKind {
    /// Those through which a service is reached in the mesh.
    Instances(ServiceName),
    /// The mesh gateways of a partition.
    MeshGateways(Arc<str>),
}

/// The value of a range.
#[derive(Debug, Clone, PartialEq)]
pub enum Remote {
    /// The first attempt to read it has not ended.
    Pending,
    /// It could not be read yet, for this reason.
    Failed(Arc<str>),
    /// What the owner answered last.
    Known(Arc<Vec<CheckServiceNode>>),
}

/// A range as its driver has left it.
#[derive(Debug, Clone, PartialEq)]
pub struct RangeStatus {
    /// The range.
    pub range: Range,
    /// For how long the value may have been out of date: zero while the owner is asked for changes. `None` without a
    /// value.
    pub age: Option<Duration>,
    /// Whether the owner is asked for changes.
    pub is_connected: bool,
    /// Why the last attempt failed, until one succeeds.
    pub error: Option<Arc<str>>,
    /// Whether a reader depends on it.
    pub is_used: bool,
}

impl Range {
    /// The instances through which a service is reached in the mesh of a datacenter.
    pub fn instances(datacenter: &str, service: &ServiceName) -> Self {
        Self {
            datacenter: datacenter.to_ascii_lowercase().into(),
            what: RangeKind::Instances(service.clone()),
        }
    }

    /// The mesh gateways of a partition in a datacenter.
    pub fn mesh_gateways(datacenter: &str, partition: &str) -> Self {
        Self {
            datacenter: datacenter.to_ascii_lowercase().into(),
            what: RangeKind::MeshGateways(partition.to_ascii_lowercase().into()),
        }
    }

    fn key(&self) -> Key {
        let datacenter = &*self.datacenter;
        match &self.what {
            RangeKind::Instances(ServiceName { tenancy, name }) => key(&[
                "instances",
                datacenter,
                &tenancy.partition,
                &tenancy.namespace,
                name,
            ]),
            RangeKind::MeshGateways(partition) => key(&["mesh gateways", datacenter, partition]),
        }
    }
}

impl std::fmt::Display for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.what {
            RangeKind::Instances(service) => write!(f, "the instances of {service}")?,
            RangeKind::MeshGateways(partition) => {
                write!(f, "the mesh gateways of partition {partition}")?;
            }
        }
        write!(f, " in {}", self.datacenter)
    }
}

fn key(names: &[&str]) -> Key {
    Key::new(Table::Remote, &Tenancy::default(), names)
}

/// The names of the other datacenters.
fn datacenters_key() -> Key {
    key(&["datacenters"])
}

/// What readers depend on that need to know whether the owner of a range is asked for changes.
fn connected_key(range: &Key) -> Key {
    let range = range.parts().unwrap_or_default();
    let names: Vec<_> = ["connected"]
        .into_iter()
        .chain(range.iter().map(String::as_str))
        .collect();
    key(&names)
}

/// What readers depend on whose ranges were refused.
fn refused_key() -> Key {
    key(&["refused"])
}

/// The values in a state.
#[derive(Clone, Default)]
pub(crate) struct Values {
    /// What has been read, or could not be.
    ranges: OrdMap<Key, Remote>,
    /// Those whose owner is asked for changes, or was a moment ago.
    connected: OrdSet<Key>,
    datacenters: Arc<Vec<Arc<str>>>,
    pub(crate) uses: Arc<Uses>,
}

/// The ranges of a store, and who uses them.
#[derive(Default)]
pub(crate) struct Uses {
    ranges: Mutex<Ranges>,
    wanted: Notify,
}

#[derive(Default)]
struct Ranges {
    by_key: HashMap<Key, Known>,
    /// Those that no driver has taken yet.
    wanted: Vec<Range>,
    /// Whether there is a driver.
    is_driven: bool,
    /// Whether a range was refused since there was room.
    has_refused: bool,
}

struct Known {
    range: Range,
    used: Weak<InUse>,
    /// When it was found unused.
    unused_since: Option<Instant>,
    /// When the owner was last known to have this value; `None` while it is asked for changes, and without a value.
    stale_since: Option<Instant>,
    is_connected: bool,
    error: Option<Arc<str>>,
}

/// Readers hold it in their reads.
struct InUse;

impl Uses {
    fn lock(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a range in use.
    ///
    /// # Errors
    /// Why it is not read.
    fn hold(&self, key: &Key, range: &Range) -> Result<Arc<InUse>, &'static str> {
        let mut ranges = self.lock();
        if let Some(known) = ranges.by_key.get_mut(key) {
            known.unused_since = None;
            return Ok(known.used.upgrade().unwrap_or_else(|| {
                let used = Arc::new(InUse);
                known.used = Arc::downgrade(&used);
                used
            }));
        }
        if !ranges.is_driven || ranges.by_key.len() >= MAX_RANGES {
            ranges.has_refused = true;
            return Err(if ranges.is_driven { FULL } else { NOT_JOINED });
        }
        let used = Arc::new(InUse);
        let known = Known {
            range: range.clone(),
            used: Arc::downgrade(&used),
            unused_since: None,
            stale_since: None,
            is_connected: false,
            error: None,
        };
        ranges.by_key.insert(key.clone(), known);
        ranges.wanted.push(range.clone());
        drop(ranges);
        self.wanted.notify_one();
        Ok(used)
    }
}

impl ReadTxn<'_> {
    /// What another datacenter has. The first read makes the range wanted.
    pub fn remote(&self, range: &Range) -> Remote {
        let values = &self.state.mirror;
        let key = range.key();
        let value = values.ranges.get(&key);
        match values.uses.hold(&key, range) {
            Ok(used) => self.depend_on(key, Some(used)),
            Err(reason) => {
                self.depend_on(key, None);
                self.depend_on(refused_key(), None);
                return value.cloned().unwrap_or(Remote::Failed(reason.into()));
            }
        }
        value.cloned().unwrap_or_else(|| {
            self.set_pending();
            Remote::Pending
        })
    }

    /// The same for a reader that does not wait for the first value: the value, and whether the owner is asked for changes
    /// of it, or was until [`AWAY`] ago. `None`: there is none yet.
    pub fn remote_if_known(&self, range: &Range) -> Option<(Arc<Vec<CheckServiceNode>>, bool)> {
        let values = &self.state.mirror;
        let key = range.key();
        let is_connected = values.connected.contains(&key);
        self.depend_on(connected_key(&key), None);
        let value = match values.ranges.get(&key) {
            Some(Remote::Known(value)) => Some((Arc::clone(value), is_connected)),
            _ => None,
        };
        match values.uses.hold(&key, range) {
            Ok(used) => self.depend_on(key, Some(used)),
            Err(_) => {
                self.depend_on(key, None);
                self.depend_on(refused_key(), None);
            }
        }
        value
    }

    /// The names of the other datacenters, in lower case, the nearest first.
    pub fn other_datacenters(&self) -> Arc<Vec<Arc<str>>> {
        self.depend_on(datacenters_key(), None);
        Arc::clone(&self.state.mirror.datacenters)
    }

    fn depend_on(&self, key: Key, used: Option<Arc<InUse>>) {
        self.note_remote(key, used.map(|used| used as Arc<dyn Any + Send + Sync>));
    }
}

/// Sets the values of ranges of other datacenters. Clones drive the same ranges.
#[derive(Clone)]
pub struct Mirror {
    tables: Arc<Tables>,
    uses: Arc<Uses>,
}

impl Mirror {
    /// From now on, ranges are wanted instead of failed.
    pub(crate) fn new(tables: Arc<Tables>) -> Self {
        let uses = Arc::clone(&tables.state().mirror.uses);
        let mirror = Self { tables, uses };
        mirror.tables.change_mirror(|_, touched| {
            let mut ranges = mirror.uses.lock();
            ranges.is_driven = true;
            if mem::take(&mut ranges.has_refused) {
                touched.insert(refused_key());
            }
        });
        mirror
    }

    /// Waits for ranges that are wanted, and takes them. Cancel-safe.
    pub async fn wanted(&self) -> Vec<Range> {
        loop {
            let wanted = mem::take(&mut self.uses.lock().wanted);
            if !wanted.is_empty() {
                return wanted;
            }
            self.uses.wanted.notified().await;
        }
    }

    /// Sets what the owner has answered; it is asked for changes from now on. An equal value wakes nobody. Without
    /// effect if the range was dropped.
    pub fn set(&self, range: &Range, value: Vec<CheckServiceNode>) {
        let key = range.key();
        self.tables.change_mirror(|values, touched| {
            let mut ranges = self.uses.lock();
            let Some(known) = ranges.by_key.get_mut(&key) else {
                return;
            };
            known.is_connected = true;
            known.stale_since = None;
            known.error = None;
            if values.connected.insert(key.clone()).is_none() {
                touched.insert(connected_key(&key));
            }
            let is_same =
                matches!(values.ranges.get(&key), Some(Remote::Known(old)) if **old == value);
            if !is_same {
                let value = Remote::Known(Arc::new(value));
                values.ranges.insert(key.clone(), value);
                touched.insert(key.clone());
            }
        });
    }

    /// Notes that an attempt has failed. A range with a value keeps it.
    pub fn fail(&self, range: &Range, reason: &str, now: Instant) {
        let key = range.key();
        let reason: Arc<str> = reason.into();
        self.tables.change_mirror(|values, touched| {
            let mut ranges = self.uses.lock();
            let Some(known) = ranges.by_key.get_mut(&key) else {
                return;
            };
            if mem::take(&mut known.is_connected) {
                known.stale_since = Some(now);
            }
            let is_away = known
                .stale_since
                .is_some_and(|since| now.duration_since(since) >= AWAY);
            if is_away && values.connected.remove(&key).is_some() {
                touched.insert(connected_key(&key));
            }
            known.error = Some(Arc::clone(&reason));
            if !values.ranges.contains_key(&key) {
                values.ranges.insert(key.clone(), Remote::Failed(reason));
                touched.insert(key.clone());
            }
        });
    }

    /// Drops the ranges that nobody has used for [`UNUSED`], and returns them. To be called every few seconds.
    pub fn drop_unused(&self, now: Instant) -> Vec<Range> {
        if self.uses.lock().by_key.is_empty() {
            return Vec::new();
        }
        // A result that nobody holds would still use what it was computed from.
        self.tables.state().queries.drop_unused();
        let mut dropped = Vec::new();
        self.tables.change_mirror(|values, touched| {
            let mut ranges = self.uses.lock();
            ranges.by_key.retain(|key, known| {
                if known.used.strong_count() > 0 {
                    known.unused_since = None;
                    return true;
                }
                let since = *known.unused_since.get_or_insert(now);
                if now.duration_since(since) < UNUSED {
                    return true;
                }
                values.ranges.remove(key);
                values.connected.remove(key);
                touched.insert(key.clone());
                dropped.push(known.range.clone());
                false
            });
            ranges.wanted.retain(|range| !dropped.contains(range));
            if !dropped.is_empty() && mem::take(&mut ranges.has_refused) {
                touched.insert(refused_key());
            }
        });
        dropped
    }

    /// Sets the names of the other datacenters, in lower case, the nearest first.
    pub fn set_datacenters(&self, names: Vec<Arc<str>>) {
        self.tables.change_mirror(|values, touched| {
            if *values.datacenters != names {
                values.datacenters = Arc::new(names);
                touched.insert(datacenters_key());
            }
        });
    }

    /// All ranges, in order.
    pub fn list(&self, now: Instant) -> Vec<RangeStatus> {
        let state = self.tables.state();
        let ranges = self.uses.lock();
        let status = |(key, known): (&Key, &Known)| {
            let has_value = matches!(state.mirror.ranges.get(key), Some(Remote::Known(_)));
            let stale = known.stale_since;
            let age = stale.map_or(Duration::ZERO, |since| now.duration_since(since));
            RangeStatus {
                range: known.range.clone(),
                age: has_value.then_some(age),
                is_connected: known.is_connected,
                error: known.error.clone(),
                is_used: known.used.strong_count() > 0,
            }
        };
        let mut all: Vec<_> = ranges.by_key.iter().map(status).collect();
        all.sort_by(|a, b| a.range.cmp(&b.range));
        all
    }
}

impl std::fmt::Debug for Mirror {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mirror").finish_non_exhaustive()
    }
}

impl Tables {
    /// Changes the values of the current state, and wakes the readers of the keys that `change` adds to its set.
    fn change_mirror(&self, change: impl FnOnce(&mut Values, &mut HashSet<Key>)) {
        self.republish(|state| {
            let mut touched = HashSet::new();
            change(&mut state.mirror, &mut touched);
            touched
        });
    }
}
