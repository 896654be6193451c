//! What the relay holds of one resource type: what Envoys want of it, and the last resources that
//! an Envoy acknowledged.
//!
//! Nothing enters the entries before an acknowledgement, so a rejected resource is never served.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryResponse, Resource};
use legate_api::type_url;

use super::buffers::{BufferId, Buffers};
use super::core::{Epoch, Rejected, SessionId};

/// Name of a resource, shared by everything that mentions it.
pub(super) type Name = Arc<str>;

/// Version of a resource, as the server wrote it.
pub(super) type Version = Arc<str>;

/// Names of a wildcard subscription, where a name stands for all.
pub(super) const WILDCARD: &str = "*";

/// Place of a type in the relay's list of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TypeKey(pub(super) usize);

/// What a type is to the order in which Envoy has to be told: a thing before whatever refers to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Secret,
    Cluster,
    Endpoint,
    Listener,
    Route,
    Other,
}

impl Role {
    pub(super) fn of(url: &str) -> Role {
        match url {
            type_url::SECRET => Role::Secret,
            type_url::CLUSTER => Role::Cluster,
            type_url::ENDPOINT => Role::Endpoint,
            type_url::LISTENER => Role::Listener,
            type_url::ROUTE => Role::Route,
            _ => Role::Other,
        }
    }

    /// Whether others refer to it, so that it may go only after they have changed.
    pub(super) fn is_referred_to(self) -> bool {
        matches!(self, Role::Secret | Role::Cluster | Role::Endpoint)
    }

    /// Whether Envoy waits for it anew after a change of the cluster or listener that it belongs to.
    pub(super) fn is_waited_for(self) -> bool {
        matches!(self, Role::Endpoint | Role::Route)
    }

    /// Whether it refers to clusters, so that it has to wait for them.
    pub(super) fn refers(self) -> bool {
        matches!(self, Role::Listener | Role::Route)
    }
}

/// A resource as it will be sent to Envoy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) version: Version,
    pub(super) aliases: Vec<String>,
    pub(super) body: Bytes,
}

impl Stored {
    pub(super) fn to_resource(&self, name: &str) -> Resource {
        Resource {
            version: self.version.to_string(),
            resource: self.body.clone(),
            name: name.to_owned(),
            aliases: self.aliases.clone(),
        }
    }

    /// Lets go of the message that the body arrived in.
    fn take_out(&mut self) {
        self.body = Bytes::copy_from_slice(&self.body);
    }
}

/// What is known of a name.
#[derive(Debug)]
pub(super) enum Entry {
    Present(Stored),
    /// The server said that a resource subscribed to by name does not exist.
    Absent,
}

/// The names of all entries of a type.
pub(super) type Entries = BTreeMap<Name, Entry>;

/// A server's response that no Envoy has acknowledged yet.
#[derive(Debug)]
pub(super) struct Candidate {
    /// Place in the order in which responses arrived.
    pub(super) seq: u64,
    pub(super) epoch: Epoch,
    pub(super) key: TypeKey,
    /// Nonces of the responses it consists of: more than one when it waited for an Envoy.
    pub(super) nonces: Vec<String>,
    pub(super) system_version: String,
    pub(super) resources: Vec<(Name, Stored)>,
    pub(super) removed: Vec<Name>,
    /// The Envoy that has it; its answer decides.
    pub(super) judge: Option<SessionId>,
}

impl Candidate {
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.resources
            .iter()
            .map(|(name, _)| name)
            .chain(&self.removed)
    }

    /// Adds a later response of the same type and stream to one that no Envoy has seen yet.
    pub(super) fn append(&mut self, later: Candidate) {
        let news: BTreeSet<Name> = later.names().cloned().collect();
        self.resources.retain(|(name, _)| !news.contains(name));
        self.removed.retain(|name| !news.contains(name));
        self.resources.extend(later.resources);
        self.removed.extend(later.removed);
        self.nonces.extend(later.nonces);
        self.system_version = later.system_version;
    }
}

