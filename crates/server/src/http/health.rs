//! `/v1/health`: service instances with their nodes and checks, and checks alone.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_model::{CheckServiceNode, HealthCheck, filters};
use legate_proxycfg::gateways;
use legate_store::{Answer, ReadTxn};

use super::call::{Call, visible};
use super::catalog::{Selection, has_meta};
use super::near;
use crate::api_error::ApiError;

/// `GET /v1/health/service/:name`
pub(super) async fn service(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    list(&call, |state| state.service(&name)).await
}

/// `GET /v1/health/connect/:name`
pub(super) async fn connect(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let find = |state: &ReadTxn<'_>| gateways::connect_to(state, &name);
    leading_to(&call, &name, find).await
}

/// `GET /v1/health/ingress/:name`: the ingress gateways that expose a service.
pub(super) async fn ingress(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    let find = |state: &ReadTxn<'_>| gateways::ingress_to(state, &name);
    leading_to(&call, &name, find).await
}

/// As in Consul, proxies and gateways of a service require `service:read` on that service. With `?ns=*`, each
/// namespace is authorized separately.
async fn leading_to(
    call: &Call,
    service: &str,
    find: impl Fn(&ReadTxn<'_>) -> Vec<CheckServiceNode> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let may = call.asks_every() || authorizer.service_read(service);
    ApiError::require(may, "service:read", service)?;
    let seen = |state: &ReadTxn<'_>| match authorizer.within(state.tenancy()).service_read(service)
    {
        true => find(state),
        false => Vec::new(),
    };
    list(call, seen).await
}

/// `GET /v1/health/node/:node`
pub(super) async fn node(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    checks(&call, |state| state.checks_on(&name)).await
}

/// `GET /v1/health/checks/:service`
pub(super) async fn service_checks(
    Path(name): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let wanted = call.params.node_meta();
    let find = |state: &ReadTxn<'_>| on_nodes(state, state.checks_of_service(&name), &wanted);
    checks(&call, find).await
}

/// `GET /v1/health/state/:state`
pub(super) async fn state(Path(status): Path<String>, call: Call) -> Result<Response, ApiError> {
    let wanted = call.params.node_meta();
    let find = |state: &ReadTxn<'_>| {
        let mut found = state.checks();
        found.retain(|check| status == "any" || check.status.as_str() == status);
        on_nodes(state, found, &wanted)
    };
    checks(&call, find).await
}

/// The checks whose nodes have the requested metadata.
fn on_nodes(
    state: &ReadTxn<'_>,
    mut checks: Vec<Arc<HealthCheck>>,
    wanted: &[(&str, &str)],
) -> Vec<Arc<HealthCheck>> {
    if !wanted.is_empty() {
        checks.retain(|check| {
            let node = state.node(&check.node);
            node.is_some_and(|node| has_meta(&node, wanted))
        });
    }
    checks
}

async fn checks(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<Arc<HealthCheck>> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::CHECK)?;
    call.take_every();
    let Answer { index, value } = call
        .read(|state| {
            let mut found = call.each(state, &find);
            // Node checks appear in every namespace; keep each once.
            let mut seen = HashSet::new();
            found.retain(|check| !check.service_id.is_empty() || seen.insert(Arc::as_ptr(check)));
            found
        })
        .await?;
    let (mut checks, filtered) = visible(value, |check| {
        let authorizer = call.at(&authorizer, &check.namespace);
        let service = &check.service_name;
        authorizer.node_read(&check.node)
            && (check.service_id.is_empty() || authorizer.service_read(service))
    });
    checks.retain(|check| filter.matches(check));
    near::sort(call, &mut checks, |check| &check.node);
    call.answer(index, &checks, filtered)
}

async fn list(
    call: &Call,
    find: impl Fn(&ReadTxn<'_>) -> Vec<CheckServiceNode> + Send + Sync,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let selection = Selection::of(call)?;
    let filter = call.filter(&filters::INSTANCE)?;
    call.take_every();
    let answer = call
        .read(|state| call.each(state, |state| selection.apply(find(state), state)))
        .await?;
    let (mut instances, filtered) = visible(answer.value, |instance| {
        let authorizer = authorizer.within(&instance.service.tenancy());
        authorizer.node_read(&instance.node.node)
            && authorizer.service_read(&instance.service.service)
    });
    instances.retain(|instance| instance.matches(&filter));
    near::sort(call, &mut instances, |instance| &instance.node.node);
    if call.translates_own() {
        instances
            .iter_mut()
            .for_each(|instance| *instance = instance.for_elsewhere());
    }
    call.answer(answer.index, &instances, filtered)
}
