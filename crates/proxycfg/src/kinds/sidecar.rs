//! The sidecar of one service: its identity, its callers, its registered upstreams and, in
//! transparent mode, the upstreams that intentions allow.

use std::sync::{Arc, LazyLock};

use legate_model::{
    CaRoots, CheckServiceNode, ConfigKind, ExposePath, Intention, Mesh, Protocol, ProxyDefaults,
    ProxyMode, ServiceInstance, ServiceName, TrustDomain, Upstream, WILDCARD,
};
use legate_store::{Follower, Kept, ReadTxn};

use super::leaves::Leaves;
use crate::chain::ResolvedChain;
use crate::config::ManagerConfig;
use crate::egress::{self, Destinations};
use crate::error::WatchError;
use crate::merge::{self, Central};
use crate::queries::{self, JwtProviders};
use crate::snapshot::{ProxyId, Snapshot};
use crate::transparent::{self, ImplicitUpstreams};
use crate::upstream::{self, UpstreamSnapshot};

/// One `Arc` for all proxies, because snapshots of one store are compared by address.
static NO_DESTINATIONS: LazyLock<Arc<Destinations>> = LazyLock::new(Arc::default);

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
    /// The registration that `own` was computed from.
    registered: Option<Arc<CheckServiceNode>>,
    own: Kept<Option<Arc<Own>>>,
    /// The last value of `own`, which the fields below were computed from.
    last: Option<Arc<Own>>,
    upstreams: Vec<Kept<Arc<ResolvedChain>>>,
    implicit: Kept<Arc<ImplicitUpstreams>>,
    destinations: Kept<Arc<Destinations>>,
}

/// Everything in a sidecar's snapshot except the services that it calls.
#[derive(Debug)]
struct Own {
    node_address: Arc<str>,
    trust_domain: TrustDomain,
    roots: Arc<CaRoots>,
    protocol: Protocol,
    instance: Arc<ServiceInstance>,
    intentions: Arc<Vec<Arc<Intention>>>,
    jwt_providers: Arc<JwtProviders>,
    mesh: Arc<Option<Mesh>>,
}

/// The snapshot of a sidecar, `None` while the roots or the certificate are missing.
pub(super) fn snapshot(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    registered: &Arc<CheckServiceNode>,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
    (follower, parts): (Option<&Follower>, &mut Parts),
) -> Option<Snapshot> {
    if !is_same(parts.registered.as_ref(), registered) {
        *parts = Parts {
            registered: Some(Arc::clone(registered)),
            ..Parts::default()
        };
    }
    let own = parts
        .own
        .get(txn, follower, |txn| own(txn, proxy, registered))?;
    if !is_same(parts.last.as_ref(), &own) {
        parts.last = Some(Arc::clone(&own));
        parts.upstreams.clear();
        parts.implicit = Kept::default();
        parts.destinations = Kept::default();
    }
    let destination = &registered.service.proxy.destination_service_name;
    // As in Consul, a sidecar is in the tenancy of its service.
    let leaf = leaves.current(&ServiceName::new(txn.tenancy(), destination))?;
    let trust_domain = &own.trust_domain;
    let definitions = own.instance.proxy.upstreams.iter();
    let mut upstreams = Vec::new();
    for (place, upstream) in definitions.filter(|one| is_explicit(one)).enumerate() {
        if parts.upstreams.len() == place {
            parts.upstreams.push(Kept::default());
        }
        let resolved = parts.upstreams[place].get(txn, follower, |txn| {
            upstream::resolved(txn, upstream, &config.datacenter, trust_domain)
        });
        upstreams.push(UpstreamSnapshot {
            upstream: Arc::clone(upstream),
            resolved,
        });
    }
    let is_transparent = own.instance.proxy.mode == ProxyMode::Transparent;
    let default = config.default_intention;
    let implicit = is_transparent.then(|| {
        let local = &*config.datacenter;
        let read = |txn: &_| {
            transparent::implicit_upstreams(txn, destination, default, local, trust_domain)
        };
        parts.implicit.get(txn, follower, read)
    });
    let destinations = match is_transparent {
        true => {
            let read = |txn: &_| egress::destinations(txn, destination, default);
            parts.destinations.get(txn, follower, read)
        }
        false => Arc::clone(&NO_DESTINATIONS),
    };
    Some(Snapshot {
        proxy: proxy.clone(),
        datacenter: Arc::clone(&config.datacenter),
        trust_domain: trust_domain.clone(),
        node_address: Arc::clone(&own.node_address),
        agent_ipv6: config.agent_ipv6,
        protocol: own.protocol,
        instance: Arc::clone(&own.instance),
        roots: Arc::clone(&own.roots),
        leaf,
        intentions: Arc::clone(&own.intentions),
        jwt_providers: Arc::clone(&own.jwt_providers),
        default_intention: config.default_intention,
        mesh: Arc::clone(&own.mesh),
        upstreams,
        implicit,
        destinations,
    })
}

fn is_same<T>(last: Option<&Arc<T>>, now: &Arc<T>) -> bool {
    last.is_some_and(|last| Arc::ptr_eq(last, now))
}

/// `None` while the roots are missing.
fn own(txn: &ReadTxn<'_>, proxy: &ProxyId, registered: &CheckServiceNode) -> Option<Arc<Own>> {
    let roots = queries::roots(txn);
    let (trust_domain, roots) = (*roots).clone()?;
    let destination = &registered.service.proxy.destination_service_name;
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, destination);
    let central = Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults: service_defaults.as_deref(),
    };
    let mut instance = merge::merge(&registered.service, &central);
    merge::name_tenancies(&mut instance, txn.tenancy());
    if instance.locality.is_none() {
        instance.locality.clone_from(&registered.node.locality);
    }
    if instance.proxy.expose.checks {
        let exposed = exposed_checks(txn, &proxy.node, &instance.proxy.destination_service_id);
        instance.proxy.expose.paths.extend(exposed);
    }
    Some(Arc::new(Own {
        node_address: registered.node.address.as_str().into(),
        trust_domain,
        roots,
        protocol: merge::own_protocol(&instance),
        instance: Arc::new(instance),
        intentions: queries::intentions(txn, destination),
        jwt_providers: queries::jwt_providers(txn, destination),
        mesh: queries::mesh(txn),
    }))
}

/// The exposed paths of an instance's checks that have a port at its proxy, in the order of the
/// check ids.
fn exposed_checks(txn: &ReadTxn<'_>, node: &str, service_id: &str) -> Vec<ExposePath> {
    let instance = txn.instance(node, service_id);
    let checks = instance.iter().flat_map(|found| &found.checks);
    let own = checks.filter(|check| check.service_id == service_id);
    own.filter_map(|check| check.exposed_path()).collect()
}

/// Whether the application dials the upstream by a local port or socket. `*` has defaults for all
/// upstreams.
fn is_explicit(upstream: &Upstream) -> bool {
    upstream.destination_name != WILDCARD
        && (upstream.local_bind_port != 0 || upstream.has_local_socket())
}

#[cfg(test)]
mod tests;
