//! The task that owns the built-in proxy: takes resources from the relay, decides with `legate-l4` what follows from
//! them, opens and closes sockets, and acknowledges. Data threads serve the connections.
//!
//! It never answers for a resource that it does not serve.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use legate_api::discovery::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use legate_api::{rpc, type_url};
use legate_l4::config::{Config, Kind, Model, Rejection, Resource};
use legate_l4::model::{Address, Direction, Endpoints, Hosts, Name};
use legate_l4::plan;
use legate_runtime::{CancellationToken, ReadyHandle, Scope, heap};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::built_in::{BuiltIn, Draining};
use super::burst::Burst;
use super::control::{Answer, Fit, Order, Orders, Part};
use super::listen::{self, Listening};
use super::names::resolve;
use super::serving::Serving;
use super::shared::Shared;
use super::steer::{listening, steer};
use super::tls::Material;
use crate::relay::{FromProxy, Relay};

/// How often the clock of connections ticks, ejections are looked at, and names that are due are resolved.
const TICK: Duration = Duration::from_secs(1);

/// The most names that are resolved at a time; the rest waits for the next tick.
const RESOLVED_AT_ONCE: usize = 16;

/// The sockets of a listener.
struct Sockets {
    address: Address,
    /// Bound, and not listening before the listener has everything that it needs.
    waiting: Vec<Listening>,
    /// Those that accept, in the order in which they began to listen.
    accepting: Vec<Accepting>,
}

/// A socket that accepts on a data thread until this is dropped.
struct Accepting {
    /// Steers its group, if it may have to be left to Envoy. Closed first: the task is the last one to have the socket.
    group: Option<OwnedFd>,
    stop: CancellationToken,
}

impl Drop for Accepting {
    fn drop(&mut self) {
        self.group = None;
        self.stop.cancel();
    }
}

/// State of the task.
pub(super) struct Driver {
    shared: Arc<Shared>,
    config: Arc<RwLock<Config>>,
    model: Model,
    material: Material,
    sockets: HashMap<Name, Sockets>,
    threads: Vec<Scope>,
    /// Sent with the first request of a stream.
    node: Bytes,
    /// The names that are subscribed to, by type.
    subscribed: BTreeMap<Kind, BTreeSet<Name>>,
    /// When the name of a cluster is resolved again.
    resolved: HashMap<Name, Instant>,
    ready: ReadyHandle,
    draining: watch::Receiver<Draining>,
    burst: Burst,
    /// With the mode `auto`.
    orders: Option<Orders>,
    /// What cannot be served of a type, with the mode `auto`.
    needs: BTreeMap<Kind, String>,
    /// Its part in the answers to servers.
    part: Part,
    /// Whether an Envoy serves, and this proxy has no sockets.
    stands_by: bool,
    /// Whether it accepts no connections to the application, because they would be served by outdated rules.
    refuses_inbound: bool,
    /// How many sockets a new listener gets.
    sockets_each: usize,
}

/// Why the proxy ended.
#[derive(Debug, thiserror::Error)]
#[error("the relay has ended")]
pub(super) struct RelayEnded;

/// A name that was resolved: the cluster and its new endpoints, if there are some.
type Resolved = (Name, Option<Endpoints>);

impl Driver {
    /// A driver that serves nothing yet, on these threads.
    pub(super) fn new(
        built_in: &BuiltIn,
        threads: Vec<Scope>,
        node: Bytes,
        ready: ReadyHandle,
        orders: Option<Orders>,
    ) -> Driver {
        Driver {
            shared: Arc::clone(&built_in.shared),
            config: Arc::clone(&built_in.config),
            model: Model::default(),
            material: Material::default(),
            sockets: HashMap::new(),
            sockets_each: threads.len(),
            threads,
            orders,
            needs: BTreeMap::new(),
            part: Part::Yields,
            stands_by: false,
            refuses_inbound: false,
            node,
            subscribed: BTreeMap::new(),
            resolved: HashMap::new(),
            ready,
            draining: built_in.draining.subscribe(),
            burst: Burst::default(),
        }
    }

