//! What to do next: resolves the objects whenever they change, and compares the outcome with what is
//! there. Pure: the driver makes the calls.
//!
//! Each object, gateway and set of rows has one call at a time. A call that failed is made again
//! after a delay, with what is then wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kube::core::DynamicObject;
use legate_gateway_api::{Key, Outcome, Servers, resolve};
use legate_runtime::{Backoff, BackoffPolicy};
use serde_json::Value;
use tokio::time::Instant;

use super::class_config::ClassConfig;
use super::cluster::{Cluster, Item, Source};
use super::entries::{self, Entries, EntryId};
use super::fronts::{AllAcknowledged, fronts};
use super::infrastructure::{GatewayMeta, Manifest, manifests};
use super::kinds::Kind;
use super::rights::Rights;
use super::rows::{Request, Rows, frontend_name};
use super::status::{Verdict, Writer};
use super::stored::{self, Stored};
use crate::inject::Installation;
use crate::sync::objects::Change;
use crate::sync::registration::Settings;

/// How long changes are collected before they are resolved.
const COLLECTED: Duration = Duration::from_millis(50);
/// How long the first outcome waits for the servers. Without them nothing is known of proxies.
const SERVERS_WITHIN: Duration = Duration::from_secs(30);
/// How many calls are made at a time.
const CALLS: usize = 16;
/// When everything is applied and written again, in case somebody has changed it.
const APPLIED_AGAIN: Duration = Duration::from_mins(10);

/// How long watches may take to report what was applied.
const REPORTED_WITHIN: Duration = Duration::from_secs(5);

/// The delays between attempts of a call that fails.
const RETRY: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(500),
    multiplier: 2.0,
    jitter: 0.3,
    cap: Duration::from_secs(30),
};

/// What a call is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Subject {
    /// The status of an object.
    Status(Kind, Key),
    /// The objects that are made for a gateway.
    Infrastructure(Key),
    /// The rows of a gateway with this name in the mesh, or of a frontend; or the entries of a gateway.
    Rows(String),
}

/// A call.
#[derive(Debug)]
pub(super) enum Call {
    /// Changes fields of a status.
    Status {
        kind: Kind,
        key: Key,
        uid: String,
        resource_version: String,
        change: Value,
    },
    /// Applies objects of a gateway. Others' objects of these names are left alone.
    Apply {
        gateway: Key,
        uid: String,
        manifests: Vec<Manifest>,
    },
    /// Removes what a gateway has under a name. Others' objects of this name are left alone.
    Remove {
        gateway: Key,
        uid: String,
        name: String,
    },
    /// Writes rows.
    Rows {
        service: String,
        requests: Vec<Request>,
        rows: Rows,
    },
    /// Removes rows.
    RemoveRows { service: String },
    /// Writes and removes entries.
    Entries {
        service: String,
        /// Or why there are none.
        requests: Result<Vec<entries::Request>, String>,
        digests: BTreeMap<EntryId, String>,
        /// What its proxies need for reading them, if that may have changed.
        rights: Option<Rights>,
    },
}

impl Call {
    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Status { kind, key, .. } => Subject::Status(*kind, key.clone()),
            Self::Apply { gateway, .. } | Self::Remove { gateway, .. } => {
                Subject::Infrastructure(gateway.clone())
            }
            Self::Rows { service, .. }
            | Self::RemoveRows { service }
            | Self::Entries { service, .. } => Subject::Rows(service.clone()),
        }
    }
}

/// How a call has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// A status was written.
    Status {
        /// The version that it was based on.
        before: String,
        /// The object. `None` if it no longer exists.
        object: Option<Box<DynamicObject>>,
    },
    /// Objects were applied.
    Applied(Vec<Manifest>),
    /// Objects were removed.
    Removed,
    /// Rows were written.
    Rows(Rows),
    /// Rows were removed.
    RowsRemoved,
    /// Entries were written and removed: these digests are left.
    Entries(BTreeMap<EntryId, String>),
    /// It failed, for this reason.
    Failed(String),
}

