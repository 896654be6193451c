//! `/v1/catalog/gateway-services`: the services that the config entry of a gateway names.

use axum::extract::Path;
use axum::response::Response;
use legate_model::{
    CheckServiceNode, ConfigEntry, ConfigKind, IngressGateway, IngressListener, IngressService,
    LinkedService, ServiceKind, ServiceName, Tenancy, TenancyName, TerminatingGateway, WILDCARD,
};
use legate_store::ReadTxn;
use serde::Serialize;

use super::agent::OWN_SERVICE;
use super::call::{Call, visible};
use super::error::ApiError;

/// A service behind a gateway. What is said of one kind of gateway only is left out for others.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct GatewayService {
    gateway: Name,
    service: Name,
    gateway_kind: ServiceKind,
    #[serde(skip_serializing_if = "is_zero")]
    port: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    protocol: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
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

fn is_zero(port: &u16) -> bool {
    *port == 0
}

/// The name of a service as Consul writes it where there are namespaces.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Name {
    name: String,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    namespace: TenancyName,
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    partition: TenancyName,
    #[serde(skip)]
    tenancy: Tenancy,
}

/// `GET /v1/catalog/gateway-services/:gateway`
pub(super) async fn list(Path(gateway): Path<String>, call: Call) -> Result<Response, ApiError> {
    let authorizer = call.authorizer()?;
    if !authorizer.service_read(&gateway) {
        return Err(ApiError::denied("service:read", &gateway));
    }
    let answer = call.read(|state| behind(state, &gateway)).await?;
    let (services, filtered) = visible(answer.value, |one| {
        let service = &one.service;
        authorizer
            .within(&service.tenancy)
            .service_read(&service.name)
    });
    call.answer(answer.index, &services, filtered)
}

fn behind(state: &ReadTxn<'_>, gateway: &str) -> Vec<GatewayService> {
    let kinds = [ConfigKind::TerminatingGateway, ConfigKind::IngressGateway];
    // No two gateways of these kinds have the same name.
    let entry = kinds
        .iter()
        .find_map(|kind| state.config_entry(*kind, gateway));
    let mut found = match entry.as_deref() {
        Some(ConfigEntry::TerminatingGateway(entry)) => of_terminating(state, entry),
        Some(ConfigEntry::IngressGateway(entry)) => of_ingress(state, entry),
        _ => Vec::new(),
    };
    found.sort_by(|a, b| (&a.service.name, a.port).cmp(&(&b.service.name, b.port)));
    found
}

fn of_terminating(state: &ReadTxn<'_>, entry: &TerminatingGateway) -> Vec<GatewayService> {
    let own = Tenancy::new(&entry.partition, &entry.namespace);
    let service = |name: ServiceName, linked: &LinkedService| GatewayService {
        gateway: Name::new(&ServiceName::new(&own, &entry.name)),
        service: Name::new(&name),
        gateway_kind: ServiceKind::TerminatingGateway,
        ca_file: linked.ca_file.clone(),
        cert_file: linked.cert_file.clone(),
        key_file: linked.key_file.clone(),
        sni: linked.sni.clone(),
        from_wildcard: linked.name == WILDCARD,
        auto_host_rewrite: !linked.disable_auto_host_rewrite,
        create_index: entry.create_index,
        modify_index: entry.modify_index,
        ..GatewayService::default()
    };
    let is_named = |name: &ServiceName| {
        let mut services = entry.services.iter();
        services.any(|service| {
            service.name.eq_ignore_ascii_case(&name.name)
                && own.in_namespace(&service.namespace) == name.tenancy
        })
    };
    let mut found = Vec::new();
    for linked in &entry.services {
        if linked.name != WILDCARD {
            let tenancy = own.in_namespace(&linked.namespace);
            found.push(service(ServiceName::new(&tenancy, &linked.name), linked));
            continue;
        }
        let all = every(state, &own, &linked.namespace).into_iter();
        let others = all.filter(|name| !is_named(name));
        found.extend(others.map(|name| service(name, linked)));
    }
    found
}

/// The services that `*` stands for in an entry of the tenancy `own` that names a namespace.
fn every(state: &ReadTxn<'_>, own: &Tenancy, namespace: &TenancyName) -> Vec<ServiceName> {
    let tenancies = match namespace.is_every() {
        true => state.in_tenancy(own, ReadTxn::tenancies_here),
        false => vec![own.in_namespace(namespace)],
    };
    let of = |tenancy: &Tenancy| {
        let names = state.in_tenancy(tenancy, typical).into_iter();
        names
            .map(|name| ServiceName::new(tenancy, &name))
            .collect::<Vec<_>>()
    };
    tenancies.iter().flat_map(of).collect()
}

fn of_ingress(state: &ReadTxn<'_>, entry: &IngressGateway) -> Vec<GatewayService> {
    let gateway = ServiceName::new(
        &Tenancy::new(&entry.partition, &entry.namespace),
        &entry.name,
    );
    let service =
        |name: ServiceName, listener: &IngressListener, own: &IngressService| GatewayService {
            gateway: Name::new(&gateway),
            service: Name::new(&name),
            gateway_kind: ServiceKind::IngressGateway,
            port: listener.port,
            protocol: listener.protocol().unwrap_or_default().to_string(),
            hosts: own.hosts.clone(),
            from_wildcard: own.name == WILDCARD,
            create_index: entry.create_index,
            modify_index: entry.modify_index,
            ..GatewayService::default()
        };
    let mut found = Vec::new();
    for listener in &entry.listeners {
        for own in &listener.services {
            match own.name == WILDCARD {
                true => {
                    let all = every(state, &gateway.tenancy, &own.namespace).into_iter();
                    found.extend(all.map(|name| service(name, listener, own)));
                }
                false => {
                    let tenancy = gateway.tenancy.resolve(&own.partition, &own.namespace);
                    let name = ServiceName::new(&tenancy, &own.name);
                    found.push(service(name, listener, own));
                }
            }
        }
    }
    found
}

/// The instances of the ingress gateways that lead to a service.
pub(crate) fn ingress_to(state: &ReadTxn<'_>, service: &str) -> Vec<CheckServiceNode> {
    let mut found = Vec::new();
    for entry in state.config_entries(ConfigKind::IngressGateway) {
        let ConfigEntry::IngressGateway(entry) = &*entry else {
            continue;
        };
        let gateway = Tenancy::new(&entry.partition, &entry.namespace);
        let leads = |one: &IngressService| {
            let is_there = gateway.resolve(&one.partition, &one.namespace) == *state.tenancy();
            (one.namespace.is_every() || is_there)
                && (one.name == WILDCARD || one.name.eq_ignore_ascii_case(service))
        };
        let mut services = entry.listeners.iter().flat_map(|one| &one.services);
        if services.any(leads) {
            let gateways = state.service(&entry.name).into_iter();
            found.extend(gateways.filter(|one| one.service.kind == ServiceKind::IngressGateway));
        }
    }
    found
}

impl Name {
    fn new(service: &ServiceName) -> Self {
        Self {
            name: service.name.as_ref().to_owned(),
            namespace: service.tenancy.shown_namespace(),
            partition: service.tenancy.shown_partition(),
            tenancy: service.tenancy.clone(),
        }
    }
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
