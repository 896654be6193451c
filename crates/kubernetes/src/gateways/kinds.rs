//! The kinds that describe gateways: those of the Gateway API, and two of Consul.

use kube::core::{ApiResource, GroupVersionKind};
use legate_gateway_api::RouteKind;
use legate_gateway_api::types::CONSUL_GROUP;
pub(super) use legate_gateway_api::types::GROUP;

/// The version of all kinds of the Gateway API that are read. Older ones are not.
pub(super) const VERSION: &str = "v1";
/// The version of Consul's kinds.
const CONSUL_VERSION: &str = "v1alpha1";

/// The groups of the kinds, with their versions.
pub(super) const GROUPS: [(&str, &str); 2] = [(GROUP, VERSION), (CONSUL_GROUP, CONSUL_VERSION)];

/// A kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    GatewayClass,
    Gateway,
    ListenerSet,
    Route(RouteKind),
    ReferenceGrant,
    BackendTlsPolicy,
    /// Settings of the infrastructure.
    GatewayClassConfig,
    /// A name for a service of the mesh.
    MeshService,
}

impl Kind {
    /// Every kind.
    pub(super) const ALL: [Self; 12] = [
        Self::GatewayClass,
        Self::Gateway,
        Self::ListenerSet,
        Self::Route(RouteKind::Http),
        Self::Route(RouteKind::Grpc),
        Self::Route(RouteKind::Tls),
        Self::Route(RouteKind::Tcp),
        Self::Route(RouteKind::Udp),
        Self::ReferenceGrant,
        Self::BackendTlsPolicy,
        Self::GatewayClassConfig,
        Self::MeshService,
    ];

    /// Its name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::GatewayClass => "GatewayClass",
            Self::Gateway => "Gateway",
            Self::ListenerSet => "ListenerSet",
            Self::Route(kind) => kind.as_str(),
            Self::ReferenceGrant => "ReferenceGrant",
            Self::BackendTlsPolicy => "BackendTLSPolicy",
            Self::GatewayClassConfig => "GatewayClassConfig",
            Self::MeshService => "MeshService",
        }
    }

    /// Its plural in URLs.
    pub(super) const fn plural(self) -> &'static str {
        match self {
            Self::GatewayClass => "gatewayclasses",
            Self::Gateway => "gateways",
            Self::ListenerSet => "listenersets",
            Self::Route(RouteKind::Http) => "httproutes",
            Self::Route(RouteKind::Grpc) => "grpcroutes",
            Self::Route(RouteKind::Tls) => "tlsroutes",
            Self::Route(RouteKind::Tcp) => "tcproutes",
            Self::Route(RouteKind::Udp) => "udproutes",
            Self::ReferenceGrant => "referencegrants",
            Self::BackendTlsPolicy => "backendtlspolicies",
            Self::GatewayClassConfig => "gatewayclassconfigs",
            Self::MeshService => "meshservices",
        }
    }

    /// The name of its definition.
    pub(super) fn definition(self) -> String {
        format!("{}.{}", self.plural(), self.group().0)
    }

    /// Its group and version.
    pub(super) const fn group(self) -> (&'static str, &'static str) {
        match self {
            Self::GatewayClassConfig | Self::MeshService => GROUPS[1],
            _ => GROUPS[0],
        }
    }

    /// The resource description for requests to the API server.
    pub(super) fn api_resource(self) -> ApiResource {
        let (group, version) = self.group();
        let kind = GroupVersionKind::gvk(group, version, self.as_str());
        ApiResource::from_gvk_with_plural(&kind, self.plural())
    }
}