/// The state.
#[derive(Debug)]
pub(super) struct Core {
    cluster: Cluster,
    installation: Arc<Installation>,
    controller: String,
    /// The cluster's uid, by which the servers distinguish gateways of several clusters.
    cluster_uid: String,
    acknowledged: Option<AllAcknowledged>,
    outcome: Outcome,
    /// The Gateways of all classes at the last resolution, and the keys of these by their names in the
    /// mesh.
    gateways: BTreeMap<Key, GatewayMeta>,
    by_service: BTreeMap<String, Key>,
    /// The indexes of frontends in the outcome, by the names of their rows.
    frontends: BTreeMap<String, usize>,
    /// When the changes since the last resolution are resolved.
    resolve_at: Option<Instant>,
    /// When the first outcome does not wait for the servers any longer.
    without_servers: Instant,
    /// What differs from the outcome, perhaps.
    pending: BTreeSet<Subject>,
    busy: BTreeSet<Subject>,
    delayed: BTreeMap<Subject, Delay>,
    /// Why the last calls for gateways failed.
    failures: BTreeMap<Subject, String>,
    /// What the servers have.
    written: BTreeMap<String, Rows>,
    /// The entries that Consul's servers have.
    stored: Stored,
    /// The digests of those that were written, by gateway. What the servers have may be older.
    entries: BTreeMap<String, BTreeMap<EntryId, String>>,
    /// What was applied, and when.
    applied: BTreeMap<Key, (Vec<Manifest>, Instant)>,
    apply_again: Instant,
}

#[derive(Debug)]
struct Delay {
    until: Instant,
    backoff: Backoff,
}

impl Core {
    pub(super) fn new(
        controller: &str,
        settings: Settings,
        installation: Arc<Installation>,
        now: Instant,
    ) -> Self {
        Self {
            cluster_uid: settings.cluster.clone(),
            cluster: Cluster::new(controller, settings),
            installation,
            controller: controller.to_owned(),
            acknowledged: None,
            outcome: Outcome::default(),
            gateways: BTreeMap::new(),
            by_service: BTreeMap::new(),
            frontends: BTreeMap::new(),
            resolve_at: None,
            without_servers: now + SERVERS_WITHIN,
            pending: BTreeSet::new(),
            busy: BTreeSet::new(),
            delayed: BTreeMap::new(),
            failures: BTreeMap::new(),
            written: BTreeMap::new(),
            stored: Stored::default(),
            entries: BTreeMap::new(),
            applied: BTreeMap::new(),
            apply_again: now + APPLIED_AGAIN,
        }
    }

    /// A watch starts.
    pub(super) fn start(&mut self, source: Source) {
        self.cluster.start(source);
    }

    /// A watch has ended, because its kind no longer exists.
    pub(super) fn end(&mut self, source: Source, now: Instant) {
        self.cluster.end(source);
        self.changed(now);
    }

    /// The version of the Gateway API's kinds, and whether they are those of the experimental channel.
    pub(super) fn bundle(&mut self, bundle: Option<String>, experimental: bool, now: Instant) {
        let world = &mut self.cluster.world;
        if (&world.bundle, world.experimental) != (&bundle, experimental) {
            (world.bundle, world.experimental) = (bundle, experimental);
            self.changed(now);
        }
    }

    /// An object has changed.
    pub(super) fn object(&mut self, source: Source, change: Change<Item>, now: Instant) {
        let status = match (source, &change) {
            (Source::Resources(kind), Change::Applied(item) | Change::Listed(item)) => {
                Some(Subject::Status(kind, item.key()))
            }
            _ => None,
        };
        if let Some(status) = &status {
            // A conflict is over once the object was read again.
            self.delayed.remove(status);
        }
        if self.cluster.apply(source, change) {
            self.changed(now);
        } else {
            // Perhaps somebody has changed what is said of it.
            self.pending.extend(status);
        }
    }

    /// The installation has changed: the certificates of the servers' authorities.
    pub(super) fn installation(&mut self, installation: Arc<Installation>, now: Instant) {
        self.installation = installation;
        self.changed(now);
    }

    /// What proxies have acknowledged.
    pub(super) fn acknowledged(&mut self, all: AllAcknowledged, now: Instant) {
        if self.acknowledged.as_ref() != Some(&all) {
            self.acknowledged = Some(all);
            self.changed(now);
        }
    }

    /// The entries of gateways that the servers have, which are Consul's.
    pub(super) fn stored(&mut self, stored: Stored, now: Instant) {
        self.cluster.world.servers = Servers::Consul;
        self.acknowledged(stored::acknowledged(&stored), now);
        self.stored = stored;
    }

    fn changed(&mut self, now: Instant) {
        self.resolve_at.get_or_insert(now + COLLECTED);
    }

