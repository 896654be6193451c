//! What the peer should have, what it was sent, and what is sent next.
//!
//! Only the latest state counts. A resource is sent if its content differs from what was sent last. At most
//! [`RESPONSES_IN_FLIGHT`] responses are unanswered; meanwhile changes add up. The peer's answers need not come in order.
//!
//! Where the order matters: the list of services follows the services that it names, because the peer removes all
//! others when it receives the list. What it removes then is forgotten here, and sent again if it should stay: the mesh
//! forms of services that are not in the list.
//!
//! A listed service that is not in the mesh gets a mesh form without instances: the peer may have one from an earlier
//! stream, which the list does not remove. Consul forgets to do so after a new stream.
//!
//! A resource that the peer has refused is sent again when it changes, and within a minute. In Consul only when it
//! changes.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use legate_api::internal::peerstream::Operation;
use legate_api::internal::peerstream::replication_message::Response;

use crate::export::destination;
use crate::resource::{Digest, Exports, Payload, ResourceType};

/// The largest number of responses without an answer.
pub const RESPONSES_IN_FLIGHT: usize = 128;
/// The longest time until a refused resource is sent again.
const RETRY: Duration = Duration::from_mins(1);
/// How many services may be sent before the list. More than a peer should export.
const SENT: usize = 65_536;

/// A resource. Only services are identified by a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Service(Arc<str>),
    Only(ResourceType),
}

impl Key {
    fn kind(&self) -> ResourceType {
        match self {
            Self::Service(_) => ResourceType::Service,
            Self::Only(kind) => *kind,
        }
    }

