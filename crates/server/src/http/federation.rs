//! `/v1/internal/federation-states`: the mesh gateways of all datacenters, as in Consul. They are read only.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::response::Response;
use legate_model::CheckServiceNode;
use serde_json::json;

use super::call::{Call, visible};
use crate::api_error::ApiError;

/// `GET /v1/internal/federation-states`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    ApiError::require(call.authorizer()?.operator_read(), "operator:read", "")?;
    let answer = call.read(|txn| txn.federation_states()).await?;
    call.answer(answer.index, &answer.value, false)
}

/// `GET /v1/internal/federation-state/:datacenter`
pub(super) async fn one(Path(datacenter): Path<String>, call: Call) -> Result<Response, ApiError> {
    ApiError::require(call.authorizer()?.operator_read(), "operator:read", "")?;
    let answer = call.read(|txn| txn.federation_state(&datacenter)).await?;
    match answer.value {
        Some(state) => call.answer(answer.index, &json!({ "State": state }), false),
        None => call.absent(answer.index, ""),
    }
}

/// `GET /v1/internal/federation-states/mesh-gateways`: those that the caller may see, by datacenter.
pub(super) async fn mesh_gateways(call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    let may_see = |gateway: &CheckServiceNode| {
        let authorizer = authorizer.within(&gateway.service.tenancy());
        authorizer.node_read(&gateway.node.node)
            && authorizer.service_read(&gateway.service.service)
    };
    let answer = call.read(|txn| txn.federation_states()).await?;
    let mut some_filtered = false;
    let mut all = BTreeMap::new();
    for state in answer.value {
        let (gateways, filtered) = visible(state.mesh_gateways.clone(), may_see);
        some_filtered |= filtered;
        if !gateways.is_empty() {
            all.insert(state.datacenter.clone(), gateways);
        }
    }
    call.answer(answer.index, &all, some_filtered)
}
