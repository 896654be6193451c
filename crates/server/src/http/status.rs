//! `/v1/status`: the leader and its peers. Always this server, because it is the only one of its store.

use std::net::SocketAddr;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::problems::Problems;

/// `GET /v1/status/leader`
pub(super) async fn leader(call: Call) -> Result<Response, ApiError> {
    call.json(&address(&call.config).to_string())
}

/// `GET /v1/status/peers`
pub(super) async fn peers(call: Call) -> Result<Response, ApiError> {
    call.json(&[address(&call.config).to_string()])
}

/// The advertised address, with the port of the first enabled API.
/// `GET /v1/internal/legate/status`: what does not work at present and is retried.
pub(super) async fn own(
    State(problems): State<Problems>,
    call: Call,
) -> Result<Response, ApiError> {
    let node = &call.config.node_name;
    if !call.authorizer()?.agent_read(node) {
        return Err(ApiError::denied("agent:read", node));
    }
    call.json(&json!({ "Problems": problems.all() }))
}

pub(super) fn address(config: &ServerConfig) -> SocketAddr {
    let grpc = config.grpc.or(config.grpc_tls);
    let first = grpc.or(config.http).or(config.https);
    SocketAddr::new(config.advertise, first.map_or(0, |api| api.port()))
}
