//! The types of resources and the references between them.

/// The generated resource types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Cluster,
    Endpoints,
    Listener,
    Routes,
    Secret,
}

impl Type {
    pub(crate) const ALL: [Self; 5] = [
        Self::Cluster,
        Self::Endpoints,
        Self::Listener,
        Self::Routes,
        Self::Secret,
    ];

    pub(crate) fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Routes => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
            Self::Secret => "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret",
        }
    }

    pub(crate) fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// Whether resources of this type may refer to resources of the other type.
    pub(crate) fn refers_to(self, other: Self) -> bool {
        use Type::{Cluster, Endpoints, Listener, Routes, Secret};
        match self {
            Listener => matches!(other, Routes | Cluster | Endpoints),
            Routes => matches!(other, Cluster | Endpoints),
            Cluster => matches!(other, Cluster | Endpoints),
            Endpoints | Secret => false,
        }
    }
}
