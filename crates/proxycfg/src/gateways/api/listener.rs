//! Listeners of an `api-gateway`: the entries that they refer to, and the host names that they
//! share with a route.

use std::sync::Arc;

use legate_model::{
    ApiGatewayListener, ApiGatewayPolicy, ConfigEntry, ConfigKind, HttpRoute, ResourceReference,
    ServiceName, WILDCARD,
};
use legate_routes::covers;
use legate_store::ReadTxn;

use super::{certificates, route};

/// What a listener refers to and does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unresolved {
    Certificate(String),
    JwtProvider(String),
}

/// What a listener refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct References {
    /// The certificates that exist.
    pub(super) certificates: Vec<ResourceReference>,
    /// What does not exist. Of several, as in Consul, the last certificate, and providers before
    /// certificates.
    pub(super) unresolved: Option<Unresolved>,
}

/// What the listener of a gateway at this place of its entry refers to. Shared, because certificates
/// are many and do not change with the routes.
pub(super) fn references(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    place: usize,
) -> Arc<References> {
    let argument = format!("{place}/{}", gateway.name);
    txn.shared("references of a listener", &argument, |txn| {
        let entry = txn.config_entry(ConfigKind::ApiGateway, &gateway.name);
        let listener = match entry.as_deref() {
            Some(ConfigEntry::ApiGateway(entry)) => entry.listeners.get(place),
            _ => None,
        };
        let listener = listener.map(|one| references_of(txn, gateway, one));
        listener.unwrap_or_default()
    })
}

fn references_of(
    txn: &ReadTxn<'_>,
    gateway: &ServiceName,
    listener: &ApiGatewayListener,
) -> References {
    let mut references = References::default();
    for reference in &listener.tls.certificates {
        match certificates::presented(txn, gateway, reference).is_some() {
            true => references.certificates.push(reference.clone()),
            false => {
                let name = reference.name.clone();
                references.unresolved = Some(Unresolved::Certificate(name));
            }
        }
    }
    let policies = [&listener.overrides, &listener.defaults];
    let tokens = policies.into_iter().filter_map(|one| token(one.as_ref()));
    let missing = tokens
        .into_iter()
        .find_map(|token| route::missing_provider(txn, token));
    if let Some(provider) = missing {
        references.unresolved = Some(Unresolved::JwtProvider(provider));
    }
    references
}

/// The token that a policy requires.
pub(super) fn token(policy: Option<&ApiGatewayPolicy>) -> Option<&legate_model::JwtRequirement> {
    policy.and_then(|policy| policy.jwt.as_ref())
}

/// The host names that a listener serves for a route, in lower case: those of the route that the
/// listener covers, or the listener's own if the route has none.
pub(super) fn hosts(listener: &ApiGatewayListener, route: &HttpRoute) -> Vec<String> {
    let own = match listener.hostname.to_lowercase() {
        any if any.is_empty() => WILDCARD.to_owned(),
        own => own,
    };
    if route.hostnames.is_empty() {
        return vec![own];
    }
    // As in Consul, a wildcard also covers the name that it is below.
    let is_served =
        |host: &String| covers(&own, host) || own.strip_prefix("*.") == Some(host.as_str());
    let mut hosts = Vec::new();
    for host in route.hostnames.iter().map(|host| host.to_lowercase()) {
        if is_served(&host) && !hosts.contains(&host) {
            hosts.push(host);
        }
    }
    hosts
}
