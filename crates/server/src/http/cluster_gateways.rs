//! `/v1/internal/legate/gateway`: what gateways of Kubernetes clusters serve, written by the operator of the
//! cluster. Not part of Consul's API. Field names are exact: the only clients are of the same project.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use http::HeaderMap;
use legate_identity::{BadPair, check_pair};
use legate_model::{Invalid, name};
use legate_routes::{
    Datagrams, Endpoint, Frontend, Listener, MAX_ENDPOINTS, MAX_PEM, ServicePort, Tls,
};
use legate_store::{
    GatewayContent, GatewayProblem, GatewaySecret, GatewayStatus, MAX_LISTENERS, ReadTxn, WriteTxn,
    Writer,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::call::{Call, Head};
use super::kv::bounded_body;
use crate::api_error::ApiError;

/// The largest body, which fits in a transaction of etcd with its default settings.
const LIMIT: usize = 1024 * 1024;

/// The most objects of a gateway with generations: itself and 64 lists of listeners.
const MAX_GENERATIONS: usize = 65;

/// The most bytes of the name of such an object.
const MAX_OBJECT: usize = 512;

/// A gateway. Endpoints and secrets that are left out remain as they are.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct Written {
    /// All of its ports of TCP.
    listeners: Vec<Arc<Listener>>,
    /// All of its ports of UDP.
    #[serde(default)]
    datagrams: Vec<Arc<Datagrams>>,
    #[serde(default)]
    endpoints: Vec<EndpointsOf>,
    #[serde(default)]
    secrets: Vec<Arc<GatewaySecret>>,
    /// Of the objects that it was made from, under any names. An object that is created again needs another
    /// name or a higher generation, to be another one.
    #[serde(default)]
    generations: BTreeMap<String, i64>,
    /// The cluster whose gateway it is. A gateway of another cluster is not replaced.
    #[serde(default)]
    owner: String,
    /// Which Service of the owner's cluster it is the frontend of, for callers in the mesh. `None` for a
    /// gateway.
    #[serde(default)]
    frontend: Option<Arc<Frontend>>,
}

/// Endpoints of ports of Services.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct WrittenEndpoints {
    endpoints: Vec<EndpointsOf>,
}

/// Certificates with their keys.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct WrittenSecrets {
    secrets: Vec<Arc<GatewaySecret>>,
}

/// All endpoints of a port of a Service.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
struct EndpointsOf {
    of: ServicePort,
    endpoints: Vec<Endpoint>,
}

/// `GET /v1/internal/legate/gateways`
pub(super) async fn list(call: Call) -> Result<Response, ApiError> {
    may_read(&call)?;
    let answer = call.read(names).await?;
    call.answer(answer.index, &answer.value, false)
}

/// `GET /v1/internal/legate/gateway/:name`: without the keys of its secrets.
pub(super) async fn get(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    may_read(&call)?;
    let answer = call.read(|txn| shown(txn, &name)).await?;
    match answer.value {
        Some(found) => call.answer(answer.index, &found, false),
        None => Err(missing(&name)),
    }
}

/// `GET /v1/internal/legate/gateway/:name/status`: what its proxies have made of it.
pub(super) async fn status(Path(name): Path<String>, call: Call) -> Result<Response, ApiError> {
    may_read(&call)?;
    let answer = call.read(|txn| txn.gateway_status(&name)).await?;
    match answer.value {
        Some(found) => call.answer(answer.index, &found, false),
        None => Err(missing(&name)),
    }
}

/// `GET /v1/internal/legate/gateways/status`: the same for all, by name.
pub(super) async fn statuses(call: Call) -> Result<Response, ApiError> {
    may_read(&call)?;
    let answer = call.read(all_statuses).await?;
    call.answer(answer.index, &answer.value, false)
}

