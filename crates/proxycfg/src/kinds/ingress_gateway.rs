//! The ingress gateway: what it exposes, and the chains of the services behind it.

use std::sync::Arc;

use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_model::{ServiceInstance, ServiceName};
use legate_store::Kept;

use super::Reading;
use crate::chain::ResolvedChain;
use crate::error::WatchError;
use crate::gateways::{self, Exposed};
use crate::snapshot::ProxyId;
use crate::upstream::{self, UpstreamSnapshot};
use crate::value::{queried, values};

values! {
    /// What only an ingress gateway has.
    #[derive(Clone, Debug)]
    pub struct IngressGateway {
        /// The gateway's certificate and key: it proves to services who calls them, and if a
        /// listener has TLS, it has the names that clients may use.
        pub leaf: Arc<Leaf>,
        /// Its listeners.
        pub exposed: Arc<Exposed>,
        /// The services behind them, in the order of `exposed.upstreams`.
        pub upstreams: Vec<UpstreamSnapshot>,
    }
}

queried! {
    Exposed, |exposed| exposed.listeners.iter().map(|one| 1 + one.services.len()).sum();
}

/// Every registration can be served.
pub(super) fn check(_: &ProxyId, _: &ServiceInstance) -> Result<(), WatchError> {
    Ok(())
}

/// Values cached from one snapshot of a gateway to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    exposed: Kept<Arc<Exposed>>,
    /// The last value of `exposed`, which the chains and the names belong to.
    last: Option<Arc<Exposed>>,
    chains: Vec<Kept<Arc<ResolvedChain>>>,
    leaf: Option<LeafId>,
}

/// The values of a gateway, `None` while the certificate is missing.
pub(super) fn snapshot(read: &mut Reading<'_, '_>, parts: &mut Parts) -> Option<IngressGateway> {
    let (proxy, config) = (read.proxy, read.config);
    let gateway = &proxy.instance.service;
    let exposed = read.kept(&mut parts.exposed, |txn| gateways::exposed(txn, gateway));
    let is_last = |last: &Arc<Exposed>| Arc::ptr_eq(last, &exposed);
    if !parts.last.as_ref().is_some_and(is_last) {
        parts.last = Some(Arc::clone(&exposed));
        parts.chains.clear();
        parts.leaf = None;
    }
    let id = parts.leaf.get_or_insert_with(|| LeafId {
        holder: LeafHolder::Service(ServiceName::new(read.txn.tenancy(), gateway)),
        dns_names: exposed
            .served
            .dns_names(&config.dns_domains, &config.datacenter),
    });
    let leaf = read.leaves.current(id)?;
    let (local, trust_domain) = (&*config.datacenter, &proxy.trust_domain);
    parts
        .chains
        .resize_with(exposed.upstreams.len(), Kept::default);
    let upstreams = exposed.upstreams.iter().zip(&mut parts.chains);
    let upstreams = upstreams.map(|(upstream, chain)| UpstreamSnapshot {
        upstream: Arc::clone(upstream),
        resolved: read.kept(chain, |txn| {
            upstream::resolved(txn, upstream, local, trust_domain)
        }),
    });
    Some(IngressGateway {
        leaf,
        upstreams: upstreams.collect(),
        exposed,
    })
}

#[cfg(test)]
mod tests;
