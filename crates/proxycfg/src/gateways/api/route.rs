//! One `http-route` or `tcp-route`: what both have in common, and whether it can be used.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_discovery_chain::{Overrides, Request, compile};
use legate_model::{
    ConfigEntry, ConfigKind, HttpRoute, JwtRequirement, Protocol, ResourceReference, ServiceName,
    TcpRoute, TrustDomain,
};
use legate_store::ReadTxn;

use crate::chain::StoredEntries;
use crate::queries;

/// The name of a route.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RouteId {
    /// Whether it is an `http-route`.
    pub(super) http: bool,
    pub(super) name: ServiceName,
}

/// Why a route is not used, in Consul's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It leads nowhere.
    NoServices,
    /// The chain of one of its services.
    Chain(String),
}

/// A stored route.
pub(super) enum Route<'a> {
    Http(&'a HttpRoute),
    Tcp(&'a TcpRoute),
}

impl RouteId {
    pub(super) const fn kind(&self) -> ConfigKind {
        match self.http {
            true => ConfigKind::HttpRoute,
            false => ConfigKind::TcpRoute,
        }
    }

    pub(super) fn reference(&self) -> ResourceReference {
        ResourceReference::to(self.kind(), &self.name)
    }

    pub(super) fn read(&self, txn: &ReadTxn<'_>) -> Option<Arc<ConfigEntry>> {
        txn.in_tenancy(&self.name.tenancy, |txn| {
            txn.config_entry(self.kind(), &self.name.name)
        })
    }
}

impl<'a> Route<'a> {
    /// `None` for an entry of another kind.
    pub(super) const fn of(entry: &'a ConfigEntry) -> Option<Self> {
        match entry {
            ConfigEntry::HttpRoute(route) => Some(Self::Http(route)),
            ConfigEntry::TcpRoute(route) => Some(Self::Tcp(route)),
            _ => None,
        }
    }

    pub(super) fn parents(&self) -> &'a [ResourceReference] {
        match self {
            Self::Http(route) => &route.parents,
            Self::Tcp(route) => &route.parents,
        }
    }

    /// The protocol of listeners that it can be bound to.
    pub(super) const fn protocol(&self) -> &'static str {
        match self {
            Self::Http(_) => "http",
            Self::Tcp(_) => "tcp",
        }
    }

    /// The services that it leads to, in the order of the entry, each once.
    pub(super) fn services(&self, own: &ServiceName) -> Vec<ServiceName> {
        let named: Vec<_> = match self {
            Self::Http(route) => {
                let services = route.rules.iter().flat_map(|rule| &rule.services);
                let names = services.map(|one| (&one.partition, &one.namespace, &one.name));
                names.collect()
            }
            Self::Tcp(route) => {
                let services = route.services.iter();
                let names = services.map(|one| (&one.partition, &one.namespace, &one.name));
                names.collect()
            }
        };
        let mut seen = BTreeSet::new();
        let all = named.into_iter().map(|(partition, namespace, name)| {
            ServiceName::new(&own.tenancy.resolve(partition, namespace), name)
        });
        all.filter(|one| seen.insert(one.clone())).collect()
    }

    /// Whether services of this protocol can be behind it. HTTP/2 and gRPC are HTTP.
    const fn accepts(&self, protocol: Protocol) -> bool {
        match self {
            Self::Http(_) => protocol.is_http(),
            Self::Tcp(_) => !protocol.is_http(),
        }
    }

    /// The tokens that it requires.
    fn tokens(&self) -> Vec<&'a JwtRequirement> {
        let Self::Http(route) = self else {
            return Vec::new();
        };
        let of_rules = route.rules.iter().map(|rule| &rule.filters);
        let services = route.rules.iter().flat_map(|rule| &rule.services);
        let of_services = services.map(|service| &service.filters);
        let filters = of_rules.chain(of_services);
        filters.filter_map(|one| one.jwt.as_ref()).collect()
    }

    /// A JWT provider that it names and that does not exist in the partition of `txn`, which is that
    /// of the gateway.
    pub(super) fn missing_provider(&self, txn: &ReadTxn<'_>) -> Option<String> {
        let mut tokens = self.tokens().into_iter();
        tokens.find_map(|token| missing_provider(txn, token))
    }
}

/// A provider of a requirement that does not exist.
pub(super) fn missing_provider(txn: &ReadTxn<'_>, token: &JwtRequirement) -> Option<String> {
    let mut names = token.provider_names();
    let missing = names.find(|name| txn.config_entry(ConfigKind::JwtProvider, name).is_none());
    missing.map(str::to_owned)
}

/// Whether the services of a route can be behind it, whichever gateway it is bound to.
pub(super) fn usable(
    txn: &ReadTxn<'_>,
    id: &RouteId,
    datacenter: &str,
) -> Arc<Result<(), Unusable>> {
    let argument = format!("{}/{}/{datacenter}", id.kind(), id.name.name);
    txn.in_tenancy(&id.name.tenancy, |txn| {
        txn.shared("usable route", &argument, |txn| {
            let entry = id.read(txn);
            let route = entry.as_deref().and_then(Route::of);
            let Some(route) = route else {
                return Err(Unusable::NoServices);
            };
            let services = route.services(&id.name);
            if services.is_empty() {
                return Err(Unusable::NoServices);
            }
            for service in services {
                match &*protocol(txn, &service, datacenter) {
                    Ok(protocol) if route.accepts(*protocol) => {}
                    Ok(_) => {
                        let reason = "route protocol does not match targeted service protocol";
                        return Err(Unusable::Chain(reason.to_owned()));
                    }
                    Err(reason) => return Err(Unusable::Chain(reason.clone())),
                }
            }
            Ok(())
        })
    })
}

/// The protocol of a service's chain, or why its entries form none.
fn protocol(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
) -> Arc<Result<Protocol, String>> {
    txn.in_tenancy(&service.tenancy, |txn| {
        let argument = format!("{}/{datacenter}", service.name);
        txn.shared("protocol of a chain", &argument, |txn| {
            // It does not depend on the trust domain, which a new server does not have at once.
            let trust_domain = match &*queries::roots(txn) {
                Some((trust_domain, _)) => trust_domain.clone(),
                None => "unknown.consul"
                    .parse::<TrustDomain>()
                    .map_err(|error| error.to_string())?,
            };
            let request = Request {
                service,
                datacenter,
                trust_domain: &trust_domain,
                overrides: Overrides::default(),
            };
            let chain = compile(&request, &StoredEntries(txn));
            chain
                .map(|chain| chain.protocol)
                .map_err(|error| error.to_string())
        })
    })
}
