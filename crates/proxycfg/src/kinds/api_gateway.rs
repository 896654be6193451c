//! The API gateway: its listeners with the routes that are bound to them, and the chains of the
//! services that the routes lead to.

use std::sync::{Arc, LazyLock};

use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_model::{ConfigKind, ServiceInstance, ServiceName};
use legate_routes::{Backend, Endpoint};
use legate_store::{Generations, Kept};

use super::Reading;
use super::kept_list::KeptList;
use crate::chain::ResolvedChain;
use crate::error::WatchError;
use crate::gateways::api::{self, Compiled};
use crate::queries::JwtProviders;
use crate::same::Compare;
use crate::snapshot::ProxyId;
use crate::upstream::{self, UpstreamSnapshot};
use crate::value::{Element, Shared, queried, values};

values! {
    /// What only an API gateway has.
    #[derive(Clone, Debug)]
    pub struct ApiGateway {
        /// The gateway's certificate and key: it proves to services who calls them, and is
        /// presented to clients whose server name no other certificate has.
        pub leaf: Arc<Leaf>,
        /// Its listeners, with everything that they refer to.
        pub served: Arc<Compiled>,
        /// The JWT providers that the routes name.
        pub jwt_providers: Arc<JwtProviders>,
        /// The services that the routes lead to, in the order of `served.upstreams`.
        pub upstreams: Vec<UpstreamSnapshot>,
        /// What is outside of the mesh and the routes lead to, in the order of `served.backends`.
        pub backends: Vec<BackendSnapshot>,
        /// The generations of the objects that this was made from, for a gateway of a cluster.
        pub generations: Option<Arc<Generations>>,
        /// Whether an `api-gateway` config entry has the name of a gateway of a cluster: it is not
        /// served.
        pub hides_entry: bool,
    }

    /// A backend with its endpoints.
    #[derive(Clone, Debug, PartialEq)]
    pub struct BackendSnapshot {
        /// How it is called.
        pub backend: Arc<Backend>,
        /// Where. Empty if nothing is known yet.
        pub endpoints: Arc<Vec<Endpoint>>,
    }
}

/// One `Arc` for all gateways, because snapshots of one store are compared by address.
static NO_ENDPOINTS: LazyLock<Arc<Vec<Endpoint>>> = LazyLock::new(Arc::default);

queried! {
    Compiled, |served| served.size();
    Vec<Endpoint>, |_| 1;
}

impl Shared for Backend {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }
}

impl Shared for Generations {
    fn is_same(a: &Arc<Self>, b: &Arc<Self>, _: Compare) -> bool {
        a == b
    }
}

impl Element for BackendSnapshot {
    fn is_counterpart(&self, earlier: &Self) -> bool {
        self.backend == earlier.backend
    }
}

/// Every registration can be served.
pub(super) fn check(_: &ProxyId, _: &ServiceInstance) -> Result<(), WatchError> {
    Ok(())
}

/// What is served, its providers of tokens, the generations, and whether an entry is hidden.
type Served = (
    Arc<Compiled>,
    Arc<JwtProviders>,
    Option<Arc<Generations>>,
    bool,
);

/// Values cached from one snapshot of a gateway to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    served: Kept<Served>,
    chains: KeptList<ServiceName, Arc<ResolvedChain>>,
    endpoints: KeptList<Arc<Backend>, Arc<Vec<Endpoint>>>,
}

/// The values of a gateway, `None` while the certificate is missing.
pub(super) fn snapshot(read: &mut Reading<'_, '_>, parts: &mut Parts) -> Option<ApiGateway> {
    let (proxy, config) = (read.proxy, read.config);
    let gateway = ServiceName::new(read.txn.tenancy(), &proxy.instance.service);
    let leaf = read.leaves.current(&LeafId {
        holder: LeafHolder::Service(gateway.clone()),
        dns_names: Arc::default(),
    })?;
    let (local, trust_domain) = (&*config.datacenter, &proxy.trust_domain);
    let (served, jwt_providers, generations, hides_entry) = read.kept(&mut parts.served, |txn| {
        let served = api::compiled(txn, &gateway, local);
        let providers = api::jwt_providers(txn, &gateway, local);
        let generations = txn.gateway_generations(&gateway.name);
        let kind = ConfigKind::ApiGateway;
        let hides = served.is_of_cluster && txn.config_entry(kind, &gateway.name).is_some();
        (served, providers, generations, hides)
    });
    let chains = parts.chains.values(&served.services, |one| one);
    let upstreams = std::iter::zip(&served.upstreams, chains);
    let upstreams = upstreams.map(|(upstream, chain)| UpstreamSnapshot {
        upstream: Arc::clone(upstream),
        resolved: read.kept(chain, |txn| {
            upstream::resolved(txn, upstream, local, trust_domain)
        }),
    });
    let endpoints = parts.endpoints.values(&served.backends, |one| &**one);
    let backends = std::iter::zip(&*served.backends, endpoints);
    let backends = backends.map(|(backend, kept)| BackendSnapshot {
        backend: Arc::clone(backend),
        endpoints: read.kept(kept, |txn| {
            let found = txn.gateway_endpoints(&gateway.name, &backend.service_port());
            found.unwrap_or_else(|| Arc::clone(&NO_ENDPOINTS))
        }),
    });
    let backends = backends.collect();
    Some(ApiGateway {
        leaf,
        backends,
        generations,
        hides_entry,
        upstreams: upstreams.collect(),
        served,
        jwt_providers,
    })
}

#[cfg(test)]
mod tests;
