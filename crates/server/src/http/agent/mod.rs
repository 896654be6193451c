//! `/v1/agent`: what an agent on the server's own node answers. Services and checks are registered
//! here; `legate_checks` runs the checks.

pub(super) mod about;
pub(super) mod checks;
mod content_hash;
pub(super) mod control;
mod host;
pub(super) mod maintenance;
pub(super) mod monitor;
pub(super) mod services;

use std::collections::BTreeSet;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_checks::Scripts;
use legate_model::acl::Authorizer;
use legate_model::{
    CheckType, DefinedCheck, HealthCheck, Invalid, ServiceDefinition, ServiceInstance, ServiceKind,
    Tenancy,
};
use legate_store::{Deregistration, ReadTxn, Registration, Source, WriteTxn, Writer};

use super::call::Call;
use super::catalog::{may_take_checks, may_write_service};
use crate::api_error::ApiError;
use crate::own_node::{OWN_SERVICE, SERF_HEALTH};

/// How many checks the agent of one node runs at most.
const MAX_CHECKS: usize = 4096;

/// `PUT /v1/agent/service/register`
pub(super) async fn register(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let replace_checks = call.params.flag("replace-existing-checks")?;
    let definition: ServiceDefinition = call.decode()?;
    acceptable(&definition, &call.config.datacenter)?;
    call.settle(&definition.partition, &definition.namespace)?;
    require_own_partition(&call.tenancy)?;
    let authorizer = call.authorizer()?;
    let scripts = call.config.agent.check_settings.scripts;
    may_run(definition.all_checks(), scripts, Source::Api)?;
    let node = call.config.node_name.clone();
    let id = definition.service_id().to_owned();
    call.write(&writer, move |txn| {
        let definition = definition.clone();
        let source = Source::Api;
        register_definition(txn, &authorizer, &node, definition, replace_checks, source)
    })
    .await?;
    tracing::debug!(service = id, "registered");
    Ok(call.empty())
}

/// The agent is of the default partition, and so is what it runs. Consul's text.
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

/// What the agent is asked for is of one namespace of its partition.
fn require_here(call: &Call) -> Result<(), ApiError> {
    call.refuse_every()?;
    require_own_partition(&call.tenancy)
}

/// The namespace of a definition is that of its sidecar and its checks, too.
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
            let reason = "it is not that of the service: leave it out";
            return Err(Invalid::new("Namespace", reason).within(field));
        }
    }
    Ok(())
}

/// Whoever looks into the agent needs `agent:read`.
fn may_read(call: &Call) -> Result<(), ApiError> {
    let node = &call.config.node_name;
    match call.authorizer()?.agent_read(node) {
        true => Ok(()),
        false => Err(ApiError::denied("agent:read", node)),
    }
}

/// Whether checks of this source may run programs, where they do. Consul's texts.
pub(crate) fn may_run<'c>(
    checks: impl IntoIterator<Item = &'c CheckType>,
    scripts: Scripts,
    source: Source,
) -> Result<(), ApiError> {
    if scripts.permit(source) || !checks.into_iter().any(CheckType::is_script) {
        return Ok(());
    }
    let keys = match source {
        Source::Files => {
            "; to enable, configure 'enable_script_checks' or 'enable_local_script_checks' to true"
        }
        Source::Api => " from remote calls; to enable, configure 'enable_script_checks' to true",
    };
    Err(ApiError::internal(format!(
        "Scripts are disabled on this agent{keys}"
    )))
}

/// What a definition must be for this server, whatever is registered already.
pub(crate) fn acceptable(definition: &ServiceDefinition, datacenter: &str) -> Result<(), ApiError> {
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
    definition.proxy.refuse_other_datacenters(datacenter)?;
    if let Some(sidecar) = &definition.connect.sidecar_service {
        let refused = sidecar.proxy.refuse_other_datacenters(datacenter);
        refused.map_err(|invalid| invalid.within("Connect.SidecarService"))?;
    }
    Ok(())
}

/// What is wrong with a definition, with the words that Consul begins its answers with.
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

/// Registers a service, its sidecar and the checks of both on a node.
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
        may_register(authorizer, &txn.read(), node, &instance)?;
        let id = instance.id.clone();
        let shown: Vec<HealthCheck> = checks.iter().map(|one| one.check.clone()).collect();
        may_take_checks(authorizer, &txn.read(), node, &shown)?;
        if replace_checks {
            remove_stale_checks(txn, node, &id, &shown);
        }
        let registration = registration(&txn.read(), node, instance)?;
        txn.register(registration)?;
        txn.set_service_source(node, &id, source);
        put_checks(txn, authorizer, node, checks, source)?;
    }
    Ok(())
}

