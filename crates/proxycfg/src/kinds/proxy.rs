//! What every proxy has: its merged registration, and what the mesh has once.

use std::sync::Arc;

use legate_model::{CheckServiceNode, ConfigKind, ExposePath, ProxyDefaults};
use legate_store::ReadTxn;

use crate::config::ManagerConfig;
use crate::merge::{self, Central};
use crate::queries;
use crate::snapshot::{Proxy, ProxyId};

/// `None` while the roots are missing.
pub(super) fn read(
    txn: &ReadTxn<'_>,
    id: &ProxyId,
    registered: &CheckServiceNode,
    config: &ManagerConfig,
) -> Option<Proxy> {
    let roots = queries::roots(txn);
    let (trust_domain, roots) = (*roots).clone()?;
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let identity = registered.service.identity();
    let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, identity);
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
        let exposed = exposed_checks(txn, &id.node, &instance.proxy.destination_service_id);
        instance.proxy.expose.paths.extend(exposed);
    }
    Some(Proxy {
        id: id.clone(),
        datacenter: Arc::clone(&config.datacenter),
        trust_domain,
        instance: Arc::new(instance),
        node_address: registered.node.address.as_str().into(),
        agent_ipv6: config.agent_ipv6,
        roots,
        mesh: queries::mesh(txn),
        default_intention: config.default_intention,
    })
}

/// The exposed paths of an instance's checks that have a port at its proxy, in the order of the
/// check ids.
fn exposed_checks(txn: &ReadTxn<'_>, node: &str, service_id: &str) -> Vec<ExposePath> {
    let instance = txn.instance(node, service_id);
    let checks = instance.iter().flat_map(|found| &found.checks);
    let own = checks.filter(|check| check.service_id == service_id);
    own.filter_map(|check| check.exposed_path()).collect()
}
