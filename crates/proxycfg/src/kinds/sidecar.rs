//! The sidecar of one service: its identity, its callers, its registered upstreams and, in
//! transparent mode, the upstreams that intentions allow.

use std::sync::{Arc, LazyLock};

use legate_ca::Leaf;
use legate_model::{
    Intention, Protocol, ProxyMode, ServiceInstance, ServiceName, Upstream, WILDCARD,
};
use legate_store::Kept;

use super::Reading;
use crate::chain::ResolvedChain;
use crate::egress::{self, Destinations};
use crate::error::WatchError;
use crate::frontends::{self, Frontends};
use crate::merge;
use crate::queries::{self, JwtProviders};
use crate::snapshot::ProxyId;
use crate::transparent::{self, ImplicitUpstreams};
use crate::trust::{self, PeerCallers};
use crate::upstream::{self, UpstreamSnapshot};
use crate::value::values;

/// One `Arc` for all proxies, because snapshots of one store are compared by address.
static NO_DESTINATIONS: LazyLock<Arc<Destinations>> = LazyLock::new(Arc::default);

values! {
    /// What only a sidecar has.
    #[derive(Clone, Debug)]
    pub struct Sidecar {
        /// The protocol of the destination service, `tcp` by default.
        pub protocol: Protocol,
        /// The destination service's certificate and key.
        pub leaf: Arc<Leaf>,
        /// The intentions that have the service as their destination, in order of precedence.
        pub intentions: Arc<Vec<Arc<Intention>>>,
        /// The JWT providers that the intentions name. Providers that do not exist are left out.
        pub jwt_providers: Arc<JwtProviders>,
        /// The peers that call the service.
        pub peers: Arc<PeerCallers>,
        /// The explicit upstreams, in the order of the registration.
        pub upstreams: Vec<UpstreamSnapshot>,
        /// In transparent mode: the services that intentions allow the proxy's service to call,
        /// including explicit upstreams. `None` in any other mode.
        pub implicit: Option<Arc<ImplicitUpstreams>>,
        /// In transparent mode: the services outside the mesh that intentions allow the proxy's
        /// service to call.
        pub destinations: Arc<Destinations>,
        /// In transparent mode: the Services of the pod's cluster that have routes or ports of their
        /// own.
        pub frontends: Arc<Frontends>,
    }
}

/// Whether the registration is complete enough to be served.
pub(super) fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    match instance.proxy.destination_service_name.is_empty() {
        true => Err(WatchError::NoDestination(proxy.clone())),
        false => Ok(()),
    }
}

/// Values cached from one snapshot of a sidecar to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    callers: Kept<Callers>,
    upstreams: Vec<Kept<Arc<ResolvedChain>>>,
    implicit: Kept<Arc<ImplicitUpstreams>>,
    destinations: Kept<Arc<Destinations>>,
    frontends: Kept<Arc<Frontends>>,
}

/// Who may call the service.
#[derive(Clone, Debug)]
struct Callers {
    intentions: Arc<Vec<Arc<Intention>>>,
    jwt_providers: Arc<JwtProviders>,
    peers: Arc<PeerCallers>,
}

/// The values of a sidecar, `None` while the certificate is missing.
pub(super) fn snapshot(read: &mut Reading<'_, '_>, parts: &mut Parts) -> Option<Sidecar> {
    let (proxy, config) = (read.proxy, read.config);
    let instance = &proxy.instance;
    let destination = &instance.proxy.destination_service_name;
    // As in Consul, a sidecar is in the tenancy of its service.
    let service = ServiceName::new(read.txn.tenancy(), destination);
    let leaf = read.leaves.current(&(&service).into())?;
    let (local, trust_domain) = (&*config.datacenter, &proxy.trust_domain);
    let callers = read.kept(&mut parts.callers, |txn| Callers {
        intentions: queries::intentions(txn, destination),
        jwt_providers: queries::jwt_providers(txn, destination),
        peers: trust::callers(txn, &service, local, trust_domain),
    });
    let definitions = instance.proxy.upstreams.iter();
    let mut upstreams = Vec::new();
    for (place, upstream) in definitions.filter(|one| is_explicit(one)).enumerate() {
        if parts.upstreams.len() == place {
            parts.upstreams.push(Kept::default());
        }
        let resolved = read.kept(&mut parts.upstreams[place], |txn| {
            upstream::resolved(txn, upstream, local, trust_domain)
        });
        upstreams.push(UpstreamSnapshot {
            upstream: Arc::clone(upstream),
            resolved,
        });
    }
    let is_transparent = instance.proxy.mode == ProxyMode::Transparent;
    let default = config.default_intention;
    let implicit = is_transparent.then(|| {
        read.kept(&mut parts.implicit, |txn| {
            transparent::implicit_upstreams(txn, destination, default, local, trust_domain)
        })
    });
    let destinations = match is_transparent {
        true => read.kept(&mut parts.destinations, |txn| {
            egress::destinations(txn, destination, default)
        }),
        false => Arc::clone(&NO_DESTINATIONS),
    };
    let frontends = match is_transparent {
        true => read.kept(&mut parts.frontends, |txn| {
            frontends::frontends(txn, instance)
        }),
        false => frontends::none(),
    };
    Some(Sidecar {
        protocol: merge::own_protocol(instance),
        leaf,
        intentions: callers.intentions,
        jwt_providers: callers.jwt_providers,
        peers: callers.peers,
        upstreams,
        implicit,
        destinations,
        frontends,
    })
}

/// Whether the application dials the upstream by a local port or socket. `*` has defaults for all
/// upstreams.
fn is_explicit(upstream: &Upstream) -> bool {
    upstream.destination_name != WILDCARD
        && (upstream.local_bind_port != 0 || upstream.has_local_socket())
}

#[cfg(test)]
mod tests;
