//! Config entries: settings shared by many instances, stored by kind and name.

mod api_gateway;
mod certificate;
#[cfg(test)]
mod chain_tests;
mod destination;
mod entry;
mod exported_services;
mod gateway_tls;
mod header_modifiers;
mod http_route;
mod ingress_gateway;
mod jwks;
mod jwt_provider;
mod mesh;
mod proxy_defaults;
mod reference;
mod registry;
mod request_limit;
mod sameness_group;
mod service_defaults;
mod service_intentions;
mod service_resolver;
mod service_router;
mod service_splitter;
mod tcp_route;
mod terminating_gateway;

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, EnumAccess, VariantAccess, Visitor};
use serde::{Serialize, Serializer};

pub use api_gateway::{ApiGatewayListener, ApiGatewayPolicy, ApiGatewayTls, BoundListener};
pub use destination::Destination;
pub use entry::EntryRights;
pub use exported_services::{ExportedService, ServiceConsumer};
pub use gateway_tls::{GatewaySds, GatewayTls};
pub use header_modifiers::HeaderModifiers;
pub use http_route::{
    HttpRouteFilters, HttpRouteHeaders, HttpRouteMatch, HttpRoutePathMatch,
    HttpRouteResponseFilters, HttpRouteRule, HttpRouteService, HttpRouteValueMatch, RetryFilter,
    TimeoutFilter, UrlRewrite,
};
pub use ingress_gateway::{GatewayServiceTls, IngressDefaults, IngressListener, IngressService};
pub use jwks::{
    JsonWebKeySet, JwksBackOff, JwksCluster, JwksRetryPolicy, JwksTlsCertificates, JwksTrustedCa,
    KeyServer, LocalJwks, RemoteJwks,
};
pub use jwt_provider::{
    JwtCacheConfig, JwtCookie, JwtForwarding, JwtHeader, JwtLocation, JwtQueryParam,
};
pub use mesh::{
    MeshHttp, MeshHttpDirection, MeshPeering, MeshTls, MeshTlsDirection, MeshTransparentProxy,
    RequestNormalization,
};
pub use reference::{Condition, ResourceReference, Status};
pub use request_limit::RequestRates;
pub use sameness_group::SamenessGroupMember;
pub use service_defaults::{
    PassiveHealthCheck, UpstreamConfiguration, UpstreamDefaults, UpstreamLimits,
};
pub use service_intentions::SourceIntention;
pub use service_resolver::{
    CookieConfig, Failover, FailoverMode, FailoverPolicy, FailoverTarget, HashField, HashPolicy,
    LeastRequestConfig, LoadBalancer, LoadBalancerPolicy, Redirect, RingHashConfig, Subset,
};
pub use service_router::{
    HeaderMatch, HttpMatch, QueryParamMatch, Route, RouteDestination, RouteMatch,
};
pub use service_splitter::Split;
pub use tcp_route::TcpRouteService;
pub use terminating_gateway::LinkedService;

use crate::invalid::Invalid;
use crate::json::decode::{self, UnknownFields};
use crate::tenancy::{ServiceName, Tenancy, TenancyName};
use entry::Entry;
use registry::config_entries;

config_entries! {
    /// Settings of one service.
    service_defaults::ServiceDefaults = "service-defaults",
    /// Settings of every proxy; one entry named `global`.
    proxy_defaults::ProxyDefaults = "proxy-defaults",
    /// Settings of the mesh; one entry named `mesh`.
    mesh::Mesh = "mesh",
    /// Intentions of one destination service.
    service_intentions::ServiceIntentions = "service-intentions",
    /// Routes a service's HTTP requests.
    service_router::ServiceRouter = "service-router",
    /// Splits a service's requests by weight.
    service_splitter::ServiceSplitter = "service-splitter",
    /// Selects the instances that serve a service's requests.
    service_resolver::ServiceResolver = "service-resolver",
    /// An issuer of JSON Web Tokens, and how proxies verify its tokens.
    jwt_provider::JwtProvider = "jwt-provider",
    /// Services outside the mesh that a gateway connects to.
    terminating_gateway::TerminatingGateway = "terminating-gateway",
    /// Services that a gateway exposes to clients outside the mesh.
    ingress_gateway::IngressGateway = "ingress-gateway",
    /// The listeners of a gateway that routes are bound to.
    api_gateway::ApiGateway = "api-gateway",
    /// Routes that are bound to an API gateway.
    api_gateway::BoundApiGateway = "bound-api-gateway",
    /// Routes HTTP requests from an API gateway to services.
    http_route::HttpRoute = "http-route",
    /// Routes TCP connections from an API gateway to a service.
    tcp_route::TcpRoute = "tcp-route",
    /// A certificate with its key, for API gateways.
    certificate::InlineCertificate = "inline-certificate",
    /// Paths of a certificate and its key on an API gateway.
    certificate::FileSystemCertificate = "file-system-certificate",
    /// Services that a partition exports; one entry named `default`.
    exported_services::ExportedServices = "exported-services",
    /// Partitions and clusters that are failover targets of each other.
    sameness_group::SamenessGroup = "sameness-group",
    /// Limits on the request rate that servers accept from one address.
    request_limit::ControlPlaneRequestLimit = "control-plane-request-limit",
}

impl ConfigKind {
    /// Whether entries of this kind belong to a whole partition. They are stored in its `default`
    /// namespace, whichever namespace is given.
    #[must_use]
    pub const fn is_of_partition(self) -> bool {
        matches!(
            self,
            Self::ProxyDefaults
                | Self::Mesh
                | Self::JwtProvider
                | Self::ExportedServices
                | Self::SamenessGroup
                | Self::ControlPlaneRequestLimit
        )
    }

    /// The tenancy of entries of this kind for a request in tenancy `own`.
    #[must_use]
    pub fn tenancy(self, own: &Tenancy) -> Tenancy {
        match self.is_of_partition() {
            true => own.of_partition(),
            false => own.clone(),
        }
    }
}

impl fmt::Display for ConfigKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An unknown kind; the text lists the known kinds. It starts as Consul's does.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid config entry kind: {0}: it must be one of {kinds}", kinds = kinds())]
pub struct UnknownKind(pub String);

fn kinds() -> String {
    ConfigKind::ALL.map(ConfigKind::as_str).join(", ")
}

impl FromStr for ConfigKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        ConfigKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

impl<'de> Deserialize<'de> for ConfigEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(decode::KIND_TAGGED, EntryVisitor)
    }
}

/// The crate's own decoder returns an enum access whose variant is the `Kind` field. Any other
/// decoder returns the object, which the crate's own decoder then decodes.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = ConfigEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a config entry: an object with the field Kind")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<ConfigEntry, D::Error> {
        let value = serde_json::Value::deserialize(inner)?;
        decode::from_value(value, UnknownFields::Ignore).map_err(de::Error::custom)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<ConfigEntry, A::Error> {
        let (kind, fields) = access.variant::<String>()?;
        decode(kind.parse().map_err(de::Error::custom)?, fields)
    }
}
