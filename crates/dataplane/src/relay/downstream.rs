//! The streams of Envoys: for each its subscriptions, its resources, and the changes that it still
//! has to get.
//!
//! It compares with the cache without changing it, and is independent of servers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Resource};
use tonic::Status;

use super::cache::{Cache, CachedResource, CachedType, Content, Entry};
use super::limits::{Limits, Usage};
use super::status::label;
use super::types::{Action, EnvoyStreamId, Name, Rejected, ResourceType, Role, Version};

/// How to proceed with a server's response.
pub(super) enum Decision {
    /// No connected Envoy is subscribed to its type: hold it for the next one.
    Hold,
    /// An Envoy must answer another response first.
    Wait,
    /// It contains nothing new to any Envoy: accept it.
    Accept,
    /// Offer it to this Envoy, whose answer decides.
    Offer(EnvoyStreamId, Update),
}

/// All streams of Envoys.
#[derive(Debug, Default)]
pub(super) struct Downstream {
    streams: BTreeMap<EnvoyStreamId, EnvoyStream>,
    /// The encoded node of the first connected Envoy; if none is connected, that of the last one.
    node: Bytes,
    /// The proxy in this process, if it has said which role it has.
    role: Option<(EnvoyStreamId, Role)>,
}

impl Downstream {
    pub(super) fn connect(&mut self, id: EnvoyStreamId) {
        let stream = EnvoyStream {
            id,
            node: Bytes::new(),
            last_nonce: 0,
            subscriptions: BTreeMap::new(),
        };
        self.streams.insert(id, stream);
    }

    pub(super) fn disconnect(&mut self, id: EnvoyStreamId) -> Option<EnvoyStream> {
        let stream = self.streams.remove(&id)?;
        self.role.take_if(|(of, _)| *of == id);
        self.choose_node();
        Some(stream)
    }

    pub(super) fn get(&self, id: EnvoyStreamId) -> Option<&EnvoyStream> {
        self.streams.get(&id)
    }

    pub(super) fn subscription_mut(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
    ) -> Option<&mut Subscription> {
        self.streams.get_mut(&id)?.subscriptions.get_mut(&kind)
    }

    pub(super) fn set_role(&mut self, id: EnvoyStreamId, role: Role) {
        if self.streams.contains_key(&id) {
            self.role = Some((id, role));
        }
    }

    /// Whether it only observes.
    pub(super) fn observes(&self, id: EnvoyStreamId) -> bool {
        self.role == Some((id, Role::Observes))
    }

    /// The streams that servers' responses are offered to, the first one first. The newest Envoy decides: after a hot
    /// restart it is the one that remains.
    fn deciding(&self) -> impl Iterator<Item = &EnvoyStream> {
        let role = self.role;
        let first = role.filter(|(_, role)| *role == Role::Decides);
        let first = first.and_then(|(id, _)| self.streams.get(&id));
        let others = self.streams().rev();
        let others = others.filter(move |stream| role.is_none_or(|(id, _)| stream.id != id));
        first.into_iter().chain(others)
    }

    /// Whether a stream that decides is subscribed to a type.
    pub(super) fn is_decided(&self, kind: ResourceType) -> bool {
        self.deciding().any(|stream| stream.get(kind).is_some())
    }

    /// All streams, oldest first.
    pub(super) fn streams(&self) -> impl DoubleEndedIterator<Item = &EnvoyStream> {
        self.streams.values()
    }

    /// The subscriptions of all streams to a type.
    pub(super) fn subscriptions(&self, kind: ResourceType) -> impl Iterator<Item = &Subscription> {
        self.streams().filter_map(move |stream| stream.get(kind))
    }

    pub(super) fn node(&self) -> &Bytes {
        &self.node
    }

    /// Sets the node of a stream. According to the protocol, the first request of a stream contains
    /// it. Envoy repeats it in each request: 55 KiB of extension names, with maps in varying order.
    pub(super) fn set_node(&mut self, id: EnvoyStreamId, node: &Bytes) {
        let stream = self.streams.get_mut(&id);
        if let Some(stream) = stream.filter(|stream| stream.node.is_empty()) {
            stream.node = node.clone();
            self.choose_node();
        }
    }

    fn choose_node(&mut self) {
        let mut nodes = self.streams.values().map(|stream| &stream.node);
        if let Some(node) = nodes.find(|node| !node.is_empty()) {
            self.node = node.clone();
        }
    }

    /// Creates the subscription of a type at its first request.
    pub(super) fn open(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
    ) -> Option<&mut Subscription> {
        let stream = self.streams.get_mut(&id)?;
        Some(stream.subscriptions.entry(kind).or_default())
    }

