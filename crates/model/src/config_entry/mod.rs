//! Config entries: settings for many instances at once, stored by kind and name.

#[cfg(test)]
mod chain_tests;
mod destination;
mod header_modifiers;
mod jwks;
mod jwt_provider;
mod mesh;
mod proxy_defaults;
mod rate_limits;
mod registry;
mod service_defaults;
mod service_intentions;
mod service_resolver;
mod service_router;
mod service_splitter;
mod terminating_gateway;

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, EnumAccess, VariantAccess, Visitor};
use serde::{Serialize, Serializer};

pub use destination::Destination;
pub use header_modifiers::HeaderModifiers;
pub use jwks::{
    JsonWebKeySet, JwksBackOff, JwksCluster, JwksRetryPolicy, JwksTlsCertificates, JwksTrustedCa,
    KeyServer, LocalJwks, RemoteJwks,
};
pub use jwt_provider::{
    JwtCacheConfig, JwtCookie, JwtForwarding, JwtHeader, JwtLocation, JwtQueryParam,
};
pub use mesh::{
    MeshHttp, MeshHttpDirection, MeshTls, MeshTlsDirection, MeshTransparentProxy,
    RequestNormalization,
};
pub use rate_limits::{InstanceRateLimits, RateLimits, RouteRateLimits};
pub use registry::EntryRights;
pub use service_defaults::{
    MutualTlsMode, PassiveHealthCheck, UpstreamConfiguration, UpstreamDefaults, UpstreamLimits,
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
pub use terminating_gateway::LinkedService;

use crate::invalid::Invalid;
use crate::json;
use crate::served::Rows;
use registry::{Entry, config_entries};

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
}

/// The kinds of Consul 1.21.
const CONSUL: [&str; 19] = [
    "api-gateway",
    "bound-api-gateway",
    "control-plane-request-limit",
    "exported-services",
    "file-system-certificate",
    "http-route",
    "ingress-gateway",
    "inline-certificate",
    "jwt-provider",
    "mesh",
    "proxy-defaults",
    "sameness-group",
    "service-defaults",
    "service-intentions",
    "service-resolver",
    "service-router",
    "service-splitter",
    "tcp-route",
    "terminating-gateway",
];

impl ConfigKind {
    /// The kinds of Consul 1.21 that are not served: there is no entry of any of them.
    pub fn not_served() -> impl Iterator<Item = &'static str> {
        let served = |name: &&str| name.parse::<ConfigKind>().is_ok();
        CONSUL.into_iter().filter(move |name| !served(name))
    }
}

impl fmt::Display for ConfigKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kind that is not served; prints those that are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid config entry kind {0:?}: served are {kinds}", kinds = kinds())]
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
        deserializer.deserialize_newtype_struct(json::KIND_TAGGED, EntryVisitor)
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
        json::from_value(value, json::UnknownFields::Ignore).map_err(de::Error::custom)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<ConfigEntry, A::Error> {
        let (kind, fields) = access.variant::<String>()?;
        decode(kind.parse().map_err(de::Error::custom)?, fields)
    }
}
