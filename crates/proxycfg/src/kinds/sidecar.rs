//! The sidecar of one service: its identity, who may call it, the upstreams it was registered with
//! and, in transparent mode, those that intentions give it.

use std::sync::{Arc, LazyLock};

use legate_model::{
    CheckServiceNode, ConfigKind, ExposePath, ProxyDefaults, ProxyMode, ServiceInstance, Upstream,
    WILDCARD,
};
use legate_store::ReadTxn;

use super::{Kind, Leaves};
use crate::egress::{self, Destinations};
use crate::error::WatchError;
use crate::manager::ManagerConfig;
use crate::merge::{self, Central};
use crate::queries;
use crate::snapshot::{ProxyId, Snapshot, UpstreamSnapshot};

pub(super) const KIND: Kind = Kind { check, snapshot };

/// The same value for all, because snapshots of one store are compared by address.
static NO_DESTINATIONS: LazyLock<Arc<Destinations>> = LazyLock::new(Arc::default);

fn check(proxy: &ProxyId, instance: &ServiceInstance) -> Result<(), WatchError> {
    match instance.proxy.destination_service_name.is_empty() {
        true => Err(WatchError::NoDestination(proxy.clone())),
        false => Ok(()),
    }
}

/// `None` while there are no roots or no certificate yet.
fn snapshot(
    txn: &ReadTxn<'_>,
    proxy: &ProxyId,
    registered: &CheckServiceNode,
    config: &ManagerConfig,
    leaves: &mut dyn Leaves,
) -> Option<Snapshot> {
    let destination = &registered.service.proxy.destination_service_name;
    // First of all what may be missing: the rest would be computed for nothing.
    let roots = queries::roots(txn);
    let (trust_domain, roots) = (*roots).clone()?;
    let leaf = leaves.current(destination)?;
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, destination);
    let central = Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults: service_defaults.as_deref(),
    };
    let mut instance = merge::merge(&registered.service, &central);
    if instance.locality.is_none() {
        instance.locality.clone_from(&registered.node.locality);
    }
    if instance.proxy.expose.checks {
        let exposed = exposed_checks(txn, &proxy.node, &instance.proxy.destination_service_id);
        instance.proxy.expose.paths.extend(exposed);
    }
    let upstreams = instance.proxy.upstreams.iter();
    let explicit = upstreams.filter(|upstream| is_explicit(upstream));
    let upstreams = explicit
        .map(|upstream| UpstreamSnapshot {
            upstream: Arc::clone(upstream),
            resolved: queries::upstream(txn, upstream, &config.datacenter, &trust_domain),
        })
        .collect();
    let is_transparent = instance.proxy.mode == ProxyMode::Transparent;
    let implicit = is_transparent
        .then(|| queries::implicit_upstreams(txn, destination, config, &trust_domain));
    let destinations = match is_transparent {
        true => egress::destinations(txn, destination, config),
        false => Arc::clone(&NO_DESTINATIONS),
    };
    Some(Snapshot {
        proxy: proxy.clone(),
        datacenter: Arc::clone(&config.datacenter),
        trust_domain,
        node_address: registered.node.address.as_str().into(),
        agent_ipv6: config.agent_ipv6,
        protocol: merge::own_protocol(&instance),
        instance: Arc::new(instance),
        roots,
        leaf,
        intentions: queries::intentions(txn, destination),
        jwt_providers: queries::jwt_providers(txn, destination),
        default_intention: config.default_intention,
        mesh: queries::mesh(txn),
        upstreams,
        implicit,
        destinations,
    })
}

/// The paths of the checks of a service instance that have a port at its proxy, in the order of the
/// checks' ids.
fn exposed_checks(txn: &ReadTxn<'_>, node: &str, service_id: &str) -> Vec<ExposePath> {
    let instance = txn.instance(node, service_id);
    let checks = instance.iter().flat_map(|found| &found.checks);
    let own = checks.filter(|check| check.service_id == service_id);
    own.filter_map(|check| check.exposed_path()).collect()
}

/// Whether the upstream is one that the application dials, and not a default for others.
fn is_explicit(upstream: &Upstream) -> bool {
    upstream.destination_name != WILDCARD
        && (upstream.local_bind_port != 0 || upstream.has_local_socket())
}

#[cfg(test)]
mod tests;
