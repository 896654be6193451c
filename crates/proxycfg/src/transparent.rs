//! What a proxy is given whose service's outbound traffic is captured: the services that it may call
//! without having been registered with them, and the addresses by which applications dial those.
//!
//! The same for all proxies of a service. A service is the same `Arc` for every caller without
//! settings for upstreams.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use legate_model::virtual_ip::EXTERNAL_TAGGED_ADDRESS;
use legate_model::{CheckServiceNode, ConfigKind, ProxyDefaults, TrustDomain, Upstream};
use legate_store::ReadTxn;

use crate::chain;
use crate::merge::{self, Central};
use crate::queries;
use crate::same::{self, Compare};
use crate::snapshot::UpstreamSnapshot;

/// A service that the proxy's service may call by its virtual IPs.
#[derive(Clone, Debug)]
pub struct ImplicitUpstream {
    /// What an explicit upstream of this service would be, without a local port.
    pub upstream: UpstreamSnapshot,
    /// What an application may dial.
    pub addresses: BTreeSet<Dialled>,
}

/// An address by which applications dial a service. Where two services have the same one, the lower
/// of the two values counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dialled {
    /// What kind of an address it is.
    pub kind: DialledKind,
    /// Of an instance's address: how new the instance is, the newest first. An address that an
    /// instance lost may be another one's before the catalog hears of it.
    pub age: u64,
    /// The address, whatever the port.
    pub ip: IpAddr,
}

/// What an address stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DialledKind {
    /// The service, by an address that the catalog gave it or that was assigned to it.
    Service,
    /// The service, by what its instances say: the ClusterIP of its Kubernetes Service.
    Tagged,
    /// One instance, which is dialled directly.
    Instance,
}

/// The services that one service may call by virtual IPs, in the order of their names.
#[derive(Clone, Debug, Default)]
pub struct ImplicitUpstreams(pub Vec<Arc<ImplicitUpstream>>);

impl PartialEq for ImplicitUpstreams {
    fn eq(&self, other: &Self) -> bool {
        self.0.len() == other.0.len()
            && self.0.iter().zip(&other.0).all(|(a, b)| same::shared(a, b))
    }
}

impl PartialEq for ImplicitUpstream {
    fn eq(&self, other: &Self) -> bool {
        self.addresses == other.addresses
            && Compare::Values.upstream(&self.upstream, &other.upstream)
    }
}

/// The service of an upstream that nobody registered. `local` is the datacenter whose catalog this
/// is. The service's own instances say by which addresses it is dialled, wherever its chain leads.
pub(crate) fn resolve(
    txn: &ReadTxn<'_>,
    upstream: Upstream,
    local: &str,
    trust_domain: &TrustDomain,
) -> ImplicitUpstream {
    let resolved = queries::upstream(txn, &upstream, local, trust_domain);
    let (own, callee) = (txn.tenancy(), upstream.tenancy(txn.tenancy()));
    let is_near = own.partition == callee.partition;
    ImplicitUpstream {
        addresses: txn.in_tenancy(&callee, |txn| {
            addresses(txn, &upstream.destination_name, is_near)
        }),
        upstream: UpstreamSnapshot {
            upstream: Arc::new(upstream),
            resolved,
        },
    }
}

/// `is_near`: it is of the callers' partition. What is assigned in another one, a ClusterIP for example,
/// may be somebody else's address here.
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
    let owned = owned.map(|ip| Dialled {
        kind: DialledKind::Service,
        age: 0,
        ip: ip.into(),
    });
    let instances = chain::instances(txn, service);
    let of_instances = instances.iter();
    let of_instances = of_instances.flat_map(|instance| of_instance(instance, directly));
    let of_instances = of_instances.filter(|one| is_near || one.kind != DialledKind::Tagged);
    owned.chain(of_instances).collect()
}

/// What an instance adds to the addresses of its service. What is not an IP address adds nothing.
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
