//! Rules for gateway entries: the protocols of an `ingress-gateway` must match its services, two kinds of
//! gateways must not have the same name, and certificates must match their keys. Consul's rules and texts.

use std::collections::{BTreeMap, BTreeSet};

use legate_discovery_chain::NodeKind;
use legate_model::{
    ConfigEntry, ConfigKind, IngressGateway, Invalid, Protocol, SamenessGroup, ServiceName,
    Tenancy, WILDCARD,
};
use legate_store::ReadTxn;

use super::graph::{self, Relevant};
use crate::api_error::ApiError;

/// Rejects a certificate that does not match its private key.
pub(super) fn refuse_bad_pair(entry: &ConfigEntry) -> Result<(), Invalid> {
    let ConfigEntry::InlineCertificate(entry) = entry else {
        return Ok(());
    };
    legate_identity::check_pair(&entry.certificate, entry.private_key.expose()).map_err(|error| {
        let field = match error {
            legate_identity::BadPair::Certificate(_) => "Certificate",
            _ => "PrivateKey",
        };
        Invalid::new(field, error.to_string())
    })
}

/// Rejects an entry that conflicts with others by name. `state` includes the write.
pub(super) fn refuse_clash(state: &ReadTxn<'_>, entry: &ConfigEntry) -> Result<(), ApiError> {
    let other = match entry {
        ConfigEntry::IngressGateway(_) => ConfigKind::TerminatingGateway,
        ConfigEntry::TerminatingGateway(_) => ConfigKind::IngressGateway,
        ConfigEntry::SamenessGroup(group) => return refuse_shared(state, group),
        _ => return Ok(()),
    };
    let (kind, name) = (entry.kind(), entry.name());
    match state.config_entry(other, name) {
        None => Ok(()),
        Some(_) => Err(ApiError::bad_request(format!(
            "cannot create a \"{kind}\" config entry with name {name:?}, a \"{other}\" config entry \
             with that name already exists"
        ))),
    }
}

/// A partition or cluster peer may be in one sameness group only, and one group may be the default.
fn refuse_shared(state: &ReadTxn<'_>, group: &SamenessGroup) -> Result<(), ApiError> {
    for other in state.config_entries(ConfigKind::SamenessGroup) {
        let ConfigEntry::SamenessGroup(other) = &*other else {
            continue;
        };
        if other.name == group.name {
            continue;
        }
        if group.default_for_failover && other.default_for_failover {
            return Err(ApiError::bad_request(format!(
                "the group {:?} is the default for failover already, {:?} cannot be, too: change that one first",
                other.name, group.name
            )));
        }
        let shared = group.members.iter().find(|one| other.members.contains(one));
        if let Some(member) = shared {
            let what = match member.peer.is_empty() {
                true => format!("partition {:?}", member.partition),
                false => format!("cluster peer {:?}", member.peer),
            };
            return Err(ApiError::bad_request(format!(
                "members can only belong to a single sameness group, but {what} is shared between \
                 groups {:?} and {:?}",
                other.name, group.name
            )));
        }
    }
    Ok(())
}

/// Rejects a write after which a gateway's listener and its services would have different protocols. `state`
/// includes the write; `before` is the previous version of the entry. Only services affected by the write are
/// checked, so that leftovers of a deleted namespace do not block other writes.
pub(super) fn refuse_mismatch(
    state: &ReadTxn<'_>,
    before: &Relevant,
    (kind, name): (ConfigKind, &str),
    datacenter: &str,
) -> Result<(), ApiError> {
    let own = ServiceName::new(state.tenancy(), name);
    let (entries, written) = match kind {
        ConfigKind::IngressGateway => {
            let entry = state.config_entry(kind, name);
            (entry.into_iter().collect(), true)
        }
        ConfigKind::ServiceDefaults
        | ConfigKind::ProxyDefaults
        | ConfigKind::ServiceRouter
        | ConfigKind::ServiceSplitter
        | ConfigKind::ServiceResolver => {
            let all = state.config_entries_of_all(ConfigKind::IngressGateway);
            (all, false)
        }
        _ => return Ok(()),
    };
    let changed = match written {
        true => BTreeSet::new(),
        false if *before == Relevant::of(state.config_entry(kind, name).as_deref()) => {
            return Ok(());
        }
        false => graph::services(state, kind, &own),
    };
    let changed: BTreeSet<_> = changed.iter().map(folded).collect();
    let is_default = kind == ConfigKind::ProxyDefaults;
    let may_differ = |service: &ServiceName| {
        let takes_default = is_default && service.tenancy.partition == own.tenancy.partition;
        written || takes_default || changed.contains(&folded(service))
    };
    let mut chains = BTreeMap::new();
    for entry in &entries {
        let ConfigEntry::IngressGateway(entry) = &**entry else {
            continue;
        };
        for (service, wanted) in services(entry).filter(|(service, _)| may_differ(service)) {
            if !chains.contains_key(&service) {
                let spoken = chain_protocol(state, &service, datacenter)?;
                chains.insert(service.clone(), spoken);
            }
            let Some((protocol, routed)) = chains.get(&service) else {
                continue;
            };
            // A TCP listener may forward to an HTTP service, unless requests would have to be routed.
            let carried = !written && wanted == Protocol::Tcp && !routed;
            if *protocol != wanted && !carried {
                return Err(ApiError::bad_request(format!(
                    "service {:?} has protocol \"{protocol}\", which does not match defined \
                     listener protocol \"{wanted}\"",
                    service.name
                )));
            }
        }
    }
    Ok(())
}

/// A service name in lower case, as the store compares names.
fn folded(service: &ServiceName) -> ServiceName {
    ServiceName::new(&service.tenancy, &service.name.to_lowercase())
}

/// The services that a gateway names, with the protocols of their listeners.
fn services(entry: &IngressGateway) -> impl Iterator<Item = (ServiceName, Protocol)> {
    let own = Tenancy::new(&entry.partition, &entry.namespace);
    entry.listeners.iter().flat_map(move |listener| {
        let protocol = listener.protocol().unwrap_or_default();
        let named = listener.services.iter();
        let named = named.filter(|one| one.name != WILDCARD && !one.namespace.is_every());
        let own = own.clone();
        named.map(move |one| {
            let tenancy = own.resolve(&one.partition, &one.namespace);
            (ServiceName::new(&tenancy, &one.name), protocol)
        })
    })
}

/// The protocol of a service, and whether its requests are routed or split.
fn chain_protocol(
    state: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
) -> Result<(Protocol, bool), ApiError> {
    let chain = graph::chain_in_mesh(state, service, datacenter).map_err(ApiError::bad_request)?;
    let start = chain.start().map(|start| &start.kind);
    let routed = !matches!(start, Some(NodeKind::Resolver(_)));
    Ok((chain.protocol, routed))
}
