//! Registration of checks that the node's agent runs.

use http::StatusCode;
use legate_checks::Scripts;
use legate_model::acl::{Access, Authorizer, Resource};
use legate_model::{CheckType, DefinedCheck, Invalid};
use legate_store::{ReadTxn, Source, WriteTxn};

use super::rights::{may_alias, may_take_checks, may_write_service};
use crate::api_error::ApiError;
use crate::own_node::SERF_HEALTH;

/// Maximum checks run by the agent of a node.
const MAX_CHECKS: usize = 4096;

/// Rejects script checks if the settings do not permit them for this source. Consul's texts.
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

/// Registers a check of a node or of an instance on it.
pub(crate) fn register_check(
    txn: &mut WriteTxn,
    authorizer: &Authorizer,
    node: &str,
    check: CheckType,
    source: Source,
) -> Result<(), ApiError> {
    let defined = check.into_defined(node);
    if defined.check.check_id.is_empty() {
        return Err(Invalid::new("Name", "the check needs a name or an ID").into());
    }
    let owner = &defined.check.service_id;
    if !owner.is_empty() {
        ApiError::unless_some(authorizer, Resource::Service, Access::Write, owner)?;
    }
    match txn.read().instance(node, owner) {
        Some(instance) => may_write_service(authorizer, &instance.service.service)?,
        None if !owner.is_empty() => {
            return Err(ApiError::new(
                StatusCode::NOT_FOUND,
                format!("ServiceID {owner:?} does not exist"),
            ));
        }
        None if !authorizer.node_write(node) => return Err(ApiError::denied("node:write", node)),
        None => {}
    }
    let known = std::slice::from_ref(&defined.check);
    may_take_checks(authorizer, &txn.read(), node, known)?;
    put_checks(txn, authorizer, node, vec![defined], source)
}

/// Adds checks that the node's agent runs. An existing check keeps its status.
pub(super) fn put_checks(
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
        may_alias(authorizer, &txn.read(), node, &defined.definition)?;
        keep_findings(&txn.read(), node, &mut defined);
        txn.put_agent_check(node, defined, source)?;
    }
    let all = txn.read().in_every_tenancy(|txn| txn.agent_checks(node));
    if all.len() > MAX_CHECKS {
        return Err(ApiError::bad_request(format!(
            "Node {node:?} would have more than {MAX_CHECKS} checks, the maximum per agent: \
             deregister some first"
        )));
    }
    Ok(())
}

/// Carries over the status, output and exposed port of an existing check.
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
