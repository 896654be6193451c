//! The five resource types of a sidecar, and their dependencies. No state.

use std::fmt;

use legate_api::type_url;

/// A type of xDS resource, in the order in which additions are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// Certificates and trust bundles (SDS).
    Secret,
    /// Clusters (CDS).
    Cluster,
    /// Endpoints of a cluster (EDS).
    Endpoint,
    /// Listeners (LDS).
    Listener,
    /// Routes of an HTTP listener (RDS).
    Route,
}

impl ResourceType {
    /// All types, in the order in which additions are sent: referenced types come first.
    pub const ALL: [Self; 5] = [
        Self::Secret,
        Self::Cluster,
        Self::Endpoint,
        Self::Listener,
        Self::Route,
    ];

    /// The type with this URL; `None` for types that the mesh does not use.
    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The type URL in requests and responses.
    pub fn url(self) -> &'static str {
        match self {
            Self::Secret => type_url::SECRET,
            Self::Cluster => type_url::CLUSTER,
            Self::Endpoint => type_url::ENDPOINT,
            Self::Listener => type_url::LISTENER,
            Self::Route => type_url::ROUTE,
        }
    }

    /// The type whose resources Envoy drops when one of this type is updated.
    pub(crate) fn child(self) -> Option<Self> {
        match self {
            Self::Cluster => Some(Self::Endpoint),
            Self::Listener => Some(Self::Route),
            Self::Secret | Self::Endpoint | Self::Route => None,
        }
    }

    /// The short name for logs and metrics.
    pub(crate) fn short(self) -> &'static str {
        match self {
            Self::Secret => "secret",
            Self::Cluster => "cluster",
            Self::Endpoint => "endpoint",
            Self::Listener => "listener",
            Self::Route => "route",
        }
    }
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.short())
    }
}
