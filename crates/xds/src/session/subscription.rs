//! What one stream asked for and was sent of one type of resource. Pure bookkeeping: it does
//! not know the other types, nor the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_resources::{ByName, EncodedResource};
use litemap::LiteMap;

use super::{Asked, Progress};

/// The name with which a client asks for everything.
const WILDCARD: &str = "*";

/// What a response does to one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The client is given this version.
    Upsert(Arc<str>),
    /// The resource is gone, which the response names.
    Remove,
}

/// A response that the client has not answered yet.
#[derive(Debug)]
struct Unanswered {
    number: u32,
    nonce: String,
    changes: BTreeMap<Arc<str>, Change>,
}

/// What differs between the client and a snapshot.
#[derive(Debug, Default)]
pub(super) struct Delta {
    pub(super) upserts: Vec<Arc<EncodedResource>>,
    pub(super) removals: Vec<Arc<str>>,
    /// Upserts were left out because the client refused them.
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
    /// The client has what it should have.
    Settled,
    /// The client lacks something, but it has to answer first, or rejected exactly this already.
    Held,
    /// To be sent now.
    Send(Delta),
}

/// Which part of a difference is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Upserts,
    /// Upserts, and that what the client asked for by name and waits for is gone.
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
    /// The client has asked for this type at least once.
    registered: bool,
    /// The client wants every resource of the type.
    wildcard: bool,
    /// The names the client asked for by name. This and the next one live as long as the stream, so
    /// they are sorted lists: a tree takes several times their memory.
    names: LiteMap<Arc<str>, ()>,
    /// What the client has: a version it accepted, or `None` where it must be sent again.
    client: LiteMap<Arc<str>, Option<Arc<str>>>,
    /// A type has one response on its way at most.
    unanswered: Option<Unanswered>,
    /// What the client refused and has not been given otherwise since.
    rejected: BTreeMap<Arc<str>, Rejected>,
    /// How many of several that were refused together are sent together at most.
    together: usize,
    /// What is wrong among those that were refused together was not found yet. Once it is, the others
    /// are sent in parts that grow.
    searching: bool,
    /// The number of the last response that was sent on this stream; 0 when there was none.
    sent: u32,
    /// The number of the last one that was accepted.
    accepted: u32,
    /// Of which part it is known that the client has what it should have.
    settled: Settled,
}

/// What the client refused under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rejected {
    change: Change,
    /// Nothing else was refused with it, of a removal nothing but removals: it is what is wrong.
    alone: bool,
}

/// What is left to send, by what the client has said of it.
#[derive(Debug, Default)]
struct Sorted {
    /// It has said nothing.
    fresh: Vec<Arc<EncodedResource>>,
    /// It refused several together, one of which is wrong.
    suspect: Vec<Arc<EncodedResource>>,
    /// It refused just this.
    wrong: usize,
}

/// Of which part nothing has changed since there was nothing to send.
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

/// A name as the resources have it, so that it is in memory once.
fn shared(name: &str, current: Option<&ByName>) -> Arc<str> {
    let known = current.and_then(|current| current.get(name));
    known.map_or_else(|| name.into(), |one| one.name.clone())
}

impl Subscription {
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// How far the client is.
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

    /// What the client has refused and not been given otherwise since.
    pub(super) fn refused(&self) -> impl Iterator<Item = &Arc<str>> {
        self.rejected.keys()
    }

    /// What is kept because the client named it: names that it asked for, and what it has.
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

    /// A response was sent and the client has not said what it thinks of it.
    pub(super) fn is_unanswered(&self) -> bool {
        self.unanswered.is_some()
    }

