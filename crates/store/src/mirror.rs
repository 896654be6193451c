//! Values of other datacenters, which this process keeps while readers use them.
//!
//! A reader reads a range of another datacenter like a row ([`ReadTxn::remote`]). The first read makes the range
//! wanted: a driver ([`Mirror`]) then asks a server of that datacenter, and sets the value whenever it changes. Until
//! its first attempt has ended, the range and every read that depends on it is pending. Afterwards it never is again: a
//! datacenter that is away leaves its ranges empty, or as they were last.
//!
//! Whoever may write config entries can invent names. A range of a datacenter that is not known takes no place: it reads as
//! failed until the datacenter is known, or as pending as long as the server may not have joined the others. The places
//! are shared: while less than [`OPEN`] are taken, everybody gets what it asks for. Of the rest, a tenancy gets another one
//! only while it has less than an eighth of what is free. So a tenancy that has k ranges is refused only while at most 8k
//! places are free, and each of the others takes at most a ninth of those of the rest that it finds free: ten tenancies
//! that take what they can leave 770, of which the next one gets 85. The gateways of a partition have a share of their
//! own.
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

/// Up to this number of ranges, no tenancy has a limit of its own.
pub(crate) const OPEN: usize = MAX_RANGES / 4 * 3;

/// Above [`OPEN`], a tenancy that has at least this part of the free places gets no further one.
const PART: usize = 8;

/// The largest number of unknown datacenters that are listed.
const MAX_UNKNOWN: usize = 100;

/// The shortest time between two warnings about ranges that found no place.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// How long a range stays that nobody uses.
pub const UNUSED: Duration = Duration::from_secs(60);

/// How long an owner may not be asked until readers take notice. Servers are replaced in less.
pub const AWAY: Duration = Duration::from_secs(5);

const NOT_JOINED: &str = "this server asks no other datacenter, because it has no port for servers";
const UNKNOWN: &str = "this server knows no server of that datacenter";
const FULL: &str = "this server reads too many services and gateways of other datacenters (10,000), and the tenancy of this \
                    one has its share of them";

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
    /// Those that a prepared query of the owner finds for callers of a partition.
    Query {
        /// The partition.
        partition: Arc<str>,
        /// What the query is called by. Case counts, because templates may use it.
        query: Arc<str>,
    },
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

/// A range that found no place.
#[derive(Debug, Clone, PartialEq)]
pub struct RefusedRange {
    /// The range.
    pub range: Range,
    /// For how long it has been so.
    pub age: Duration,
    /// Why.
    pub reason: &'static str,
}