/// `PUT /v1/internal/legate/gateway/:name`
pub(super) async fn put(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    name::validate_service_name(&name)
        .map_err(|error| Invalid::new("the gateway's name", error.to_string()))?;
    let written: Written = decode(&headers, body).await?;
    check_ports(
        "Listeners",
        &written.listeners,
        |one| one.port,
        |one| one.validate(),
    )?;
    check_ports(
        "Datagrams",
        &written.datagrams,
        |one| one.port,
        |one| one.validate(),
    )?;
    check_endpoints(&written.endpoints)?;
    check_secrets(&written.secrets)?;
    check_generations(&written.generations)?;
    bounded("Owner", written.owner.len(), MAX_OBJECT)?;
    if let Some(frontend) = &written.frontend {
        let checked = frontend.validate();
        checked.map_err(|error| error.within("Frontend"))?;
        check_plain(&written)?;
    }
    let content = GatewayContent {
        listeners: written.listeners,
        datagrams: written.datagrams,
        endpoints: pairs(written.endpoints),
        secrets: written.secrets,
        generations: written.generations,
        owner: written.owner,
        frontend: written.frontend,
    };
    write(call, &writer, name, move |txn, name| {
        txn.put_gateway(name, &content)
    })
    .await
}

/// `PUT /v1/internal/legate/gateway/:name/endpoints`
pub(super) async fn put_endpoints(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    let written: WrittenEndpoints = decode(&headers, body).await?;
    check_endpoints(&written.endpoints)?;
    let all = pairs(written.endpoints);
    write(call, &writer, name, move |txn, name| {
        txn.put_gateway_endpoints(name, &all)
    })
    .await
}

/// `PUT /v1/internal/legate/gateway/:name/secrets`
pub(super) async fn put_secrets(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    Head(call): Head,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    let written: WrittenSecrets = decode(&headers, body).await?;
    check_secrets(&written.secrets)?;
    write(call, &writer, name, move |txn, name| {
        txn.put_gateway_secrets(name, &written.secrets)
    })
    .await
}

/// `DELETE /v1/internal/legate/gateway/:name`
pub(super) async fn delete(
    Path(name): Path<String>,
    State(writer): State<Writer>,
    call: Call,
) -> Result<Response, ApiError> {
    may_write(&call)?;
    write(call, &writer, name, |txn, name| {
        txn.remove_gateway(name);
        Ok(())
    })
    .await
}

/// As for routes and certificates of API gateways that are config entries.
fn may_read(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.mesh_read(), "mesh:read", "")
}

fn may_write(call: &Call) -> Result<(), ApiError> {
    ApiError::require(call.authorizer()?.mesh_write(), "mesh:write", "")
}

fn missing(name: &str) -> ApiError {
    ApiError::not_found(format!(
        "there is no gateway {name:?} of a cluster: write it before what belongs to it"
    ))
}

async fn decode<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, ApiError> {
    let body = bounded_body(headers, body, LIMIT).await?;
    serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("Request decoding failed: {error}")))
}

async fn write(
    call: Call,
    writer: &Writer,
    name: String,
    change: impl Fn(&mut WriteTxn, &str) -> Result<(), GatewayProblem> + Send + 'static,
) -> Result<Response, ApiError> {
    let written = call.write(writer, move |txn| {
        change(txn, &name).map_err(|problem| match problem {
            GatewayProblem::Missing => missing(&name),
            GatewayProblem::Owned => {
                let reason = "the gateway of this name is another cluster's: rename one of the two";
                Invalid::new("Owner", reason).into()
            }
            GatewayProblem::UnusedEndpoints(place) => {
                let field = format!("Endpoints[{place}].Of");
                Invalid::new(field, "the gateway does not lead to this port").into()
            }
            GatewayProblem::UnusedSecret(place) => {
                let field = format!("Secrets[{place}].Name");
                Invalid::new(field, "the gateway does not name this secret").into()
            }
        })
    });
    written.await?;
    call.json(&true)
}

/// Checks what is on the ports of one transport.
fn check_ports<T>(
    field: &str,
    all: &[Arc<T>],
    port: impl Fn(&T) -> u16,
    validate: impl Fn(&T) -> Result<(), Invalid>,
) -> Result<(), Invalid> {
    bounded(field, all.len(), MAX_LISTENERS)?;
    let mut ports = BTreeSet::new();
    for (at, one) in all.iter().enumerate() {
        let within = |error: Invalid| error.within(format!("{field}[{at}]"));
        validate(one).map_err(within)?;
        if !ports.insert(port(one)) {
            let reason = format!("{} is another listener's, too", port(one));
            return Err(within(Invalid::new("Port", reason)));
        }
    }
    Ok(())
}