    /// The first request for the type on this stream.
    ///
    /// `held` are the versions a client brings from an earlier stream: it is sent what differs.
    pub(super) fn register(
        &mut self,
        subscribe: &[String],
        held: impl IntoIterator<Item = (String, String)>,
        current: Option<&ByName>,
    ) {
        self.settled = Settled::default();
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
            // Absent until now: this way it also gets an answer when the name does not exist.
            client.entry(name).or_insert(None);
        }
        // What the client has lost on this stream it may still have had when it wrote this.
        client.retain(|name, _| !self.client.contains_key(name));
        self.names.extend(names.into_iter().map(|name| (name, ())));
        self.client.extend(client);
    }

    /// Adds names in a later request. A name that is asked for again is sent again: the client may
    /// have forgotten it.
    pub(super) fn subscribe(&mut self, subscribe: &[String], current: Option<&ByName>) {
        if subscribe.is_empty() {
            return;
        }
        self.settled = Settled::default();
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

    /// Drops names. Under a wildcard the client cannot know whether the name stays: the response says so.
    pub(super) fn unsubscribe(&mut self, unsubscribe: &[String]) {
        if unsubscribe.is_empty() {
            return;
        }
        self.settled = Settled::default();
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

    /// The client no longer has these, because it dropped them with their parent.
    pub(super) fn lost<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        self.settled = Settled::default();
        for name in names {
            self.forget_sent(name);
            if let Some(version) = self.client.get_mut(name) {
                *version = None;
            } else if !self.registered || self.names.contains_key(name) {
                self.client.insert(name.clone(), None);
            }
        }
    }

    /// What is on its way, or was refused, says nothing about this name any more.
    fn forget_sent(&mut self, name: &str) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.changes.remove(name);
        }
        self.rejected.remove(name);
    }

    /// The client accepted the response with this nonce. An unknown nonce changes nothing.
    pub(super) fn ack(&mut self, nonce: &str) {
        let Some(accepted) = self.take_unanswered(nonce) else {
            return;
        };
        self.settled = Settled::default();
        self.accepted = accepted.number;
        if !self.searching {
            self.together = self.together.saturating_mul(2);
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

    /// The client refused the response with this nonce; the names it was about are returned.
    ///
    /// Envoy may have applied a part of it, so what it has under these names is unknown: whatever
    /// comes next is sent, except exactly what was refused. Which of several is wrong is not known
    /// either: they are sent again in halves, and what is refused alone is not sent again.
    pub(super) fn nack(&mut self, nonce: &str) -> Option<Vec<Arc<str>>> {
        let refused = self.take_unanswered(nonce)?;
        self.settled = Settled::default();
        let names: Vec<Arc<str>> = refused.changes.keys().cloned().collect();
        let mut changes = refused.changes.values();
        let alone = names.len() == 1 || changes.all(|change| *change == Change::Remove);
        self.together = (names.len() / 2).max(1);
        self.searching = !alone;
        for (name, change) in refused.changes {
            if self.wants(&name) {
                self.client.insert(name.clone(), None);
                self.rejected.insert(name, Rejected { change, alone });
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

    /// What to do about the difference between the client and `current`.
    ///
    /// The first response of a type is sent even when it is empty: Envoy waits for one before it
    /// goes on starting.
    ///
    /// What the client `keeps` is not removed although `current` lacks it.
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
            suspect.truncate(self.together.max(1));
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

    /// A removal has no versions: a refused one is tried again with every snapshot, also with one that
    /// has not `changed` what there is of the type.
    pub(super) fn on_snapshot(&mut self, changed: bool) {
        if changed || !self.rejected.is_empty() {
            self.settled = Settled::default();
        }
        self.rejected
            .retain(|_, refused| refused.change != Change::Remove);
    }

    fn delta(&self, current: &ByName, part: Part, keeps: &dyn Fn(&str) -> bool) -> Delta {
        let mut delta = Delta::default();
        if part.has_upserts() {
            if self.wildcard {
                let stale = current.values().filter(|one| self.lacks(one));
                delta.upserts.extend(stale.cloned());
            } else {
                let named = self.names.keys().filter_map(|name| current.get(name));
                delta
                    .upserts
                    .extend(named.filter(|one| self.lacks(one)).cloned());
            }
        }
        // Envoy drops what it asked for by name when it no longer needs it; a removal would only take
        // routes from listeners that still use them. Endpoints it keeps, but it waits for those that it
        // has not, and accepts no other cluster for as long, until it is sent that there are none.
        let is_gone = |name: &str| !current.contains_key(name) && !keeps(name);
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

    /// Whether the client has nothing under a name that it asked for. Of what it refused it may have a
    /// part.
    fn awaits(&self, name: &str, version: &Option<Arc<str>>) -> bool {
        version.is_none() && !self.rejected.contains_key(name)
    }

    fn lacks(&self, resource: &EncodedResource) -> bool {
        self.client.get(&resource.name) != Some(&Some(resource.version.clone()))
    }

    /// `delta` goes out under `nonce`.
    pub(super) fn sent(&mut self, number: u32, nonce: String, delta: &Delta) {
        self.sent = number;
        self.unanswered = Some(Unanswered {
            number,
            nonce,
            changes: delta.changes(),
        });
    }
}
