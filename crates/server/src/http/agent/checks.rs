//! `/v1/agent/check`: registration, removal and reports of checks on the server's own node.

use axum::extract::{Path, State};
use axum::response::Response;
use legate_checks::{Reports, shortened};
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{CheckStatus, CheckType, HealthCheck};
use legate_store::{AgentCheck, Deregistration, ReadTxn, Source, Writer};
use serde::Deserialize;

use super::super::call::Call;
use super::require_here;
use crate::api_error::ApiError;
use crate::own_node::SERF_HEALTH;
use crate::registration::checks::{may_run, register_check};
use crate::registration::rights::may_take_checks;
use crate::registration::services::require_own_partition;

/// `PUT /v1/agent/check/register`
pub(crate) async fn register(
    State(writer): State<Writer>,
    mut call: Call,
) -> Result<Response, ApiError> {
    call.authorizer()?;
    let check: CheckType = call.decode()?;
    if check.name.is_empty() {
        return Err(ApiError::bad_request("Missing check name"));
    }
    let invalid = |invalid| ApiError::bad_request(format!("Invalid check: {invalid}"));
    check.validate().map_err(invalid)?;
    call.settle(&check.partition, &check.namespace)?;
    require_own_partition(&call.tenancy)?;
    let authorizer = call.authorizer()?;
    let scripts = call.config.agent.check_settings.scripts;
    may_run([&check], scripts, Source::Api)?;
    let node = call.config.node_name.clone();
    let name = check.name.clone();
    call.write(&writer, move |txn| {
        register_check(txn, &authorizer, &node, check.clone(), Source::Api)
    })
    .await?;
    tracing::debug!(check = name, "registered");
    Ok(call.empty())
}

/// `PUT /v1/agent/check/deregister/:id`
pub(crate) async fn deregister(
    Path(id): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let node = call.config.node_name.clone();
    call.write(&writer, move |txn| {
        known_check(&txn.read(), &authorizer, &node, &id)?;
        txn.deregister(&Deregistration {
            node: node.clone(),
            service_id: None,
            check_id: Some(id.clone()),
        });
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

/// `PUT /v1/agent/check/pass/:id`
pub(crate) async fn pass(
    id: Path<String>,
    handles: (State<Writer>, State<Reports>),
    call: Call,
) -> Result<Response, ApiError> {
    report_note(id, handles, call, CheckStatus::Passing).await
}

/// `PUT /v1/agent/check/warn/:id`
pub(crate) async fn warn(
    id: Path<String>,
    handles: (State<Writer>, State<Reports>),
    call: Call,
) -> Result<Response, ApiError> {
    report_note(id, handles, call, CheckStatus::Warning).await
}

/// `PUT /v1/agent/check/fail/:id`
pub(crate) async fn fail(
    id: Path<String>,
    handles: (State<Writer>, State<Reports>),
    call: Call,
) -> Result<Response, ApiError> {
    report_note(id, handles, call, CheckStatus::Critical).await
}

async fn report_note(
    Path(id): Path<String>,
    handles: (State<Writer>, State<Reports>),
    call: Call,
    status: CheckStatus,
) -> Result<Response, ApiError> {
    let note = call.params.get("note").unwrap_or_default().to_owned();
    report(id, handles, call, status, note).await
}

/// Body of `PUT /v1/agent/check/update/:id`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Update {
    status: String,
    output: String,
}

/// `PUT /v1/agent/check/update/:id`
pub(crate) async fn update(
    Path(id): Path<String>,
    handles: (State<Writer>, State<Reports>),
    call: Call,
) -> Result<Response, ApiError> {
    let update: Update = call.decode()?;
    let status = update
        .status
        .parse::<CheckStatus>()
        .map_err(|_| ApiError::bad_request(format!("Invalid check status: '{}'", update.status)))?;
    report(id, handles, call, status, update.output).await
}

/// Processes a report for a TTL check, which restarts its TTL.
async fn report(
    id: String,
    (State(writer), State(reports)): (State<Writer>, State<Reports>),
    call: Call,
    status: CheckStatus,
    output: String,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let node = call.config.node_name.clone();
    let state = call.reader.state();
    let run = reportable(&call.txn(&state), &authorizer, &node, &id)?;
    // Renew before the write, so that a concurrent expiry does not overwrite the report.
    let renewed = reports.renew(&run.tenancy, &run.check_id).await;
    if !renewed.map_err(|error| ApiError::unavailable(error.to_string()))? {
        return Err(unknown_check(&id));
    }
    let output = shortened(output, &run.definition, &call.config.agent.check_settings);
    call.write(&writer, move |txn| {
        let run = reportable(&txn.read(), &authorizer, &node, &id)?;
        txn.put_check_result(&node, &run, status, &output);
        Ok(())
    })
    .await?;
    Ok(call.empty())
}

/// A TTL check on this node that the caller may write.
fn reportable(
    state: &ReadTxn<'_>,
    authorizer: &Authorizer,
    node: &str,
    id: &str,
) -> Result<AgentCheck, ApiError> {
    let check = known_check(state, authorizer, node, id)?;
    let run = state.agent_check(node, &check.check_id);
    run.filter(|run| !run.definition.ttl.is_zero())
        .ok_or_else(|| {
            ApiError::internal(format!(
                "CheckID {id:?} does not have associated TTL: the agent runs it, so it takes no reports"
            ))
        })
}

fn unknown_check(id: &str) -> ApiError {
    ApiError::not_found(format!(
        "Unknown check ID {id:?}. Ensure that the check ID is passed, not the check name."
    ))
}

/// A check on this node that the caller may write.
fn known_check(
    state: &ReadTxn<'_>,
    authorizer: &Authorizer,
    node: &str,
    id: &str,
) -> Result<std::sync::Arc<HealthCheck>, ApiError> {
    if !authorizer.node_write(node) {
        ApiError::unless_some(authorizer, Resource::Service, Access::Write, id)?;
    }
    let check = state
        .check(node, id)
        .filter(|check| !check.check_id.eq_ignore_ascii_case(SERF_HEALTH));
    let check = check.ok_or_else(|| unknown_check(id))?;
    may_take_checks(authorizer, state, node, &[HealthCheck::clone(&check)])?;
    Ok(check)
}