/// Whose share of the places a range takes: a partition and a namespace, in lower case. The namespace of gateways is empty.
type Share = (String, String);

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

    /// The instances that a prepared query of a datacenter finds for callers of a partition.
    pub fn query(datacenter: &str, partition: &str, query: &str) -> Self {
        Self {
            datacenter: datacenter.to_ascii_lowercase().into(),
            what: RangeKind::Query {
                partition: partition.to_ascii_lowercase().into(),
                query: query.into(),
            },
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
            RangeKind::Query { partition, query } => {
                // Keys ignore case.
                let exact: String = query.bytes().map(|byte| format!("{byte:02x}")).collect();
                key(&["query", datacenter, partition, &exact])
            }
        }
    }

    fn share(&self) -> Share {
        match &self.what {
            RangeKind::Instances(ServiceName { tenancy, .. }) => (
                tenancy.partition.to_ascii_lowercase(),
                tenancy.namespace.to_ascii_lowercase(),
            ),
            RangeKind::MeshGateways(partition) => (partition.to_ascii_lowercase(), String::new()),
            RangeKind::Query { partition, .. } => {
                let namespace = Tenancy::default().namespace;
                (
                    partition.to_ascii_lowercase(),
                    namespace.to_ascii_lowercase(),
                )
            }
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
            RangeKind::Query { query, .. } => {
                write!(f, "the instances of the prepared query {query:?}")?;
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

/// What readers depend on that have asked for a datacenter which is not known.
fn unknown_key(datacenter: &str) -> Key {
    key(&["unknown", datacenter])
}

/// The same, as long as it may be known soon.
fn joining_key() -> Key {
    key(&["joining"])
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
    /// Whether the driver knows all datacenters that there are.
    has_joined: bool,
    /// The other datacenters.
    datacenters: Arc<Vec<Arc<str>>>,
    /// How many ranges take each share.
    shares: HashMap<Share, usize>,
    /// Datacenters that are not known, and who has asked for them.
    unknown: HashMap<Arc<str>, Weak<InUse>>,
    /// Whether a range was refused since there was room.
    has_refused: bool,
    /// The last one that found no place, and when.
    refused: Option<(Range, Instant)>,
    warned: Option<Instant>,
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
    fn hold(&self, key: &Key, range: &Range) -> Result<Arc<InUse>, Refusal> {
        let mut ranges = self.lock();
        if let Some(known) = ranges.by_key.get_mut(key) {
            known.unused_since = None;
            return Ok(held(&mut known.used));
        }
        if !ranges.is_driven {
            ranges.has_refused = true;
            return Err(Refusal::NotJoined);
        }
        if !ranges.datacenters.contains(&range.datacenter) {
            let used = ranges.hold_unknown(&range.datacenter);
            return Err(match ranges.has_joined {
                true => Refusal::Unknown(used),
                false => Refusal::Joining(used),
            });
        }
        let share = range.share();
        if !ranges.has_room(&share) {
            ranges.note_refused(range);
            return Err(Refusal::Full);
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
        *ranges.shares.entry(share).or_default() += 1;
        ranges.wanted.push(range.clone());
        drop(ranges);
        self.wanted.notify_one();
        Ok(used)
    }
}

/// Why a range is not read.
enum Refusal {
    /// There is no driver.
    NotJoined,
    /// The datacenter is not known, but may be soon.
    Joining(Option<Arc<InUse>>),
    /// The datacenter is not known.
    Unknown(Option<Arc<InUse>>),
    /// There is no place for it.
    Full,
}

fn held(used: &mut Weak<InUse>) -> Arc<InUse> {
    used.upgrade().unwrap_or_else(|| {
        let new = Arc::new(InUse);
        *used = Arc::downgrade(&new);
        new
    })
}

impl Ranges {
    fn has_room(&self, share: &Share) -> bool {
        let taken = self.by_key.len();
        let own = self.shares.get(share).copied().unwrap_or_default();
        taken < OPEN || own * PART < MAX_RANGES.saturating_sub(taken)
    }

    fn note_refused(&mut self, range: &Range) {
        let now = Instant::now();
        self.has_refused = true;
        self.refused = Some((range.clone(), now));
        if self
            .warned
            .is_none_or(|at| now.duration_since(at) >= WARN_EVERY)
        {
            self.warned = Some(now);
            tracing::warn!(%range, reason = FULL, "what another datacenter has is not read");
        }
    }

    /// Holds a datacenter that is not known. `None`: there are too many, so that it is not listed.
    fn hold_unknown(&mut self, datacenter: &Arc<str>) -> Option<Arc<InUse>> {
        if !self.unknown.contains_key(datacenter) && self.unknown.len() >= MAX_UNKNOWN {
            self.unknown.retain(|_, used| used.strong_count() > 0);
            if self.unknown.len() >= MAX_UNKNOWN {
                return None;
            }
        }
        Some(held(
            self.unknown.entry(Arc::clone(datacenter)).or_default(),
        ))
    }

    fn free(&mut self, share: &Share) {
        if let Some(count) = self.shares.get_mut(share) {
            *count -= 1;
            if *count == 0 {
                self.shares.remove(share);
            }
        }
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
            Err(refusal) => {
                self.depend_on(key, None);
                let otherwise = self.refused(range, refusal);
                return value.cloned().unwrap_or(otherwise);
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
            Err(Refusal::Joining(used) | Refusal::Unknown(used)) => {
                self.depend_on(key, None);
                self.depend_on(unknown_key(&range.datacenter), used);
            }
            Err(Refusal::NotJoined | Refusal::Full) => {
                self.depend_on(key, None);
                self.depend_on(refused_key(), None);
            }
        }
        value
    }

    /// How a range reads that is not kept. The reader is woken when it may be.
    fn refused(&self, range: &Range, refusal: Refusal) -> Remote {
        match refusal {
            Refusal::Joining(used) => {
                self.depend_on(unknown_key(&range.datacenter), used);
                self.depend_on(joining_key(), None);
                self.set_pending();
                Remote::Pending
            }
            Refusal::Unknown(used) => {
                self.depend_on(unknown_key(&range.datacenter), used);
                Remote::Failed(UNKNOWN.into())
            }
            Refusal::NotJoined | Refusal::Full => {
                self.depend_on(refused_key(), None);
                let is_full = matches!(refusal, Refusal::Full);
                let reason = if is_full { FULL } else { NOT_JOINED };
                Remote::Failed(reason.into())
            }
        }
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
        let has_uses = |ranges: &Ranges| !ranges.by_key.is_empty() || !ranges.unknown.is_empty();
        if !has_uses(&self.uses.lock()) {
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
            if dropped.is_empty() {
                return;
            }
            for range in &dropped {
                ranges.free(&range.share());
            }
            let Ranges { by_key, wanted, .. } = &mut *ranges;
            wanted.retain(|range| by_key.contains_key(&range.key()));
            if mem::take(&mut ranges.has_refused) {
                touched.insert(refused_key());
            }
        });
        dropped
    }

    /// Sets the names of the other datacenters, in lower case, the nearest first. Readers that have asked for a new one are
    /// woken.
    pub fn set_datacenters(&self, names: Vec<Arc<str>>) {
        if *self.tables.state().mirror.datacenters == names {
            return;
        }
        self.tables.change_mirror(|values, touched| {
            let new = names
                .iter()
                .filter(|name| !values.datacenters.contains(name));
            touched.extend(new.map(|name| unknown_key(name)));
            touched.insert(datacenters_key());
            values.datacenters = Arc::new(names);
            let mut ranges = self.uses.lock();
            ranges.datacenters = Arc::clone(&values.datacenters);
        });
    }

    /// From now on, ranges of datacenters that are not known fail instead of being pending: this server has joined the
    /// others, or had the time for it.
    pub fn set_joined(&self) {
        if self.uses.lock().has_joined {
            return;
        }
        self.tables.change_mirror(|_, touched| {
            self.uses.lock().has_joined = true;
            touched.insert(joining_key());
        });
    }

    /// The datacenters that readers ask for and that are not known, sorted, and why they are not asked. At most 100.
    pub fn unknown_datacenters(&self) -> Vec<(Arc<str>, &'static str)> {
        let ranges = self.uses.lock();
        let used = ranges
            .unknown
            .iter()
            .filter(|(name, used)| used.strong_count() > 0 && !ranges.datacenters.contains(name));
        let mut names: Vec<_> = used.map(|(name, _)| (Arc::clone(name), UNKNOWN)).collect();
        names.sort();
        names
    }

    /// The last range that found no place since this process has started.
    pub fn last_refused(&self, now: Instant) -> Option<RefusedRange> {
        let ranges = self.uses.lock();
        let refused = ranges.refused.as_ref();
        refused.map(|(range, at)| RefusedRange {
            range: range.clone(),
            age: now.saturating_duration_since(*at),
            reason: FULL,
        })
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
