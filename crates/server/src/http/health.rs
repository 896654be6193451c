//! `/v1/health`: instances with their nodes and checks.

use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_model::CheckServiceNode;
use legate_store::ReadTxn;

use super::call::{Call, visible};
use super::catalog::Selection;
use super::error::ApiError;

/// `GET /v1/health/service/:name`
pub(super) async fn service(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    list(&call, |state| state.service(&name)).await
}

/// `GET /v1/health/connect/:name`
pub(super) async fn connect(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    list(&call, |state| state.connect(&name)).await
}

async fn list(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<CheckServiceNode> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let selection = Selection::of(call)?;
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
    let (instances, filtered) = visible(answer.value, |instance| {
        authorizer.node_read(&instance.node.node)
            && authorizer.service_read(&instance.service.service)
    });
    call.answer(answer.index, &instances, filtered)
}
