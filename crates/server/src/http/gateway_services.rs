//! `/v1/catalog/gateway-services`: the services that the config entry of a gateway names.

use axum::extract::Path;
use axum::response::Response;
use legate_model::{ConfigEntry, ConfigKind, LinkedService, ServiceKind, WILDCARD};
use legate_store::ReadTxn;
use serde::Serialize;

use super::agent::OWN_SERVICE;
use super::call::{Call, visible};
use super::error::ApiError;

/// A service behind a gateway.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct GatewayService {
    gateway: Name,
    service: Name,
    gateway_kind: &'static str,
    #[serde(rename = "CAFile", skip_serializing_if = "String::is_empty")]
    ca_file: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cert_file: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    key_file: String,
    #[serde(rename = "SNI", skip_serializing_if = "String::is_empty")]
    sni: String,
    /// The entry names all services, and not this one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    from_wildcard: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    auto_host_rewrite: bool,
    create_index: u64,
    modify_index: u64,
}

/// The name of a service as Consul writes it where there are namespaces.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Name {
    name: String,
}

/// `GET /v1/catalog/gateway-services/:gateway`
pub(super) async fn list(Path(gateway): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    if !authorizer.service_read(&gateway) {
        return Err(ApiError::denied("service:read", &gateway));
    }
    let answer = call.read(|state| behind(state, &gateway)).await?;
    let (services, filtered) = visible(answer.value, |one| {
        authorizer.service_read(&one.service.name)
    });
    call.answer(answer.index, &services, filtered)
}

fn behind(state: &ReadTxn<'_>, gateway: &str) -> Vec<GatewayService> {
    let entry = state.config_entry(ConfigKind::TerminatingGateway, gateway);
    let Some(ConfigEntry::TerminatingGateway(entry)) = entry.as_deref() else {
        return Vec::new();
    };
    let service = |name: &str, linked: &LinkedService| GatewayService {
        gateway: Name {
            name: entry.name.clone(),
        },
        service: Name {
            name: name.to_owned(),
        },
        gateway_kind: "terminating-gateway",
        ca_file: linked.ca_file.clone(),
        cert_file: linked.cert_file.clone(),
        key_file: linked.key_file.clone(),
        sni: linked.sni.clone(),
        from_wildcard: linked.name == WILDCARD,
        auto_host_rewrite: !linked.disable_auto_host_rewrite,
        create_index: entry.create_index,
        modify_index: entry.modify_index,
    };
    let is_named = |name: &str| {
        entry
            .services
            .iter()
            .any(|s| s.name.eq_ignore_ascii_case(name))
    };
    let mut found = Vec::new();
    for linked in &entry.services {
        if linked.name != WILDCARD {
            found.push(service(&linked.name, linked));
            continue;
        }
        for name in typical(state).iter().filter(|name| !is_named(name)) {
            found.push(service(name, linked));
        }
    }
    found.sort_by(|a, b| a.service.name.cmp(&b.service.name));
    found
}

/// The services that are no proxies or gateways, without the servers themselves.
fn typical(state: &ReadTxn<'_>) -> Vec<String> {
    let is_typical = |name: &String| {
        let instances = state.service(name);
        let of_kind = |kind| instances.iter().any(|one| one.service.kind == kind);
        name != OWN_SERVICE && of_kind(ServiceKind::Typical)
    };
    state.services().into_keys().filter(is_typical).collect()
}