/// Checks that sidecars can serve what is written for a frontend: they accept connections of their application.
fn check_plain(written: &Written) -> Result<(), Invalid> {
    if written.owner.is_empty() {
        return Err(Invalid::new("Owner", "a frontend is one of a cluster"));
    }
    if !written.datagrams.is_empty() {
        return Err(Invalid::new("Datagrams", "sidecars take no datagrams"));
    }
    for (at, listener) in written.listeners.iter().enumerate() {
        if !matches!(&listener.chains[..], [chain] if chain.tls == Tls::None) {
            let reason = "a frontend has one chain, which is in plain text";
            return Err(Invalid::new(format!("Listeners[{at}].Chains"), reason));
        }
    }
    Ok(())
}

fn check_endpoints(all: &[EndpointsOf]) -> Result<(), Invalid> {
    for (at, one) in all.iter().enumerate() {
        let within = |error: Invalid| error.within(format!("Endpoints[{at}]"));
        let of = one.of.validate().map_err(|error| error.within("Of"));
        of.map_err(within)?;
        bounded("Endpoints", one.endpoints.len(), MAX_ENDPOINTS).map_err(within)?;
        for (at, endpoint) in one.endpoints.iter().enumerate() {
            let checked = endpoint.validate(one.of.transport);
            let checked = checked.map_err(|error| error.within(format!("Endpoints[{at}]")));
            checked.map_err(within)?;
        }
    }
    Ok(())
}

fn check_secrets(all: &[Arc<GatewaySecret>]) -> Result<(), Invalid> {
    for (at, secret) in all.iter().enumerate() {
        let within = |error: Invalid| error.within(format!("Secrets[{at}]"));
        bounded("Certificate", secret.certificate.len(), MAX_PEM).map_err(within)?;
        let pair = check_pair(&secret.certificate, secret.private_key.expose());
        pair.map_err(|error| {
            let field = match error {
                BadPair::Certificate(_) => "Certificate",
                _ => "PrivateKey",
            };
            within(Invalid::new(field, error.to_string()))
        })?;
    }
    Ok(())
}

fn check_generations(all: &BTreeMap<String, i64>) -> Result<(), Invalid> {
    bounded("Generations", all.len(), MAX_GENERATIONS)?;
    match all.keys().find(|object| object.len() > MAX_OBJECT) {
        None => Ok(()),
        Some(long) => bounded("a key of Generations", long.len(), MAX_OBJECT),
    }
}

fn bounded(field: &str, count: usize, most: usize) -> Result<(), Invalid> {
    match count > most {
        true => Err(Invalid::new(field, format!("{count} is more than {most}"))),
        false => Ok(()),
    }
}

fn pairs(all: Vec<EndpointsOf>) -> Vec<(ServicePort, Vec<Endpoint>)> {
    all.into_iter().map(|one| (one.of, one.endpoints)).collect()
}

fn names(txn: &ReadTxn<'_>) -> Vec<String> {
    txn.gateways()
}

fn all_statuses(txn: &ReadTxn<'_>) -> BTreeMap<String, GatewayStatus> {
    let names = txn.gateways().into_iter();
    let found = names.filter_map(|name| Some((name.clone(), txn.gateway_status(&name)?)));
    found.collect()
}

/// A gateway, if there is one.
fn shown(txn: &ReadTxn<'_>, name: &str) -> Option<Value> {
    if !txn.is_gateway(name) {
        return None;
    }
    let listeners = txn.gateway_listeners(name);
    let ports = txn.gateway_service_ports(name).into_iter();
    let endpoints = ports.filter_map(|of| {
        let endpoints = txn.gateway_endpoints(name, &of)?.to_vec();
        Some(EndpointsOf { of, endpoints })
    });
    let names: BTreeSet<_> = listeners.iter().flat_map(|one| one.secrets()).collect();
    let secrets = names.into_iter().filter_map(|secret| {
        let secret = txn.gateway_secret(name, secret)?;
        Some(json!({"Name": secret.name, "Certificate": secret.certificate}))
    });
    Some(json!({
        "Name": name,
        "Listeners": listeners,
        "Datagrams": txn.gateway_datagrams(name),
        "Endpoints": endpoints.collect::<Vec<_>>(),
        "Secrets": secrets.collect::<Vec<_>>(),
        "Generations": txn.gateway_generations(name)?.of,
        "Frontend": txn.frontend(name),
    }))
}
