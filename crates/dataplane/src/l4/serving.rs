//! What is served now: listeners and clusters with everything that connections need of them, made of a model. A value
//! that a change does not concern is taken over, with its hosts, connections and counters.
//!
//! It opens no socket.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use legate_identity::tls::mesh::{MeshClient, MeshServer};
use legate_l4::balance::Balancer;
use legate_l4::chains::{ChainId, Chains};
use legate_l4::config::{ClusterModel, ListenerModel, Model};
use legate_l4::model::{Address, Chain, Cluster, Filter, Hosts, Listener, Name};
use tokio_rustls::rustls::pki_types::ServerName;

use super::stats::{ClusterStats, LimitStats, ListenerStats, RbacStats, Stats, TcpStats};
use super::tls::Material;

/// A cluster that is served.
#[derive(Debug)]
pub(super) struct ServedCluster {
    pub(super) spec: Arc<Cluster>,
    pub(super) model: ClusterModel,
    balancer: Arc<Mutex<Balancer>>,
    /// TLS towards its hosts; `Err` says why it cannot be used yet.
    pub(super) tls: Option<Result<ClientTls, String>>,
    pub(super) stats: Arc<ClusterStats>,
}

/// A cluster's TLS.
#[derive(Debug)]
pub(super) struct ClientTls {
    pub(super) config: MeshClient,
    pub(super) name: ServerName<'static>,
}

impl ServedCluster {
    fn new(model: &ClusterModel, former: Option<&Arc<Self>>, with: &Materials<'_>) -> Arc<Self> {
        if let Some(former) = former.filter(|former| former.model == *model) {
            return Arc::clone(former);
        }
        let spec = Arc::clone(&model.spec);
        let stats = with.stats.cluster(stat_name(&spec));
        stats.tls.set(spec.tls.is_some());
        stats.outlier.set(spec.outlier_detection.is_some());
        // Hosts of another kind of cluster have nothing in common with those of this one.
        let same_kind = |former: &&Arc<Self>| {
            std::mem::discriminant(&former.spec.hosts) == std::mem::discriminant(&spec.hosts)
        };
        let balancer = match former.filter(same_kind) {
            Some(former) => Arc::clone(&former.balancer),
            None => Arc::new(Mutex::new(Balancer::new(&spec))),
        };
        let cluster = Self {
            tls: client_tls(model, with),
            model: model.clone(),
            spec,
            balancer,
            stats,
        };
        {
            let mut balancer = cluster.balancer();
            balancer.configure(&cluster.spec);
            let endpoints = match &cluster.spec.hosts {
                Hosts::Static(endpoints) => Some(endpoints),
                _ => model.endpoints.as_ref(),
            };
            if let Some(endpoints) = endpoints {
                balancer.update(endpoints);
                if model.endpoints.is_some() {
                    cluster.stats.update_attempt.inc();
                    cluster.stats.update_success.inc();
                }
            }
        }
        cluster.show();
        Arc::new(cluster)
    }

    pub(super) fn balancer(&self) -> MutexGuard<'_, Balancer> {
        self.balancer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Brings the gauges up to date.
    pub(super) fn show(&self) {
        let balancer = self.balancer();
        let (hosts, outlier) = (
            balancer.membership(),
            balancer.outlier().unwrap_or_default(),
        );
        let stats = &self.stats;
        stats.membership_change.set(balancer.membership_changes());
        stats.membership_total.set(hosts.total as u64);
        stats.membership_healthy.set(hosts.healthy as u64);
        stats.ejections_active.set(outlier.ejections_active);
        stats
            .ejections_enforced
            .set(outlier.ejections_enforced_total);
        stats
            .ejections_detected
            .set(outlier.ejections_detected_consecutive_5xx);
        stats
            .ejections_detected_rate
            .set(outlier.ejections_detected_success_rate);
        stats
            .ejections_enforced_rate
            .set(outlier.ejections_enforced_success_rate);
        stats.ejections_overflow.set(outlier.ejections_overflow);
        let full = balancer.active() >= u64::from(self.spec.max_connections);
        stats.cx_open.set(u64::from(full));
    }

    /// The name that is resolved, if there is one.
    pub(super) fn resolves(&self) -> Option<&Hosts> {
        matches!(self.spec.hosts, Hosts::LogicalDns { .. }).then_some(&self.spec.hosts)
    }
}

/// The name of a cluster in statistics.
pub(super) fn stat_name(cluster: &Cluster) -> &str {
    match cluster.stat_name.is_empty() {
        true => &cluster.name,
        false => &cluster.stat_name,
    }
}

fn client_tls(model: &ClusterModel, with: &Materials<'_>) -> Option<Result<ClientTls, String>> {
    let tls = model.spec.tls.as_ref()?;
    let Some(secrets) = &model.secrets else {
        return Some(Err("a secret has not arrived yet".to_owned()));
    };
    let config = with.material.client(tls, secrets);
    let tls = config
        .map_err(|error| error.to_string())
        .and_then(|config| {
            // Without a server name, the library wants one that it does not send.
            let name = match tls.sni.is_empty() {
                true => "unnamed.invalid".to_owned(),
                false => tls.sni.clone(),
            };
            let name = ServerName::try_from(name);
            let name = name.map_err(|_| format!("{:?} is no server name", tls.sni))?;
            Ok(ClientTls { config, name })
        });
    Some(tls)
}

