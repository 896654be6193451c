//! Who may register and deregister what.

use legate_model::acl::Authorizer;
use legate_model::{CheckType, HealthCheck, ServiceKind};
use legate_store::{Deregistration, ReadTxn, Registration};

use crate::api_error::ApiError;

/// Whether a node, and what is sent along with it, may be registered.
pub(crate) fn may_register(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    registration: &Registration,
) -> Result<(), ApiError> {
    let node = &registration.node.node;
    // Who registers a service sends its node along, and needs no right for what stays as it is.
    let checks_node = registration.checks.iter().any(|c| c.service_id.is_empty());
    if (checks_node || changes_node(state, registration)) && !authorizer.node_write(node) {
        return Err(ApiError::denied("node:write", node));
    }
    // A node that gets another name takes the old one along.
    let renamed = Some(&registration.node.id).filter(|id| !id.is_empty());
    let renamed = renamed.and_then(|id| state.node_by_id(id));
    if let Some(old) = renamed.filter(|old| !authorizer.node_write(&old.node))
        && !old.node.eq_ignore_ascii_case(node)
    {
        return Err(ApiError::denied("node:write", &old.node));
    }
    may_take_checks(authorizer, state, node, &registration.checks)?;
    let existing = |id: &str| state.instance(node, id).map(|i| i.service.service.clone());
    let mut services = Vec::new();
    if let Some(service) = &registration.service {
        services.push(service.service.clone());
        // What stands under this id is replaced, so it counts too.
        services.extend(existing(&service.id));
        // Callers of the destination are sent to its proxies.
        let destination = &service.proxy.destination_service_name;
        if service.kind == ServiceKind::ConnectProxy {
            services.push(destination.clone());
        }
    }
    for check in &registration.checks {
        services.extend(existing(&check.service_id));
    }
    for service in services {
        may_write_service(authorizer, &service)?;
    }
    Ok(())
}

/// Whether a registration makes or changes its node. Consul's `RegisterRequest.ChangesNode`.
fn changes_node(state: &ReadTxn<'_>, registration: &Registration) -> bool {
    let new = &registration.node;
    let Some(old) = state.node(&new.node) else {
        return true;
    };
    let same = new.id == old.id
        && new.address == old.address
        && new.datacenter.eq_ignore_ascii_case(&old.datacenter)
        && new.tagged_addresses == old.tagged_addresses
        && new.meta == old.meta
        && new.locality == old.locality;
    !registration.skip_node_update && !same
}

/// Whoever changes an instance needs `service:write` on the name of its service.
pub(crate) fn may_write_service(authorizer: &Authorizer, name: &str) -> Result<(), ApiError> {
    if authorizer.service_write(name) {
        Ok(())
    } else {
        Err(ApiError::denied("service:write", name))
    }
}

/// A check has one owner: who registers one of the same id takes it, and with it the other
/// service's health.
pub(crate) fn may_take_checks(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    node: &str,
    checks: &[HealthCheck],
) -> Result<(), ApiError> {
    let known = checks
        .iter()
        .filter_map(|check| state.check(node, &check.check_id));
    for check in known {
        if !check.service_id.is_empty() {
            may_write_service(authorizer, &check.service_name)?;
        } else if !authorizer.node_write(node) {
            return Err(ApiError::denied("node:write", node));
        }
    }
    Ok(())
}

/// Who may write a node may remove what is on it; who may write a service, its instances.
pub(crate) fn may_deregister(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    what: &Deregistration,
) -> Result<(), ApiError> {
    if authorizer.node_write(&what.node) {
        return Ok(());
    }
    let owner = |check: &String| Some(state.check(&what.node, check)?.service_id.clone());
    let id = match (&what.service_id, &what.check_id) {
        (Some(id), _) => Some(id.clone()),
        (None, check) => check.as_ref().and_then(owner),
    };
    let instance = id.and_then(|id| state.instance(&what.node, &id));
    match instance {
        Some(instance) => may_write_service(authorizer, &instance.service.service),
        None => Err(ApiError::denied("node:write", &what.node)),
    }
}

/// An alias shows the health of another one: who registers one for another node has to be allowed to
/// read that. As in Consul, those of the own node need no right.
pub(crate) fn may_alias(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    node: &str,
    check: &CheckType,
) -> Result<(), ApiError> {
    let (other, id) = (check.alias_node.as_str(), check.alias_service.as_str());
    if other.is_empty() || other.eq_ignore_ascii_case(node) {
        return Ok(());
    }
    if !authorizer.node_read(other) {
        return Err(ApiError::denied("node:read", other));
    }
    let instance = state.instance(other, id);
    let service = instance.map_or_else(|| id.to_owned(), |one| one.service.service.clone());
    if !id.is_empty() && !authorizer.service_read(&service) {
        return Err(ApiError::denied("service:read", &service));
    }
    Ok(())
}
