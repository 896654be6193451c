//! Agent operations: reload, leave, join, and setting agent tokens.
//!
//! There is no gossip: servers of a datacenter find each other through their shared store, and agents are clients of
//! their APIs. So the only member of the datacenter is the server itself; servers of others are joined.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use legate_model::Secret;
use legate_wan::{ServerName, Wan};
use serde::Deserialize;

use super::super::call::Call;
use crate::acl::TokenKind;
use crate::agent::Agent;
use crate::api_error::ApiError;

/// Why there are no other datacenters.
const NO_PORT: &str = "this server has no port for servers, which needs tls.internal_rpc (or tls.defaults) with \
                       ca_file, cert_file and key_file, and ports.server";

/// Changing the agent requires `agent:write`.
fn may_write(call: &Call) -> Result<(), ApiError> {
    let node = &call.config.node_name;
    ApiError::require(call.authorizer()?.agent_write(node), "agent:write", node)
}

/// `PUT /v1/agent/reload`
pub(crate) async fn reload(
    State(agent): State<Arc<Agent>>,
    call: Call,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    let read = agent.reload().await;
    read.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(call.empty())
}

/// `PUT /v1/agent/leave`: shuts the server down, as SIGTERM does, after this response.
pub(crate) async fn leave(
    State(agent): State<Arc<Agent>>,
    call: Call,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    agent.leave();
    Ok(call.empty())
}

/// `PUT /v1/agent/join/:address`
pub(crate) async fn join(
    Path(address): Path<String>,
    State(wan): State<Option<Wan>>,
    call: Call,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    if call.params.flag("wan")? {
        let wan =
            wan.ok_or_else(|| ApiError::internal(format!("Failed to join {address}: {NO_PORT}")))?;
        let settings = call.config.wan.as_ref();
        if settings.is_some_and(|wan| wan.through_gateways.is_some()) {
            return Err(ApiError::internal(
                "WAN join is disabled when wan federation via mesh gateways is enabled: a secondary joins the primary \
                 by primary_gateways",
            ));
        }
        let joined = wan.join(&address).await;
        return match joined {
            Ok(()) => Ok(call.empty()),
            Err(error) => Err(ApiError::internal(error.to_string())),
        };
    }
    if is_own(&call, &address) || is_of_store(&call, &address)? {
        return Ok(call.empty());
    }
    Err(ApiError::internal(format!(
        "Failed to join {address}: there is no gossip; servers share a store, and agents are \
         clients of their APIs"
    )))
}

/// Whether an address or name, with or without a port, is that of a node in this server's store, such as
/// another server of the store. It is a member of the cluster already.
fn is_of_store(call: &Call, address: &str) -> Result<bool, ApiError> {
    let authorizer = call.authorizer()?;
    let state = call.reader.state();
    let txn = call.txn(&state);
    let known = txn.nodes().iter().any(|node| {
        is_at(address, &node.node, node.address.parse().ok()) && authorizer.node_read(&node.node)
    });
    Ok(known)
}

/// Whether an address, with or without a port, is this server's.
fn is_own(call: &Call, address: &str) -> bool {
    let config = &call.config;
    is_at(address, &config.node_name, Some(config.advertise))
}

/// Whether an address, with or without a port, is that of a node with this name and IP address.
fn is_at(address: &str, node: &str, at: Option<IpAddr>) -> bool {
    let without_port = match address.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() && !host.ends_with(':') => host,
        _ => address,
    };
    let bare = |host: &str| {
        host.trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>()
    };
    let ip = bare(without_port).or_else(|_| bare(address));
    match ip {
        Ok(ip) => Some(ip) == at,
        Err(_) => without_port.eq_ignore_ascii_case(node),
    }
}

/// `PUT /v1/agent/force-leave/:node`: a no-op for this server, which is the only member of its datacenter.
pub(crate) async fn force_leave(
    Path(node): Path<String>,
    State(wan): State<Option<Wan>>,
    call: Call,
) -> Result<Response, ApiError> {
    let may = call.authorizer()?.permits("operator", "write", "");
    ApiError::require(may == Ok(true), "operator:write", "")?;
    let (prune, in_wan) = (call.params.flag("prune")?, call.params.flag("wan")?);
    if let Some(wan) = wan.filter(|_| in_wan)
        && let Some((node, datacenter)) = node.to_ascii_lowercase().rsplit_once('.')
    {
        let (node, datacenter) = (node.to_owned(), datacenter.to_owned());
        if wan.force_leave(&ServerName { datacenter, node }, prune) {
            return Ok(call.empty());
        }
    }
    let own = &call.config.node_name;
    let in_all = format!("{own}.{}", call.config.datacenter);
    if [own, &in_all]
        .iter()
        .any(|known| node.eq_ignore_ascii_case(known))
    {
        return Ok(call.empty());
    }
    Err(ApiError::internal(format!(
        "agent: No node found with name '{node}'"
    )))
}

/// Body of `PUT /v1/agent/token/:kind`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NewToken {
    token: Secret,
}

/// `PUT /v1/agent/token/:kind`
pub(crate) async fn token(
    Path(name): Path<String>,
    State(agent): State<Arc<Agent>>,
    call: Call,
) -> Result<Response, ApiError> {
    call.acl_authorizer()?;
    may_write(&call)?;
    let NewToken { token } = call.decode()?;
    let Some(kind) = TokenKind::named(&name) else {
        return Err(ApiError::not_found(format!("Token {name:?} is unknown")));
    };
    agent.tokens.set(kind, token).await.map_err(|error| {
        ApiError::internal(format!(
            "The token could not be stored; the previous one stays in use: {error}"
        ))
    })?;
    tracing::info!(token = name, "Updated agent's ACL token");
    Ok(call.empty())
}
