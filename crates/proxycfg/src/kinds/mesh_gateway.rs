//! The mesh gateway: the services of its partition that are reached in the mesh, and what it forwards between peers.

use std::sync::{Arc, LazyLock};

use legate_ca::{Leaf, LeafId};
use legate_model::{ConfigEntry, ConfigKind, ServiceInstance, ServiceName, UpstreamLimits};
use legate_store::{Kept, ReadTxn};

use super::Reading;
use super::kept_list::KeptList;
use crate::error::WatchError;
use crate::gateways::{self, MeshService, MeshServices, PeerExport, PeerRoutes};
use crate::remote::{self, GatewaysElsewhere, Servers};
use crate::same;
use crate::snapshot::ProxyId;
use crate::value::{queried, values};

values! {
    /// What only a mesh gateway has.
    #[derive(Clone, Debug)]
    pub struct MeshGateway {
        /// The limits for connections to each service: those of the upstream defaults in the
        /// gateway's `service-defaults`.
        pub limits: Arc<Option<UpstreamLimits>>,
        /// The services.
        pub services: Arc<MeshServices>,
        /// The mesh gateways of the same partition in other datacenters.
        pub elsewhere: Arc<GatewaysElsewhere>,
        /// The servers that it leads to; none unless it exposes servers.
        pub servers: Arc<Option<Servers>>,
        /// The services that peers reach.
        pub exports: Arc<PeerExports>,
        /// The gateways' own certificate and key, if they terminate connections of peers. While there are none, and until it
        /// is issued for the first ones, it is absent.
        pub leaf: Option<Arc<Leaf>>,
        /// The connections that it passes on between this cluster and its peers.
        pub peers: Arc<PeerRoutes>,
    }
}

/// The services that peers reach, by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct PeerExports(pub Vec<Arc<PeerExport>>);

impl PartialEq for PeerExports {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && std::iter::zip(&self.0, &other.0).all(|(a, b)| same::shared(a, b))
    }
}

queried! {
    PeerExports, |all| all.0.iter().map(|one| one.size()).sum();
    Option<UpstreamLimits>, |_| 0;
    GatewaysElsewhere, |all| all.0.iter().map(|one| 1 + one.instances.len()).sum();
    Option<Servers>, |servers| servers.as_ref().map_or(0, |servers| 2 * servers.all.len());
    MeshServices, |all| all.0.iter().map(|one| one.size()).sum();
}

/// One value for all gateways that expose no servers: values are compared by their addresses.
static NO_SERVERS: LazyLock<Arc<Option<Servers>>> = LazyLock::new(Arc::default);

/// Every registration of a mesh gateway can be served.
pub(super) fn check(_: &ProxyId, _: &ServiceInstance) -> Result<(), WatchError> {
    Ok(())
}

/// Values cached from one snapshot of a gateway to the next.
#[derive(Debug, Default)]
pub(super) struct Parts {
    limits: Kept<Arc<Option<UpstreamLimits>>>,
    names: Kept<Arc<Vec<ServiceName>>>,
    elsewhere: Kept<Arc<GatewaysElsewhere>>,
    servers: Kept<Arc<Option<Servers>>>,
    services: KeptList<ServiceName, Arc<Option<Arc<MeshService>>>>,
    /// The services of the last snapshot.
    last: Arc<MeshServices>,
    exported: Kept<Arc<Vec<ServiceName>>>,
    exports: KeptList<ServiceName, Arc<Option<Arc<PeerExport>>>>,
    /// Those of the last snapshot.
    last_exports: Arc<PeerExports>,
    peers: Kept<Arc<PeerRoutes>>,
    /// Whether there was a snapshot.
    has_started: bool,
}

/// The values of a mesh gateway, `None` while the certificate of the first snapshot is missing: a server that has just
/// started must not take services of peers from a gateway that serves them.
pub(super) fn snapshot(read: &mut Reading<'_, '_>, parts: &mut Parts) -> Option<MeshGateway> {
    let gateway = &read.proxy.instance.service;
    let names = read.kept(&mut parts.names, gateways::mesh_names);
    // One by one: a change of one service looks at no other.
    let services = parts.services.values(&names, |name| name);
    let services = std::iter::zip(&*names, services);
    let services = services.filter_map(|(name, kept)| {
        let service = read.kept(kept, |txn| gateways::mesh_service(txn, name));
        (*service).clone()
    });
    let services = MeshServices(services.collect());
    if services != *parts.last {
        parts.last = Arc::new(services);
    }
    let exports = exports(read, parts);
    let terminates = exports.0.iter().any(|one| one.has_requests());
    let leaf = match terminates {
        true => {
            let partition = &read.txn.tenancy().partition;
            let leaf = read.leaves.current(&LeafId::of_mesh_gateway(partition));
            if leaf.is_none() && !parts.has_started {
                return None;
            }
            leaf
        }
        false => None,
    };
    parts.has_started = true;
    Some(MeshGateway {
        exports,
        leaf,
        peers: read.kept(&mut parts.peers, |txn| {
            let (datacenter, trust_domain) = (&*read.config.datacenter, &read.proxy.trust_domain);
            gateways::peer_routes(txn, datacenter, trust_domain)
        }),
        limits: read.kept(&mut parts.limits, |txn| limits(txn, gateway)),
        services: Arc::clone(&parts.last),
        elsewhere: read.kept(&mut parts.elsewhere, |txn| {
            remote::gateways_elsewhere(txn, &read.config.datacenter)
        }),
        servers: match read.proxy.instance.exposes_servers() {
            true => read.kept(&mut parts.servers, |txn| {
                let domain = read.config.dns_domains.first();
                domain.map_or_else(
                    || Arc::clone(&NO_SERVERS),
                    |domain| remote::servers(txn, domain),
                )
            }),
            false => Arc::clone(&NO_SERVERS),
        },
    })
}

/// The services that peers reach, one by one as above.
fn exports(read: &mut Reading<'_, '_>, parts: &mut Parts) -> Arc<PeerExports> {
    let (datacenter, trust_domain) = (&*read.config.datacenter, &read.proxy.trust_domain);
    let names = read.kept(&mut parts.exported, |txn| {
        gateways::exported_names(txn, datacenter, trust_domain)
    });
    let exports = parts.exports.values(&names, |name| name);
    let exports = std::iter::zip(&*names, exports);
    let exports = exports.filter_map(|(name, kept)| {
        let export = read.kept(kept, |txn| {
            gateways::peer_export(txn, name, datacenter, trust_domain)
        });
        (*export).clone()
    });
    let exports = PeerExports(exports.collect());
    if exports != *parts.last_exports {
        parts.last_exports = Arc::new(exports);
    }
    Arc::clone(&parts.last_exports)
}

fn limits(txn: &ReadTxn<'_>, gateway: &str) -> Arc<Option<UpstreamLimits>> {
    txn.shared("limits of a mesh gateway", gateway, |txn| {
        match &*txn.config_entry(ConfigKind::ServiceDefaults, gateway)? {
            ConfigEntry::ServiceDefaults(entry) => {
                let upstreams = entry.upstream_config.as_ref()?;
                upstreams.defaults.as_ref()?.limits.clone()
            }
            _ => None,
        }
    })
}

#[cfg(test)]
mod tests;