/// Adds checks that the agent of a node runs. One that is registered again keeps what it has found.
fn put_checks(
    txn: &mut WriteTxn,
    authorizer: &Authorizer,
    node: &str,
    list: Vec<DefinedCheck>,
    source: Source,
) -> Result<(), ApiError> {
    for mut defined in list {
        if defined.check.check_id.eq_ignore_ascii_case(SERF_HEALTH) {
            let reason = format!("{SERF_HEALTH:?} is the server's own check: choose another one");
            return Err(Invalid::new("CheckID", reason).into());
        }
        checks::may_alias(authorizer, &txn.read(), node, &defined.definition)?;
        keep_findings(&txn.read(), node, &mut defined);
        txn.put_agent_check(node, defined, source)?;
    }
    let all = txn.read().in_every_tenancy(|txn| txn.agent_checks(node));
    if all.len() > MAX_CHECKS {
        return Err(ApiError::bad_request(format!(
            "Node {node:?} would have more than {MAX_CHECKS} checks, which is the most that one \
             agent runs: deregister some"
        )));
    }
    Ok(())
}

fn refuse_any_address(definition: &ServiceDefinition) -> Result<(), ApiError> {
    let sidecar = definition.connect.sidecar_service.as_deref();
    for part in std::iter::once(definition).chain(sidecar) {
        let any = part.address.parse::<std::net::IpAddr>();
        if any.is_ok_and(|address| address.is_unspecified()) {
            return Err(ApiError::bad_request(format!(
                "Invalid service address {:?}: it stands for every address; send the one that \
                 others reach the service at, or none for the node's",
                part.address
            )));
        }
    }
    Ok(())
}

/// The tags that somebody gave the instance through the catalog, where the definition lets them stay.
fn keep_tags(definition: &mut ServiceDefinition, state: &ReadTxn<'_>, node: &str) {
    if let Some(existing) = state.instance(node, definition.service_id()) {
        definition.tags.clone_from(&existing.service.tags);
    }
}

/// A sidecar that is registered again without a port keeps the one it got.
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

fn may_register(
    authorizer: &Authorizer,
    state: &ReadTxn<'_>,
    node: &str,
    instance: &ServiceInstance,
) -> Result<(), ApiError> {
    may_write_service(authorizer, &instance.service)?;
    if instance.kind == ServiceKind::ConnectProxy {
        may_write_service(authorizer, &instance.proxy.destination_service_name)?;
    }
    match state.instance(node, &instance.id) {
        Some(existing) => may_write_service(authorizer, &existing.service.service),
        None => Ok(()),
    }
}

/// Removes the checks of an instance that its new definition does not have.
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

fn no_node(node: &str) -> ApiError {
    ApiError::internal(format!(
        "The server's own node {node:?} was deregistered: restart the server, or register the node \
         with PUT /v1/catalog/register"
    ))
}

fn registration(
    state: &ReadTxn<'_>,
    node: &str,
    service: ServiceInstance,
) -> Result<Registration, ApiError> {
    let own = state.node(node).ok_or_else(|| no_node(node))?;
    Ok(Registration {
        node: (*own).clone(),
        service: Some(service),
        checks: Vec::new(),
        skip_node_update: true,
    })
}

/// A check that goes on keeps what it has found, and its port at the sidecar.
fn keep_findings(state: &ReadTxn<'_>, node: &str, defined: &mut DefinedCheck) {
    let check = &mut defined.check;
    if let Some(known) = state.check(node, &check.check_id)
        && known.r#type == check.r#type
        && known.service_id == check.service_id
    {
        check.status = known.status;
        check.output.clone_from(&known.output);
        check.expose(known.exposed_port, &defined.definition);
    }
}

/// `PUT /v1/agent/service/deregister/:id`
pub(super) async fn deregister(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let node = call.config.node_name.clone();
    call.write(&writer, move |txn| {
        deregister_own(txn, &authorizer, &node, &id)
    })
    .await?;
    Ok(call.empty())
}

/// Removes an instance and the sidecar that was registered with it.
fn deregister_own(
    txn: &mut WriteTxn,
    authorizer: &Authorizer,
    node: &str,
    id: &str,
) -> Result<(), ApiError> {
    let own = id.eq_ignore_ascii_case(OWN_SERVICE);
    let Some(instance) = txn.read().instance(node, id).filter(|_| !own) else {
        return Err(ApiError::not_found(format!(
            "Unknown service ID {id:?}. Ensure that the service ID is passed, not the service name."
        )));
    };
    may_write_service(authorizer, &instance.service.service)?;
    txn.deregister_with_sidecar(node, id);
    Ok(())
}