    fn id(&self) -> &str {
        match self {
            Self::Service(id) => id,
            Self::Only(kind) => kind.id(),
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    exports: Arc<Exports>,
    /// What was sent last, as far as the peer may still have it. `None`: it was refused, so the peer has an older state.
    sent: BTreeMap<Key, Option<Digest>>,
    /// What the peer has refused.
    refused: BTreeMap<Key, Digest>,
    retry_at: Option<Duration>,
    /// Unanswered responses by nonce.
    in_flight: BTreeMap<u64, (Key, Digest)>,
    /// Services that precede the list.
    first: Queue,
    /// Services that follow the list.
    rest: Queue,
    last_nonce: u64,
    /// The nonce of the last list.
    last_list: u64,
}

impl Outgoing {
    /// Sets what the peer should have.
    ///
    /// Whatever is due is in a queue. So if the list stays, only the services that have changed are looked at: one of
    /// thousands changes at a time.
    pub(super) fn set(&mut self, exports: Arc<Exports>) {
        let before = std::mem::replace(&mut self.exports, Arc::clone(&exports));
        let digest = |exports: &Exports| exports.list.as_ref().map(|list| list.payload.digest);
        if digest(&before) == digest(&exports) {
            for id in changed(&before.services, &exports.services) {
                self.reconsider(id);
            }
        } else {
            self.reconsider_all(&exports);
        }
    }

    /// Looks at a service that has changed.
    fn reconsider(&mut self, id: &Arc<str>) {
        let key = Key::Service(Arc::clone(id));
        if self.wanted(&key).is_some() {
            return self.enqueue(id);
        }
        self.refused.remove(&key);
        for queue in [&mut self.first, &mut self.rest] {
            queue.retain(|other| other != id);
        }
        if self.sent.contains_key(&key) {
            self.remove_by_list();
        }
    }

    /// The peer has a service that it should not have, and that the list does not name. It is removed by sending the list
    /// again, which may be equal to the last.
    fn remove_by_list(&mut self) {
        self.sent.insert(Key::Only(ResourceType::ServiceList), None);
    }

    fn reconsider_all(&mut self, exports: &Exports) {
        let mut refused = std::mem::take(&mut self.refused);
        refused.retain(|key, _| self.wanted(key).is_some());
        self.refused = refused;
        let mut queues = [
            std::mem::take(&mut self.first),
            std::mem::take(&mut self.rest),
        ];
        for queue in &mut queues {
            queue.retain(|id| self.wanted(&Key::Service(Arc::clone(id))).is_some());
        }
        [self.first, self.rest] = queues;
        let mesh_ids = exports.list.iter().flat_map(|list| &list.mesh_ids);
        for id in exports.services.keys().chain(mesh_ids) {
            self.enqueue(id);
        }
        let sent: Vec<Key> = self.sent.keys().cloned().collect();
        for key in sent {
            match &key {
                Key::Service(id) if exports.services.contains_key(id) => {}
                Key::Service(id) if self.wanted(&key).is_some() => self.enqueue(id),
                // It was sent before a list that names it, and is not in the next one.
                Key::Service(_) => self.remove_by_list(),
                Key::Only(_) => {}
            }
        }
    }

    /// The state that the peer should have. `None`: nothing is to be sent.
    fn wanted(&self, key: &Key) -> Option<&Payload> {
        match key {
            Key::Only(ResourceType::ServiceList) => {
                self.exports.list.as_ref().map(|list| &list.payload)
            }
            Key::Only(ResourceType::TrustBundle) => self.exports.trust_bundle.as_ref(),
            Key::Only(ResourceType::ServerAddresses) => self.exports.server_addresses.as_ref(),
            Key::Only(ResourceType::Service) => None,
            Key::Service(id) => self.exports.services.get(id).or_else(|| {
                let is_mesh = destination(id).is_some();
                let removed = is_mesh && (self.is_listed(id) || self.sent.contains_key(key));
                removed.then(Payload::no_instances)
            }),
        }
    }

    /// Whether the peer should have another state than it was sent, which it has not refused.
    fn is_due(&self, key: &Key) -> bool {
        self.wanted(key).is_some_and(|wanted| {
            self.sent.get(key) != Some(&Some(wanted.digest))
                && self.refused.get(key) != Some(&wanted.digest)
        })
    }

    fn enqueue(&mut self, id: &Arc<str>) {
        let key = Key::Service(Arc::clone(id));
        if !self.is_due(&key) {
            return;
        }
        let removed = !self.exports.services.contains_key(id);
        let fresh = !self.sent.contains_key(&key) && self.is_listed(id);
        let queue = match removed || fresh {
            true => &mut self.first,
            false => &mut self.rest,
        };
        queue.push(Arc::clone(id));
    }

    fn is_listed(&self, id: &str) -> bool {
        self.exports
            .list
            .as_ref()
            .is_some_and(|list| list.keeps(id))
    }

    /// The response to send next, and the names of services if it is their list.
    pub(super) fn next(
        &mut self,
        subscribed: &[bool; ResourceType::ALL.len()],
    ) -> Option<(Response, Option<Arc<[String]>>)> {
        if self.in_flight.len() >= RESPONSES_IN_FLIGHT {
            return None;
        }
        let is_due = |kind: ResourceType| {
            let key = Key::Only(kind);
            (subscribed[kind as usize] && self.is_due(&key)).then_some(key)
        };
        let roots = is_due(ResourceType::TrustBundle);
        if let Some(key) = roots.or_else(|| is_due(ResourceType::ServerAddresses)) {
            return self.send(key);
        }
        // As in Consul, the list waits for the subscription of services, too.
        if !subscribed[ResourceType::Service as usize] || self.exports.list.is_none() {
            return None;
        }
        let mut list = is_due(ResourceType::ServiceList);
        if self.sent.len() > SENT
            && let Some(list) = list.take()
        {
            return self.send(list);
        }
        while let Some(id) = self.first.pop() {
            let key = Key::Service(id);
            if self.is_due(&key) {
                return self.send(key);
            }
        }
        if let Some(list) = list {
            return self.send(list);
        }
        while let Some(id) = self.rest.pop() {
            let key = Key::Service(id);
            if self.is_due(&key) {
                return self.send(key);
            }
        }
        None
    }

    fn send(&mut self, key: Key) -> Option<(Response, Option<Arc<[String]>>)> {
        let Payload { any, digest } = self.wanted(&key)?.clone();
        self.last_nonce += 1;
        let response = Response {
            nonce: format!("{:08x}", self.last_nonce),
            resource_url: key.kind().url().to_owned(),
            resource_id: key.id().to_owned(),
            resource: Some(any),
            operation: Operation::Upsert.into(),
        };
        self.in_flight
            .insert(self.last_nonce, (key.clone(), digest));
        self.refused.remove(&key);
        let names = match &key {
            Key::Only(ResourceType::ServiceList) => self.list_is_sent(),
            _ => None,
        };
        match &key {
            // Nothing is left of it.
            Key::Service(id) if !self.exports.services.contains_key(id) && !self.is_listed(id) => {
                self.sent.remove(&key);
            }
            _ => {
                self.sent.insert(key, Some(digest));
            }
        }
        Some((response, names))
    }

    /// The peer removes the services that the list does not keep. Returns the list's names.
    fn list_is_sent(&mut self) -> Option<Arc<[String]>> {
        let exports = Arc::clone(&self.exports);
        let list = exports.list.as_ref()?;
        self.last_list = self.last_nonce;
        let is_kept = |key: &Key| match key {
            Key::Service(id) => list.keeps(id),
            Key::Only(_) => true,
        };
        self.sent.retain(|key, _| is_kept(key));
        self.refused.retain(|key, _| is_kept(key));
        for id in exports.services.keys().filter(|id| !list.keeps(id)) {
            self.enqueue(id);
        }
        Some(Arc::clone(&list.names))
    }

    /// The peer has applied a response or refused it. Without a known nonce it says nothing about a resource.
    pub(super) fn answered(
        &mut self,
        kind: ResourceType,
        nonce: &str,
        accepted: bool,
        now: Duration,
    ) {
        let Ok(number) = u64::from_str_radix(nonce, 16) else {
            return;
        };
        if self
            .in_flight
            .get(&number)
            .is_none_or(|(key, _)| key.kind() != kind)
        {
            return;
        }
        let Some((key, content)) = self.in_flight.remove(&number) else {
            return;
        };
        let is_last = match self.sent.get(&key) {
            Some(last) => *last == Some(content),
            // A mesh form of which nothing was to be left.
            None => content == Payload::no_instances().digest && destination(key.id()).is_some(),
        };
        if !accepted && is_last {
            self.sent.insert(key.clone(), None);
            self.refused.insert(key, content);
            self.retry_at.get_or_insert(now + RETRY);
        }
    }

    /// Sends what the peer has refused again, when it is time.
    pub(super) fn retry(&mut self, now: Duration) {
        if self.retry_at.is_none_or(|at| now < at) {
            return;
        }
        self.retry_at = None;
        for (key, _) in std::mem::take(&mut self.refused) {
            if let Key::Service(id) = &key {
                self.enqueue(id);
            }
        }
    }

    pub(super) fn next_retry(&self) -> Option<Duration> {
        self.retry_at
    }
}

/// The services that are different in both, or are in one only.
fn changed<'a>(
    before: &'a BTreeMap<Arc<str>, Payload>,
    after: &'a BTreeMap<Arc<str>, Payload>,
) -> Vec<&'a Arc<str>> {
    let mut olds = before.iter().peekable();
    let mut news = after.iter().peekable();
    let mut changed = Vec::new();
    loop {
        let order = match (olds.peek(), news.peek()) {
            (None, None) => return changed,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let old = olds.next_if(|_| order.is_le());
        let new = news.next_if(|_| order.is_ge());
        if old.map(|(_, payload)| payload.digest) != new.map(|(_, payload)| payload.digest) {
            changed.extend(old.or(new).map(|(id, _)| id));
        }
    }
}

/// Names in the order of their first change.
#[derive(Debug, Default)]
struct Queue {
    order: VecDeque<Arc<str>>,
    members: BTreeSet<Arc<str>>,
}

impl Queue {
    fn push(&mut self, id: Arc<str>) {
        if self.members.insert(Arc::clone(&id)) {
            self.order.push_back(id);
        }
    }

    fn pop(&mut self) -> Option<Arc<str>> {
        let id = self.order.pop_front()?;
        self.members.remove(&id);
        Some(id)
    }

    fn retain(&mut self, keep: impl Fn(&Arc<str>) -> bool) {
        self.order.retain(&keep);
        self.members.retain(&keep);
    }
}
