//! The cache: for each resource type the subscriptions of all Envoys, and the resources that an
//! Envoy acknowledged last. Independent of streams.
//!
//! Resources enter only after an ACK, so a rejected resource is never served.
//!
//! A body is a slice of the message that it arrived in, and keeps the whole message in memory. While
//! most of the message is cached, this saves a copy, which for a large configuration would double
//! the memory. Once most of it has been replaced, the remaining bodies are copied out. So the cache
//! never holds more than twice the bytes of its bodies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryResponse, Resource};

use super::status::{RejectionStatus, TypeStatus};
use super::types::{EnvoyStreamId, Name, Rejected, ResourceType, Version};

/// Smaller messages are never retained: they may keep a larger receive buffer alive.
const KEPT_FROM: usize = 64 * 1024;

/// Number of a retained message.
type MessageId = u64;

/// A resource in the form in which it is sent to Envoy.
#[derive(Debug, Clone)]
pub(super) struct CachedResource {
    pub(super) version: Version,
    aliases: Vec<String>,
    body: Bytes,
    /// The retained message that the body is a slice of.
    message: Option<MessageId>,
}

impl CachedResource {
    pub(super) fn is_same(&self, other: &CachedResource) -> bool {
        (&self.version, &self.aliases, &self.body) == (&other.version, &other.aliases, &other.body)
    }

    pub(super) fn to_resource(&self, name: &str) -> Resource {
        Resource {
            version: self.version.to_string(),
            resource: self.body.clone(),
            name: name.to_owned(),
            aliases: self.aliases.clone(),
        }
    }

    /// Copies the body, so that the message that it arrived in can be freed.
    fn copy_out(&mut self) {
        self.body = Bytes::copy_from_slice(&self.body);
        self.message = None;
    }
}

/// Cached state of a name.
#[derive(Debug)]
pub(super) enum Entry {
    Present(CachedResource),
    /// The server reported that a resource subscribed to by name does not exist.
    Absent,
}

/// Content of a server's response.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) system_version: String,
    pub(super) resources: Vec<(Name, CachedResource)>,
    pub(super) removed: Vec<Name>,
}

impl Content {
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        let resources = self.resources.iter().map(|(name, _)| name);
        resources.chain(&self.removed)
    }
}

/// The cached resource types: those that Envoys have requested.
#[derive(Debug, Default)]
pub(super) struct Cache {
    types: BTreeMap<ResourceType, CachedType>,
    /// How many types without a place in the order have been added so far.
    others: u64,
}

impl Cache {
    pub(super) fn find(&self, url: &str) -> Option<ResourceType> {
        let mut types = self.iter();
        types
            .find(|(_, cached)| cached.url == url)
            .map(|(kind, _)| kind)
    }

    /// Adds a type that is not in the cache yet.
    pub(super) fn add(&mut self, url: &str) -> ResourceType {
        let kind = ResourceType::well_known(url).unwrap_or_else(|| {
            self.others += 1;
            ResourceType::Other(self.others)
        });
        let cached = CachedType {
            url: url.to_owned(),
            ..CachedType::default()
        };
        self.types.insert(kind, cached);
        kind
    }

    pub(super) fn remove(&mut self, kind: ResourceType) {
        self.types.remove(&kind);
    }

    pub(super) fn len(&self) -> usize {
        self.types.len()
    }

    /// The types in the order in which Envoy has to receive them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ResourceType, &CachedType)> {
        self.types.iter().map(|(kind, cached)| (*kind, cached))
    }

    pub(super) fn types_mut(&mut self) -> impl Iterator<Item = &mut CachedType> {
        self.types.values_mut()
    }

    /// The keys in the same order, for callers that modify types while iterating.
    pub(super) fn kinds(&self) -> Vec<ResourceType> {
        self.types.keys().copied().collect()
    }

    pub(super) fn get(&self, kind: ResourceType) -> Option<&CachedType> {
        self.types.get(&kind)
    }
}