    /// The calls to start. `now` is also given as Kubernetes writes it.
    pub(super) fn poll(&mut self, now: Instant, text: &str) -> Vec<Call> {
        let is_known = self.acknowledged.is_some() || now >= self.without_servers;
        if self.cluster.is_complete() && is_known {
            if now >= self.apply_again {
                self.applied.clear();
                // The servers may have restored a snapshot. What is equal is not written there.
                let written = self.written.values_mut();
                written.for_each(|rows| *rows = Rows::unknown());
                self.entries.clear();
                self.apply_again = now + APPLIED_AGAIN;
                self.changed(now);
            }
            if self.resolve_at.is_some_and(|at| at <= now) {
                self.resolve_at = None;
                self.resolve();
            }
        }
        let mut calls = Vec::new();
        for subject in std::mem::take(&mut self.pending) {
            let delay = self.delayed.get(&subject).map(|delay| delay.until);
            let waits = self.busy.contains(&subject) || delay.is_some_and(|until| until > now);
            if waits || self.busy.len() >= CALLS {
                self.pending.insert(subject);
            } else if let Some(call) = self.call(&subject, now, text) {
                self.busy.insert(subject.clone());
                self.pending.insert(subject);
                calls.push(call);
            } else {
                self.delayed.remove(&subject);
            }
        }
        calls
    }

    /// When to poll again if nothing happens.
    pub(super) fn wake(&self, now: Instant) -> Instant {
        let servers = self.acknowledged.is_none() && self.without_servers > now;
        let servers = servers.then_some(self.without_servers);
        let resolve = self.resolve_at.filter(|_| self.cluster.is_complete());
        let resolve = resolve.map(|at| servers.map_or(at, |servers| at.max(servers)));
        let delays = self.pending.iter().filter_map(|one| self.delayed.get(one));
        let delays = delays.map(|delay| delay.until).filter(|at| *at > now);
        // Nothing is due before everything is listed.
        let again = self.cluster.is_complete().then_some(self.apply_again);
        let all = resolve.into_iter().chain(delays).chain(again);
        all.min().unwrap_or(now + APPLIED_AGAIN)
    }

    /// A call has ended.
    pub(super) fn ended(&mut self, subject: Subject, ended: Ended, now: Instant, random: f64) {
        self.busy.remove(&subject);
        if !matches!(ended, Ended::Failed(_)) {
            self.delayed.remove(&subject);
            if self.failures.remove(&subject).is_some() {
                self.changed(now);
            }
        }
        match (&subject, ended) {
            (Subject::Status(kind, key), Ended::Status { before, object }) => match object {
                Some(object) => self.cluster.wrote(*kind, key, (&before, &object)),
                None => drop(self.pending.remove(&subject)),
            },
            (Subject::Infrastructure(key), Ended::Applied(manifests)) => {
                self.applied.insert(key.clone(), (manifests, now));
            }
            (Subject::Infrastructure(key), Ended::Removed) => {
                self.applied.remove(key);
                // The watches report that they are gone.
                self.pending.remove(&subject);
            }
            (Subject::Rows(service), Ended::Rows(rows)) => {
                self.written.insert(service.clone(), rows);
            }
            (Subject::Rows(service), Ended::RowsRemoved) => {
                self.written.remove(service);
                // The servers report that they are gone.
                self.pending.remove(&subject);
            }
            (Subject::Rows(service), Ended::Entries(digests)) => {
                self.entries.insert(service.clone(), digests);
            }
            (_, Ended::Failed(reason)) => self.failed(subject, reason, now, random),
            (subject, ended) => unreachable!("{subject:?}: {ended:?}"),
        }
    }

    fn failed(&mut self, subject: Subject, reason: String, now: Instant, random: f64) {
        if let Subject::Rows(service) = &subject {
            // Nobody knows how much of it was done.
            self.written.insert(service.clone(), Rows::unknown());
            self.entries.remove(service);
        }
        let is_of_status = matches!(subject, Subject::Status(..));
        if !is_of_status && self.failures.get(&subject) != Some(&reason) {
            self.failures.insert(subject.clone(), reason);
            self.changed(now);
        }
        let delay = self.delayed.entry(subject).or_insert_with(|| Delay {
            until: now,
            backoff: Backoff::new(RETRY),
        });
        delay.until = now + delay.backoff.next(random);
    }

