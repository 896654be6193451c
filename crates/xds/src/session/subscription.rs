//! Subscriptions, responses and client state of one type on one stream. Independent of other types and of
//! the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_resources::{ByName, EncodedResource};
use litemap::LiteMap;

/// Subscriptions of a client on one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Number of names, all types together.
    pub names: usize,
    /// Total size of the names, and of the versions that the client holds, in bytes.
    pub bytes: usize,
}

/// Progress of a client with one type of resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether the client has subscribed to the type.
    pub subscribed: bool,
    /// Whether there is nothing left to send, and nothing is rejected.
    pub settled: bool,
    /// Number of changes in the last response, if it is unanswered.
    pub unanswered: usize,
    /// Number of resources that it rejected and that were not replaced since.
    pub refused: usize,
    /// Number of the last response; 0 if there was none. Nonces are these numbers in hexadecimal.
    pub sent: u32,
    /// Number of the last accepted response.
    pub accepted: u32,
}

impl Progress {
    /// Whether the client has all resources that it should have, or has no subscription.
    pub fn in_sync(&self) -> bool {
        !self.subscribed || (self.settled && self.unanswered == 0)
    }
}

/// The name that subscribes to all resources.
const WILDCARD: &str = "*";

/// The change of one name in a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The client receives this version.
    Upsert(Arc<str>),
    /// The resource is removed.
    Remove,
}

/// A response that the client has not answered yet.
#[derive(Debug)]
struct Unanswered {
    number: u32,
    nonce: String,
    changes: BTreeMap<Arc<str>, Change>,
    /// The part for which these were all differences. `None` if there are more, or something has changed
    /// since.
    complete: Option<Part>,
}

/// The differences between the client and a snapshot.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) upserts: Vec<Arc<EncodedResource>>,
    pub(super) removals: Vec<Arc<str>>,
    /// Whether upserts were omitted because the client rejected them.
    pub(super) incomplete: bool,
}

impl Delta {
    pub(super) fn is_empty(&self) -> bool {
        self.upserts.is_empty() && self.removals.is_empty()
    }

    fn changes(&self) -> BTreeMap<Arc<str>, Change> {
        let upserts = self
            .upserts
            .iter()
            .map(|one| (one.name.clone(), Change::Upsert(one.version.clone())));
        let removals = self
            .removals
            .iter()
            .map(|name| (name.clone(), Change::Remove));
        upserts.chain(removals).collect()
    }
}

/// Whether there is something to send, and whether it may be sent.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The client has everything that it should have.
    Settled,
    /// There are differences, but the client has to answer first, or has rejected exactly these.
    Held,
    /// To be sent now.
    Send(Delta),
}

/// The part of the differences to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Upserts,
    /// Upserts, and removals of names that the client subscribed to and is waiting for.
    Awaited,
    Removals,
    Both,
}

impl Part {
    fn has_upserts(self) -> bool {
        self != Self::Removals
    }

    fn has_removals(self) -> bool {
        matches!(self, Self::Removals | Self::Both)
    }
}

/// One type of one stream.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// Whether the client has requested this type at least once.
    registered: bool,
    /// Whether the client has a wildcard subscription.
    wildcard: bool,
    /// The names that the client subscribed to. This and the next field live as long as the stream, so
    /// they are sorted lists; a tree needs several times the memory.
    names: LiteMap<Arc<str>, ()>,
    /// The client's resources: the accepted version, or `None` if it must be sent again.
    client: LiteMap<Arc<str>, Option<Arc<str>>>,
    /// At most one response of a type is in flight.
    unanswered: Option<Unanswered>,
    /// Resources that the client rejected and that were not replaced since.
    rejected: BTreeMap<Arc<str>, Rejected>,
    /// Maximum number of resources, out of those rejected together, in one response.
    batch_limit: usize,
    /// Whether the invalid resource among those rejected together is still being searched. Once it is
    /// found, the others are sent in growing batches.
    bisecting: bool,
    /// Number of the last response sent on this stream; 0 if there was none.
    sent: u32,
    /// Number of the last accepted response.
    accepted: u32,
    /// The parts for which the client is known to have everything.
    settled: Settled,
}

