//! Implicit upstreams of a proxy in transparent mode: the services that it may call without
//! registering them, and the addresses by which applications dial them.
//!
//! The same for all proxies of a service. All callers without upstream settings share one `Arc` per
//! service.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use legate_intentions::{Action, Reach};
use legate_model::virtual_ip::EXTERNAL_TAGGED_ADDRESS;
use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, ProxyDefaults, ServiceName, Tenancy, TrustDomain,
    Upstream,
};
use legate_store::ReadTxn;

use crate::chain;
use crate::egress;
use crate::merge::{self, Central};
use crate::queries;
use crate::same::{self, Compare};
use crate::upstream::{self, UpstreamSnapshot};
use crate::value::{Value, queried};

/// A service that the proxy's service may call by its virtual IPs.
#[derive(Clone, Debug)]
pub struct ImplicitUpstream {
    /// The same as an explicit upstream of this service, without a local port.
    pub upstream: UpstreamSnapshot,
    /// The addresses that an application may dial.
    pub addresses: BTreeSet<Dialled>,
}

/// An address by which applications dial a service. If two services have the same address, the
/// lower value takes precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dialled {
    /// The kind of the address.
    pub kind: DialledKind,
    /// For an instance's address: the age of the instance, lower for newer ones. An address that an
    /// instance lost may belong to another one before the catalog is updated.
    pub age: u64,
    /// The IP address, for any port.
    pub ip: IpAddr,
}

/// The meaning of a dialled address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DialledKind {
    /// A virtual IP of the service, allocated by the catalog or assigned manually.
    Service,
    /// An address of the service from the registration of its instances: the ClusterIP of its
    /// Kubernetes Service.
    Tagged,
    /// The address of one instance, which is dialled directly.
    Instance,
}

/// The services that one service may call by virtual IPs, ordered by name.
#[derive(Clone, Debug, Default)]
pub struct ImplicitUpstreams(pub Vec<Arc<ImplicitUpstream>>);

queried! {
    ImplicitUpstreams, |all| all.0.iter().map(|one| one.upstream.size()).sum();
}

impl PartialEq for ImplicitUpstreams {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(a, b)| same::shared(a, b))
    }
}

impl PartialEq for ImplicitUpstream {
    fn eq(&self, other: &Self) -> bool {
        self.addresses == other.addresses && self.upstream.is_same(&other.upstream, Compare::Values)
    }
}

/// The services that `source`, of the current tenancy, may call by their virtual IPs. They have a
/// virtual IP, are in the same partition or exported to it, and are allowed by intentions or else
/// by the default. Services of peers have their intentions there, so that all of them are included. `local` is the datacenter of this catalog. As in Consul.
pub(crate) fn implicit_upstreams(
    txn: &ReadTxn<'_>,
    source: &str,
    default: Action,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstreams> {
    let name = match default {
        Action::Allow => "upstreams unless denied",
        Action::Deny => "upstreams if allowed",
    };
    txn.shared(name, source, |txn| {
        let own = txn.tenancy();
        let source_name = ServiceName::new(own, source);
        let mut services = txn.services_with_virtual_ips();
        services.retain(|service| txn.is_exported(service, &own.partition));
        let tenancies = services.iter().map(|one| &one.tenancy);
        let tenancies = tenancies.filter(|tenancy| tenancy.peer.is_empty());
        let tenancies: BTreeSet<&Tenancy> = tenancies.collect();
        let mut entries = Vec::new();
        for tenancy in tenancies {
            // Intentions for a destination outside the mesh allow no service in the mesh.
            let outside = txn.in_tenancy(tenancy, egress::only_outside);
            let mut found = queries::intention_entries(txn, tenancy);
            found
                .retain(|entry| !queries::intentions_in(std::slice::from_ref(entry)).any(&outside));
            entries.extend(found);
        }
        let reach = Reach::new(queries::intentions_in(&entries), &source_name, default);
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let central = Central {
            proxy_defaults: None,
            service_defaults: service_defaults.as_deref(),
        };
        let configured = merge::has_upstream_config(&central);
        let gateways_configured = configured || merge::has_gateway_mode(&central);
        let is_of_peer = |service: &ServiceName| !service.tenancy.peer.is_empty();
        let callable = services.into_iter().filter(|service| {
            let is_own = service.tenancy == *own && service.name.eq_ignore_ascii_case(source);
            let is_allowed = is_of_peer(service) || reach.allows(service);
            !is_own && *service.name != *queries::CONTROL_PLANE && is_allowed
        });
        let is_configured = |service: &ServiceName| match is_of_peer(service) {
            true => gateways_configured,
            false => configured,
        };
        let upstream = |service: ServiceName| match is_configured(&service) {
            false => implicit_upstream(txn, &service, local, trust_domain),
            true => configured_upstream(txn, source, &service, local, trust_domain),
        };
        ImplicitUpstreams(callable.map(upstream).collect())
    })
}

/// A service as an upstream of callers without settings for it.
fn implicit_upstream(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstream> {
    txn.shared("implicit upstream", &service.to_string(), |txn| {
        let upstream = match service.tenancy.peer.is_empty() {
            true => merge::plain_upstream(service, txn.tenancy()),
            false => upstream_of_peer(txn, service, None),
        };
        resolve(txn, upstream, local, trust_domain)
    })
}

/// A service of a peer as an upstream of a caller with these `service-defaults`. Whether it is reached by local gateways
/// may also be in `proxy-defaults`.
fn upstream_of_peer(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    service_defaults: Option<&ConfigEntry>,
) -> Upstream {
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let central = Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults,
    };
    merge::unregistered_upstream(service, txn.tenancy(), &central)
}

/// A service as an upstream of a caller whose `service-defaults` have upstream settings.
fn configured_upstream(
    txn: &ReadTxn<'_>,
    source: &str,
    service: &ServiceName,
    local: &str,
    trust_domain: &TrustDomain,
) -> Arc<ImplicitUpstream> {
    // Service names contain no slash.
    let argument = format!("{source}/{service}");
    txn.shared("implicit upstream with settings", &argument, |txn| {
        let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, source);
        let service_defaults = service_defaults.as_deref();
        let central = Central {
            proxy_defaults: None,
            service_defaults,
        };
        let upstream = match service.tenancy.peer.is_empty() {
            true => merge::unregistered_upstream(service, txn.tenancy(), &central),
            false => upstream_of_peer(txn, service, service_defaults),
        };
        resolve(txn, upstream, local, trust_domain)
    })
}