    fn resolve(&mut self) {
        let nothing = AllAcknowledged::new();
        let acknowledged = self.acknowledged.as_ref().unwrap_or(&nothing);
        self.gateways = self.cluster.gateways();
        let gateways = self.gateways.iter();
        self.by_service = gateways
            .map(|(key, gateway)| (gateway.service(), key.clone()))
            .collect();
        let (gateways, failures) = (&self.gateways, &self.failures);
        self.cluster.world.fronts = fronts(&self.cluster, gateways, acknowledged, failures);
        self.cluster.mark_frontends();
        let failures = failures.iter().filter_map(|(subject, reason)| {
            let Subject::Rows(name) = subject else {
                return None;
            };
            let frontend = &self.outcome.frontends[*self.frontends.get(name)?].frontend;
            let key = Key::new(&frontend.namespace, &frontend.name);
            Some((key, reason.clone()))
        });
        self.cluster.world.unwritten = failures.collect();
        self.outcome = resolve(&self.cluster.world);
        let frontends = self.outcome.frontends.iter().enumerate();
        self.frontends = frontends
            .map(|(at, one)| (frontend_name(&one.frontend), at))
            .collect();
        let statuses = self.cluster.known.keys();
        let statuses = statuses.map(|(kind, key)| Subject::Status(*kind, key.clone()));
        let infrastructure = gateways.keys().cloned().map(Subject::Infrastructure);
        let stored = acknowledged.iter();
        let stored = stored.filter(|(_, stored)| stored.owner == self.cluster_uid);
        let services = stored.map(|(service, _)| service);
        let services = services.chain(self.by_service.keys());
        let services = services.chain(self.frontends.keys());
        let services = services.chain(self.written.keys()).cloned();
        let all = statuses.chain(infrastructure);
        let pending: BTreeSet<_> = all.chain(services.map(Subject::Rows)).collect();
        let is_alive = |subject: &Subject| pending.contains(subject) || self.busy.contains(subject);
        self.delayed.retain(|subject, _| is_alive(subject));
        self.failures.retain(|subject, _| is_alive(subject));
        self.pending = pending;
    }

    /// The call that is necessary, if one is.
    fn call(&self, subject: &Subject, now: Instant, text: &str) -> Option<Call> {
        match subject {
            Subject::Status(kind, key) => self.status(*kind, key, text),
            Subject::Infrastructure(key) => self.infrastructure(key, now),
            Subject::Rows(service) => self.rows(service),
        }
    }

    fn status(&self, kind: Kind, key: &Key, now: &str) -> Option<Call> {
        let known = self.cluster.known.get(&(kind, key.clone()))?;
        let outcome = &self.outcome;
        let verdict = match kind {
            Kind::GatewayClass => Verdict::Class(outcome.classes.get(&key.name)?),
            Kind::Gateway => Verdict::Gateway(outcome.gateways.get(key)?),
            Kind::ListenerSet => Verdict::ListenerSet(outcome.listener_sets.get(key)?),
            Kind::Route(kind) => {
                let key = key.clone();
                let id = legate_gateway_api::RouteId { kind, key };
                Verdict::Route(outcome.routes.get(&id))
            }
            Kind::BackendTlsPolicy => Verdict::Policy(outcome.policies.get(key)),
            Kind::ReferenceGrant | Kind::GatewayClassConfig | Kind::MeshService => return None,
        };
        let writer = Writer {
            controller: &self.controller,
            now,
        };
        Some(Call::Status {
            kind,
            key: key.clone(),
            uid: known.uid.clone(),
            resource_version: known.resource_version.clone(),
            change: writer.change(&known.status, verdict)?,
        })
    }

    /// Whether the class of a Gateway says that it is another controller's. A deleted class says
    /// nothing, and takes nothing from its gateways.
    fn is_of_another_controller(&self, gateway: &GatewayMeta) -> bool {
        let mut classes = self.cluster.world.classes.iter();
        let class = classes.find(|class| class.meta.name == gateway.class);
        class.is_some_and(|class| class.spec.controller_name != self.controller)
    }

    fn infrastructure(&self, key: &Key, now: Instant) -> Option<Call> {
        let gateway = self.gateways.get(key)?;
        if !self.outcome.gateways.contains_key(key) {
            return self
                .is_of_another_controller(gateway)
                .then(|| self.remove(gateway, None))
                .flatten();
        }
        // Nothing is removed while nothing is served: a Service could lose its address.
        let plan = &self.outcome.served.get(key)?.infrastructure;
        let none = ClassConfig::default();
        let config = match &plan.parameters {
            Some(parameters) => self.cluster.configs.get(parameters)?,
            None => &none,
        };
        let manifests = manifests(&self.installation, gateway, (plan, config));
        let name = Key::new(&key.namespace, &gateway.name());
        let (deployments, services) = (&self.cluster.deployments, &self.cluster.services);
        let is_there = deployments.contains_key(&name) && services.contains_key(&name);
        if let Some((applied, at)) = self.applied.get(key)
            && *applied == manifests
            && (is_there || now < *at + REPORTED_WITHIN)
        {
            // What it had as a gateway of another class of this controller. Until the watches have reported
            // both, one of them alone is not that.
            return is_there
                .then(|| self.remove(gateway, Some(&name.name)))
                .flatten();
        }
        Some(Call::Apply {
            gateway: key.clone(),
            uid: gateway.uid.clone(),
            manifests,
        })
    }

