//! The kinds of the Gateway API that the operator reads.

use kube::core::{ApiResource, GroupVersionKind};
use legate_gateway_api::RouteKind;

/// API group of the kinds.
pub(super) const GROUP: &str = "gateway.networking.k8s.io";
/// The version of all kinds that are read. Older ones are not.
pub(super) const VERSION: &str = "v1";

/// A kind of the Gateway API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    GatewayClass,
    Gateway,
    ListenerSet,
    Route(RouteKind),
    ReferenceGrant,
    BackendTlsPolicy,
}

impl Kind {
    /// Every kind.
    pub(super) const ALL: [Self; 10] = [
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
        }
    }

    /// Whether its objects belong to the cluster as a whole.
    pub(super) fn is_of_cluster(self) -> bool {
        self == Self::GatewayClass
    }

    /// The resource description for requests to the API server.
    pub(super) fn api_resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, self.as_str());
        ApiResource::from_gvk_with_plural(&kind, self.plural())
    }
}
