//! Decides what to do next, from Kubernetes objects, the catalog and jobs in flight. Pure: takes
//! events and times, returns jobs.
//!
//! A pod is the unit of work. At most one job per pod is in flight, and its plan is made from the
//! latest state when it starts, so that any number of changes in between costs one more job. There
//! is no batching delay.
//!
//! Nothing is done before pods, Services and nodes have been listed once, and nothing on a catalog
//! node before that node has been read: an empty cache is not an empty cluster.

mod ended;
mod job;
mod progress;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use legate_runtime::{Backoff, BackoffPolicy};
use tokio::time::Instant;

use super::catalog::Catalog;
use super::difference::{Call, Known, plan};
use super::facts::{Key, Node, Pod, Service};
use super::objects::{Change, Objects};
use super::registration::{Settings, node_name};
use super::wanted::{Reason, wanted};

pub use self::job::{Ended, Job, Notice, Outcome};
pub use self::progress::Sizes;

use self::progress::Lags;
use self::queue::Queue;

/// The maximum number of jobs in flight.
const JOBS: usize = 16;

/// The interval of full differences.
pub const FULL_EVERY: Duration = Duration::from_secs(60 * 60);

/// The backoff of a pod whose registration the servers refuse.
const REFUSED: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_secs(1),
    multiplier: 2.0,
    jitter: 0.3,
    cap: Duration::from_secs(60),
};

/// The backoff while the servers are unreachable, short so that work resumes soon after they return.
const AWAY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(200),
    multiplier: 1.7,
    jitter: 0.3,
    cap: Duration::from_secs(3),
};

/// The state machine; see the module.
#[derive(Debug)]
pub struct Core {
    settings: Settings,
    tokens: bool,
    pods: Objects<Key, Pod>,
    services: Objects<Key, Service>,
    nodes: Objects<String, Node>,
    catalog: Catalog,
    queue: Queue,
    /// Pods whose job is in flight.
    running: BTreeMap<Key, Running>,
    jobs: usize,
    locks: BTreeMap<String, Lock>,
    reading: Reading,
    removable: BTreeSet<String>,
    sweep: bool,
    known: Known,
    failures: BTreeMap<Key, Failure>,
    said: BTreeMap<Key, (String, Reason)>,
    away: Away,
    notices: Vec<Notice>,
    lags: Lags,
}

/// A pod's job in flight.
#[derive(Debug)]
struct Running {
    /// Whether the pod has to be processed again afterwards.
    again: bool,
    /// The catalog nodes that the job changes.
    nodes: BTreeSet<String>,
}

/// The lock on a catalog node: held by several pods, or by one job that reads or removes it.
#[derive(Debug, Default)]
struct Lock {
    pods: usize,
    alone: bool,
}

/// The state of the full difference.
#[derive(Debug)]
struct Reading {
    /// When the next one starts.
    next: Instant,
    listing: bool,
    /// Whether the nodes were listed at least once: then nodes not in the list do not exist.
    listed: bool,
    /// Nodes that remain to be read.
    nodes: BTreeSet<String>,
    /// The number of reads in flight, including the list of nodes.
    under_way: usize,
    /// Whether a full difference is in progress.
    comparing: bool,
    /// Whether one has completed since the last [`Core::take_compared`].
    compared: bool,
}

#[derive(Debug)]
struct Failure {
    backoff: Backoff,
    /// When the next attempt is due; `None` while one is in flight.
    at: Option<Instant>,
}

/// The outage state of the servers.
#[derive(Debug)]
struct Away {
    backoff: Backoff,
    until: Option<Instant>,
}

impl Core {
    /// Creates an empty state; `tokens` enables the removal of pods' tokens.
    #[must_use]
    pub fn new(settings: Settings, tokens: bool, now: Instant) -> Core {
        Core {
            settings,
            tokens,
            pods: Objects::default(),
            services: Objects::default(),
            nodes: Objects::default(),
            catalog: Catalog::default(),
            queue: Queue::default(),
            running: BTreeMap::new(),
            jobs: 0,
            locks: BTreeMap::new(),
            reading: Reading {
                next: now,
                listing: false,
                listed: false,
                nodes: BTreeSet::new(),
                under_way: 0,
                comparing: false,
                compared: false,
            },
            removable: BTreeSet::new(),
            sweep: false,
            known: Known::default(),
            failures: BTreeMap::new(),
            said: BTreeMap::new(),
            away: Away {
                backoff: Backoff::new(AWAY),
                until: None,
            },
            notices: Vec::new(),
            lags: Lags::default(),
        }
    }

