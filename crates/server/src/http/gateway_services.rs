//! `/v1/catalog/gateway-services`: the services that a gateway's config entry names. [`crate::gateways`] has
//! the reverse lookup, from a service to its gateways.

use std::collections::BTreeMap;

use axum::extract::Path;
use axum::response::Response;
use legate_model::{
    ConfigEntry, ConfigKind, IngressGateway, IngressListener, IngressService, LinkedService,
    ServiceKind, ServiceName, Tenancy, TenancyName, TerminatingGateway, WILDCARD,
};
use legate_store::ReadTxn;
use serde::Serialize;

use super::call::{Call, visible};
use crate::api_error::ApiError;
use crate::entries::protocol::protocol_of;
use crate::gateways::is_behind_every;

/// The kinds of config entries that name services of a gateway.
const LINKING: [ConfigKind; 2] = [ConfigKind::TerminatingGateway, ConfigKind::IngressGateway];

/// A service of a gateway. Fields that apply to the other kind of gateway are omitted.
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
    /// Whether the entry includes the service by `*` rather than by name.
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

/// A service name in Consul Enterprise's format.
#[derive(Debug, Clone, Default, Serialize)]
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
    ApiError::require(authorizer.service_read(&gateway), "service:read", &gateway)?;
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
    // Gateways of the two kinds cannot have the same name.
    let entry = LINKING
        .iter()
        .find_map(|kind| state.config_entry(*kind, gateway));
    let mut found = entry.map_or_else(Vec::new, |entry| named_by(state, &entry));
    found.sort_by(|a, b| (&a.service.name, a.port).cmp(&(&b.service.name, b.port)));
    found
}

/// The services that a gateway's entry names.
fn named_by(state: &ReadTxn<'_>, entry: &ConfigEntry) -> Vec<GatewayService> {
    match entry {
        ConfigEntry::TerminatingGateway(entry) => of_terminating(state, entry),
        ConfigEntry::IngressGateway(entry) => of_ingress(state, entry),
        _ => Vec::new(),
    }
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
        let kind = ServiceKind::TerminatingGateway;
        let all = every(state, kind, &own, &linked.namespace).into_iter();
        let others = all.filter(|name| !is_named(name));
        found.extend(others.map(|name| service(name, linked)));
    }
    found
}

/// A gateway and a service that its entry names.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Link {
    gateway: Name,
    service: Name,
}

impl Link {
    /// The gateway.
    pub(super) fn gateway(&self) -> ServiceName {
        self.gateway.full()
    }

    /// The service.
    pub(super) fn service(&self) -> ServiceName {
        self.service.full()
    }
}

/// The links in the config entries of this namespace's gateways.
pub(super) fn links(state: &ReadTxn<'_>) -> Vec<Link> {
    let entries = LINKING.iter().flat_map(|kind| state.config_entries(*kind));
    let all = entries.flat_map(|entry| named_by(state, &entry));
    all.map(|one| Link {
        gateway: one.gateway,
        service: one.service,
    })
    .collect()
}

/// The services included by `*` in a gateway's entry of this kind. `own` is the entry's tenancy, `namespace`
/// the namespace that it names.
fn every(
    state: &ReadTxn<'_>,
    kind: ServiceKind,
    own: &Tenancy,
    namespace: &TenancyName,
) -> Vec<ServiceName> {
    let tenancies = match namespace.is_every() {
        true => state.in_tenancy(own, ReadTxn::tenancies_here),
        false => vec![own.in_namespace(namespace)],
    };
    let of = |tenancy: &Tenancy| {
        let names = state.in_tenancy(tenancy, |state| every_here(state, kind));
        let names = names.into_iter();
        names
            .map(|name| ServiceName::new(tenancy, &name))
            .collect::<Vec<_>>()
    };
    tenancies.iter().flat_map(of).collect()
}

/// The services in the current namespace.
fn every_here(state: &ReadTxn<'_>, kind: ServiceKind) -> Vec<String> {
    let services = state.services().into_keys();
    let entries = state.config_entries(ConfigKind::ServiceDefaults);
    let described = entries.iter().map(|entry| entry.name().to_owned());
    let mut names = BTreeMap::new();
    for name in services.chain(described) {
        names.entry(name.to_ascii_lowercase()).or_insert(name);
    }
    names.retain(|_, name| is_behind_every(state, kind, name));
    names.into_values().collect()
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
                    let kind = ServiceKind::IngressGateway;
                    let mut all = every(state, kind, &gateway.tenancy, &own.namespace);
                    all.retain(|name| {
                        let protocol =
                            state.in_tenancy(&name.tenancy, |state| protocol_of(state, &name.name));
                        protocol == listener.protocol().unwrap_or_default()
                    });
                    found.extend(all.into_iter().map(|name| service(name, listener, own)));
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

impl Name {
    fn new(service: &ServiceName) -> Self {
        Self {
            name: service.name.as_ref().to_owned(),
            namespace: service.tenancy.shown_namespace(),
            partition: service.tenancy.shown_partition(),
            tenancy: service.tenancy.clone(),
        }
    }

    fn full(&self) -> ServiceName {
        ServiceName::new(&self.tenancy, &self.name)
    }
}