    /// Marks names as changed in the cache.
    pub(super) fn mark_changed(&mut self, kind: ResourceType, names: &[Name]) {
        for stream in self.streams.values_mut() {
            if let Some(subscription) = stream.subscriptions.get_mut(&kind) {
                subscription.mark_changed(names);
            }
        }
    }

    /// Sends every Envoy the differences between the cache and its resources.
    pub(super) fn serve(&mut self, cache: &Cache, actions: &mut Vec<Action>) {
        for stream in self.streams.values_mut() {
            for (kind, _) in cache.iter() {
                stream.serve(kind, cache, !kind.is_referred_to(), actions);
            }
            if stream.referrers_are_current() {
                for (kind, _) in cache.iter() {
                    stream.serve(kind, cache, true, actions);
                }
            }
        }
    }

    /// Selects the Envoy that a server's response is offered to first.
    pub(super) fn decide(&self, kind: ResourceType, content: &Content, cache: &Cache) -> Decision {
        if !self.is_decided(kind) {
            return Decision::Hold;
        }
        let cached = &cache[kind];
        for stream in self.deciding() {
            let Some(subscription) = stream.get(kind) else {
                continue;
            };
            let mut names = content.names();
            let concerned =
                subscription.wildcard || names.any(|name| subscription.is_interested(name));
            if !concerned || !subscription.is_active() {
                continue;
            }
            let busy = subscription.is_waiting() || subscription.lacks_resources(cached);
            if busy || stream.must_wait_for_clusters(kind, cache) {
                return Decision::Wait;
            }
            let mut update = subscription.select(cached, content);
            let first = subscription.wildcard && !subscription.responded;
            if update.is_empty() && !first {
                return Decision::Accept;
            }
            update.system_version.clone_from(&content.system_version);
            return Decision::Offer(stream.id, update);
        }
        Decision::Accept
    }

    pub(super) fn send(
        &mut self,
        id: EnvoyStreamId,
        kind: ResourceType,
        update: Update,
        cache: &Cache,
        actions: &mut Vec<Action>,
    ) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.send(kind, update, cache, actions);
        }
    }

    /// Names of a type that wildcard subscribers hold and that are not in the cache, up to `bytes`.
    /// They are listed in the request to a server, which then reports which of them were removed.
    /// Its silence does not mean that, because it may send its state in several responses.
    pub(super) fn held_not_cached<'a>(
        &'a self,
        kind: ResourceType,
        cached: &'a CachedType,
        mut bytes: usize,
    ) -> impl Iterator<Item = &'a Name> {
        let wildcards = self.subscriptions(kind).filter(|one| one.wildcard);
        let held = wildcards.flat_map(|one| one.held_not_cached(cached));
        held.take_while(move |name| {
            let left = bytes.checked_sub(name.len());
            bytes = left.unwrap_or_default();
            left.is_some()
        })
    }
}

/// The stream of an Envoy.
#[derive(Debug)]
pub(super) struct EnvoyStream {
    id: EnvoyStreamId,
    /// The node of this Envoy, encoded.
    node: Bytes,
    last_nonce: u64,
    subscriptions: BTreeMap<ResourceType, Subscription>,
}

impl EnvoyStream {
    pub(super) fn id(&self) -> EnvoyStreamId {
        self.id
    }

    pub(super) fn get(&self, kind: ResourceType) -> Option<&Subscription> {
        self.subscriptions.get(&kind)
    }

    /// Whether it has any subscription.
    pub(super) fn is_subscribed(&self) -> bool {
        !self.subscriptions.is_empty()
    }

    /// The number of subscribed types, the usage of subscribed names, and that of resources from an
    /// earlier stream.
    pub(super) fn usage(&self) -> (usize, Usage, Usage) {
        let mut total = (self.subscriptions.len(), Usage::default(), Usage::default());
        for subscription in self.subscriptions.values() {
            total.1 += subscription.subscribed_usage;
            total.2 += subscription.resumed;
        }
        total
    }

    /// Checks that the stream stays within the limits with this request.
    pub(super) fn check(
        &self,
        kind: Option<ResourceType>,
        request: &DeltaDiscoveryRequest,
        limits: &Limits,
    ) -> Result<(), Status> {
        let (types, mut subscribed, mut resumed) = self.usage();
        let subscription = kind.and_then(|kind| self.get(kind));
        if subscription.is_none() && types >= limits.types {
            return Err(limits.too_many_types());
        }
        for name in &request.resource_names_subscribe {
            if subscription.is_none_or(|known| !known.names.contains(name.as_str())) {
                subscribed.add(name.len());
            }
        }
        limits.check(subscribed)?;
        if subscription.is_none() {
            for (name, version) in &request.initial_resource_versions {
                resumed.add(name.len() + version.len());
            }
            limits.check(resumed)?;
        }
        Ok(())
    }

