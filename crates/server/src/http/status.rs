//! `/v1/status`: the leader and its peers. Always this server, because it is the only one of its store.

use std::net::SocketAddr;

use axum::extract::State;
use axum::response::Response;
use legate_store::Mirror;
use legate_wan::Wan;
use serde_json::json;
use tokio::time::Instant;

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::problems::Problems;
use crate::{replication, wan};

/// `GET /v1/status/leader`
pub(super) async fn leader(call: Call) -> Result<Response, ApiError> {
    call.json(&address(&call.config).to_string())
}

/// `GET /v1/status/peers`
pub(super) async fn peers(call: Call) -> Result<Response, ApiError> {
    call.json(&[address(&call.config).to_string()])
}

/// `GET /v1/internal/legate/status`: what does not work at present and is retried, the other datacenters, and how the
/// primary is followed.
pub(super) async fn own(
    State(problems): State<Problems>,
    State(wan): State<Option<Wan>>,
    State(replication): State<Option<replication::Status>>,
    State(mirror): State<Option<Mirror>>,
    call: Call,
) -> Result<Response, ApiError> {
    let node = &call.config.node_name;
    if !call.authorizer()?.agent_read(node) {
        return Err(ApiError::denied("agent:read", node));
    }
    let both = wan.zip(mirror.as_ref());
    let datacenters = both.map_or_else(Vec::new, |(wan, mirror)| wan::datacenters(&wan, mirror));
    let mut status = json!({ "Problems": problems.all(), "Datacenters": datacenters });
    if let Some(replication) = replication {
        status["Replication"] = json!(replication.progress());
    }
    if let Some(refused) = mirror.and_then(|mirror| mirror.last_refused(Instant::now())) {
        status["RefusedRange"] = json!({
            "Range": refused.range.to_string(),
            "Reason": refused.reason,
            "Age": refused.age.as_secs_f64(),
        });
    }
    call.json(&status)
}

/// The advertised address, with the port of the first enabled API.
pub(super) fn address(config: &ServerConfig) -> SocketAddr {
    let grpc = config.grpc.or(config.grpc_tls);
    let first = grpc.or(config.http).or(config.https);
    SocketAddr::new(config.advertise, first.map_or(0, |api| api.port()))
}
