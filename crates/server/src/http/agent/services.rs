//! Services and checks of the server's own node, and their aggregated health.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderValue};
use http::{HeaderName, StatusCode};
use legate_model::acl::{Access, Resource};
use legate_model::{CheckStatus, HealthCheck, ServiceInstance, filters};
use legate_store::ReadTxn;
use serde_json::{Value, json};

use super::super::call::{Call, visible};
use super::content_hash::content_hash;
use super::{maintenance, require_here};
use crate::api_error::ApiError;
use crate::own_node::{OWN_SERVICE, SERF_HEALTH};

const CONTENT_HASH: HeaderName = HeaderName::from_static("x-consul-contenthash");
const REASON: HeaderName = HeaderName::from_static("x-consul-reason");

/// `GET /v1/agent/services`
pub(crate) async fn services(call: Call) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::SERVICE)?;
    let state = call.reader.state();
    let txn = call.txn(&state);
    let own = of_agent(&txn, &call.config.node_name);
    let (mut own, filtered) = visible(own, |one| authorizer.service_read(&one.service));
    own.retain(|instance| filter.matches(instance));
    let shown: Result<BTreeMap<String, Value>, ApiError> = own
        .iter()
        .map(|one| Ok((one.id.clone(), shown(&call, &txn, one)?)))
        .collect();
    call.list(&shown?, filtered)
}

/// `GET /v1/agent/service/:id`. With `?hash=`, a blocking query on the content hash.
pub(crate) async fn service(Path(id): Path<String>, call: Call) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Service, Access::Read, &id)?;
    let (hash, service) = call
        .read_hashed(|state| {
            let own = of_agent(state, &call.config.node_name);
            let Some(found) = own.iter().find(|one| one.id.eq_ignore_ascii_case(&id)) else {
                return Err(ApiError::not_found(format!("unknown service ID: {id}")));
            };
            ApiError::require(
                authorizer.service_read(&found.service),
                "service:read",
                &found.service,
            )?;
            let mut shown = shown(&call, state, found)?;
            let hash = content_hash(&shown);
            shown["ContentHash"] = Value::String(hash.clone());
            Ok((hash, shown))
        })
        .await?;
    let mut response = call.json(&service)?;
    if let Ok(value) = HeaderValue::try_from(hash) {
        response.headers_mut().insert(CONTENT_HASH, value);
    }
    Ok(response)
}

/// The instances shown by the agent API: all but the server's own service.
fn of_agent(state: &ReadTxn<'_>, node: &str) -> Vec<Arc<ServiceInstance>> {
    let mut instances = state.instances_on(node);
    instances.retain(|instance| !instance.id.eq_ignore_ascii_case(OWN_SERVICE));
    instances
}

/// An instance in the agent's format, with central configuration merged into its proxy settings.
fn shown(call: &Call, state: &ReadTxn<'_>, instance: &ServiceInstance) -> Result<Value, ApiError> {
    let merged = legate_proxycfg::merge_central_config(instance, state);
    let mut shown = serde_json::to_value(&merged).map_err(|error| {
        ApiError::internal(format!("The service could not be encoded as JSON: {error}"))
    })?;
    if let Value::Object(fields) = &mut shown {
        for agent_has_none in ["CreateIndex", "ModifyIndex", "PeerName"] {
            fields.remove(agent_has_none);
        }
        if !instance.kind.is_proxy() {
            fields.remove("Proxy");
        }
        if !instance.connect.native {
            fields.remove("Connect");
        }
        fields.insert("Port".to_owned(), instance.port.into());
        fields.insert(
            "Datacenter".to_owned(),
            call.config.datacenter.clone().into(),
        );
    }
    Ok(shown)
}

/// `GET /v1/agent/checks`
pub(crate) async fn checks(call: Call) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let filter = call.filter(&filters::CHECK)?;
    let state = call.reader.state();
    let own = checks_of_agent(&call.txn(&state), &call.config.node_name);
    let (mut checks, filtered) = visible(own, |check| match check.service_name.as_str() {
        "" => authorizer.node_read(&check.node),
        service => authorizer.service_read(service),
    });
    checks.retain(|check| filter.matches(check));
    let by_id: BTreeMap<_, _> = checks
        .iter()
        .map(|check| (&check.check_id, check))
        .collect();
    call.list(&by_id, filtered)
}

/// The checks shown by the agent API: all but the server's own.
fn checks_of_agent(state: &ReadTxn<'_>, node: &str) -> Vec<Arc<HealthCheck>> {
    let mut checks = state.checks_on(node);
    checks.retain(|check| !check.check_id.eq_ignore_ascii_case(SERF_HEALTH));
    for check in &mut checks {
        // The agent's copies have no indexes, as in Consul.
        let check = Arc::make_mut(check);
        (check.create_index, check.modify_index) = (0, 0);
    }
    checks
}