    /// Runs until `stop` is cancelled.
    pub(super) async fn run(self, relay: Relay, stop: CancellationToken) -> Result<(), RelayEnded> {
        let (requests, responses) = relay.join().await;
        self.follow(requests, responses, stop).await
    }

    /// Follows the resources of a stream until `stop`.
    pub(super) async fn follow(
        mut self,
        requests: mpsc::Sender<FromProxy>,
        mut responses: mpsc::Receiver<DeltaDiscoveryResponse>,
        stop: CancellationToken,
    ) -> Result<(), RelayEnded> {
        self.take_part(&requests, self.part).await;
        for kind in [Kind::Cluster, Kind::Listener] {
            self.request(&requests, kind, DeltaDiscoveryRequest::default())
                .await;
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut resolving = FuturesUnordered::new();
        let mut draining = self.draining.clone();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Ok(()) = draining.changed() => self.close_drained(),
                (order, reply) = next_order(&mut self.orders) => {
                    let answer = self.on_order(&requests, order).await;
                    // Whoever gave the order may be gone.
                    let _ = reply.send(answer);
                }
                response = responses.recv() => match response {
                    Some(response) => self.on_response(&requests, response).await,
                    None if stop.is_cancelled() => return Ok(()),
                    None => return Err(RelayEnded),
                },
                _ = ticks.tick() => {
                    self.on_tick();
                    let room = RESOLVED_AT_ONCE.saturating_sub(resolving.len());
                    resolving.extend(self.due_names(room));
                }
                Some(resolved) = resolving.next(), if !resolving.is_empty() => {
                    self.on_resolved(resolved);
                    resolving.extend(self.due_names(1));
                }
            }
        }
    }

    async fn request(
        &mut self,
        requests: &mpsc::Sender<FromProxy>,
        kind: Kind,
        request: DeltaDiscoveryRequest,
    ) {
        let request = DeltaDiscoveryRequest {
            type_url: url(kind).to_owned(),
            node: std::mem::take(&mut self.node),
            ..request
        };
        // Fails if the relay has ended, which is seen when its next response is awaited.
        let _ = requests.send(FromProxy::Request(Box::new(request))).await;
    }

    async fn on_response(
        &mut self,
        requests: &mpsc::Sender<FromProxy>,
        response: DeltaDiscoveryResponse,
    ) {
        let Some(kind) = kind(&response.type_url) else {
            return;
        };
        let error = self.apply(kind, &response).await.err();
        self.judge_fit(requests, kind, error.as_ref()).await;
        let answer = DeltaDiscoveryRequest {
            response_nonce: response.nonce,
            error_detail: error.map(|rejection| rpc::Status {
                // INVALID_ARGUMENT
                code: 3,
                message: rejection.message,
                ..rpc::Status::default()
            }),
            ..DeltaDiscoveryRequest::default()
        };
        self.request(requests, kind, answer).await;
        self.subscribe(requests).await;
        self.report();
    }

    /// Notes whether Envoy is needed. If so, and Envoy may be started, it is Envoy that answers the server.
    async fn judge_fit(
        &mut self,
        requests: &mpsc::Sender<FromProxy>,
        kind: Kind,
        error: Option<&Rejection>,
    ) {
        let needs = error.and_then(|error| error.needs_envoy.as_ref());
        let Some(orders) = &self.orders else {
            // The relay logs the rejection itself, and slows down those that repeat.
            if let Some(what) = needs {
                tracing::warn!(
                    what,
                    "the built-in proxy cannot serve it and keeps what it had: run with -proxy envoy"
                );
            }
            return;
        };
        // Envoy has accepted what this proxy only observes, whatever is wrong with it here.
        let observed = error.filter(|_| self.part == Part::Observes);
        match needs.or(observed.map(|error| &error.message)) {
            Some(what) => drop(self.needs.insert(kind, what.clone())),
            None if error.is_none() => drop(self.needs.remove(&kind)),
            None => {}
        }
        let fit = match self.needs.values().next() {
            Some(what) => Fit::Needs(what.clone()),
            None if self.config().is_complete() => Fit::Fits,
            None => Fit::Unknown,
        };
        let needed = matches!(fit, Fit::Needs(_));
        orders.fit.send_if_modified(|current| {
            let changed = *current != fit;
            *current = fit;
            changed
        });
        if needed && self.part == Part::Yields {
            self.take_part(requests, Part::Observes).await;
        }
    }

    /// Takes another part in the answers to servers.
    async fn take_part(&mut self, requests: &mpsc::Sender<FromProxy>, part: Part) {
        self.part = part;
        // As in `request`.
        let _ = requests.send(FromProxy::Role(part.role())).await;
    }

    async fn on_order(&mut self, requests: &mpsc::Sender<FromProxy>, order: Order) -> Answer {
        match order {
            Order::Steer(steering) => {
                let mut count = 0;
                for group in self.groups() {
                    steer(group, steering).map_err(|error| format!("cannot steer: {error}"))?;
                    count += 1;
                }
                return Ok(count);
            }
            Order::Open => {
                self.stands_by = false;
                self.sockets_each = self.threads.len() + 1;
                let bound = self.bind(&self.config());
                match bound {
                    Ok(bound) => self.open(bound),
                    Err(error) => {
                        self.stand_by();
                        return Err(error);
                    }
                }
                self.report();
            }
            Order::CloseFirst => {
                self.sockets_each = self.threads.len();
                let each = self.sockets_each;
                for sockets in self.sockets.values_mut() {
                    if sockets.accepting.len() > each {
                        sockets.accepting.remove(0);
                    }
                }
            }
            Order::CloseAll => {
                self.stand_by();
                self.report();
            }
            Order::Inbound(accepts) => {
                self.refuses_inbound = !accepts;
                let bound = self.bind(&self.config())?;
                self.open(bound);
            }
            Order::CountOthers => return self.count_others().await,
            Order::Part(part) => {
                self.take_part(requests, part).await;
                let bound = self.bind(&self.config())?;
                self.open(bound);
                self.report();
            }
        }
        Ok(0)
    }

    /// Whether it is about to take over from Envoy.
    fn takes_over(&self) -> bool {
        self.sockets_each > self.threads.len()
    }

    /// Closes all sockets. Open connections stay.
    fn stand_by(&mut self) {
        self.stands_by = true;
        self.sockets_each = self.threads.len();
        self.sockets.clear();
    }

    /// A socket of each address that can be shared.
    fn groups(&self) -> impl Iterator<Item = &OwnedFd> {
        let sockets = self.sockets.values();
        sockets.filter_map(|sockets| sockets.accepting.first()?.group.as_ref())
    }

    /// How many sockets listen at the addresses of this proxy that are not its own.
    async fn count_others(&self) -> Answer {
        let own = self.sockets.values().filter_map(|sockets| {
            let count = sockets.accepting.len();
            match sockets.address {
                Address::Socket(address) if count > 0 => Some((address, count)),
                _ => None,
            }
        });
        let own: Vec<_> = own.collect();
        let count = move || {
            let mut others = 0;
            for (address, count) in own {
                let all = listening(address).map_err(|error| error.to_string())?;
                others += all.saturating_sub(count);
            }
            Ok(others)
        };
        let counted = spawn_blocking(count).await;
        counted.map_err(|error| error.to_string())?
    }

    /// Applies a response as a whole.
    async fn apply(
        &mut self,
        kind: Kind,
        response: &DeltaDiscoveryResponse,
    ) -> Result<(), Rejection> {
        let resources: Vec<Resource> = response
            .resources
            .iter()
            .map(|resource| Resource {
                name: resource.name.as_str().into(),
                version: resource.version.clone(),
                body: resource.resource.clone(),
            })
            .collect();
        let next = self
            .config()
            .apply(kind, &resources, &response.removed_resources)?;
        let model = next.model(&self.model);
        let former = self.shared.serving();
        let invalid = |message| Rejection {
            message,
            needs_envoy: None,
        };
        let serving = Serving::new(&model, &former, &self.material, &self.shared.stats);
        let serving = Arc::new(serving.map_err(invalid)?);
        let bound = self.bind(&next).map_err(invalid)?;
        // Nothing can fail from here on.
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = next;
        let has_changed = self.model != model;
        self.model = model;
        self.shared.replace(serving);
        self.open(bound);
        drop(former);
        if has_changed {
            self.judge().await;
            self.material.forget_unused();
            self.shared.stats.forget_unused();
        }
        Ok(())
    }

    fn config(&self) -> std::sync::RwLockReadGuard<'_, Config> {
        self.config.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds the sockets of listeners that have none at their address.
    fn bind(&self, next: &Config) -> Result<Vec<(Name, Sockets)>, String> {
        let mut bound = Vec::new();
        if self.stands_by {
            return Ok(bound);
        }
        let mut addresses = BTreeMap::new();
        for listener in next.listeners() {
            if let Some(other) = addresses.insert(&listener.address, &listener.name) {
                return Err(format!(
                    "Error adding/updating listener(s) {}: error adding listener: '{}' has duplicate address \
                     '{}' as existing listener {other}",
                    listener.name, listener.name, listener.address
                ));
            }
            if self.refuses_inbound && listener.direction == Direction::Inbound {
                continue;
            }
            let own = self.sockets.get(&listener.name);
            if own.is_some_and(|own| own.address == listener.address) {
                continue;
            }
            // Envoy listens there already. All of its sockets have to be behind those of this proxy, or before them.
            if self.part == Part::Observes && !self.takes_over() {
                continue;
            }
            let sockets = listen::bind(&listener.address, self.sockets_each);
            let sockets = sockets.map_err(|error| {
                let address = &listener.address;
                format!(
                    "Error adding/updating listener(s) {}: cannot bind '{address}': {error}",
                    listener.name
                )
            })?;
            let sockets = Sockets {
                address: listener.address.clone(),
                waiting: sockets,
                accepting: Vec::new(),
            };
            bound.push((listener.name.clone(), sockets));
        }
        Ok(bound)
    }

    /// Takes new sockets over, closes those of removed listeners, and lets those listen whose listener is served.
    fn open(&mut self, bound: Vec<(Name, Sockets)>) {
        self.sockets.extend(bound);
        self.close_drained();
        let names: BTreeSet<Name> = self
            .config()
            .listeners()
            .map(|listener| listener.name.clone())
            .collect();
        self.sockets.retain(|name, _| names.contains(name));
        for name in self.model.listeners.keys() {
            let Some(sockets) = self.sockets.get_mut(name) else {
                continue;
            };
            for (listening, thread) in sockets.waiting.drain(..).zip(self.threads.iter().cycle()) {
                // In their order. An error is that of the task, which does it again.
                let _ = listening.listen();
                let accepting = Accepting {
                    group: self.orders.as_ref().and_then(|_| listening.group()),
                    stop: CancellationToken::new(),
                };
                let shared = Arc::clone(&self.shared);
                let (name, stop) = (name.clone(), accepting.stop.clone());
                sockets.accepting.push(accepting);
                thread.spawn(
                    "connections of a listener",
                    listen::run(shared, name, listening, stop),
                );
            }
        }
    }

    /// Closes the sockets of listeners that accept no connections any more.
    fn close_drained(&mut self) {
        let draining = *self.draining.borrow();
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        for listener in config.listeners() {
            let refused = self.refuses_inbound && listener.direction == Direction::Inbound;
            if refused || draining.ends(listener.direction) {
                self.sockets.remove(&listener.name);
            }
        }
    }

    /// Judges open connections by the configuration as it is now.
    async fn judge(&self) {
        let serving = self.shared.serving();
        let closed = self
            .shared
            .registry
            .judge(|open| {
                let listener = serving.listeners.get(&open.listener);
                let chains = listener.map(|listener| &listener.chains);
                plan::fate(&open.id, open.peer.as_deref(), chains)
            })
            .await;
        if closed > 0 {
            tracing::info!(closed, "closed connections that new rules deny");
        }
    }

    /// Subscribes to what the resources refer to.
    async fn subscribe(&mut self, requests: &mpsc::Sender<FromProxy>) {
        let wanted = [
            (Kind::Endpoints, self.config().endpoint_names()),
            (Kind::Secret, self.config().secret_names()),
        ];
        for (kind, names) in wanted {
            let known = self.subscribed.entry(kind).or_default();
            let text = |name: &Name| name.to_string();
            let added: Vec<String> = names.difference(known).map(text).collect();
            let gone: Vec<String> = known.difference(&names).map(text).collect();
            *known = names;
            if added.is_empty() && gone.is_empty() {
                continue;
            }
            let request = DeltaDiscoveryRequest {
                resource_names_subscribe: added,
                resource_names_unsubscribe: gone,
                ..DeltaDiscoveryRequest::default()
            };
            self.request(requests, kind, request).await;
        }
    }

    fn report(&self) {
        if self.stands_by {
            return self.ready.ready();
        }
        let config = self.config();
        let waiting = config.listeners().find(|listener| {
            let served = self.model.listeners.get(&listener.name);
            served.is_none()
        });
        match waiting {
            _ if !config.is_complete() => self.ready.pending("it has no configuration yet"),
            Some(listener) => {
                let name = &listener.name;
                self.ready
                    .pending(format!("the listener {name} has no certificate yet"));
            }
            None => {
                self.shared.live.store(true, Ordering::Relaxed);
                self.ready.ready();
            }
        }
    }

    fn on_tick(&mut self) {
        self.shared.registry.tick();
        if self.burst.tick(self.shared.registry.len()) {
            heap::trim();
        }
        let now = self.shared.now();
        for cluster in self.shared.serving().clusters.values() {
            let due = {
                let mut balancer = cluster.balancer();
                let due = balancer.next_tick().is_some_and(|at| at <= now);
                if due {
                    balancer.tick(now);
                }
                due
            };
            if due {
                cluster.show();
            }
        }
    }

    /// The names that have to be resolved now, at most `room` of them.
    fn due_names(&mut self, room: usize) -> Vec<impl Future<Output = Resolved> + use<>> {
        let (now, serving) = (Instant::now(), self.shared.serving());
        self.resolved
            .retain(|name, _| serving.clusters.contains_key(name));
        let mut due = Vec::new();
        for (name, cluster) in &serving.clusters {
            if due.len() == room {
                break;
            }
            let Some(Hosts::LogicalDns {
                endpoints,
                refresh,
                family,
            }) = cluster.resolves()
            else {
                continue;
            };
            if self.resolved.get(name).is_some_and(|at| *at > now) {
                continue;
            }
            self.resolved.insert(name.clone(), now + *refresh);
            cluster.stats.update_attempt.inc();
            let target = endpoints.priorities.iter().flatten().next().cloned();
            let (name, family) = (name.clone(), *family);
            due.push(async move {
                let resolved = match target {
                    Some(target) => resolve(target, family).await,
                    None => None,
                };
                (name, resolved)
            });
        }
        due
    }

    fn on_resolved(&self, (name, endpoints): Resolved) {
        let serving = self.shared.serving();
        let Some(cluster) = serving.clusters.get(&name) else {
            return;
        };
        // A name that is not resolved keeps its last address, as in Envoy.
        let Some(endpoints) = endpoints else {
            cluster.stats.update_failure.inc();
            return;
        };
        cluster.stats.update_success.inc();
        cluster.balancer().update(&endpoints);
        cluster.show();
    }
}

/// The next order. Without the mode `auto` there is none.
async fn next_order(orders: &mut Option<Orders>) -> (Order, oneshot::Sender<Answer>) {
    let next = match orders {
        Some(orders) => orders.orders.recv().await,
        None => None,
    };
    match next {
        Some(next) => next,
        None => std::future::pending().await,
    }
}

fn url(kind: Kind) -> &'static str {
    match kind {
        Kind::Secret => type_url::SECRET,
        Kind::Cluster => type_url::CLUSTER,
        Kind::Endpoints => type_url::ENDPOINT,
        Kind::Listener => type_url::LISTENER,
    }
}

fn kind(url: &str) -> Option<Kind> {
    Kind::ALL.into_iter().find(|kind| self::url(*kind) == url)
}