    /// What this Envoy has subscribed to but not acknowledged, and why.
    pub(super) fn missing(&self, cache: &Cache) -> Option<String> {
        let mut types = self.subscriptions.iter();
        let (kind, missing) = types.find(|(_, subscription)| !subscription.is_complete())?;
        Some(missing.reason(label(cache[*kind].url())))
    }

    /// Whether a type must wait until Envoy has all known clusters and endpoints.
    fn must_wait_for_clusters(&self, kind: ResourceType, cache: &Cache) -> bool {
        let pending = |kind| {
            self.get(kind).is_some_and(|subscription| {
                subscription.is_waiting() || subscription.lacks_resources(&cache[kind])
            })
        };
        kind.refers_to_clusters()
            && (pending(ResourceType::Cluster) || pending(ResourceType::Endpoint))
    }

    /// Whether listeners and routes are up to date, so that resources they no longer use may be
    /// removed.
    fn referrers_are_current(&self) -> bool {
        let referrers = [ResourceType::Listener, ResourceType::Route].into_iter();
        let mut referrers = referrers.filter_map(|kind| self.get(kind));
        referrers.all(|subscription| subscription.changed.is_empty())
    }

    /// Sends the differences between the cache and Envoy. Removals may have to wait.
    fn serve(
        &mut self,
        kind: ResourceType,
        cache: &Cache,
        removals: bool,
        actions: &mut Vec<Action>,
    ) {
        if self.must_wait_for_clusters(kind, cache) {
            return;
        }
        let Some(subscription) = self.subscriptions.get_mut(&kind) else {
            return;
        };
        if subscription.is_waiting() {
            return;
        }
        let cached = &cache[kind];
        let mut update = subscription.take_changes(cached, removals);
        // Envoy waits for a response to a wildcard subscription, even an empty one.
        let first = subscription.wildcard && !subscription.responded && cached.is_answered();
        if first || !update.is_empty() {
            cached
                .system_version()
                .clone_into(&mut update.system_version);
            self.send(kind, update, cache, actions);
        }
    }

    fn send(
        &mut self,
        kind: ResourceType,
        update: Update,
        cache: &Cache,
        actions: &mut Vec<Action>,
    ) {
        self.last_nonce += 1;
        let nonce = format!("{:08x}", self.last_nonce);
        self.resend_children(kind, &update, cache);
        let Some(subscription) = self.subscriptions.get_mut(&kind) else {
            return;
        };
        subscription.responded = true;
        subscription.unanswered = Some(Unanswered {
            nonce: nonce.clone(),
            items: update.items,
        });
        let response = DeltaDiscoveryResponse {
            system_version_info: update.system_version,
            resources: update.resources,
            type_url: cache[kind].url().to_owned(),
            nonce,
            removed_resources: update.removed,
        };
        actions.push(Action::ToEnvoy(self.id, response));
    }

    /// Makes sure that Envoy gets the endpoints of an updated cluster and the routes of an updated
    /// listener again: Envoy waits for them, and a server does not always resend them. Endpoints
    /// have the name of their cluster; the routes of a listener are known only from its body, so all
    /// of them are sent.
    fn resend_children(&mut self, kind: ResourceType, update: &Update, cache: &Cache) {
        let Some(child) = kind.child().filter(|_| !update.resources.is_empty()) else {
            return;
        };
        let Some(subscription) = self.subscriptions.get_mut(&child) else {
            return;
        };
        let names: HashSet<Name> = match child {
            ResourceType::Route => {
                let cached = cache[child].entries().keys();
                cached.chain(&subscription.names).cloned().collect()
            }
            _ => {
                let updated = update.items.iter().filter(|(_, version)| version.is_some());
                updated.map(|(name, _)| Arc::clone(name)).collect()
            }
        };
        subscription.resend(&names);
    }
}

/// Names with the version that Envoy holds once it accepts a response; `None` for a resource that
/// does not exist.
pub(super) type Items = Vec<(Name, Option<Version>)>;

/// A response that Envoy has not answered yet.
#[derive(Debug)]
struct Unanswered {
    nonce: String,
    items: Items,
}