impl Index<ResourceType> for Cache {
    type Output = CachedType;

    fn index(&self, kind: ResourceType) -> &CachedType {
        &self.types[&kind]
    }
}

impl IndexMut<ResourceType> for Cache {
    fn index_mut(&mut self, kind: ResourceType) -> &mut CachedType {
        self.types.get_mut(&kind).expect("a type that was added")
    }
}

/// A retained message; bodies in the cache are slices of it.
#[derive(Debug)]
struct Message {
    size: usize,
    /// How many of its bytes are in the cache.
    cached: usize,
}

/// One resource type.
#[derive(Debug, Default)]
pub(super) struct CachedType {
    url: String,
    /// Whether an Envoy is subscribed to all resources.
    wildcard: bool,
    /// Resources that Envoys are subscribed to by name.
    names: BTreeSet<Name>,
    entries: BTreeMap<Name, Entry>,
    /// Whether a response was accepted. It need not have contained all resources of the server.
    answered: bool,
    /// `system_version_info` of the last accepted response.
    system_version: String,
    accepted: u64,
    rejected: u64,
    /// Consecutive rejections, since the last accepted response.
    rejected_in_a_row: u32,
    last_rejection: Option<Rejected>,
    /// The Envoy that rejected the last response of a server; `None` once a later one was accepted.
    rejected_by: Option<EnvoyStreamId>,
    messages: BTreeMap<MessageId, Message>,
    last_message: MessageId,
    /// Total size of the bodies in the entries.
    bytes: usize,
    /// Number of entries with a body.
    present: usize,
}

impl CachedType {
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn names(&self) -> &BTreeSet<Name> {
        &self.names
    }

    pub(super) fn entries(&self) -> &BTreeMap<Name, Entry> {
        &self.entries
    }

    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    pub(super) fn system_version(&self) -> &str {
        &self.system_version
    }

    /// The shared copy of a name.
    pub(super) fn intern(&self, name: &str) -> Name {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        match self.entries.get_key_value(name) {
            Some((known, _)) => Arc::clone(known),
            None => Arc::from(name),
        }
    }

    /// Whether an Envoy is subscribed to the resource.
    fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// The resource with this name.
    pub(super) fn resource(&self, name: &str) -> Option<&CachedResource> {
        match self.entries.get(name) {
            Some(Entry::Present(resource)) => Some(resource),
            _ => None,
        }
    }

    /// Whether an Envoy is subscribed to anything of this type.
    pub(super) fn is_wanted(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    /// The cached versions, from which a new server derives the differences to send.
    pub(super) fn versions(&self) -> HashMap<String, String> {
        let present = self.entries.iter().filter_map(|(name, entry)| match entry {
            Entry::Present(resource) => Some((name.to_string(), resource.version.to_string())),
            Entry::Absent => None,
        });
        present.collect()
    }

    /// The number of resources, and the total size of their bodies.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.present, self.bytes)
    }

    pub(super) fn status(&self, waiting_for_envoy: bool) -> TypeStatus {
        let unanswered = |name: &&Name| !self.entries.contains_key(*name);
        TypeStatus {
            type_url: self.url.clone(),
            wildcard: self.wildcard,
            names: self.names.len(),
            unanswered_names: self.names.iter().filter(unanswered).count(),
            resources: self.present,
            bytes: self.bytes,
            system_version: self.system_version.clone(),
            answered: self.answered,
            waiting_for_envoy,
            accepted: self.accepted,
            rejected: self.rejected,
            last_rejection: self.last_rejection.as_ref().map(RejectionStatus::of),
        }
    }

    /// Records a subscription to a name. Returns whether servers must be subscribed to it. This
    /// includes names without an answer: their resource may have been rejected, and subscribing
    /// again makes the server send it again.
    pub(super) fn subscribe(&mut self, name: &Name) -> bool {
        self.names.insert(Arc::clone(name)) || !self.entries.contains_key(name)
    }