/// A rejected change of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rejected {
    change: Change,
    /// Whether it was rejected alone, or together with nothing but removals: then it is the invalid one.
    alone: bool,
    /// The client's error message.
    reason: Arc<str>,
}

/// The remaining upserts by the client's reaction to them.
#[derive(Debug, Default)]
struct Sorted {
    /// Not rejected.
    fresh: Vec<Arc<EncodedResource>>,
    /// Rejected together with others, one of which is invalid.
    suspect: Vec<Arc<EncodedResource>>,
    /// Number of those rejected alone.
    wrong: usize,
}

/// The parts that had no differences and have not changed since.
#[derive(Clone, Copy, Debug, Default)]
struct Settled {
    upserts: bool,
    removals: bool,
}

impl Settled {
    fn has(self, part: Part) -> bool {
        (self.upserts || !part.has_upserts()) && (self.removals || !part.has_removals())
    }

    fn add(&mut self, part: Part) {
        self.upserts |= part.has_upserts();
        self.removals |= part.has_removals();
    }
}

/// The name as shared with the resources, so that it is in memory only once.
fn shared(name: &str, current: Option<&ByName>) -> Arc<str> {
    let known = current.and_then(|current| current.get(name));
    known.map_or_else(|| name.into(), |one| one.name.clone())
}

impl Subscription {
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// The client's progress.
    pub(super) fn progress(&self) -> Progress {
        let unanswered = self.unanswered.as_ref();
        Progress {
            subscribed: self.registered,
            settled: self.settled.has(Part::Both) && self.rejected.is_empty(),
            unanswered: unanswered.map_or(0, |sent| sent.changes.len().max(1)),
            refused: self.rejected.len(),
            sent: self.sent,
            accepted: self.accepted,
        }
    }

    /// Names that the client rejected and that were not replaced since.
    pub(super) fn refused(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rejected.keys()
    }

