//! Validation of discovery chains. When a config entry is written or removed, all chains that contain it are
//! compiled on the resulting state, and the write is rejected if one cannot be compiled.

use std::collections::BTreeSet;

use legate_discovery_chain::{Chain, ChainError, Overrides, Request, compile};
use legate_model::{ConfigEntry, ConfigKind, InvalidSpiffeId, ServiceName, Tenancy, TrustDomain};
use legate_proxycfg::StoredEntries;
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// The kinds that change a service's discovery chain from the default.
const OF_SERVICES: [ConfigKind; 4] = [
    ConfigKind::ServiceDefaults,
    ConfigKind::ServiceRouter,
    ConfigKind::ServiceSplitter,
    ConfigKind::ServiceResolver,
];

/// The parts of an entry that can invalidate other chains.
#[derive(Debug, PartialEq)]
pub(super) enum Relevant {
    /// None.
    Nothing,
    /// The protocol and the external SNI.
    Defaults(String, String),
    /// The whole entry.
    Everything(Box<ConfigEntry>),
}

impl Relevant {
    /// From an entry before or after a write; `None` if there is no entry.
    pub(super) fn of(entry: Option<&ConfigEntry>) -> Self {
        let spoken = |protocol: Option<legate_model::Protocol>| {
            protocol.map_or_else(String::new, |protocol| protocol.to_string())
        };
        match entry {
            None => Self::Nothing,
            Some(ConfigEntry::ServiceDefaults(entry)) => {
                Self::defaults(spoken(entry.protocol()), entry.external_sni.clone())
            }
            Some(ConfigEntry::ProxyDefaults(entry)) => {
                Self::defaults(spoken(entry.protocol()), String::new())
            }
            Some(
                entry @ (ConfigEntry::ServiceRouter(_)
                | ConfigEntry::ServiceSplitter(_)
                | ConfigEntry::ServiceResolver(_)),
            ) => Self::Everything(Box::new(entry.clone())),
            Some(_) => Self::Nothing,
        }
    }

    /// Defaults that set neither are treated as missing.
    fn defaults(protocol: String, sni: String) -> Self {
        match protocol.is_empty() && sni.is_empty() {
            true => Self::Nothing,
            false => Self::Defaults(protocol, sni),
        }
    }
}

/// Whether entries of a kind belong to the chain of a service.
pub(super) fn is_in_chains(kind: ConfigKind) -> bool {
    OF_SERVICES.contains(&kind)
}

/// The services whose chains contain an entry: its own, and those that refer to it.
pub(crate) fn services(
    state: &ReadTxn<'_>,
    kind: ConfigKind,
    name: &ServiceName,
) -> BTreeSet<ServiceName> {
    let mut open = match kind {
        ConfigKind::ProxyDefaults => with_entries(state, &name.tenancy),
        kind if OF_SERVICES.contains(&kind) => vec![name.clone()],
        _ => Vec::new(),
    };
    let mut found = BTreeSet::new();
    while let Some(service) = open.pop() {
        if found.contains(&service) {
            continue;
        }
        let leading = state.in_tenancy(&service.tenancy, |state| {
            state.config_entries_leading_to(&service.name)
        });
        open.extend(leading.iter().map(|entry| entry.full_name()));
        found.insert(service);
    }
    found
}

/// The services with entries in a tenancy's partition.
fn with_entries(state: &ReadTxn<'_>, of: &Tenancy) -> Vec<ServiceName> {
    state.in_tenancy(of, |state| {
        let kinds = OF_SERVICES.into_iter();
        let entries = kinds.flat_map(|kind| state.config_entries_here(kind));
        entries.map(|entry| entry.full_name()).collect()
    })
}

/// Rejects a write after which a chain cannot be compiled. `state` includes the write; `before` is the previous
/// version of the entry.
pub(super) fn refuse_broken(
    state: &ReadTxn<'_>,
    before: &Relevant,
    (kind, name): (ConfigKind, &str),
    datacenter: &str,
) -> Result<(), ApiError> {
    if *before == Relevant::of(state.config_entry(kind, name).as_deref()) {
        return Ok(());
    }
    // The entry's own chain first: its error is the most specific.
    let name = ServiceName::new(state.tenancy(), name);
    let all = services(state, kind, &name);
    let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|service| *service == name);
    let trust_domain = any_trust_domain();
    let trust_domain = trust_domain.map_err(|error| ApiError::internal(error.to_string()))?;
    for service in own.into_iter().chain(others) {
        chain(state, &service, datacenter, &trust_domain)
            .map_err(|error| ApiError::bad_request(error.to_string()))?;
    }
    Ok(())
}

/// Used in target names only; the result does not depend on it.
pub(super) fn any_trust_domain() -> Result<TrustDomain, InvalidSpiffeId> {
    "mesh.consul".parse()
}

/// The discovery chain of a service, for callers in the mesh.
pub(crate) fn chain_in_mesh(
    state: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
) -> Result<Chain, String> {
    let roots = state.ca_roots();
    let own = roots.and_then(|roots| roots.trust_domain.parse().ok());
    let trust_domain = match own {
        Some(own) => own,
        None => any_trust_domain().map_err(|error| error.to_string())?,
    };
    chain(state, service, datacenter, &trust_domain).map_err(|error| error.to_string())
}

/// Compiles the chain of a service.
fn chain(
    state: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Result<Chain, ChainError> {
    let request = Request {
        service,
        datacenter,
        trust_domain,
        overrides: Overrides::default(),
    };
    compile(&request, &StoredEntries(state))
}
