//! Services outside the mesh that a proxy in transparent mode reaches through terminating gateways:
//! those whose `service-defaults` have a destination and that intentions allow the proxy's service
//! to call.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;

use legate_intentions::{Action, Reach};
use legate_model::{ConfigEntry, ConfigKind, Protocol, ServiceIntentions, ServiceName, WILDCARD};
use legate_store::ReadTxn;

use crate::chain::Instances;
use crate::gateways;
use crate::queries::{self, CONTROL_PLANE};
use crate::same;
use crate::value::queried;

/// A service outside the mesh.
#[derive(Clone, Debug, Default)]
pub struct Destination {
    /// The name of the service.
    pub name: String,
    /// The protocol of its own `service-defaults`, or `tcp`. As in Consul, `proxy-defaults` apply
    /// to services in the mesh only.
    pub protocol: Protocol,
    /// Host names and IP addresses, in the order of the entry.
    pub addresses: Vec<String>,
    /// The port of all addresses.
    pub port: u16,
    /// The instances of the gateways that serve it.
    pub gateways: Arc<Instances>,
}

impl PartialEq for Destination {
    fn eq(&self, other: &Self) -> bool {
        self.is_reached_alike(other) && same::shared(&self.gateways, &other.gateways)
    }
}

impl Destination {
    /// Whether both are equal except for the instances of their gateways.
    pub fn is_reached_alike(&self, other: &Self) -> bool {
        self.name == other.name
            && self.protocol == other.protocol
            && self.addresses == other.addresses
            && self.port == other.port
    }
}

/// The services outside the mesh that one service may call, ordered by name.
#[derive(Clone, Debug, Default)]
pub struct Destinations(pub Vec<Arc<Destination>>);

impl Deref for Destinations {
    type Target = [Arc<Destination>];

    fn deref(&self) -> &[Arc<Destination>] {
        &self.0
    }
}

queried! {
    Destinations, |all| all.iter().map(|one| one.addresses.len() * (1 + one.gateways.len())).sum();
}

impl PartialEq for Destinations {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len()
            && std::iter::zip(&**self, &**other).all(|(a, b)| same::shared(a, b))
    }
}

/// The services whose `service-defaults` have a destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outside {
    /// Names of all of them, sorted.
    names: Vec<String>,
    /// Names, in lower case, of those without instances in the catalog. If a service has instances,
    /// intentions for its name apply to the instances.
    only: HashSet<String>,
}

impl Outside {
    fn is_only(&self, name: &str) -> bool {
        !self.only.is_empty() && self.only.contains(&name.to_ascii_lowercase())
    }
}

fn services(txn: &ReadTxn<'_>) -> Arc<Outside> {
    txn.shared("services outside", "", |txn| {
        let mut outside = Outside::default();
        for entry in txn.config_entries(ConfigKind::ServiceDefaults) {
            match &*entry {
                ConfigEntry::ServiceDefaults(entry) if entry.destination.is_some() => {
                    if txn.service(&entry.name).is_empty() {
                        outside.only.insert(entry.name.to_ascii_lowercase());
                    }
                    outside.names.push(entry.name.clone());
                }
                _ => {}
            }
        }
        outside
    })
}

/// Matches the entries for services whose intentions apply to a destination outside the mesh
/// instead of instances. As in Consul.
pub(crate) fn only_outside(txn: &ReadTxn<'_>) -> impl Fn(&ServiceIntentions) -> bool + use<> {
    let services = services(txn);
    move |entry| services.is_only(&entry.name)
}

/// The services outside the mesh in the current tenancy that `source`, of the same tenancy, may
/// call.
pub(crate) fn destinations(txn: &ReadTxn<'_>, source: &str, default: Action) -> Arc<Destinations> {
    let name = match default {
        Action::Allow => "destinations unless denied",
        Action::Deny => "destinations if allowed",
    };
    txn.shared(name, source, |txn| {
        let services = services(txn);
        if services.names.is_empty() {
            return Destinations::default();
        }
        let own = txn.tenancy();
        let entries = queries::intention_entries(txn, own);
        let about =
            |entry: &&ServiceIntentions| entry.name == WILDCARD || services.is_only(&entry.name);
        let entries = queries::intentions_in(&entries).filter(about);
        let reach = Reach::new(entries, &ServiceName::new(own, source), default);
        let callable = services.names.iter().filter(|name| {
            let is_other = !name.eq_ignore_ascii_case(source);
            is_other && *name != CONTROL_PLANE && reach.allows(&ServiceName::new(own, name))
        });
        Destinations(callable.map(|name| destination(txn, name)).collect())
    })
}

/// One service outside the mesh, for all of its callers.
fn destination(txn: &ReadTxn<'_>, service: &str) -> Arc<Destination> {
    txn.shared("destination", service, |txn| {
        let found = txn.config_entry(ConfigKind::ServiceDefaults, service);
        let (protocol, place) = match found.as_deref() {
            Some(ConfigEntry::ServiceDefaults(entry)) => {
                (entry.protocol(), entry.destination.clone())
            }
            _ => (None, None),
        };
        let place = place.unwrap_or_default();
        Destination {
            name: service.to_owned(),
            protocol: protocol.unwrap_or_default(),
            addresses: place.addresses,
            port: place.port,
            gateways: gateways::terminating(txn, service),
        }
    })
}