    /// Current resources that the client rejected, with its reasons, and rejected removals.
    pub(super) fn rejections(
        &self,
        current: &ByName,
    ) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let all = self
            .rejected
            .iter()
            .filter(|(name, one)| match &one.change {
                Change::Upsert(version) => {
                    current.get(name).is_some_and(|now| now.version == *version)
                }
                Change::Remove => true,
            });
        all.map(|(name, one)| (name, &one.reason))
    }

    /// Whether the client has exactly this resource.
    pub(super) fn has(&self, resource: &EncodedResource) -> bool {
        let held = self.client.get(&resource.name).and_then(Option::as_ref);
        held.is_some_and(|held| is_same(held, &resource.version))
    }

    /// Memory used because of the client: subscribed names, and its resources.
    pub(super) fn asked(&self) -> Asked {
        let held = self.client.iter().map(|(name, version)| {
            let own = if self.names.contains_key(name) {
                0
            } else {
                name.len()
            };
            own + version.as_ref().map_or(0, |version| version.len())
        });
        let named = self.names.keys().map(|name| name.len());
        Asked {
            names: self.names.len().max(self.client.len()),
            bytes: named.chain(held).sum(),
        }
    }

    /// Whether a response was sent that the client has not answered yet.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Handles the first request for the type on this stream.
    ///
    /// `held` are the versions that a client holds from an earlier stream: it is sent the differences.
    pub(super) fn register(
        &mut self,
        subscribe: &[String],
        held: impl IntoIterator<Item = (String, String)>,
        current: Option<&ByName>,
    ) {
        self.unsettle();
        self.registered = true;
        self.wildcard = subscribe.is_empty() || subscribe.iter().any(|name| name == WILDCARD);
        let (mut names, mut client) = (BTreeSet::new(), BTreeMap::new());
        for (name, version) in held {
            let name = shared(&name, current);
            if !self.wildcard {
                names.insert(name.clone());
            }
            client.insert(name, Some(Arc::from(version)));
        }
        for name in subscribe.iter().filter(|name| *name != WILDCARD) {
            let name = shared(name, current);
            names.insert(name.clone());
            // Without a version, so that the client gets an answer even if the name does not exist.
            client.entry(name).or_insert(None);
        }
        // Resources that the client has dropped on this stream may still be listed in this request.
        client.retain(|name, _| !self.client.contains_key(name));
        self.names.extend(names.into_iter().map(|name| (name, ())));
        self.client.extend(client);
    }

    /// Adds names in a later request. A name that is subscribed to again is sent again, because the
    /// client may have dropped it.
    pub(super) fn subscribe(&mut self, subscribe: &[String], current: Option<&ByName>) {
        if subscribe.is_empty() {
            return;
        }
        self.unsettle();
        self.wildcard |= subscribe.iter().any(|name| name == WILDCARD);
        let names = subscribe.iter().filter(|name| *name != WILDCARD);
        let names: BTreeSet<Arc<str>> = names.map(|name| shared(name, current)).collect();
        for name in &names {
            self.forget_sent(name);
        }
        self.names
            .extend(names.iter().map(|name| (name.clone(), ())));
        self.client
            .extend(names.into_iter().map(|name| (name, None)));
    }

    /// Removes names. With a wildcard the client cannot know whether the name remains, so a response
    /// reports it.
    pub(super) fn unsubscribe(&mut self, unsubscribe: &[String]) {
        if unsubscribe.is_empty() {
            return;
        }
        self.unsettle();
        let gone: BTreeSet<&str> = unsubscribe.iter().map(String::as_str).collect();
        if gone.contains(WILDCARD) {
            self.wildcard = false;
            let names = &self.names;
            self.client.retain(|name, _| names.contains_key(name));
            self.rejected.retain(|name, _| names.contains_key(name));
        }
        self.names.retain(|name, ()| !gone.contains(&**name));
        for name in &gone {
            self.forget_sent(name);
        }
        if self.wildcard {
            for (name, version) in self.client.iter_mut() {
                if gone.contains(&**name) {
                    *version = None;
                }
            }
        } else {
            self.client.retain(|name, _| !gone.contains(&**name));
        }
    }

    /// Refers to the texts of the resources instead of to own copies: a client may send its names and
    /// versions before there are resources.
    pub(super) fn share_texts(&mut self, current: &ByName) {
        let mut find = in_order(current.iter());
        let names = std::mem::take(&mut self.names).into_iter();
        self.names = names
            .map(|(name, ())| (find(&name).map_or(name, |one| one.name.clone()), ()))
            .collect();
        let mut find = in_order(current.iter());
        let client = std::mem::take(&mut self.client).into_iter();
        let shared = |(name, version): (Arc<str>, Option<Arc<str>>)| match find(&name) {
            Some(one) if version.as_ref() == Some(&one.version) => {
                (one.name.clone(), Some(one.version.clone()))
            }
            Some(one) => (one.name.clone(), version),
            None => (name, version),
        };
        self.client = client.map(shared).collect();
    }

    /// Records that the client has dropped these resources with their parent.
    pub(super) fn mark_dropped<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a Arc<str>>,
        current: &ByName,
    ) {
        self.unsettle();
        for name in names {
            self.forget_sent(name);
            if let Some(version) = self.client.get_mut(name) {
                *version = None;
            } else if !self.registered || self.names.contains_key(name) {
                self.client.insert(shared(name, Some(current)), None);
            }
        }
    }

    /// Something has changed, so that there may be differences again.
    fn unsettle(&mut self) {
        self.settled = Settled::default();
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.complete = None;
        }
    }

    /// The response in flight, and earlier rejections, do not apply to this name any more.
    fn forget_sent(&mut self, name: &str) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.changes.remove(name);
        }
        self.rejected.remove(name);
    }

    /// Handles the client's acceptance of the response with this nonce. An unknown nonce is ignored.
    pub(super) fn ack(&mut self, nonce: &str) {
        let Some(accepted) = self.take_unanswered(nonce) else {
            return;
        };
        match accepted.complete {
            Some(part) => self.settled.add(part),
            None => self.settled = Settled::default(),
        }
        self.accepted = accepted.number;
        if !self.bisecting {
            self.batch_limit = self.batch_limit.saturating_mul(2);
        }
        for (name, change) in accepted.changes {
            self.rejected.remove(&name);
            match change {
                Change::Upsert(version) if self.wants(&name) => {
                    self.client.insert(name, Some(version));
                }
                Change::Upsert(_) | Change::Remove => {
                    self.client.remove(&name);
                }
            }
        }
    }

    /// Handles the client's rejection of the response with this nonce. Returns the names in it.
    ///
    /// Envoy may have applied a part of it, so its resources under these names are unknown: any next
    /// version is sent, except exactly the rejected one. The invalid one among several is unknown, too:
    /// they are sent again in halves, and one that is rejected alone is not sent again.
    pub(super) fn nack(&mut self, nonce: &str, reason: &str) -> Option<Vec<Arc<str>>> {
        let refused = self.take_unanswered(nonce)?;
        self.unsettle();
        let names: Vec<Arc<str>> = refused.changes.keys().cloned().collect();
        let mut changes = refused.changes.values();
        let alone = names.len() == 1 || changes.all(|change| *change == Change::Remove);
        self.batch_limit = (names.len() / 2).max(1);
        self.bisecting = !alone;
        let reason: Arc<str> = reason.into();
        for (name, change) in refused.changes {
            if self.wants(&name) {
                self.client.insert(name.clone(), None);
                let reason = Arc::clone(&reason);
                let rejected = Rejected {
                    change,
                    alone,
                    reason,
                };
                self.rejected.insert(name, rejected);
            }
        }
        Some(names)
    }

    fn take_unanswered(&mut self, nonce: &str) -> Option<Unanswered> {
        self.unanswered.take_if(|sent| sent.nonce == nonce)
    }

    fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains_key(name)
    }

    /// Determines how to handle the difference between the client and `current`.
    ///
    /// The first response of a type is sent even if it is empty: Envoy waits for one during its start.
    ///
    /// Resources for which `keeps` returns true are not removed although `current` lacks them.
    pub(super) fn verdict(
        &mut self,
        current: &ByName,
        part: Part,
        keeps: &dyn Fn(&str) -> bool,
    ) -> Verdict {
        if !self.registered || self.settled.has(part) {
            return Verdict::Settled;
        }
        let mut delta = self.delta(current, part, keeps);
        let first = self.sent == 0 && part.has_upserts();
        if delta.is_empty() && !first {
            self.settled.add(part);
            return Verdict::Settled;
        }
        if self.unanswered.is_some() {
            return Verdict::Held;
        }
        let Sorted {
            fresh,
            mut suspect,
            wrong,
        } = self.sort(std::mem::take(&mut delta.upserts));
        let left = wrong + suspect.len();
        let refused = |name: &Arc<str>| {
            let refused = self.rejected.get(name);
            refused.is_some_and(|refused| refused.alone && refused.change == Change::Remove)
        };
        let nothing = left == 0 && delta.removals.is_empty();
        if !fresh.is_empty() || nothing {
            delta.upserts = fresh;
        } else if !suspect.is_empty() {
            suspect.truncate(self.batch_limit.max(1));
            delta.removals.clear();
            delta.upserts = suspect;
        } else if delta.removals.iter().all(refused) {
            return Verdict::Held;
        }
        delta.incomplete = left > 0;
        Verdict::Send(delta)
    }

    fn sort(&self, upserts: Vec<Arc<EncodedResource>>) -> Sorted {
        let mut sorted = Sorted::default();
        for one in upserts {
            let refused = self.rejected.get(&one.name).filter(|refused| {
                matches!(&refused.change, Change::Upsert(version) if *version == one.version)
            });
            match refused {
                None => sorted.fresh.push(one),
                Some(refused) if refused.alone => sorted.wrong += 1,
                Some(_) => sorted.suspect.push(one),
            }
        }
        sorted
    }

    /// Handles a new snapshot. Removals have no version, so a rejected one is retried with every
    /// snapshot, even if the snapshot has not `changed` for this type.
    pub(super) fn on_snapshot(&mut self, changed: bool) {
        if changed || !self.rejected.is_empty() {
            self.unsettle();
        }
        self.rejected
            .retain(|_, refused| refused.change != Change::Remove);
    }

    fn delta(&self, current: &ByName, part: Part, keeps: &dyn Fn(&str) -> bool) -> Delta {
        let mut delta = Delta::default();
        let resources = || in_order(current.iter());
        if part.has_upserts() {
            let mut version = in_order(self.client.iter());
            let lacks = |one: &&Arc<EncodedResource>| {
                let held = version(&one.name).and_then(Option::as_ref);
                !held.is_some_and(|held| is_same(held, &one.version))
            };
            if self.wildcard {
                delta
                    .upserts
                    .extend(current.values().filter(lacks).cloned());
            } else {
                let named = self.names.keys().filter_map(resources());
                delta.upserts.extend(named.filter(lacks).cloned());
            }
        }
        // Envoy itself drops named resources that it no longer needs; a removal would only take routes
        // away from listeners that still use them. Endpoints are an exception: Envoy keeps those that it
        // has, but waits for missing ones, and accepts no other cluster until a removal reports that they do not
        // exist.
        let mut find = resources();
        let mut is_gone = |name: &Arc<str>| find(name).is_none() && !keeps(name);
        if part.has_removals() && self.wildcard {
            let gone = self.client.keys().filter(|name| is_gone(name));
            delta.removals.extend(gone.cloned());
        }
        if part == Part::Awaited && !self.wildcard {
            let held = self.client.iter();
            let gone = held.filter(|(name, version)| self.awaits(name, version) && is_gone(name));
            delta.removals.extend(gone.map(|(name, _)| name.clone()));
        }
        delta
    }

    /// Whether the client has no resource under a name that it subscribed to. A rejected one may have
    /// been applied in part.
    fn awaits(&self, name: &str, version: &Option<Arc<str>>) -> bool {
        version.is_none() && !self.rejected.contains_key(name)
    }

    /// Records that `delta`, the differences of `part`, is sent with `nonce`.
    pub(super) fn sent(&mut self, number: u32, nonce: String, part: Part, delta: &Delta) {
        self.sent = number;
        self.unanswered = Some(Unanswered {
            number,
            nonce,
            changes: delta.changes(),
            complete: (!delta.incomplete).then_some(part),
        });
    }
}

/// Looks names up in a sorted list. Names must be asked for in their order, each once: a proxy may
/// have thousands, and is compared with every snapshot.
fn in_order<'a, V>(
    list: impl Iterator<Item = (&'a Arc<str>, V)>,
) -> impl FnMut(&Arc<str>) -> Option<V> {
    let mut list = list.peekable();
    move |name| {
        if let Some((_, value)) = list.next_if(|(known, _)| Arc::ptr_eq(known, name)) {
            return Some(value);
        }
        while list.next_if(|(known, _)| *known < name).is_some() {}
        let found = list.next_if(|(known, _)| *known == name);
        found.map(|(_, value)| value)
    }
}

/// Whether two texts are the same. Most that are have one address, so that they need not be read.
fn is_same(one: &Arc<str>, other: &Arc<str>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}
