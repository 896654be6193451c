//! `/v1/catalog/gateway-services`: the services that a gateway's config entry names.

use axum::extract::Path;
use axum::response::Response;
use legate_model::acl::Authorizer;
use legate_model::{ServiceKind, ServiceName, Tenancy, TenancyName};
use legate_proxycfg::gateways::{self, GatewayService, Link, Origin};
use legate_store::ReadTxn;
use serde::Serialize;

use super::call::{Call, visible};
use crate::api_error::ApiError;

/// A service of a gateway. Fields that apply to the other kind of gateway are omitted.
#[derive(Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Shown {
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
    /// What the name stands for; omitted while it stands for nothing.
    #[serde(skip_serializing_if = "str::is_empty")]
    service_kind: &'static str,
    create_index: u64,
    modify_index: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    auto_host_rewrite: bool,
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
    let answer = call
        .read(|state| {
            let services = gateways::services(state, &gateway);
            services.iter().map(Shown::new).collect::<Vec<_>>()
        })
        .await?;
    let (services, filtered) = visible(answer.value, |one| {
        let service = &one.service;
        authorizer
            .within(&service.tenancy)
            .service_read(&service.name)
    });
    call.answer(answer.index, &services, filtered)
}

/// Whether the caller may see a gateway's service: both must be readable. As in Consul.
pub(super) fn may_read(authorizer: &Authorizer, one: &GatewayService) -> bool {
    let readable = |name: &ServiceName| authorizer.within(&name.tenancy).service_read(&name.name);
    readable(&one.gateway) && readable(&one.service)
}

/// A gateway and a service that its entry names.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Pair {
    gateway: Name,
    service: Name,
}

impl Pair {
    /// The gateway.
    pub(super) fn gateway(&self) -> ServiceName {
        self.gateway.full()
    }

    /// The service.
    pub(super) fn service(&self) -> ServiceName {
        self.service.full()
    }
}

/// The services of all gateways of this namespace.
pub(super) fn pairs(state: &ReadTxn<'_>) -> Vec<Pair> {
    let all = gateways::in_namespace(state).into_iter();
    let pair = |one: GatewayService| Pair {
        gateway: Name::new(&one.gateway),
        service: Name::new(&one.service),
    };
    all.map(pair).collect()
}

impl Shown {
    /// A service in Consul's format.
    pub(super) fn new(one: &GatewayService) -> Self {
        let shown = Self {
            gateway: Name::new(&one.gateway),
            service: Name::new(&one.service),
            gateway_kind: one.link.gateway_kind(),
            port: one.link.port(),
            from_wildcard: one.from_wildcard,
            service_kind: match one.origin {
                Origin::Unknown => "",
                Origin::Service => "service",
                Origin::Destination => "destination",
            },
            create_index: one.create_index,
            modify_index: one.modify_index,
            ..Self::default()
        };
        match &one.link {
            Link::Terminating(linked) => Self {
                ca_file: linked.ca_file.clone(),
                cert_file: linked.cert_file.clone(),
                key_file: linked.key_file.clone(),
                sni: linked.sni.clone(),
                auto_host_rewrite: !linked.disable_auto_host_rewrite,
                ..shown
            },
            Link::Ingress {
                protocol, hosts, ..
            } => Self {
                protocol: protocol.to_string(),
                hosts: hosts.clone(),
                ..shown
            },
        }
    }
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
