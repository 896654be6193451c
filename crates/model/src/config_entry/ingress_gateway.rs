//! `ingress-gateway`: exposes services through a gateway to clients outside the mesh.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::gateway_tls::{GatewaySds, GatewayTls, is_host_name};
use super::header_modifiers::{HeaderModifiers, validate_both};
use super::service_defaults::PassiveHealthCheck;
use crate::invalid::Invalid;
use crate::json::shown::{is_zero, null_if_empty};
use crate::meta;
use crate::name::{self, WILDCARD};
use crate::protocol::Protocol;
use crate::schema;
use crate::tenancy::{Tenancy, TenancyName};

entry! {
    /// The services that one gateway exposes.
    #[derive(JsonSchema)]
    pub struct IngressGateway {
        /// The service that the gateway is registered as.
        pub name: String,
        /// TLS of all listeners.
        #[serde(rename = "TLS")]
        pub tls: GatewayTls,
        /// Ports with the services behind them.
        #[serde(serialize_with = "null_if_empty")]
        #[schemars(length(max = 128))]
        pub listeners: Vec<IngressListener>,
        /// Defaults for all services.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub defaults: Option<IngressDefaults>,
    }
}

/// Default limits for the connections to each service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct IngressDefaults {
    /// Connections to an instance.
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Pending requests: those that wait for a connection.
    #[schemars(range(min = 1))]
    pub max_pending_requests: u32,
    /// Concurrent requests.
    #[schemars(range(min = 1))]
    pub max_concurrent_requests: u32,
    /// Passive health checking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive_health_check: Option<PassiveHealthCheck>,
}

/// A port of the gateway.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Port"]))]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!(has(self.protocol) && self.protocol == 'tcp' && has(self.services)) || \
         (size(self.services) <= 1 && self.services.all(s, !has(s.hosts) || size(s.hosts) == 0))",
        "a tcp listener has at most one service, and no hosts",
    ),
    schema::rule(
        "!has(self.services) || self.services.all(s, !(has(s.name) && s.name == '*') || \
         (has(self.protocol) && self.protocol == 'http' && (!has(s.hosts) || size(s.hosts) == \
         0)))",
        "the service * requires protocol http and no hosts",
    ),
]))]
pub struct IngressListener {
    /// The port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// `tcp`, `http`, `http2`, `grpc`; empty means tcp.
    #[schemars(extend("enum" = schema::PROTOCOLS))]
    pub protocol: String,
    /// TLS of this listener.
    #[serde(rename = "TLS", skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayTls>,
    /// Services behind the port; with protocol tcp exactly one.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(length(max = 256))]
    pub services: Vec<IngressService>,
}

/// A service behind a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct IngressService {
    /// Service name, or `*` for all services.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Host names of the service's requests.
    #[serde(serialize_with = "null_if_empty")]
    #[schemars(length(max = 256))]
    pub hosts: Vec<String>,
    /// TLS of the service, for its own certificate.
    #[serde(rename = "TLS", skip_serializing_if = "Option::is_none")]
    pub tls: Option<GatewayServiceTls>,
    /// Changes to request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_headers: Option<HeaderModifiers>,
    /// Changes to response headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_headers: Option<HeaderModifiers>,
    /// Connections to an instance.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    pub max_connections: u32,
    /// Pending requests: those that wait for a connection.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    pub max_pending_requests: u32,
    /// Concurrent requests.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 1))]
    pub max_concurrent_requests: u32,
    /// Passive health checking.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub passive_health_check: Option<PassiveHealthCheck>,
    /// Free key/value pairs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<String, String>,
}

/// TLS of one service of a listener.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct GatewayServiceTls {
    /// Source of its certificate.
    #[serde(rename = "SDS", skip_serializing_if = "Option::is_none")]
    pub sds: Option<GatewaySds>,
}

impl IngressListener {
    /// The protocol, tcp by default. `None` if the name is unknown.
    pub fn protocol(&self) -> Option<Protocol> {
        self.protocol.parse().ok()
    }
}

impl Entry for IngressGateway {
    const RIGHTS: EntryRights = EntryRights::Gateway;

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        self.tls.validate().map_err(|error| error.within("TLS"))?;
        let mut ports = BTreeSet::new();
        for (at, listener) in self.listeners.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Listeners[{at}]"));
            if !ports.insert(listener.port) {
                let reason = format!("port {} declared on two listeners", listener.port);
                return Err(within(Invalid::new("Port", reason)));
            }
            self.validate_listener(listener).map_err(within)?;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        for listener in &mut self.listeners {
            listener.protocol = listener.protocol().unwrap_or_default().to_string();
        }
    }
}

