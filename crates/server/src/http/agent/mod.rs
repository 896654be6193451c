//! `/v1/agent`: the agent API of the server's own node. Registrations follow the rules of
//! [`crate::registration`]; `legate_checks` runs the checks.

pub(super) mod about;
pub(super) mod checks;
mod content_hash;
pub(super) mod control;
mod host;
pub(super) mod maintenance;
pub(super) mod monitor;
pub(super) mod services;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::ServiceDefinition;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_store::{Source, WriteTxn, Writer};

use super::call::Call;
use crate::api_error::ApiError;
use crate::own_node::OWN_SERVICE;
use crate::registration::checks::may_run;
use crate::registration::rights::may_write_service;
use crate::registration::services::{acceptable, register_definition, require_own_partition};

/// `PUT /v1/agent/service/register`
pub(super) async fn register(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let replace_checks = call.params.flag("replace-existing-checks")?;
    let definition: ServiceDefinition = call.decode()?;
    acceptable(&definition)?;
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

/// Requires one namespace of the agent's own partition.
fn require_here(call: &Call) -> Result<(), ApiError> {
    call.refuse_every()?;
    require_own_partition(&call.tenancy)
}

/// Reading the agent requires `agent:read`.
fn may_read(call: &Call) -> Result<(), ApiError> {
    let node = &call.config.node_name;
    ApiError::require(call.authorizer()?.agent_read(node), "agent:read", node)
}

/// `PUT /v1/agent/service/deregister/:id`
pub(super) async fn deregister(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Service, Access::Write, &id)?;
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