    /// Records a subscription to all resources. Returns whether it is the first one.
    pub(super) fn subscribe_all(&mut self) -> bool {
        !std::mem::replace(&mut self.wildcard, true)
    }

    /// Drops names that no Envoy is subscribed to any more. Returns the names to unsubscribe from at
    /// servers.
    pub(super) fn unsubscribe(&mut self, names: impl IntoIterator<Item = Name>) -> Vec<String> {
        let mut gone = Vec::new();
        for name in names {
            if self.names.remove(&name) {
                if !self.wildcard || self.resource(&name).is_none() {
                    self.set(&name, None);
                }
                gone.push(name.to_string());
            }
        }
        self.free_messages();
        gone
    }

    /// Drops resources that were cached only because of a subscription to all resources.
    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        self.answered &= !self.names.is_empty();
        let unwanted = self.entries.keys().filter(|name| !self.wants(name));
        for name in unwanted.cloned().collect::<Vec<_>>() {
            self.set(&name, None);
        }
        self.free_messages();
    }

    /// Converts a response. If a name occurs twice, the last one counts.
    pub(super) fn read(&self, response: DeltaDiscoveryResponse) -> Content {
        let resources = response.resources.into_iter().map(|resource| {
            let cached = CachedResource {
                version: Arc::from(resource.version),
                aliases: resource.aliases,
                body: resource.resource,
                message: None,
            };
            (self.intern(&resource.name), cached)
        });
        let removed = response.removed_resources.iter();
        Content {
            system_version: response.system_version_info,
            resources: resources.collect(),
            removed: removed.map(|name| self.intern(name)).collect(),
        }
    }

    /// Merges a response that an Envoy accepted or that needs no Envoy. Returns the names it
    /// contained.
    pub(super) fn merge(&mut self, content: Content) -> Vec<Name> {
        let mut touched = Vec::with_capacity(content.resources.len() + content.removed.len());
        let message = self.keep_message(&content);
        for (name, mut resource) in content.resources {
            if !self.wants(&name) {
                continue;
            }
            if !self.has(&name, &resource) {
                match message {
                    Some(_) => resource.message = message,
                    None => resource.copy_out(),
                }
                self.set(&name, Some(Entry::Present(resource)));
            }
            touched.push(name);
        }
        for name in content.removed {
            let absent = self.names.contains(&name).then_some(Entry::Absent);
            self.set(&name, absent);
            touched.push(name);
        }
        self.free_messages();
        self.answered = true;
        self.system_version = content.system_version;
        self.accepted += 1;
        self.rejected_in_a_row = 0;
        self.rejected_by = None;
        touched
    }

    /// Records a rejection. `by` is the Envoy that rejected a server's response.
    pub(super) fn reject(
        &mut self,
        by: Option<EnvoyStreamId>,
        names: Vec<String>,
        message: String,
    ) -> Rejected {
        self.rejected += 1;
        self.rejected_in_a_row += 1;
        self.rejected_by = by.or(self.rejected_by);
        let rejected = Rejected {
            type_url: self.url.clone(),
            names,
            message,
            from_server: by.is_some(),
            in_a_row: self.rejected_in_a_row,
        };
        self.last_rejection = Some(rejected.clone());
        rejected
    }

    /// Whether the last response of a server was rejected by an Envoy that `by` accepts. Returns
    /// true only once per rejection.
    pub(super) fn take_rejected(&mut self, by: impl Fn(EnvoyStreamId) -> bool) -> bool {
        self.rejected_by.take_if(|id| by(*id)).is_some()
    }

    fn has(&self, name: &str, resource: &CachedResource) -> bool {
        let held = self.resource(name);
        held.is_some_and(|held| held.is_same(resource))
    }

    /// Replaces the entry of a name; `None` removes it.
    fn set(&mut self, name: &Name, entry: Option<Entry>) {
        if let Some(Entry::Present(resource)) = &entry {
            self.present += 1;
            self.bytes += resource.body.len();
            if let Some(message) = self.message_of(resource) {
                message.cached += resource.body.len();
            }
        }
        let old = match entry {
            Some(entry) => self.entries.insert(Arc::clone(name), entry),
            None => self.entries.remove(name),
        };
        if let Some(Entry::Present(resource)) = old {
            self.present -= 1;
            self.bytes -= resource.body.len();
            if let Some(message) = self.message_of(&resource) {
                message.cached -= resource.body.len();
            }
        }
    }

    fn message_of(&mut self, resource: &CachedResource) -> Option<&mut Message> {
        self.messages.get_mut(&resource.message?)
    }

    /// Whether to retain the message of a response, of which the bodies are slices.
    fn keep_message(&mut self, content: &Content) -> Option<MessageId> {
        let (mut size, mut used) = (0, 0);
        for (name, resource) in &content.resources {
            size += resource.body.len();
            if self.wants(name) && !self.has(name, resource) {
                used += resource.body.len();
            }
        }
        if size < KEPT_FROM || used < size - used {
            return None;
        }
        self.last_message += 1;
        let message = Message { size, cached: 0 };
        self.messages.insert(self.last_message, message);
        Some(self.last_message)
    }

    /// Copies bodies out of messages of which most bytes are no longer cached.
    fn free_messages(&mut self) {
        let mostly_gone =
            |_: &MessageId, message: &mut Message| message.cached < message.size - message.cached;
        let freed = self.messages.extract_if(.., mostly_gone);
        let in_use = freed.filter(|(_, message)| message.cached > 0);
        let freed: Vec<MessageId> = in_use.map(|(id, _)| id).collect();
        if freed.is_empty() {
            return;
        }
        for entry in self.entries.values_mut() {
            if let Entry::Present(resource) = entry
                && resource.message.is_some_and(|id| freed.contains(&id))
            {
                resource.copy_out();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use legate_api::type_url;

    use super::*;

    const BODY: usize = 40 * 1024;

    /// A response whose bodies are slices of one buffer, as they arrive from the network.
    fn content(cached: &CachedType, names: &[&str], version: &str) -> (Content, Bytes) {
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
        (cached.read(response), message)
    }

    #[test]
    fn a_message_is_held_while_most_of_it_is_in_the_cache() {
        let mut cache = Cache::default();
        let kind = cache.add(type_url::CLUSTER);
        let cached = &mut cache[kind];
        cached.subscribe_all();
        let (first, message) = content(cached, &["a", "b", "c", "d"], "v1");
        cached.merge(first);
        assert!(!message.is_unique(), "nothing is copied");
        for (names, held) in [(&["a", "b"][..], true), (&["c"][..], false)] {
            let (next, _) = content(cached, names, "v2");
            cached.merge(next);
            assert_eq!(message.is_unique(), !held, "after {names:?}");
        }
        assert_eq!(cached.held(), (4, 4 * BODY));
        // Copied bodies are dropped completely, and so are messages that are replaced as a whole.
        for version in ["v3", "v4"] {
            let (all, _) = content(cached, &["a", "b", "c", "d"], version);
            cached.merge(all);
            assert_eq!(cached.messages.len(), 1);
        }
        assert_eq!(cached.held(), (4, 4 * BODY));
    }

    #[test]
    fn resources_without_subscribers_do_not_retain_the_message() {
        let mut cache = Cache::default();
        let kind = cache.add(type_url::ENDPOINT);
        let cached = &mut cache[kind];
        cached.subscribe(&"b".into());
        let (first, message) = content(cached, &["a", "b", "c"], "v1");
        cached.merge(first);
        assert!(message.is_unique());
        assert_eq!(cached.held(), (1, BODY));
    }
}
