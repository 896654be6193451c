//! Config entries: settings for many instances at once, stored by kind and name.

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
pub use reference::{ResourceReference, Status};
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
use crate::served::field::Rows;
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
    /// Who may call one service.
    service_intentions::ServiceIntentions = "service-intentions",
    /// Which service answers which HTTP requests.
    service_router::ServiceRouter = "service-router",
    /// Which part of a service's requests goes where.
    service_splitter::ServiceSplitter = "service-splitter",
    /// Which instances answer for a service.
    service_resolver::ServiceResolver = "service-resolver",
    /// Who issues JSON Web Tokens, and how proxies verify them.
    jwt_provider::JwtProvider = "jwt-provider",
    /// Which services outside the mesh a gateway leads to.
    terminating_gateway::TerminatingGateway = "terminating-gateway",
    /// Which services a gateway opens to callers outside the mesh.
    ingress_gateway::IngressGateway = "ingress-gateway",
    /// The listeners of a gateway that routes are bound to.
    api_gateway::ApiGateway = "api-gateway",
    /// Which routes are bound to an API gateway.
    api_gateway::BoundApiGateway = "bound-api-gateway",
    /// Which service answers which requests that come in through an API gateway.
    http_route::HttpRoute = "http-route",
    /// Which service takes the connections that come in through an API gateway.
    tcp_route::TcpRoute = "tcp-route",
    /// A certificate with its key, for API gateways.
    certificate::InlineCertificate = "inline-certificate",
    /// Where a certificate and its key are on an API gateway.
    certificate::FileSystemCertificate = "file-system-certificate",
    /// Which services others may use; one entry named `default`.
    exported_services::ExportedServices = "exported-services",
    /// Partitions and clusters that stand in for each other.
    sameness_group::SamenessGroup = "sameness-group",
    /// How many requests of one address servers answer.
    request_limit::ControlPlaneRequestLimit = "control-plane-request-limit",
}

impl ConfigKind {
    /// Whether its entries are about a partition as a whole. They are in the partition's namespace
    /// `default`, whichever is named.
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

    /// Where the entries of this kind are that one reads or writes who is in a tenancy.
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

/// A kind that does not exist; prints those that do. The first words are Consul's.
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

/// The crate's own decoder answers with an enum access whose variant is the `Kind` field; any other
/// decoder hands over the object, which is then read once more by the crate's own.
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
