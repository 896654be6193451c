//! The services behind one gateway, and the intentions that apply to them.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::Path;
use axum::response::Response;
use legate_model::CheckServiceNode;
use legate_proxycfg::gateways::{self, GatewayService, Link};
use legate_store::ReadTxn;
use serde::Serialize;

use super::summary::{Summary, summaries};
use crate::api_error::ApiError;
use crate::config::ServerConfig;
use crate::http::call::{Call, visible};
use crate::http::gateway_services;
use crate::http::intentions;

/// `GET /v1/internal/ui/gateway-services-nodes/:gateway`
pub(in crate::http) async fn services(
    Path(gateway): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    ApiError::require(authorizer.service_read(&gateway), "service:read", &gateway)?;
    let answer = call
        .read(|state| {
            let services = gateways::services(state, &gateway);
            let all = services.iter().map(|one| Behind::new(state, one));
            all.collect::<Vec<_>>()
        })
        .await?;
    let (mut services, mut filtered) = visible(answer.value, |behind| {
        gateway_services::may_read(&authorizer, &behind.service)
    });
    for behind in &mut services {
        let authorizer = authorizer.within(&behind.service.service.tenancy);
        let before = behind.instances.len();
        behind
            .instances
            .retain(|one| authorizer.node_read(&one.node.node));
        filtered |= behind.instances.len() < before;
    }
    // As in Consul, a service of which no instance may be seen is not listed.
    services.retain(|behind| !behind.instances.is_empty() || !behind.has_instances);
    call.answer(answer.index, &shown(&call.config, &services), filtered)
}

/// A service of the gateway.
#[derive(Serialize)]
struct Behind {
    #[serde(skip)]
    service: GatewayService,
    /// By which a blocking query notices that the service has changed.
    shown: gateway_services::Shown,
    has_instances: bool,
    instances: Vec<CheckServiceNode>,
}

impl Behind {
    fn new(state: &ReadTxn<'_>, service: &GatewayService) -> Self {
        let of = |state: &ReadTxn<'_>| state.service(&service.service.name);
        let instances = state.in_tenancy(&service.service.tenancy, of);
        Self {
            service: service.clone(),
            shown: gateway_services::Shown::new(service),
            has_instances: !instances.is_empty(),
            instances,
        }
    }
}

/// One summary for each service, whatever the number of the gateway's listeners that expose it.
fn shown(config: &ServerConfig, services: &[Behind]) -> Vec<Summary> {
    let mut seen = HashSet::new();
    let all = services
        .iter()
        .filter(|one| seen.insert(&one.service.service));
    let instances: Vec<_> = all.flat_map(|one| one.instances.iter().cloned()).collect();
    let mut found = summaries(&instances);
    for Behind { service, .. } in services {
        let summary = found.entry(service.service.clone()).or_default();
        for address in addresses(config, service) {
            summary.add_address(address);
        }
    }
    let finished = found.into_iter();
    finished.map(|(name, found)| found.finish(&name)).collect()
}

/// The addresses by which clients reach a service of an ingress gateway: its hosts, or its DNS
/// names.
fn addresses(config: &ServerConfig, one: &GatewayService) -> Vec<String> {
    let Link::Ingress { port, hosts, .. } = &one.link else {
        return Vec::new();
    };
    let hosts = match hosts.as_slice() {
        [] => dns_names(config, one),
        hosts => hosts.to_vec(),
    };
    let hosts = hosts.iter().map(|host| host.trim_end_matches('.'));
    hosts.map(|host| format!("{host}:{port}")).collect()
}

fn dns_names(config: &ServerConfig, one: &GatewayService) -> Vec<String> {
    let (name, tenancy) = (&one.service.name, &one.service.tenancy);
    let namespace = match tenancy.is_default_namespace() {
        true => String::new(),
        false => format!(".{}", tenancy.namespace),
    };
    let domains = config.dns_domains.names();
    let name = |domain| format!("{name}.ingress{namespace}.{}.{domain}", config.datacenter);
    domains.map(name).collect()
}

/// `GET /v1/internal/ui/gateway-intentions/:gateway`
pub(in crate::http) async fn intentions(
    Path(gateway): Path<String>,
    call: Call,
) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    ApiError::require(authorizer.service_read(&gateway), "service:read", &gateway)?;
    let answer = call
        .read(|state| {
            let services = gateways::services(state, &gateway);
            let of = |one: &GatewayService| {
                let service = &one.service;
                state.in_tenancy(&service.tenancy, |state| {
                    state.intentions_for(&service.name)
                })
            };
            // Those of `*` apply to many services.
            let mut seen = HashSet::new();
            let all = services.iter().flat_map(of);
            let all = all.filter(|one| seen.insert((one.source(), one.destination())));
            all.collect::<Vec<_>>()
        })
        .await?;
    let may_read = |one: &Arc<_>| intentions::may_read(&authorizer, one);
    let (intentions, filtered) = visible(answer.value, may_read);
    call.answer(answer.index, &intentions, filtered)
}
