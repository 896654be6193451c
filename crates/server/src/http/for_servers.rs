//! What only servers of other datacenters may ask.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use serde_json::json;

use super::call::Call;
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::dns::{Client, Responder, Transport};
use crate::prepared::{self, Caller, Sought};
use crate::wan::RemoteQuery;

/// `POST /v1/internal/legate/servers/dns`: answers the DNS question of a client in another datacenter.
pub(super) async fn dns(
    State(responder): State<Responder>,
    call: Call,
) -> Result<Response, ApiError> {
    let client = Client {
        token: call.token.clone(),
        tenancy: call.tenancy.clone(),
        // Networks differ, so the address says nothing here.
        source: None,
        transport: match call.params.get("transport") {
            Some("tcp") => Transport::Tcp,
            _ => Transport::Udp,
        },
    };
    let answer = responder.query(client, call.body()).await;
    let answer = answer.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let answer = answer.ok_or_else(|| ApiError::bad_request("It is not a question"))?;
    let mut response = Response::new(Body::from(answer));
    let kind = HeaderValue::from_static("application/dns-message");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// `POST /v1/internal/legate/servers/query`: the instances that a prepared query of another datacenter selects in this
/// one.
pub(super) async fn query(
    State(config): State<Arc<ServerConfig>>,
    call: Call,
) -> Result<Response, ApiError> {
    let RemoteQuery {
        service,
        connect,
        near,
    } = call.decode()?;
    let caller = Caller {
        authorizer: &call.authorizer()?,
        node: &config.node_name,
        source: None,
    };
    let sought = Sought {
        wanted: &service,
        connect,
        near: &near,
    };
    let selected = prepared::select(&call.reader.state().read(), &caller, sought);
    call.json(&json!({ "nodes": selected.nodes, "filtered": selected.filtered }))
}