impl IngressGateway {
    fn validate_listener(&self, listener: &IngressListener) -> Result<(), Invalid> {
        let port = listener.port;
        let Some(protocol) = listener.protocol() else {
            return Err(Invalid::new(
                "Protocol",
                format!(
                    "protocol must be 'tcp', 'http', 'http2', or 'grpc'. '{}' is an unsupported \
                     protocol",
                    listener.protocol
                ),
            ));
        };
        if listener.services.is_empty() {
            let reason = format!("No service declared for listener with port {port}");
            return Err(Invalid::new("Services", reason));
        }
        if !protocol.is_http() && listener.services.len() > 1 {
            return Err(Invalid::new(
                "Services",
                format!(
                    "Multiple services per listener are only supported for L7 protocols, 'http', \
                     'grpc' and 'http2' (listener on port {port})"
                ),
            ));
        }
        if let Some(tls) = &listener.tls {
            tls.validate().map_err(|error| error.within("TLS"))?;
        }
        let own = Tenancy::new(&self.partition, &self.namespace);
        let (mut names, mut hosts) = (BTreeSet::new(), BTreeSet::new());
        for (at, service) in listener.services.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Services[{at}]"));
            service.validate(protocol, port).map_err(within)?;
            let tenancy = own.resolve(&service.partition, &service.namespace);
            if !names.insert((tenancy, service.name.to_lowercase())) {
                let reason = format!(
                    "Service {} cannot be added multiple times (listener on port {port})",
                    service.name
                );
                return Err(within(Invalid::new("Name", reason)));
            }
            self.validate_sds(listener, service).map_err(within)?;
            for host in &service.hosts {
                if !hosts.insert(host) {
                    let reason = format!(
                        "Hosts must be unique within a specific listener (listener on port {port})"
                    );
                    return Err(within(Invalid::new("Hosts", reason)));
                }
                validate_host(self.tls.enabled, host).map_err(within)?;
            }
        }
        Ok(())
    }

    /// An SDS certificate needs a resource name and a cluster. Listeners inherit from the gateway,
    /// and services from their listener.
    fn validate_sds(
        &self,
        listener: &IngressListener,
        service: &IngressService,
    ) -> Result<(), Invalid> {
        let set = |sds: Option<&GatewaySds>| {
            sds.map_or((false, false), |sds| {
                (!sds.cluster_name.is_empty(), !sds.cert_resource.is_empty())
            })
        };
        let (gateway_cluster, gateway_cert) = set(self.tls.sds.as_ref());
        let of_listener = listener.tls.as_ref().and_then(|tls| tls.sds.as_ref());
        let (listener_cluster, listener_cert) = set(of_listener);
        let of_service = service.tls.as_ref().and_then(|tls| tls.sds.as_ref());
        let (service_cluster, service_cert) = set(of_service);
        let port = listener.port;
        let refused = |reason: String| Err(Invalid::new("TLS.SDS", reason));
        if !gateway_cluster && gateway_cert {
            return refused("TLS.SDS.ClusterName is required if CertResource is set".to_owned());
        }
        if gateway_cluster && !gateway_cert && !listener_cert {
            return refused(format!(
                "TLS.SDS.CertResource is required if ClusterName is set for gateway (listener on \
                 port {port})"
            ));
        }
        if listener_cluster && !listener_cert {
            return refused(format!(
                "TLS.SDS.CertResource is required if ClusterName is set for listener (listener on \
                 port {port})"
            ));
        }
        if listener_cert && !listener_cluster && !gateway_cluster {
            return refused(format!(
                "TLS.SDS.ClusterName is required if CertResource is set (listener on port {port})"
            ));
        }
        if service_cert && service.hosts.is_empty() {
            return refused(format!(
                "A service specifying TLS.SDS.CertResource must have at least one item in Hosts \
                 (service {:?} on listener on port {port})",
                service.name
            ));
        }
        if service_cert && !service_cluster && !listener_cluster && !gateway_cluster {
            return refused(format!(
                "TLS.SDS.ClusterName is required if CertResource is set (service {:?} on listener \
                 on port {port})",
                service.name
            ));
        }
        Ok(())
    }
}

impl IngressService {
    fn validate(&self, protocol: Protocol, port: u16) -> Result<(), Invalid> {
        let refused = |field: &str, reason: String| Err(Invalid::new(field, reason));
        let headers = [
            ("RequestHeaders", "request", &self.request_headers),
            ("ResponseHeaders", "response", &self.response_headers),
        ];
        for (field, word, modifiers) in headers {
            let given = modifiers.as_ref();
            if !protocol.is_http() && given.is_some_and(|given| *given != Default::default()) {
                return refused(
                    field,
                    format!(
                        "{word} headers only valid for http, http2 and grpc protocols (service {:?} \
                         on listener on port {port})",
                        self.name
                    ),
                );
            }
        }
        validate_both(
            self.request_headers.as_ref(),
            self.response_headers.as_ref(),
        )?;
        if self.name.is_empty() {
            return refused(
                "Name",
                format!("Service name cannot be blank (listener on port {port})"),
            );
        }
        if !protocol.is_http() && self.name == WILDCARD {
            return refused(
                "Name",
                format!(
                    "Wildcard service name is only valid for protocol = 'http' (listener on port \
                     {port})"
                ),
            );
        }
        if !protocol.is_http() && !self.hosts.is_empty() {
            return refused(
                "Hosts",
                format!(
                    "Associating hosts to a service is not supported for the {protocol} protocol \
                     (listener on port {port})"
                ),
            );
        }
        if self.name == WILDCARD && !self.hosts.is_empty() {
            return refused(
                "Hosts",
                format!(
                    "Associating hosts to a wildcard service is not supported (listener on port \
                     {port})"
                ),
            );
        }
        if self.name != WILDCARD {
            name::validate_service_name(&self.name)
                .map_err(|error| Invalid::new("Name", error.to_string()))?;
        }
        meta::validate_entry("Meta", &self.meta)
    }
}

/// Validates a host name, which may have a wildcard as its first label or be `*`.
fn validate_host(is_tls: bool, host: &str) -> Result<(), Invalid> {
    let refused = |reason: String| Err(Invalid::new("Hosts", reason));
    if host == WILDCARD {
        if is_tls {
            return refused(
                "Host '*' is not allowed when TLS is enabled, all hosts must be valid DNS records to \
                 add as a DNSSAN"
                    .to_owned(),
            );
        }
        return Ok(());
    }
    let rest = host.strip_prefix("*.").unwrap_or(host);
    if rest.contains('*') {
        return refused(format!(
            "Host {host:?} is not valid, a wildcard specifier is only allowed as the leftmost label"
        ));
    }
    if !is_host_name(rest) {
        return refused(format!("Host {host:?} must be a valid DNS hostname"));
    }
    Ok(())
}
