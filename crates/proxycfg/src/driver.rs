//! The one asynchronous part: turns store topics and certificate renewals into updates, and
//! publishes when the schedule says so. What updates mean is the state's business.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use legate_ca::{LeafStore, LeafWatch};
use legate_model::{CaRoots, ConfigKind, Mesh, ProxyDefaults};
use legate_runtime::CancellationToken;
use legate_store::{Store, Topic, TopicWatch};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::error::Ended;
use crate::limiter::Limiter;
use crate::manager::ManagerConfig;
use crate::schedule::Schedule;
use crate::shared::Shared;
use crate::snapshot::ProxyId;
use crate::state::{Derived, Effects, Registered, State, Update};
use crate::watch::Published;

/// What all proxies of a manager share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: Store,
    pub(crate) leaves: LeafStore,
    pub(crate) config: ManagerConfig,
    pub(crate) limiter: Limiter,
    pub(crate) shared: Shared,
}

/// The ends of a source's channels that belong to its task.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) publish: watch::Sender<Published>,
    /// Completes when the last watcher has left.
    pub(crate) abandoned: oneshot::Receiver<()>,
    /// Cancelled when the control plane stops.
    pub(crate) stop: CancellationToken,
}

/// One topic that is read, and the index it was read at.
#[derive(Debug)]
struct Source {
    topic: Topic,
    part: Part,
    /// What started it; `None` for those that last as long as the proxy.
    parent: Option<Derived>,
    seen: Option<u64>,
}

/// What is read from a topic.
#[derive(Clone, Debug)]
enum Part {
    Registration,
    ProxyDefaults,
    Mesh,
    Roots,
    ServiceDefaults(Arc<str>),
    Intentions(Arc<str>),
    Instances(Arc<str>),
}

/// Runs one proxy until its last watcher has left, the control plane stops or the registration
/// cannot be served any more.
pub(crate) async fn run(
    context: Arc<Context>,
    proxy: ProxyId,
    ends: Ends,
) -> Result<(), Infallible> {
    let Ends {
        publish,
        mut abandoned,
        stop,
    } = ends;
    let mut driver = Driver::new(context, proxy);
    driver.read();
    let ended = loop {
        if let Some(ended) = driver.ended.take() {
            break ended;
        }
        driver.publish(&publish);
        tokio::select! {
            biased;
            _ = &mut abandoned => {
                debug!(proxy = %driver.proxy, "nobody watches the proxy any more");
                return Ok(());
            }
            () = stop.cancelled() => break Ended::Stopping,
            () = driver.topics.changed() => driver.read(),
            renewed = next_leaf(&mut driver.leaf) => driver.renewed(renewed),
            () = wake(driver.schedule.wake_at()) => {}
        }
    };
    info!(proxy = %driver.proxy, reason = %ended, "the proxy is not watched any longer");
    publish.send_modify(|published| published.ended = Some(ended));
    Ok(())
}