/// Content of a response to Envoy.
#[derive(Debug, Default)]
pub(super) struct Update {
    system_version: String,
    resources: Vec<Resource>,
    removed: Vec<String>,
    items: Items,
}

impl Update {
    fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn upsert(&mut self, name: Name, resource: &CachedResource) {
        self.resources.push(resource.to_resource(&name));
        self.items.push((name, Some(Arc::clone(&resource.version))));
    }

    fn remove(&mut self, name: Name) {
        self.removed.push(name.to_string());
        self.items.push((name, None));
    }
}

/// Difference between the cache and Envoy for a name.
enum Difference<'a> {
    None,
    Upsert(&'a CachedResource),
    Removal,
}

/// An Envoy's subscription to a type.
#[derive(Debug, Default)]
pub(super) struct Subscription {
    wildcard: bool,
    names: BTreeSet<Name>,
    /// Usage of the subscribed names.
    subscribed_usage: Usage,
    /// Usage of the resources from an earlier stream.
    resumed: Usage,
    /// The version that Envoy holds; `None` for a name that Envoy knows not to exist.
    known: HashMap<Name, Option<Version>>,
    /// Names to compare with the cache.
    changed: BTreeSet<Name>,
    unanswered: Option<Unanswered>,
    /// Names in responses from the cache that Envoy rejected. Any of them may be the cause.
    refused: BTreeSet<Name>,
    /// Whether a response of this type was sent.
    responded: bool,
    /// Whether a response of this type was acknowledged.
    acked: bool,
    /// The last answer, if it was a rejection.
    rejection: Option<Rejected>,
}

impl Subscription {
    pub(super) fn is_wildcard(&self) -> bool {
        self.wildcard
    }

    pub(super) fn names(&self) -> &BTreeSet<Name> {
        &self.names
    }

    fn is_interested(&self, name: &Name) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Whether it covers any resource.
    fn is_active(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }

