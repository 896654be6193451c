//! Permissions for registrations and deregistrations.

use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{CheckType, HealthCheck, ServiceKind};
use legate_store::{Deregistration, ReadTxn, Registration};

use crate::api_error::ApiError;

/// Checks the permissions for a registration.
pub(crate) fn may_register(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    registration: &Registration,
) -> Result<(), ApiError> {
    let node = &registration.node.node;
    if !authorizer.some(Resource::Service, Access::Read) && !authorizer.node_write(node) {
        // Without any permission, the response depends on the request alone.
        return Err(match &registration.service {
            Some(service) => ApiError::denied("service:write", &service.service),
            None => ApiError::denied("node:write", node),
        });
    }
    // A service's registration contains its node; an unchanged node requires no permission.
    let checks_node = registration.checks.iter().any(|c| c.service_id.is_empty());
    if (checks_node || changes_node(state, registration)) && !authorizer.node_write(node) {
        return Err(ApiError::denied("node:write", node));
    }
    // Renaming a node removes its old name.
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
        // An instance with this id is replaced, so its service counts too.
        services.extend(existing(&service.id));
        // A proxy receives the traffic of its destination.
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

/// Whether a registration creates or changes its node. Consul's `RegisterRequest.ChangesNode`.
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

/// Changing an instance requires `service:write` on its service.
pub(crate) fn may_write_service(authorizer: &Authorizer, name: &str) -> Result<(), ApiError> {
    ApiError::require(authorizer.service_write(name), "service:write", name)
}

/// Checks are replaced by id, so a registration also needs permission on the previous owner of each check: it
/// changes that service's health.
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
        } else {
            ApiError::require(authorizer.node_write(node), "node:write", node)?;
        }
    }
    Ok(())
}

/// Requires `node:write` on the node or, for an instance and its checks, `service:write` on the service.
pub(crate) fn may_deregister(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    what: &Deregistration,
) -> Result<(), ApiError> {
    if authorizer.node_write(&what.node) {
        return Ok(());
    }
    if !authorizer.some(Resource::Service, Access::Read) {
        return Err(ApiError::denied("node:write", &what.node));
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

/// An alias check reveals another service's health, so an alias to another node requires read permission on it.
/// As in Consul, aliases on the same node require none.
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
    ApiError::require(authorizer.node_read(other), "node:read", other)?;
    let instance = state.instance(other, id);
    let service = instance.map_or_else(|| id.to_owned(), |one| one.service.service.clone());
    if !id.is_empty() && !authorizer.service_read(&service) {
        return Err(ApiError::denied("service:read", &service));
    }
    Ok(())
}