    /// Applies a change of a pod.
    pub fn pod(&mut self, change: Change<Pod>, now: Instant) {
        for key in self.pods.apply(change, |pod| pod.key.clone()) {
            if self.pods.get(&key).is_none() {
                self.said.remove(&key);
            }
            self.lags.changed(&key, now);
            self.queue.push(key);
        }
    }

    /// Applies a change of a Service.
    pub fn service(&mut self, change: Change<Service>, now: Instant) {
        for key in self.services.apply(change, |service| service.key.clone()) {
            let first = Key::new(&key.namespace, "");
            let of_namespace = self.pods.range(first..);
            let keys = of_namespace.take_while(|(pod, _)| pod.namespace == key.namespace);
            for (pod, _) in keys {
                self.lags.changed(pod, now);
                self.queue.push(pod.clone());
            }
        }
    }

    /// Applies a change of a node of the cluster.
    pub fn node(&mut self, change: Change<Node>, now: Instant) {
        let changed = self.nodes.apply(change, |node| node.name.clone());
        if changed.is_empty() {
            return;
        }
        for (key, pod) in self.pods.iter() {
            if changed.contains(&pod.node) {
                self.lags.changed(key, now);
                self.queue.push(key.clone());
            }
        }
    }

    fn objects_complete(&self) -> bool {
        self.pods.complete() && self.services.complete() && self.nodes.complete()
    }