/// One resource type.
#[derive(Debug)]
pub(super) struct TypeState {
    pub(super) url: String,
    pub(super) role: Role,
    /// Some Envoy wants all resources.
    pub(super) wildcard: bool,
    /// Resources wanted by name.
    pub(super) names: BTreeSet<Name>,
    pub(super) entries: Entries,
    /// An answer of a server has been accepted. It need not have been all that the server has.
    pub(super) answered: bool,
    /// `system_version_info` of the last accepted answer.
    pub(super) system_version: String,
    pub(super) in_flight: Option<Candidate>,
    /// The Envoy that rejected an answer, when no later one was accepted.
    pub(super) rejected: Option<SessionId>,
    pub(super) accepted_total: u64,
    pub(super) rejected_total: u64,
    pub(super) last_rejection: Option<Rejected>,
    /// Rejections since the last acceptance.
    pub(super) rejected_in_a_row: u32,
    buffers: Buffers,
    /// Bytes of the bodies in the entries.
    bytes: usize,
    /// Entries that have a body.
    present: usize,
}

impl TypeState {
    pub(super) fn new(url: &str) -> TypeState {
        TypeState {
            url: url.to_owned(),
            role: Role::of(url),
            wildcard: false,
            names: BTreeSet::new(),
            entries: BTreeMap::new(),
            answered: false,
            system_version: String::new(),
            in_flight: None,
            rejected: None,
            accepted_total: 0,
            rejected_total: 0,
            last_rejection: None,
            rejected_in_a_row: 0,
            buffers: Buffers::default(),
            bytes: 0,
            present: 0,
        }
    }