    fn is_waiting(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Whether Envoy has acknowledged a response, or holds all subscribed resources from an earlier
    /// stream.
    fn is_complete(&self) -> bool {
        self.acked || (!self.wildcard && self.unknown() == 0)
    }

    /// How many subscribed names have no known state at this Envoy.
    fn unknown(&self) -> usize {
        let unknown = |name: &&Name| !self.known.contains_key(*name);
        self.names.iter().filter(unknown).count()
    }

    fn reason(&self, what: &str) -> String {
        if self.is_waiting() {
            return format!("Envoy has not acknowledged its {what}");
        }
        if let Some(rejection) = &self.rejection {
            return format!("Envoy rejected its {what}: {}", rejection.message);
        }
        match self.unknown() {
            0 => format!("no server has sent Envoy's {what} yet"),
            count => format!("no server has sent {count} of Envoy's {what} yet"),
        }
    }

    /// Records a resource that Envoy holds from an earlier stream.
    pub(super) fn resume(&mut self, name: Name, version: String) {
        self.resumed.add(name.len() + version.len());
        self.known.insert(name, Some(Arc::from(version)));
    }

    /// Resources that Envoy holds but the cache does not contain.
    pub(super) fn held_not_cached<'a>(
        &'a self,
        cached: &'a CachedType,
    ) -> impl Iterator<Item = &'a Name> {
        let held = self.known.iter().filter(|(_, version)| version.is_some());
        held.map(|(name, _)| name)
            .filter(|name| !cached.entries().contains_key(*name))
    }

    pub(super) fn subscribe_all(&mut self, cached: &CachedType) {
        self.wildcard = true;
        self.changed.extend(cached.entries().keys().cloned());
    }

    pub(super) fn unsubscribe_all(&mut self) {
        self.wildcard = false;
        let names = &self.names;
        self.known.retain(|name, _| names.contains(name));
        self.changed.retain(|name| names.contains(name));
    }

    /// Subscribes to a name. Repeating a subscription requests the resource again.
    pub(super) fn subscribe(&mut self, name: Name) {
        if self.names.insert(Arc::clone(&name)) {
            self.subscribed_usage.add(name.len());
        } else {
            self.known.remove(&name);
        }
        self.changed.insert(name);
    }

    pub(super) fn unsubscribe(&mut self, names: &HashSet<Name>) {
        for name in names {
            if self.names.remove(name) {
                self.subscribed_usage.remove(name.len());
            }
            if !self.wildcard {
                self.known.remove(name);
                self.changed.remove(name);
            }
        }
        if !self.wildcard {
            self.disregard(names);
        }
    }

    /// Ignores these names in the unanswered response.
    fn disregard(&mut self, names: &HashSet<Name>) {
        if let Some(unanswered) = &mut self.unanswered {
            unanswered.items.retain(|(name, _)| !names.contains(name));
        }
    }

    fn mark_changed(&mut self, names: &[Name]) {
        let interesting = names.iter().filter(|name| self.is_interested(name));
        let interesting: Vec<Name> = interesting.cloned().collect();
        if interesting.is_empty() {
            return;
        }
        self.changed.extend(interesting);
        // A change may have fixed the cause of the rejection.
        for name in std::mem::take(&mut self.refused) {
            if self.is_interested(&name) {
                self.known.insert(Arc::clone(&name), Some(Arc::from("")));
                self.changed.insert(name);
            }
        }
    }

    /// Marks names to be sent again. Envoy drops these resources when it receives a resource that
    /// refers to them, even if they have just been sent.
    fn resend(&mut self, names: &HashSet<Name>) {
        self.disregard(names);
        for name in names {
            if self.is_interested(name) {
                self.known.remove(name);
                self.changed.insert(Arc::clone(name));
            }
        }
    }

    fn difference<'a>(&self, cached: &'a CachedType, name: &Name) -> Difference<'a> {
        if !self.is_interested(name) {
            return Difference::None;
        }
        match (cached.entries().get(name), self.known.get(name)) {
            (Some(Entry::Present(resource)), Some(Some(held))) if *held == resource.version => {
                Difference::None
            }
            (Some(Entry::Present(resource)), _) => Difference::Upsert(resource),
            (Some(Entry::Absent), Some(None)) => Difference::None,
            (Some(Entry::Absent), _) => Difference::Removal,
            // If a name is not in the cache, it is known not to exist only for a wildcard
            // subscription.
            (None, Some(Some(_))) if !self.names.contains(name) => Difference::Removal,
            (None, _) => Difference::None,
        }
    }

    /// Whether the cache has resources that this Envoy should hold but does not.
    fn lacks_resources(&self, cached: &CachedType) -> bool {
        let upsert = |name| matches!(self.difference(cached, name), Difference::Upsert(_));
        self.changed.iter().any(upsert)
    }

    /// Takes the changes since the last comparison with the cache. Removals may have to wait.
    fn take_changes(&mut self, cached: &CachedType, removals: bool) -> Update {
        let mut update = Update::default();
        for name in std::mem::take(&mut self.changed) {
            match self.difference(cached, &name) {
                Difference::None => {}
                Difference::Upsert(resource) => update.upsert(name, resource),
                Difference::Removal if removals => update.remove(name),
                Difference::Removal => {
                    self.changed.insert(name);
                }
            }
        }
        update
    }

    /// The part of a server's response that is new to this Envoy.
    fn select(&self, cached: &CachedType, content: &Content) -> Update {
        let mut update = Update::default();
        for (name, resource) in &content.resources {
            let held = self.known.get(name).and_then(Option::as_ref);
            let same = held == Some(&resource.version)
                && cached
                    .resource(name)
                    .is_some_and(|old| old.is_same(resource));
            if self.is_interested(name) && !same {
                update.upsert(Arc::clone(name), resource);
            }
        }
        for name in &content.removed {
            let new = match self.known.get(name) {
                Some(known) => known.is_some(),
                None => self.names.contains(name),
            };
            if self.is_interested(name) && new {
                update.remove(Arc::clone(name));
            }
        }
        update
    }

    /// The content of the unanswered response, if it has this nonce.
    pub(super) fn take_unanswered(&mut self, nonce: &str) -> Option<Items> {
        let answered = self.unanswered.take_if(|one| one.nonce == nonce)?;
        Some(answered.items)
    }

    /// Envoy accepted a response.
    pub(super) fn ack(&mut self, items: Items) {
        self.hold(items);
        self.acked = true;
        self.rejection = None;
    }

    /// Envoy rejected a response. A response from the cache, whose resources another Envoy accepted,
    /// is not sent again until a resource of the type changes.
    pub(super) fn nack(&mut self, items: Items, rejected: Rejected) {
        if !rejected.from_server {
            let names = items.iter().map(|(name, _)| Arc::clone(name));
            self.refused.extend(names);
            self.hold(items);
        }
        self.rejection = Some(rejected);
    }

    /// Records the versions that Envoy was given last.
    fn hold(&mut self, items: Items) {
        for (name, version) in items {
            if version.is_some() || self.names.contains(&name) {
                self.known.insert(name, version);
            } else {
                self.known.remove(&name);
            }
        }
    }
}