    /// Takes the events since the last call.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The current numbers of objects and jobs.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        Sizes {
            pods: self.pods.iter().len(),
            services: self.services.iter().len(),
            nodes: self.nodes.iter().len(),
            instances: self.catalog.owned(),
            waiting: self.queue.len(),
            jobs: self.jobs,
            failing: self.failures.len(),
        }
    }

    /// Takes the delays since the last call: from the arrival of each change until the catalog had it.
    pub fn take_lags(&mut self) -> Vec<Duration> {
        self.lags.take()
    }

    /// Whether a full difference has completed since the last call.
    pub fn take_compared(&mut self) -> bool {
        std::mem::take(&mut self.reading.compared)
    }

    /// Whether the catalog was read and no work remains.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.objects_complete()
            && self.reading.listed
            && self.reading.nodes.is_empty()
            && self.queue.is_empty()
            && self.jobs == 0
            && self.failures.is_empty()
    }

    /// Returns the next jobs, up to the limit.
    pub fn poll(&mut self, now: Instant) -> Vec<Job> {
        let mut jobs = Vec::new();
        if self.away.until.is_some_and(|until| now < until) {
            return jobs;
        }
        self.begin_full(now);
        for (key, failure) in &mut self.failures {
            if failure.at.is_some_and(|at| at <= now) {
                failure.at = None;
                self.queue.push(key.clone());
            }
        }
        // During an outage a single job probes the servers.
        let most = if self.away.until.is_some() { 1 } else { JOBS };
        while self.jobs < most {
            let Some(job) = self.next_job(now) else {
                break;
            };
            self.jobs += 1;
            jobs.push(job);
        }
        if self.jobs == 0 {
            // There is no job that could probe, and none that has to.
            self.away.until = None;
        }
        jobs
    }

    /// When [`Core::poll`] has to be called again without an event.
    #[must_use]
    pub fn wake(&self) -> Instant {
        let failures = self
            .failures
            .values()
            .filter_map(|failure| failure.at)
            .min();
        let next = failures.map_or(self.reading.next, |at| at.min(self.reading.next));
        match self.away.until {
            // The jobs in flight probe the servers.
            Some(until) if self.jobs == 0 => until,
            Some(until) => next.max(until),
            None => next,
        }
    }

    fn begin_full(&mut self, now: Instant) {
        if now < self.reading.next {
            return;
        }
        self.reading.next = now + FULL_EVERY;
        self.reading.listing = true;
        self.reading.comparing = true;
        self.known = Known::default();
        // Persisting refusals are reported again, because events expire after an hour.
        self.said.clear();
        self.sweep = self.tokens;
    }

    fn next_job(&mut self, now: Instant) -> Option<Job> {
        if std::mem::take(&mut self.reading.listing) {
            self.reading.under_way += 1;
            return Some(Job::ListNodes);
        }
        if let Some(node) = self.free(&self.reading.nodes) {
            self.reading.nodes.remove(&node);
            self.lock(&node).alone = true;
            self.reading.under_way += 1;
            return Some(Job::ReadNode(node));
        }
        if !self.objects_complete() || !self.reading.listed {
            return None;
        }
        if let Some(job) = self.next_pod(now) {
            return Some(job);
        }
        if let Some(node) = self.free(&self.removable) {
            self.removable.remove(&node);
            if self.is_unused(&node) {
                self.lock(&node).alone = true;
                return Some(Job::RemoveNode(node));
            }
        }
        if self.sweep && self.reading.nodes.is_empty() {
            self.sweep = false;
            let live = self.pods.iter();
            let live = live.map(|(key, pod)| (key.clone(), pod.uid.clone()));
            return Some(Job::SweepTokens(live.collect()));
        }
        None
    }

    /// One of these nodes that is not locked.
    fn free(&self, nodes: &BTreeSet<String>) -> Option<String> {
        let free = |node: &&String| !self.locks.contains_key(*node);
        nodes.iter().find(free).cloned()
    }

    fn is_unused(&self, node: &str) -> bool {
        let state = self.catalog.node(node);
        let empty = state.is_some_and(|state| state.removable && state.instances.is_empty());
        let on = |pod: &Pod| !pod.finished && !pod.node.is_empty() && node_name(&pod.node) == node;
        empty && !self.pods.iter().any(|(_, pod)| on(pod))
    }

    fn lock(&mut self, node: &str) -> &mut Lock {
        self.locks.entry(node.to_owned()).or_default()
    }

    fn next_pod(&mut self, now: Instant) -> Option<Job> {
        while let Some(key) = self.queue.pop() {
            if let Some(running) = self.running.get_mut(&key) {
                running.again = true;
                continue;
            }
            if let Some(node) = self.waits_for(&key) {
                self.queue.park(node, key);
                continue;
            }
            let calls = self.plan(&key, now);
            if calls.is_empty() {
                continue;
            }
            let nodes = calls.iter().filter_map(Call::node).map(str::to_owned);
            let nodes: BTreeSet<String> = nodes.collect();
            if let Some(node) = nodes.iter().find(|node| self.is_alone(node)) {
                self.queue.park(node.clone(), key);
                continue;
            }
            for node in &nodes {
                self.lock(node).pods += 1;
            }
            let again = false;
            self.running.insert(key.clone(), Running { again, nodes });
            return Some(Job::Pod(key, calls));
        }
        None
    }

    fn is_alone(&self, node: &str) -> bool {
        self.locks.get(node).is_some_and(|lock| lock.alone)
    }

    /// The node that has to be read before a plan for the pod can be made. Pods wait for a pending
    /// read, so that the reader is not starved.
    fn waits_for(&self, key: &Key) -> Option<String> {
        let pod = self.pods.get(key).filter(|pod| !pod.node.is_empty())?;
        let node = node_name(&pod.node);
        let busy = self.is_alone(&node) || self.reading.nodes.contains(&node);
        busy.then_some(node)
    }

    fn plan(&mut self, key: &Key, now: Instant) -> Vec<Call> {
        let pod = self.pods.get(key).map(|pod| {
            let first = Key::new(&key.namespace, "");
            let services = self.services.range(first..);
            let services = services.take_while(|(service, _)| service.namespace == key.namespace);
            let services = services.map(|(_, service)| service);
            let node = self.nodes.get(&pod.node);
            (pod, wanted(pod, services, node, &self.settings))
        });
        let uid = pod.as_ref().map(|(pod, _)| pod.uid.clone());
        let plan = plan(key, pod, &self.catalog, self.tokens, &self.known);
        if let (Some(reason), Some(uid)) = (plan.reason, uid) {
            self.say(key, &uid, reason);
        } else if plan.calls.is_empty() {
            self.said.remove(key);
        }
        if plan.again {
            self.fail(key, now, 0.5);
        } else if plan.calls.is_empty() {
            self.failures.remove(key);
            self.lags.settled(key, now);
        }
        plan.calls
    }

    /// Reports an event, once per text.
    fn say(&mut self, key: &Key, uid: &str, reason: Reason) {
        let said = (uid.to_owned(), reason.clone());
        if self.said.get(key) == Some(&said) {
            return;
        }
        self.said.insert(key.clone(), said);
        self.notices.push(Notice {
            pod: key.clone(),
            uid: uid.to_owned(),
            reason,
        });
    }

    fn fail(&mut self, key: &Key, now: Instant, random: f64) {
        let failure = self.failures.entry(key.clone()).or_insert(Failure {
            backoff: Backoff::new(REFUSED),
            at: None,
        });
        failure.at = Some(now + failure.backoff.next(random));
    }
}
