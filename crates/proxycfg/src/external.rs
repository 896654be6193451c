//! A service outside the mesh as the terminating gateways that represent it see it: its callers, and
//! where it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::{
    ConfigEntry, ConfigKind, Destination, Intention, Protocol, ServiceName, ServiceResolver,
    Subset, TrustDomain,
};
use legate_store::ReadTxn;

use crate::chain::Instances;
use crate::protocol;
use crate::queries::{self, JwtProviders};
use crate::same;
use crate::trust::{self, PeerCallers};

/// A service, the same for all of its gateways.
#[derive(Clone, Debug)]
pub struct External {
    /// Its name.
    pub name: ServiceName,
    /// Its protocol by its config entries.
    pub protocol: Protocol,
    /// The intentions that have it as their destination, in order of precedence.
    pub intentions: Arc<Vec<Arc<Intention>>>,
    /// The JWT providers that the intentions name. Providers that do not exist are left out.
    pub jwt_providers: Arc<JwtProviders>,
    /// The peers that call it.
    pub peers: Arc<PeerCallers>,
    /// Its addresses.
    pub addresses: ExternalAddresses,
}

/// Where a service outside the mesh is.
#[derive(Clone, Debug)]
pub enum ExternalAddresses {
    /// At the addresses of its instances in the catalog.
    Instances {
        /// Its `service-resolver`, with the settings of connections and the definitions of subsets.
        resolver: Arc<ServiceResolver>,
        /// The instances by subset. The key is empty for connections that name no subset: all
        /// instances, or those of the default subset.
        subsets: BTreeMap<String, Arc<Instances>>,
    },
    /// At the addresses in its `service-defaults`.
    Destination(Arc<Destination>),
}

impl External {
    /// About how many values resources are made from.
    pub(crate) fn size(&self) -> usize {
        let callers = self.intentions.iter().map(|one| 1 + one.permissions.len());
        let addresses = match &self.addresses {
            ExternalAddresses::Instances { subsets, .. } => {
                subsets.values().map(|one| 1 + one.len()).sum()
            }
            ExternalAddresses::Destination(destination) => destination.addresses.len(),
        };
        1 + callers.sum::<usize>() + addresses
    }
}

impl PartialEq for External {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
            && self.protocol == other.protocol
            && same::shared(&self.intentions, &other.intentions)
            && same::shared(&self.jwt_providers, &other.jwt_providers)
            && same::shared(&self.peers, &other.peers)
            && self.addresses == other.addresses
    }
}

impl PartialEq for ExternalAddresses {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Destination(a), Self::Destination(b)) => same::shared(a, b),
            (
                Self::Instances { resolver, subsets },
                Self::Instances {
                    resolver: other,
                    subsets: others,
                },
            ) => {
                same::shared(resolver, other)
                    && subsets.len() == others.len()
                    && std::iter::zip(subsets, others)
                        .all(|((a, one), (b, other))| a == b && same::shared(one, other))
            }
            _ => false,
        }
    }
}

/// A service; `None` if the catalog neither has instances of it nor knows where it is. As in Consul,
/// instances take precedence over a destination.
pub(crate) fn service(
    txn: &ReadTxn<'_>,
    name: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<Option<Arc<External>>> {
    let argument = format!("{}/{datacenter}/{trust_domain}", name.name);
    txn.in_tenancy(&name.tenancy, |txn| {
        txn.shared("service outside the mesh", &argument, |txn| {
            let (protocol, addresses) = match at_instances(txn, &name.name) {
                Some(addresses) => (protocol::of(txn, &name.name), addresses),
                // As for its callers, `proxy-defaults` do not apply.
                None => {
                    let protocol = protocol::own(txn, &name.name).unwrap_or_default();
                    (protocol, at_destination(txn, &name.name)?)
                }
            };
            Some(Arc::new(External {
                name: name.clone(),
                protocol,
                intentions: queries::intentions(txn, &name.name),
                jwt_providers: queries::jwt_providers(txn, &name.name),
                peers: trust::callers(txn, name, datacenter, trust_domain),
                addresses,
            }))
        })
    })
}

fn at_destination(txn: &ReadTxn<'_>, name: &str) -> Option<ExternalAddresses> {
    let destination = txn.shared("destination outside the mesh", name, |txn| {
        match &*txn.config_entry(ConfigKind::ServiceDefaults, name)? {
            ConfigEntry::ServiceDefaults(entry) => {
                entry.destination.as_deref().cloned().map(Arc::new)
            }
            _ => None,
        }
    });
    (*destination).clone().map(ExternalAddresses::Destination)
}

fn at_instances(txn: &ReadTxn<'_>, name: &str) -> Option<ExternalAddresses> {
    let all = txn.shared("instances outside the mesh", name, |txn| {
        Instances::from(txn.service(name))
    });
    if all.is_empty() {
        return None;
    }
    let resolver = txn.shared("resolver outside the mesh", name, |txn| {
        match txn
            .config_entry(ConfigKind::ServiceResolver, name)
            .as_deref()
        {
            Some(ConfigEntry::ServiceResolver(entry)) => entry.clone(),
            _ => ServiceResolver::default(),
        }
    });
    let of = |(subset, definition): (&String, &Subset)| {
        let instances = of_subset(txn, name, subset, definition);
        (subset.clone(), instances)
    };
    let mut subsets: BTreeMap<_, _> = resolver.subsets.iter().map(of).collect();
    let default = subsets.get(&resolver.default_subset).cloned();
    subsets.insert(String::new(), default.unwrap_or(all));
    Some(ExternalAddresses::Instances { resolver, subsets })
}

fn of_subset(txn: &ReadTxn<'_>, service: &str, name: &str, subset: &Subset) -> Arc<Instances> {
    // The definition is part of the key: it may have changed since another reader computed it.
    let Subset {
        filter,
        only_passing,
    } = subset;
    let argument = format!("{service}/{name}/{only_passing}/{filter}");
    txn.shared("instances of a subset outside the mesh", &argument, |txn| {
        Instances::of_subset(txn.service(service), service, name, subset)
    })
}