async fn wake(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

/// Waits for the next certificate; `Err` carries why there will be none.
async fn next_leaf(leaf: &mut Option<LeafWatch>) -> Result<(), String> {
    match leaf {
        Some(leaf) => leaf.changed().await.map_err(|error| error.to_string()),
        None => pending().await,
    }
}

struct Driver {
    context: Arc<Context>,
    proxy: ProxyId,
    state: State,
    schedule: Schedule,
    sources: Vec<Source>,
    topics: TopicWatch,
    leaf: Option<LeafWatch>,
    ended: Option<Ended>,
}

impl Driver {
    fn new(context: Arc<Context>, proxy: ProxyId) -> Self {
        let registration = Topic::Instance {
            node: Arc::clone(&proxy.node),
            id: Arc::clone(&proxy.service_id),
        };
        let lasting = [
            (registration, Part::Registration),
            (
                entry_topic(ConfigKind::ProxyDefaults, ProxyDefaults::NAME),
                Part::ProxyDefaults,
            ),
            (entry_topic(ConfigKind::Mesh, Mesh::NAME), Part::Mesh),
            (Topic::CaRoots, Part::Roots),
        ];
        let sources: Vec<Source> = lasting
            .into_iter()
            .map(|(topic, part)| Source {
                topic,
                part,
                parent: None,
                seen: None,
            })
            .collect();
        let config = &context.config;
        Self {
            state: State::new(
                proxy.clone(),
                Arc::clone(&config.datacenter),
                config.default_intention,
            ),
            schedule: Schedule::new(config.coalesce),
            topics: watch_all(&context.store, &sources),
            sources,
            leaf: None,
            ended: None,
            context,
            proxy,
        }
    }

    /// Reads what has changed, until reading starts no more watches.
    fn read(&mut self) {
        loop {
            // The topics are watched before the state is taken: nothing falls between the two.
            let catalog = self.context.store.state();
            let mut updates = Vec::new();
            for source in &mut self.sources {
                let index = catalog.topic_index(&source.topic);
                if source.seen == Some(index) {
                    continue;
                }
                source.seen = Some(index);
                updates.extend(read_part(
                    &self.context,
                    &self.proxy,
                    &catalog,
                    &source.part,
                    index,
                ));
            }
            drop(catalog);
            let mut rewatch = false;
            for update in updates {
                rewatch |= self.apply(update);
            }
            if !rewatch {
                return;
            }
            self.topics = watch_all(&self.context.store, &self.sources);
        }
    }

    /// Applies one update. Tells whether other topics are to be watched from now on.
    fn apply(&mut self, update: Update) -> bool {
        debug!(proxy = %self.proxy, %update, "update");
        let Effects { stop, start, end } = self.state.apply(update);
        if let Some(refused) = end {
            self.ended = Some(Ended::Registration(refused));
            return false;
        }
        let rewatch = !stop.is_empty() || !start.is_empty();
        for derived in stop {
            if let Derived::Destination(_) = derived {
                self.leaf = None;
            }
            self.sources
                .retain(|source| source.parent.as_ref() != Some(&derived));
        }
        for derived in start {
            self.start(derived);
        }
        rewatch
    }

    fn start(&mut self, derived: Derived) {
        let topics = match &derived {
            Derived::Destination(service) => {
                let leaf = self.context.leaves.watch(service);
                if let Some(current) = leaf.current() {
                    self.state.apply(Update::Leaf(current));
                }
                self.leaf = Some(leaf);
                vec![
                    (
                        entry_topic(ConfigKind::ServiceDefaults, service),
                        Part::ServiceDefaults(Arc::clone(service)),
                    ),
                    (
                        Topic::IntentionsFor(Arc::clone(service)),
                        Part::Intentions(Arc::clone(service)),
                    ),
                ]
            }
            Derived::Upstream(service) => vec![
                (
                    entry_topic(ConfigKind::ServiceDefaults, service),
                    Part::ServiceDefaults(Arc::clone(service)),
                ),
                (
                    Topic::Connect(Arc::clone(service)),
                    Part::Instances(Arc::clone(service)),
                ),
            ],
        };
        self.sources
            .extend(topics.into_iter().map(|(topic, part)| Source {
                topic,
                part,
                parent: Some(derived.clone()),
                seen: None,
            }));
    }

    fn renewed(&mut self, renewed: Result<(), String>) {
        match renewed {
            Ok(()) => {
                if let Some(current) = self.leaf.as_ref().and_then(LeafWatch::current) {
                    self.apply(Update::Leaf(current));
                }
            }
            Err(reason) => {
                warn!(proxy = %self.proxy, %reason, "the leaf certificate is no longer renewed");
                self.leaf = None;
                self.ended = Some(Ended::Leaf { reason });
            }
        }
    }

    /// Publishes when there is something new and its moment has come.
    fn publish(&mut self, publish: &watch::Sender<Published>) {
        let now = Instant::now();
        if !self.state.has_news() {
            self.schedule.withdraw();
            return;
        }
        self.schedule.changed(now);
        let limiter = &self.context.limiter;
        if !self.schedule.due(now, |now| limiter.reserve(now)) {
            return;
        }
        if let Some(snapshot) = self.state.take_snapshot() {
            let snapshot = Arc::new(snapshot);
            publish.send_modify(|published| published.snapshot = Some(snapshot));
        }
    }
}

fn entry_topic(kind: ConfigKind, name: &str) -> Topic {
    Topic::ConfigEntry {
        kind,
        name: name.into(),
    }
}

fn watch_all(store: &Store, sources: &[Source]) -> TopicWatch {
    store.watch(sources.iter().map(|source| source.topic.clone()))
}

fn read_part(
    context: &Context,
    proxy: &ProxyId,
    catalog: &legate_store::State,
    part: &Part,
    index: u64,
) -> Option<Update> {
    let entry = |kind: ConfigKind, name: &str| catalog.config_entry(kind, name);
    Some(match part {
        Part::Registration => {
            let found = catalog.instance(&proxy.node, &proxy.service_id);
            Update::Registration(found.map(|found| Registered {
                node_address: found.node.address.as_str().into(),
                instance: found.service,
            }))
        }
        Part::ProxyDefaults => {
            Update::ProxyDefaults(entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME))
        }
        Part::Mesh => Update::Mesh(entry(ConfigKind::Mesh, Mesh::NAME)),
        Part::Roots => return read_roots(catalog.ca_roots()?),
        Part::ServiceDefaults(service) => Update::ServiceDefaults {
            service: Arc::clone(service),
            entry: entry(ConfigKind::ServiceDefaults, service),
        },
        Part::Intentions(destination) => Update::Intentions {
            destination: Arc::clone(destination),
            list: context
                .shared
                .intentions
                .get(destination, index, || catalog.intentions_for(destination)),
        },
        Part::Instances(service) => Update::UpstreamTarget {
            service: Arc::clone(service),
            instances: context
                .shared
                .instances
                .get(service, index, || catalog.connect(service)),
        },
    })
}

fn read_roots(roots: Arc<CaRoots>) -> Option<Update> {
    match roots.trust_domain.parse() {
        Ok(trust_domain) => Some(Update::Roots(trust_domain, roots)),
        Err(error) => {
            warn!(%error, "the stored CA roots cannot be used; proxies keep the ones they have");
            None
        }
    }
}
