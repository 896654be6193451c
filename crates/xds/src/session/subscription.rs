//! What one stream asked for and was told about one type of resource. Pure bookkeeping: it does
//! not know the other types, nor the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_resources::EncodedResource;

use super::Asked;

/// The resources of one type in a snapshot, by name.
pub(super) type Resources = BTreeMap<Arc<str>, Arc<EncodedResource>>;

/// The name with which a client asks for everything.
const WILDCARD: &str = "*";

/// What a response does to one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The client is given this version.
    Upsert(Arc<str>),
    /// The client is told that the resource is gone.
    Remove,
}

/// A response that the client has not answered yet.
#[derive(Debug)]
struct Unanswered {
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
    Removals,
    Both,
}

/// One type of one stream.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    /// The client has asked for this type at least once.
    registered: bool,
    /// The client wants every resource of the type.
    wildcard: bool,
    /// The names the client asked for by name.
    names: BTreeSet<Arc<str>>,
    /// What the client has: a version it accepted, or `None` where it must be told again.
    client: BTreeMap<Arc<str>, Option<Arc<str>>>,
    /// A type has one response on its way at most.
    unanswered: Option<Unanswered>,
    /// What the client refused and has not been given otherwise since.
    rejected: BTreeMap<Arc<str>, Change>,
    /// A response was sent on this stream.
    answered: bool,
}

impl Subscription {
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// What is kept because the client named it: names that it asked for, and what it has.
    pub(super) fn asked(&self) -> Asked {
        let held = self.client.iter().map(|(name, version)| {
            let own = if self.names.contains(name) {
                0
            } else {
                name.len()
            };
            own + version.as_ref().map_or(0, |version| version.len())
        });
        let named = self.names.iter().map(|name| name.len());
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
    ) {
        self.registered = true;
        self.wildcard = subscribe.is_empty() || subscribe.iter().any(|name| name == WILDCARD);
        for (name, version) in held {
            let name: Arc<str> = name.into();
            if !self.wildcard {
                self.names.insert(name.clone());
            }
            // What the client has lost on this stream it may still have had when it wrote this.
            let version = Some(version.into());
            self.client.entry(name).or_insert(version);
        }
        for name in subscribe.iter().filter(|name| *name != WILDCARD) {
            let name: Arc<str> = name.as_str().into();
            self.names.insert(name.clone());
            // Absent until now: this way it is also told when the name does not exist.
            self.client.entry(name).or_insert(None);
        }
    }

    /// Adds names in a later request. A name that is asked for again is sent again: the client may
    /// have forgotten it.
    pub(super) fn subscribe(&mut self, subscribe: &[String]) {
        for name in subscribe {
            if name == WILDCARD {
                self.wildcard = true;
                continue;
            }
            let name: Arc<str> = name.as_str().into();
            self.names.insert(name.clone());
            self.client.insert(name.clone(), None);
            self.forget_sent(&name);
        }
    }

    /// Drops names. Under a wildcard the client cannot know whether the name stays: it is told.
    pub(super) fn unsubscribe(&mut self, unsubscribe: &[String]) {
        for name in unsubscribe {
            if name == WILDCARD {
                self.wildcard = false;
                let names = &self.names;
                self.client.retain(|name, _| names.contains(name));
                self.rejected.retain(|name, _| names.contains(name));
                continue;
            }
            self.names.remove(name.as_str());
            self.forget_sent(name);
            if !self.wildcard {
                self.client.remove(name.as_str());
            } else if let Some(version) = self.client.get_mut(name.as_str()) {
                *version = None;
            }
        }
    }

    /// The client no longer has these, because it dropped them with their parent.
    pub(super) fn lost<'a>(&mut self, names: impl IntoIterator<Item = &'a Arc<str>>) {
        for name in names {
            self.forget_sent(name);
            if let Some(version) = self.client.get_mut(name) {
                *version = None;
            } else if !self.registered {
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
    /// comes next is sent, except exactly what was refused.
    pub(super) fn nack(&mut self, nonce: &str) -> Option<Vec<Arc<str>>> {
        let refused = self.take_unanswered(nonce)?;
        let names = refused.changes.keys().cloned().collect();
        for (name, change) in refused.changes {
            if self.wants(&name) {
                self.client.insert(name.clone(), None);
                self.rejected.insert(name, change);
            }
        }
        Some(names)
    }

    fn take_unanswered(&mut self, nonce: &str) -> Option<Unanswered> {
        self.unanswered.take_if(|sent| sent.nonce == nonce)
    }

    fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// What to do about the difference between the client and `current`.
    ///
    /// The first response of a type is sent even when it is empty: Envoy waits for one before it
    /// goes on starting.
    ///
    /// What the client `keeps` is not removed although `current` lacks it.
    pub(super) fn verdict(
        &self,
        current: &Resources,
        part: Part,
        keeps: &dyn Fn(&str) -> bool,
    ) -> Verdict {
        if !self.registered {
            return Verdict::Settled;
        }
        let mut delta = self.delta(current, part, keeps);
        let first = !self.answered && part != Part::Removals;
        if delta.is_empty() && !first {
            return Verdict::Settled;
        }
        if self.unanswered.is_some() {
            return Verdict::Held;
        }
        if delta.is_empty() || !self.all_refused(&delta.upserts) {
            return Verdict::Send(delta);
        }
        let refused = |name: &Arc<str>| self.rejected.get(name) == Some(&Change::Remove);
        if delta.removals.iter().all(refused) {
            return Verdict::Held;
        }
        delta.incomplete = !delta.upserts.is_empty();
        delta.upserts.clear();
        Verdict::Send(delta)
    }

    /// Every one was refused in just this version.
    fn all_refused(&self, upserts: &[Arc<EncodedResource>]) -> bool {
        upserts
            .iter()
            .all(|one| match self.rejected.get(&one.name) {
                Some(Change::Upsert(version)) => *version == one.version,
                Some(Change::Remove) | None => false,
            })
    }

    /// A removal has no versions: a refused one is tried again with every snapshot.
    pub(super) fn on_snapshot(&mut self) {
        self.rejected.retain(|_, change| *change != Change::Remove);
    }

    fn delta(&self, current: &Resources, part: Part, keeps: &dyn Fn(&str) -> bool) -> Delta {
        let mut delta = Delta::default();
        if part != Part::Removals {
            if self.wildcard {
                let stale = current.values().filter(|one| self.lacks(one));
                delta.upserts.extend(stale.cloned());
            } else {
                let named = self.names.iter().filter_map(|name| current.get(name));
                delta
                    .upserts
                    .extend(named.filter(|one| self.lacks(one)).cloned());
            }
        }
        // Envoy drops what it asked for by name when it no longer needs it. A removal would only
        // take endpoints and routes from clusters and listeners that still use them.
        if part != Part::Upserts && self.wildcard {
            let gone = self
                .client
                .keys()
                .filter(|name| !current.contains_key(*name) && !keeps(name));
            delta.removals.extend(gone.cloned());
        }
        delta
    }

    fn lacks(&self, resource: &EncodedResource) -> bool {
        self.client.get(&resource.name) != Some(&Some(resource.version.clone()))
    }

    /// `delta` goes out under `nonce`.
    pub(super) fn sent(&mut self, nonce: String, delta: &Delta) {
        self.answered = true;
        self.unanswered = Some(Unanswered {
            nonce,
            changes: delta.changes(),
        });
    }
}
