//! The API gateway: its listeners with the routes that are bound to them, and the chains of the
//! services that the routes lead to.

use std::sync::Arc;

use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_model::{ServiceInstance, ServiceName};
use legate_store::Kept;

use super::Reading;
use crate::chain::ResolvedChain;
use crate::error::WatchError;
use crate::gateways::api::{self, Compiled};
use crate::queries::JwtProviders;
use crate::snapshot::ProxyId;
use crate::upstream::{self, UpstreamSnapshot};
use crate::value::{queried, values};

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
    }
}

queried! {
    Compiled, |served| served.size();
}

/// Every registration can be served.
pub(super) fn check(_: &ProxyId, _: &ServiceInstance) -> Result<(), WatchError> {
    Ok(())
}

/// Values cached from one snapshot of a gateway to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    served: Kept<(Arc<Compiled>, Arc<JwtProviders>)>,
    /// The last value of `served`, which the chains belong to.
    last: Option<Arc<Compiled>>,
    chains: Vec<Kept<Arc<ResolvedChain>>>,
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
    let (served, jwt_providers) = read.kept(&mut parts.served, |txn| {
        let served = api::compiled(txn, &gateway, local);
        let providers = api::jwt_providers(txn, &gateway, local);
        (served, providers)
    });
    let is_last = |last: &Arc<Compiled>| Arc::ptr_eq(last, &served);
    if !parts.last.as_ref().is_some_and(is_last) {
        parts.last = Some(Arc::clone(&served));
        parts.chains.clear();
    }
    parts
        .chains
        .resize_with(served.upstreams.len(), Kept::default);
    let upstreams = served.upstreams.iter().zip(&mut parts.chains);
    let upstreams = upstreams.map(|(upstream, chain)| UpstreamSnapshot {
        upstream: Arc::clone(upstream),
        resolved: read.kept(chain, |txn| {
            upstream::resolved(txn, upstream, local, trust_domain)
        }),
    });
    Some(ApiGateway {
        leaf,
        upstreams: upstreams.collect(),
        served,
        jwt_providers,
    })
}