/// An implicit upstream. `local` is the datacenter of this catalog. The addresses come from the
/// service's own instances, whatever the targets of its chain are. A service of a peer has the virtual IP that this
/// cluster has given it, and none that the peer names: that could belong to something else here.
fn resolve(
    txn: &ReadTxn<'_>,
    upstream: Upstream,
    local: &str,
    trust_domain: &TrustDomain,
) -> ImplicitUpstream {
    let resolved = upstream::resolved(txn, &upstream, local, trust_domain);
    let (own, callee) = (txn.tenancy(), upstream.tenancy(txn.tenancy()));
    let is_near = own.partition == callee.partition;
    let name = &upstream.destination_name;
    ImplicitUpstream {
        addresses: match upstream.destination_peer.as_str() {
            "" => txn.in_tenancy(&callee, |txn| addresses(txn, name, is_near)),
            peer => txn.in_tenancy(&callee.of_peer(peer), |txn| {
                let ip = txn.virtual_ip(name).map(|ip| ip.address().into());
                ip.map(of_service).into_iter().collect()
            }),
        },
        upstream: UpstreamSnapshot {
            upstream: Arc::new(upstream),
            resolved,
        },
    }
}

fn of_service(ip: IpAddr) -> Dialled {
    Dialled {
        kind: DialledKind::Service,
        age: 0,
        ip,
    }
}

/// `is_near`: the service is in the callers' partition. Addresses that were assigned in another
/// partition, such as a ClusterIP, may belong to a different service here.
fn addresses(txn: &ReadTxn<'_>, service: &str, is_near: bool) -> BTreeSet<Dialled> {
    let proxy_defaults = txn.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let service_defaults = txn.config_entry(ConfigKind::ServiceDefaults, service);
    let directly = merge::is_dialled_directly(&Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults: service_defaults.as_deref(),
    });
    let automatic = txn.virtual_ip(service).map(|ip| ip.address());
    let assigned = is_near.then(|| txn.manual_virtual_ips(service));
    let owned = automatic.into_iter().chain(assigned.into_iter().flatten());
    let owned = owned.map(|ip| of_service(ip.into()));
    let instances = chain::instances(txn, service);
    // Not those of gateways, which represent many services.
    let own = |instance: &&CheckServiceNode| instance.service.destination().is_some();
    let of_instances = instances.iter().filter(own);
    let of_instances = of_instances.flat_map(|instance| of_instance(instance, directly));
    let of_instances = of_instances.filter(|one| is_near || one.kind != DialledKind::Tagged);
    owned.chain(of_instances).collect()
}

/// The addresses that an instance adds to those of its service. Values that are not IP addresses
/// are ignored.
fn of_instance(
    instance: &CheckServiceNode,
    dialled_directly: bool,
) -> impl Iterator<Item = Dialled> {
    let service = &instance.service;
    let dialled = move |kind, address: &str| {
        Some(Dialled {
            kind,
            age: u64::MAX - service.create_index,
            ip: address.parse().ok()?,
        })
    };
    let tagged = service.tagged_addresses.get(EXTERNAL_TAGGED_ADDRESS);
    let tagged = tagged.and_then(|tagged| dialled(DialledKind::Tagged, &tagged.address));
    let directly = dialled_directly || service.proxy.transparent_proxy.dialed_directly;
    let own = directly.then(|| dialled(DialledKind::Instance, instance.address().0));
    tagged.into_iter().chain(own.flatten())
}
