//! Registration of services with the node's agent, including sidecars and checks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use legate_model::acl::Authorizer;
use legate_model::{HealthCheck, Invalid, ServiceDefinition, ServiceInstance, Tenancy};
use legate_store::{Deregistration, ReadTxn, Registration, Source, WriteTxn};

use super::checks::put_checks;
use super::rights::may_register;
use crate::api_error::ApiError;
use crate::own_node::OWN_SERVICE;

/// The agent and its registrations are in the default partition. Consul's text.
pub(crate) fn require_own_partition(tenancy: &Tenancy) -> Result<(), ApiError> {
    match tenancy.is_default_partition() {
        true => Ok(()),
        false => Err(ApiError::bad_request(format!(
            "request targets partition {:?} which does not match agent partition \"default\": \
             register it with PUT /v1/catalog/register",
            tenancy.partition
        ))),
    }
}

/// Validates a definition on its own.
pub(crate) fn acceptable(definition: &ServiceDefinition) -> Result<(), ApiError> {
    if definition.name.is_empty() {
        return Err(ApiError::bad_request("Missing service name"));
    }
    definition.validate().map_err(refused)?;
    refuse_any_address(definition)?;
    refuse_other_tenancies(definition)?;
    if definition.service_id().eq_ignore_ascii_case(OWN_SERVICE) {
        let reason = "it is the server's own service: choose another one";
        return Err(Invalid::new("ID", format!("{OWN_SERVICE:?}: {reason}")).into());
    }
    Ok(())
}

/// Prefixes a validation error with Consul's text.
fn refused(invalid: Invalid) -> ApiError {
    let path = invalid.path();
    let (sidecar, path) = match path.strip_prefix("Connect.SidecarService") {
        Some(rest) => (true, rest.trim_start_matches('.')),
        None => (false, path),
    };
    let what = match (sidecar, path) {
        (true, path) if path.starts_with("Check") => "Invalid check in sidecar_service",
        (true, _) => "Invalid SidecarService",
        (false, path) if path.starts_with("Check") => "Invalid check",
        (false, path) if path.starts_with("Weights") => "Invalid Weights",
        (false, path) if path.starts_with("Meta") => "Invalid Service Meta",
        (false, _) => "Validation failed",
    };
    ApiError::bad_request(format!("{what}: {invalid}"))
}

/// The sidecar and the checks must be in the service's namespace.
fn refuse_other_tenancies(definition: &ServiceDefinition) -> Result<(), Invalid> {
    let own = Tenancy::new(&definition.partition, &definition.namespace);
    let sidecar = definition.connect.sidecar_service.as_deref();
    let checks = definition.all_checks().map(|check| {
        let named = (&check.partition, &check.namespace);
        ("Checks", named)
    });
    let sidecar = sidecar.map(|one| ("Connect.SidecarService", (&one.partition, &one.namespace)));
    for (field, (partition, namespace)) in sidecar.into_iter().chain(checks) {
        if own.resolve(partition, namespace) != own {
            let reason = "it differs from that of the service: leave it out";
            return Err(Invalid::new("Namespace", reason).within(field));
        }
    }
    Ok(())
}

fn refuse_any_address(definition: &ServiceDefinition) -> Result<(), ApiError> {
    let sidecar = definition.connect.sidecar_service.as_deref();
    for part in std::iter::once(definition).chain(sidecar) {
        let any = part.address.parse::<IpAddr>();
        if any.is_ok_and(|address| address.is_unspecified()) {
            return Err(ApiError::bad_request(format!(
                "Invalid service address {:?}: it means all addresses; set the one at which \
                 others reach the service, or none for the node's",
                part.address
            )));
        }
    }
    Ok(())
}

/// Registers a service with its sidecar and the checks of both.
pub(crate) fn register_definition(
    txn: &mut WriteTxn,
    authorizer: &Authorizer,
    node: &str,
    mut definition: ServiceDefinition,
    replace_checks: bool,
    source: Source,
) -> Result<(), ApiError> {
    keep_sidecar_port(&mut definition, &txn.read(), node);
    if source == Source::Files && definition.enable_tag_override {
        keep_tags(&mut definition, &txn.read(), node);
    }
    let own = txn.read();
    let namespaces = own.tenancies_here();
    let on_node = |namespace| own.in_tenancy(namespace, |txn| txn.instances_on(node));
    let instances: Vec<_> = namespaces.iter().flat_map(on_node).collect();
    drop(own);
    let taken: BTreeSet<u16> = instances.iter().map(|i| i.port).collect();
    let parts = definition.into_parts(node, &taken)?;
    for (instance, checks) in [Some(parts.service), parts.sidecar].into_iter().flatten() {
        let id = instance.id.clone();
        let shown: Vec<HealthCheck> = checks.iter().map(|one| one.check.clone()).collect();
        let registration = registration(&txn.read(), node, instance, shown)?;
        may_register(authorizer, &txn.read(), &registration)?;
        if replace_checks {
            remove_stale_checks(txn, node, &id, &registration.checks);
        }
        // The checks are written below, with their definitions.
        txn.register(Registration {
            checks: Vec::new(),
            ..registration
        })?;
        txn.set_service_source(node, &id, source);
        put_checks(txn, authorizer, node, checks, source)?;
    }
    Ok(())
}

/// Keeps the existing tags, which may have been changed through the catalog. For definitions with
/// `EnableTagOverride`.
fn keep_tags(definition: &mut ServiceDefinition, state: &ReadTxn<'_>, node: &str) {
    if let Some(existing) = state.instance(node, definition.service_id()) {
        definition.tags.clone_from(&existing.service.tags);
    }
}

/// Without a port in the definition, an existing sidecar keeps the port that was assigned to it.
fn keep_sidecar_port(definition: &mut ServiceDefinition, state: &ReadTxn<'_>, node: &str) {
    let id = legate_model::sidecar_id(definition.service_id());
    let Some(sidecar) = definition.connect.sidecar_service.as_deref_mut() else {
        return;
    };
    if sidecar.port == 0
        && sidecar.socket_path.is_empty()
        && let Some(existing) = state.instance(node, &id)
    {
        sidecar.port = existing.service.port;
    }
}

/// Removes an instance's checks that are not in its new definition.
fn remove_stale_checks(txn: &mut WriteTxn, node: &str, id: &str, kept: &[HealthCheck]) {
    let existing = txn.read().instance(node, id).map(|i| i.checks);
    let of_instance = existing.into_iter().flatten();
    let stale = of_instance.filter(|old| {
        let same = |new: &HealthCheck| new.check_id.eq_ignore_ascii_case(&old.check_id);
        !old.service_id.is_empty() && !kept.iter().any(same)
    });
    for check in stale {
        txn.deregister(&Deregistration {
            node: node.to_owned(),
            service_id: None,
            check_id: Some(check.check_id.clone()),
        });
    }
}

/// The error if the agent's node is not in the catalog.
pub(crate) fn no_node(node: &str) -> ApiError {
    ApiError::internal(format!(
        "The server's own node {node:?} was deregistered: restart the server, or register the node \
         with PUT /v1/catalog/register"
    ))
}

fn registration(
    state: &ReadTxn<'_>,
    node: &str,
    service: ServiceInstance,
    checks: Vec<HealthCheck>,
) -> Result<Registration, ApiError> {
    let own = state.node(node).ok_or_else(|| no_node(node))?;
    Ok(Registration {
        node: (*own).clone(),
        service: Some(service),
        checks,
        skip_node_update: true,
    })
}
