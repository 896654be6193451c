//! The two kinds of custom resources and their `spec`. Names are those of consul-k8s.

use kube::core::{ApiResource, GroupVersionKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::kinds::{GROUP, VERSION};

/// The only value of `backend`.
pub const KUBERNETES: &str = "kubernetes";

/// A kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Makes a token that another cluster uses.
    Acceptor,
    /// Uses the token of another cluster.
    Dialer,
}

impl Kind {
    /// Both.
    pub const ALL: [Kind; 2] = [Kind::Acceptor, Kind::Dialer];

    /// Its name in Kubernetes.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Acceptor => "PeeringAcceptor",
            Kind::Dialer => "PeeringDialer",
        }
    }

    /// Its plural in URLs.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Kind::Acceptor => "peeringacceptors",
            Kind::Dialer => "peeringdialers",
        }
    }

    /// Its abbreviation for `kubectl get`.
    #[must_use]
    pub const fn short_name(self) -> &'static str {
        match self {
            Kind::Acceptor => "peering-acceptor",
            Kind::Dialer => "peering-dialer",
        }
    }

    /// The resource description for requests to the API server.
    #[must_use]
    pub fn api_resource(self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, self.as_str());
        ApiResource::from_gvk_with_plural(&kind, self.plural())
    }
}

/// What an object asks for. The peering has the object's name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct Spec {
    /// The other cluster.
    pub peer: Peer,
}

/// The other cluster.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct Peer {
    /// Where the token is: in the object's own namespace.
    pub secret: SecretSpec,
}

/// Where a token is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(inline)]
pub struct SecretSpec {
    /// The name of the Secret.
    #[schemars(
        length(min = 1, max = 253),
        regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")
    )]
    pub name: String,
    /// The key in the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[-._a-zA-Z0-9]+$"))]
    pub key: String,
    /// Where the Secret is stored; `kubernetes` is the only value.
    #[schemars(extend("enum" = [KUBERNETES]))]
    pub backend: String,
}

impl SecretSpec {
    /// Checks what the definition checks, too: an older one may be installed.
    pub(super) fn validate(&self) -> Result<(), String> {
        let inner = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        let valid = |text: &str| {
            !text.is_empty() && text.len() <= 253 && text.chars().all(inner) && !text.contains("..")
        };
        for (field, text) in [("name", &self.name), ("key", &self.key)] {
            if !valid(text) {
                return Err(format!(
                    "spec.peer.secret.{field} is {text:?}: use letters, digits, '-' and '.'"
                ));
            }
        }
        match self.backend.as_str() {
            KUBERNETES => Ok(()),
            other => Err(format!(
                "spec.peer.secret.backend is {other:?}: it must be {KUBERNETES:?}"
            )),
        }
    }
}