/// The aggregated health of an instance, with its checks.
struct Health {
    status: CheckStatus,
    /// Whether the instance or its node is in maintenance mode.
    in_maintenance: bool,
    checks: Vec<Arc<HealthCheck>>,
}

impl Health {
    /// The worst status of the instance's and its node's checks.
    fn of(all: &[Arc<HealthCheck>], id: &str) -> Self {
        let of_it = |check: &&Arc<HealthCheck>| {
            check.service_id.is_empty() || check.service_id.eq_ignore_ascii_case(id)
        };
        let checks: Vec<_> = all.iter().filter(of_it).cloned().collect();
        let status = checks.iter().map(|check| check.status).max();
        let maintained = |check: &Arc<HealthCheck>| {
            let id = check.check_id.as_str();
            id == maintenance::NODE || id.starts_with(maintenance::SERVICE)
        };
        Self {
            status: status.unwrap_or(CheckStatus::Passing),
            in_maintenance: checks.iter().any(maintained),
            checks,
        }
    }

    /// The status as reported to clients.
    fn status_text(&self) -> &'static str {
        match self.in_maintenance {
            true => "maintenance",
            false => self.status.as_str(),
        }
    }

    fn rank(&self) -> (CheckStatus, bool) {
        (self.status, self.in_maintenance)
    }

    fn code(&self) -> StatusCode {
        match self.status {
            CheckStatus::Passing => StatusCode::OK,
            CheckStatus::Warning => StatusCode::TOO_MANY_REQUESTS,
            CheckStatus::Critical => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn shown(&self, service: &Value) -> Value {
        json!({ "AggregatedStatus": self.status_text(), "Service": service, "Checks": self.checks })
    }
}

/// `GET /v1/agent/health/service/id/:id`
pub(crate) async fn health_by_id(
    Path(id): Path<String>,
    headers: HeaderMap,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    ApiError::unless_some(&authorizer, Resource::Service, Access::Read, &id)?;
    let answer =
        |status, reason: &str, shown: &Value| answer(&call, &headers, status, reason, shown);
    let state = call.reader.state();
    let state = call.txn(&state);
    let node = &call.config.node_name;
    let own = of_agent(&state, node);
    let Some(found) = own.iter().find(|one| one.id.eq_ignore_ascii_case(&id)) else {
        let none = json!({ "AggregatedStatus": "critical", "Service": null, "Checks": null });
        let reason = format!("ServiceId {id} not found");
        return answer(StatusCode::NOT_FOUND, &reason, &none);
    };
    ApiError::require(
        authorizer.service_read(&found.service),
        "service:read",
        &found.service,
    )?;
    let health = Health::of(&checks_of_agent(&state, node), &found.id);
    let shown = health.shown(&shown(&call, &state, found)?);
    answer(health.code(), health.status_text(), &shown)
}

/// `GET /v1/agent/health/service/name/:name`: all instances, with the worst status.
pub(crate) async fn health_by_name(
    Path(name): Path<String>,
    headers: HeaderMap,
    call: Call,
) -> Result<Response, ApiError> {
    require_here(&call)?;
    let authorizer = call.authorizer()?;
    let answer =
        |status, reason: &str, shown: &Value| answer(&call, &headers, status, reason, shown);
    ApiError::require(authorizer.service_read(&name), "service:read", &name)?;
    let state = call.reader.state();
    let state = call.txn(&state);
    let node = &call.config.node_name;
    let mut own = of_agent(&state, node);
    own.retain(|one| one.service.eq_ignore_ascii_case(&name));
    let checks = checks_of_agent(&state, node);
    let mut worst: Option<Health> = None;
    let mut list = Vec::new();
    for instance in &own {
        let health = Health::of(&checks, &instance.id);
        list.push(health.shown(&shown(&call, &state, instance)?));
        if worst
            .as_ref()
            .is_none_or(|worst| worst.rank() < health.rank())
        {
            worst = Some(health);
        }
    }
    match worst {
        Some(worst) => answer(worst.code(), worst.status_text(), &Value::Array(list)),
        None => {
            let reason = format!("ServiceName {name} Not Found");
            answer(StatusCode::NOT_FOUND, &reason, &json!([]))
        }
    }
}

/// The HTTP status code reflects the health. With `?format=text` or `Accept: text/plain`, so does the body.
fn answer(
    call: &Call,
    headers: &HeaderMap,
    status: StatusCode,
    reason: &str,
    shown: &Value,
) -> Result<Response, ApiError> {
    let mut response = call.json(shown)?;
    let accepted = headers
        .get(ACCEPT)
        .is_some_and(|v| v.as_bytes().starts_with(b"text/plain"));
    if accepted || call.params.get("format") == Some("text") {
        *response.body_mut() = reason.to_owned().into();
        let plain = HeaderValue::from_static("text/plain");
        response.headers_mut().insert(CONTENT_TYPE, plain);
    }
    *response.status_mut() = status;
    if let Ok(reason) = HeaderValue::try_from(reason) {
        response.headers_mut().insert(REASON, reason);
    }
    Ok(response)
}
