//! `/v1/health`: instances with their nodes and checks, and the checks of a node.

use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_model::{CheckServiceNode, filters};
use legate_store::ReadTxn;

use super::call::{Call, visible};
use super::catalog::{Selection, seen_proxies};
use super::error::ApiError;

/// `GET /v1/health/service/:name`
pub(super) async fn service(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    list(&call, |state| state.service(&name)).await
}

/// `GET /v1/health/connect/:name`
pub(super) async fn connect(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    list(&call, |state| seen_proxies(state, &authorizer, &name)).await
}

/// `GET /v1/health/node/:node`
pub(super) async fn node(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::CHECK)?;
    let answer = call.read(|state| state.checks_on(&name)).await?;
    let (mut checks, filtered) = visible(answer.value, |check| {
        let service = &check.service_name;
        authorizer.node_read(&check.node)
            && (check.service_id.is_empty() || authorizer.service_read(service))
    });
    checks.retain(|check| filter.matches(check));
    call.answer(answer.index, &checks, filtered)
}

async fn list(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<CheckServiceNode> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let selection = Selection::of(call)?;
    let filter = call.filter(&filters::INSTANCE)?;
    let merge = call.params.flag("merge-central-config")?;
    let answer = call
        .read(|state| {
            let mut found = selection.apply(find(state));
            if merge {
                for instance in &mut found {
                    let merged = legate_proxycfg::merge_central_config(&instance.service, state);
                    instance.service = Arc::new(merged);
                }
            }
            found
        })
        .await?;
    let (mut instances, filtered) = visible(answer.value, |instance| {
        authorizer.node_read(&instance.node.node)
            && authorizer.service_read(&instance.service.service)
    });
    instances.retain(|instance| instance.matches(&filter));
    call.answer(answer.index, &instances, filtered)
}
