//! Maintenance mode: a critical check on an instance or on the node that no check runner updates.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::acl::{Access, Resource};
use legate_model::{CheckStatus, HealthCheck};
use legate_store::{Deregistration, Registration, WriteTxn, Writer};

use super::super::call::Call;
use super::require_here;
use crate::api_error::ApiError;
use crate::own_node::OWN_SERVICE;
use crate::registration::rights::may_write_service;
use crate::registration::services::no_node;

/// Id of the node's maintenance check.
pub(super) const NODE: &str = "_node_maintenance";
/// Prefix of an instance's maintenance check; the instance's id follows.
pub(super) const SERVICE: &str = "_service_maintenance:";

const NODE_REASON: &str = "Maintenance mode is enabled for this node, but no reason was provided. \
                           This is a default message.";
const SERVICE_REASON: &str = "Maintenance mode is enabled for this service, but no reason was \
                              provided. This is a default message.";

/// The value of `?enable`.
fn enable(call: &Call) -> Result<bool, ApiError> {
    match call.params.get("enable") {
        None => Err(ApiError::bad_request("Missing value for enable")),
        Some("true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(true),
        Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(false),
        Some(other) => Err(ApiError::bad_request(format!(
            "Invalid value for enable: {other:?}"
        ))),
    }
}

fn reason(call: &Call, default: &str) -> String {
    match call.params.get("reason").unwrap_or_default() {
        "" => default.to_owned(),
        own => own.to_owned(),
    }
}

/// `PUT /v1/agent/service/maintenance/:id`
pub(crate) async fn service(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Service, Access::Write, &id)?;
    let (enable, node) = (enable(&call)?, call.config.node_name.clone());
    let notes = reason(&call, SERVICE_REASON);
    call.write(&writer, move |txn| {
        let own = id.eq_ignore_ascii_case(OWN_SERVICE);
        let Some(instance) = txn.read().instance(&node, &id).filter(|_| !own) else {
            return Err(ApiError::not_found(format!(
                "Unknown service ID {id:?}. Ensure that the service ID is passed, not the service \
                 name."
            )));
        };
        let service = &instance.service;
        may_write_service(&authorizer, &service.service)?;
        let check = HealthCheck {
            check_id: format!("{SERVICE}{}", service.id),
            name: "Service Maintenance Mode".to_owned(),
            service_id: service.id.clone(),
            notes: notes.clone(),
            ..HealthCheck::default()
        };
        set(txn, &node, check, enable)
    })
    .await?;
    Ok(call.empty())
}

/// `PUT /v1/agent/maintenance`
pub(crate) async fn node(State(writer): State<Writer>, call: Call) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let (enable, node) = (enable(&call)?, call.config.node_name.clone());
    ApiError::require(authorizer.node_write(&node), "node:write", &node)?;
    let notes = reason(&call, NODE_REASON);
    call.write(&writer, move |txn| {
        let check = HealthCheck {
            check_id: NODE.to_owned(),
            name: "Node Maintenance Mode".to_owned(),
            notes: notes.clone(),
            ..HealthCheck::default()
        };
        set(txn, &node, check, enable)
    })
    .await?;
    Ok(call.empty())
}

/// Sets or removes the check. If maintenance mode is already on, it keeps its reason.
fn set(txn: &mut WriteTxn, node: &str, check: HealthCheck, enable: bool) -> Result<(), ApiError> {
    let is_on = txn.read().check(node, &check.check_id).is_some();
    if !enable {
        txn.deregister(&Deregistration {
            node: node.to_owned(),
            service_id: None,
            check_id: Some(check.check_id),
        });
        return Ok(());
    }
    if is_on {
        return Ok(());
    }
    let own = txn.read().node(node).ok_or_else(|| no_node(node))?;
    txn.register(Registration {
        node: (*own).clone(),
        service: None,
        checks: vec![HealthCheck {
            node: node.to_owned(),
            status: CheckStatus::Critical,
            r#type: "maintenance".to_owned(),
            ..check
        }],
        skip_node_update: true,
    })?;
    Ok(())
}