/// A filter chain that is served.
#[derive(Debug)]
pub(super) struct ServedChain {
    pub(super) chain: Arc<Chain>,
    pub(super) id: ChainId,
    pub(super) tls: Option<MeshServer>,
    pub(super) tcp: Arc<TcpStats>,
    /// The counters of the filters, in their order.
    pub(super) filters: Vec<FilterStats>,
    /// The open connections, for its limit.
    pub(super) open: Arc<AtomicU64>,
}

/// The counters of a filter.
#[derive(Debug)]
pub(super) enum FilterStats {
    Rbac(Arc<RbacStats>),
    Limit(Arc<LimitStats>),
    None,
}

/// A listener that is served.
#[derive(Debug)]
pub(super) struct ServedListener {
    pub(super) spec: Arc<Listener>,
    pub(super) model: ListenerModel,
    pub(super) chains: Chains,
    served: HashMap<ChainId, Arc<ServedChain>>,
    pub(super) stats: Arc<ListenerStats>,
}

impl ServedListener {
    fn new(
        model: &ListenerModel,
        former: Option<&Arc<Self>>,
        with: &Materials<'_>,
    ) -> Result<Arc<Self>, String> {
        if let Some(former) = former.filter(|former| former.model == *model) {
            return Ok(Arc::clone(former));
        }
        let spec = Arc::clone(&model.spec);
        let chains = Chains::new(&spec)?;
        let mut served = HashMap::new();
        for chain in spec.chains.iter().chain(&spec.default_chain) {
            let id = chains.id(chain);
            let former = former.and_then(|former| former.served.get(&id));
            let one = ServedChain {
                chain: Arc::clone(chain),
                tls: match &chain.tls {
                    Some(tls) => {
                        let config = with.material.server(tls, &model.secrets);
                        Some(config.map_err(|error| error.to_string())?)
                    }
                    None => None,
                },
                tcp: with.stats.tcp(&chain.tcp.stat_prefix),
                filters: filter_stats(chain, with.stats),
                open: former.map_or_else(Arc::default, |former| Arc::clone(&former.open)),
                id: id.clone(),
            };
            served.insert(id, Arc::new(one));
        }
        let stats = with.stats.listener(&stat_prefix(&spec));
        stats
            .tls
            .set(served.values().any(|chain| chain.tls.is_some()));
        Ok(Arc::new(Self {
            model: model.clone(),
            chains,
            served,
            stats,
            spec,
        }))
    }

    /// What a chain needs.
    pub(super) fn served(&self, chain: &Arc<Chain>) -> Option<&Arc<ServedChain>> {
        self.served.get(&self.chains.id(chain))
    }
}

fn filter_stats(chain: &Chain, stats: &Stats) -> Vec<FilterStats> {
    let filters = chain.filters.iter().map(|filter| match filter {
        Filter::Rbac(rbac) => FilterStats::Rbac(stats.rbac(rbac.stat_prefix.trim_end_matches('.'))),
        Filter::ConnectionLimit(limit) => FilterStats::Limit(stats.limit(&limit.stat_prefix)),
        Filter::SniCluster => FilterStats::None,
    });
    filters.collect()
}

/// How Envoy calls a listener in statistics: its address, with `_` for `:`.
fn stat_prefix(listener: &Listener) -> String {
    if !listener.stat_prefix.is_empty() {
        return listener.stat_prefix.clone();
    }
    match &listener.address {
        Address::Socket(address) => address.to_string().replace(':', "_"),
        Address::Pipe { path, .. } => path.display().to_string(),
        Address::Dns(name, port) => format!("{name}_{port}"),
    }
}

/// Where values come from that several listeners and clusters share.
struct Materials<'a> {
    material: &'a Material,
    stats: &'a Stats,
}

/// Everything that is served.
#[derive(Debug, Default)]
pub(super) struct Serving {
    pub(super) listeners: BTreeMap<Name, Arc<ServedListener>>,
    pub(super) clusters: HashMap<Name, Arc<ServedCluster>>,
}

impl Serving {
    /// What is served with a model, after `former`.
    ///
    /// # Errors
    /// When a listener cannot be served as it is; the text names it.
    pub(super) fn new(
        model: &Model,
        former: &Serving,
        material: &Material,
        stats: &Stats,
    ) -> Result<Serving, String> {
        let with = Materials { material, stats };
        let mut listeners = BTreeMap::new();
        for (name, listener) in &model.listeners {
            let served = ServedListener::new(listener, former.listeners.get(name), &with);
            let served = served
                .map_err(|error| format!("Error adding/updating listener(s) {name}: {error}"))?;
            listeners.insert(name.clone(), served);
        }
        let clusters = model.clusters.iter().map(|(name, cluster)| {
            let served = ServedCluster::new(cluster, former.clusters.get(name), &with);
            (name.clone(), served)
        });
        Ok(Serving {
            listeners,
            clusters: clusters.collect(),
        })
    }
}