    /// The one shared copy of a name.
    pub(super) fn intern(&self, name: &str) -> Name {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        match self.entries.get_key_value(name) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(name),
        }
    }

    /// Whether an Envoy wants the resource.
    pub(super) fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether a resource of this name is held.
    pub(super) fn holds(&self, name: &str) -> bool {
        matches!(self.entries.get(name), Some(Entry::Present(_)))
    }

    /// Whether an Envoy wants anything of this type.
    pub(super) fn is_wanted(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    /// Versions that a new server has to know to send differences only.
    pub(super) fn versions(&self) -> HashMap<String, String> {
        let present = self.entries.iter().filter_map(|(name, entry)| match entry {
            Entry::Present(stored) => Some((name.to_string(), stored.version.to_string())),
            Entry::Absent => None,
        });
        present.collect()
    }

    /// How many resources are held, and the bytes of their bodies.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.present, self.bytes)
    }

    /// Replaces what is known of a name; `None` forgets it.
    fn set(&mut self, name: &Name, entry: Option<Entry>) {
        if let Some(Entry::Present(stored)) = &entry {
            self.present += 1;
            self.bytes += stored.body.len();
        }
        let old = match entry {
            Some(entry) => self.entries.insert(Arc::clone(name), entry),
            None => self.entries.remove(name),
        };
        if let Some(Entry::Present(stored)) = old {
            self.present -= 1;
            self.bytes -= stored.body.len();
            self.buffers.leave(name, stored.body.len());
        }
    }

    /// Gives a response the form of a candidate. Where a name stands twice the last one counts.
    pub(super) fn candidate(
        &self,
        seq: u64,
        epoch: Epoch,
        key: TypeKey,
        response: DeltaDiscoveryResponse,
    ) -> Candidate {
        let resources = response.resources.into_iter().map(|resource| {
            let stored = Stored {
                version: Arc::from(resource.version),
                aliases: resource.aliases,
                body: resource.resource,
            };
            (self.intern(&resource.name), stored)
        });
        Candidate {
            seq,
            epoch,
            key,
            nonces: vec![response.nonce],
            system_version: response.system_version_info,
            resources: resources.collect(),
            removed: response
                .removed_resources
                .iter()
                .map(|name| self.intern(name))
                .collect(),
            judge: None,
        }
    }

    fn has(&self, name: &str, stored: &Stored) -> bool {
        matches!(self.entries.get(name), Some(Entry::Present(old)) if old == stored)
    }

    /// Whether the bodies of a response stay in the message that it came in.
    fn keep(&mut self, candidate: &Candidate) -> Option<BufferId> {
        let (mut size, mut used) = (0, 0);
        for (name, stored) in &candidate.resources {
            size += stored.body.len();
            if self.wants(name) && !self.has(name, stored) {
                used += stored.body.len();
            }
        }
        self.buffers.keep(size, used)
    }

    /// Takes over what an Envoy accepted, or what no Envoy is interested in. Returns the names
    /// that it was about.
    pub(super) fn merge(&mut self, candidate: Candidate) -> Vec<Name> {
        let mut touched = Vec::with_capacity(candidate.resources.len() + candidate.removed.len());
        let buffer = self.keep(&candidate);
        for (name, mut stored) in candidate.resources {
            if !self.wants(&name) {
                continue;
            }
            if !self.has(&name, &stored) {
                if buffer.is_none() {
                    stored.take_out();
                }
                let length = stored.body.len();
                self.set(&name, Some(Entry::Present(stored)));
                if let Some(buffer) = buffer {
                    self.buffers.enter(buffer, &name, length);
                }
            }
            touched.push(name);
        }
        for name in candidate.removed {
            let absent = self.names.contains(&name).then_some(Entry::Absent);
            self.set(&name, absent);
            touched.push(name);
        }
        self.compact();
        self.answered = true;
        self.rejected = None;
        self.rejected_in_a_row = 0;
        self.accepted_total += 1;
        self.system_version = candidate.system_version;
        touched
    }

    /// Lets go of messages that hardly anything is left of.
    fn compact(&mut self) {
        for name in self.buffers.dissolve() {
            if let Some(Entry::Present(stored)) = self.entries.get_mut(&name) {
                stored.take_out();
            }
        }
    }

    /// Forgets names that no Envoy wants any more. Returns those that a server has to be told.
    pub(super) fn forget(&mut self, names: impl IntoIterator<Item = Name>) -> Vec<String> {
        let mut gone = Vec::new();
        for name in names {
            if self.names.remove(&name) {
                if !(self.wildcard && self.holds(&name)) {
                    self.set(&name, None);
                }
                gone.push(name.to_string());
            }
        }
        self.compact();
        gone
    }

    /// Forgets what was held only because all resources were wanted.
    pub(super) fn forget_wildcard(&mut self) {
        self.wildcard = false;
        self.answered &= !self.names.is_empty();
        let unwanted = self.entries.keys().filter(|name| !self.wants(name));
        for name in unwanted.cloned().collect::<Vec<_>>() {
            self.set(&name, None);
        }
        self.compact();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: usize = 40 * 1024;

    /// A response whose bodies are slices of one buffer, as they come from the network.
    fn candidate(state: &TypeState, names: &[&str], version: &str) -> (Candidate, Bytes) {
        let message = Bytes::from(vec![b'x'; names.len() * BODY]);
        let resources = names.iter().enumerate().map(|(place, name)| Resource {
            name: (*name).to_owned(),
            version: version.to_owned(),
            aliases: Vec::new(),
            resource: message.slice(place * BODY..(place + 1) * BODY),
        });
        let response = DeltaDiscoveryResponse {
            resources: resources.collect(),
            ..DeltaDiscoveryResponse::default()
        };
        (state.candidate(1, Epoch(1), TypeKey(0), response), message)
    }

    #[test]
    fn a_message_is_held_while_most_of_it_is_in_the_cache() {
        let mut state = TypeState::new(type_url::CLUSTER);
        state.wildcard = true;
        let (first, message) = candidate(&state, &["a", "b", "c", "d"], "v1");
        state.merge(first);
        assert!(!message.is_unique(), "nothing is copied");
        for (names, held) in [(&["a", "b"][..], true), (&["c"][..], false)] {
            let (next, _) = candidate(&state, names, "v2");
            state.merge(next);
            assert_eq!(message.is_unique(), !held, "after {names:?}");
        }
        assert_eq!(state.held(), (4, 4 * BODY));
    }

    #[test]
    fn what_nobody_wants_of_a_message_is_not_held_with_it() {
        let mut state = TypeState::new(type_url::ENDPOINT);
        state.names.insert("b".into());
        let (first, message) = candidate(&state, &["a", "b", "c"], "v1");
        state.merge(first);
        assert!(message.is_unique());
        assert_eq!(state.held(), (1, BODY));
    }
}