    /// Removes what a gateway has, except under a name.
    fn remove(&self, gateway: &GatewayMeta, except: Option<&String>) -> Option<Call> {
        let objects = self
            .cluster
            .deployments
            .iter()
            .chain(&self.cluster.services);
        let mut objects = objects.filter(|(key, object)| {
            key.namespace == gateway.key.namespace
                && object.gateway_uid == gateway.uid
                && Some(&key.name) != except
        });
        let (object, _) = objects.next()?;
        Some(Call::Remove {
            gateway: gateway.key.clone(),
            uid: gateway.uid.clone(),
            name: object.name.clone(),
        })
    }

    /// The entries that a gateway should have.
    fn entries(&self, service: &str) -> Option<Call> {
        let gateway = self.by_service.get(service);
        let gateway = gateway.and_then(|key| self.gateways.get(key));
        let gateway = gateway.filter(|gateway| !self.is_of_another_controller(gateway));
        let wanted = match gateway {
            None => Entries::default(),
            Some(gateway) => {
                // One whose class is missing keeps what it has.
                self.outcome.gateways.get(&gateway.key)?;
                let served = self.outcome.served.get(&gateway.key);
                Entries::of(&self.cluster, (&self.cluster_uid, gateway), served)
            }
        };
        let stored = || stored::digests(&self.stored, &self.cluster_uid, service);
        let known = self.entries.get(service).cloned().unwrap_or_else(stored);
        let requests = wanted.requests(&known);
        if requests.is_empty() {
            return None;
        }
        let other = stored::other_owner(&self.stored, &self.cluster_uid, service);
        if let Some(other) = other.filter(|_| !wanted.is_empty()) {
            let reason = format!(
                "the api-gateway entry {service} belongs to {}: name the Gateway differently, or delete the \
                 entry",
                if other.is_empty() {
                    "somebody else"
                } else {
                    "another cluster"
                }
            );
            return Some(Call::Entries {
                service: service.to_owned(),
                requests: Err(reason),
                digests: known,
                rights: None,
            });
        }
        let account = gateway.map(|one| Key::new(&one.key.namespace, &one.name()));
        let account = account.filter(|_| !wanted.is_empty());
        let of_gateway = requests.iter().any(entries::Request::is_of_gateway);
        let rights = Rights::of(&self.installation, service, account);
        Some(Call::Entries {
            service: service.to_owned(),
            requests: Ok(requests),
            digests: wanted.digests(),
            rights: rights.filter(|_| of_gateway),
        })
    }

    fn rows(&self, service: &str) -> Option<Call> {
        if self.cluster.world.servers == Servers::Consul {
            return self.entries(service);
        }
        let written = self.written.get(service);
        if let Some(frontend) = self.frontends.get(service) {
            let served = &self.outcome.frontends[*frontend];
            let rows = Rows::of_frontend(&self.cluster, &self.cluster_uid, served);
            return write(service, rows, written);
        }
        // Perhaps another operator has written it, which no longer leads.
        let acknowledged = self.acknowledged.as_ref();
        let stored = acknowledged.and_then(|all| all.get(service));
        let is_stored = stored.is_some_and(|stored| stored.owner == self.cluster_uid);
        let gateway = self.by_service.get(service);
        let gateway = gateway.and_then(|key| self.gateways.get(key));
        let is_gone = gateway.is_none_or(|gateway| self.is_of_another_controller(gateway));
        if is_gone {
            return (written.is_some() || is_stored).then(|| Call::RemoveRows {
                service: service.to_owned(),
            });
        }
        let gateway = gateway.filter(|one| self.outcome.gateways.contains_key(&one.key))?;
        let served = self.outcome.served.get(&gateway.key);
        // One that serves nothing needs rows if proxies or servers have something of it.
        if served.is_none() && written.is_none() && !is_stored {
            return None;
        }
        let rows = Rows::of(&self.cluster, (&self.cluster_uid, gateway), served);
        write(service, rows, written)
    }
}

/// The call that writes rows, if the servers do not have them.
fn write(service: &str, rows: Rows, written: Option<&Rows>) -> Option<Call> {
    let requests = rows.requests(written);
    (!requests.is_empty()).then(|| Call::Rows {
        service: service.to_owned(),
        requests,
        rows,
    })
}

#[cfg(test)]
mod tests;
