//! `/v1/status`: the leader and its peers. Always this server, because it is the only one of its store.

use std::net::SocketAddr;

use axum::response::Response;

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;

/// `GET /v1/status/leader`
pub(super) async fn leader(call: Call) -> Result<Response, ApiError> {
    call.json(&address(&call.config).to_string())
}

/// `GET /v1/status/peers`
pub(super) async fn peers(call: Call) -> Result<Response, ApiError> {
    call.json(&[address(&call.config).to_string()])
}

/// The advertised address, with the port of the first enabled API.
pub(super) fn address(config: &ServerConfig) -> SocketAddr {
    let grpc = config.grpc.or(config.grpc_tls);
    let first = grpc.or(config.http).or(config.https);
    SocketAddr::new(config.advertise, first.map_or(0, |api| api.port()))
}
