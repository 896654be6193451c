//! The discovery chains that a config entry is a part of. Each is compiled again when the entry is
//! written or removed, on the state as it would be, and the write is refused where one is left that
//! cannot be compiled.

use std::collections::BTreeSet;

use legate_discovery_chain::{Chain, ChainError, Overrides, Request, compile};
use legate_model::{ConfigEntry, ConfigKind, InvalidSpiffeId, ServiceName, Tenancy, TrustDomain};
use legate_proxycfg::StoredEntries;
use legate_store::ReadTxn;

use crate::api_error::ApiError;

/// The kinds that give a service a chain which differs from the default one.
const OF_SERVICES: [ConfigKind; 4] = [
    ConfigKind::ServiceDefaults,
    ConfigKind::ServiceRouter,
    ConfigKind::ServiceSplitter,
    ConfigKind::ServiceResolver,
];

/// What of an entry other chains than the default one may not fit any more.
#[derive(Debug, PartialEq)]
pub(super) enum Relevant {
    /// Nothing.
    Nothing,
    /// What is spoken, and the name outside of the mesh.
    Defaults(String, String),
    /// All of it.
    Everything(Box<ConfigEntry>),
}

impl Relevant {
    /// Of an entry before or after a write; `None` where there is no entry.
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

    /// Defaults that say neither are like none.
    fn defaults(protocol: String, sni: String) -> Self {
        match protocol.is_empty() && sni.is_empty() {
            true => Self::Nothing,
            false => Self::Defaults(protocol, sni),
        }
    }
}

/// The services whose chains an entry is a part of: its own, and those that lead to it.
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

/// The services of the partition of a tenancy that have entries.
fn with_entries(state: &ReadTxn<'_>, of: &Tenancy) -> Vec<ServiceName> {
    state.in_tenancy(of, |state| {
        let kinds = OF_SERVICES.into_iter();
        let entries = kinds.flat_map(|kind| state.config_entries_here(kind));
        entries.map(|entry| entry.full_name()).collect()
    })
}

/// Refuses a write after which a chain could not be compiled. `state` is the one after the write,
/// `before` what the written entry was.
pub(super) fn refuse_broken(
    state: &ReadTxn<'_>,
    before: &Relevant,
    (kind, name): (ConfigKind, &str),
    datacenter: &str,
) -> Result<(), ApiError> {
    if *before == Relevant::of(state.config_entry(kind, name).as_deref()) {
        return Ok(());
    }
    // The error that is about the entry's own chain is the one that says most.
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

/// Names of targets are made with it, and nothing is decided by it.
fn any_trust_domain() -> Result<TrustDomain, InvalidSpiffeId> {
    "mesh.consul".parse()
}

/// The chain of a service as callers in the mesh have it.
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

/// The chain of a service.
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
