//! The proxies and the traffic direction that an extension applies to.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// Traffic direction that an extension applies to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Unset.
    #[default]
    #[serde(rename = "")]
    Default,
    /// From the mesh to the application.
    Inbound,
    /// From the application to its upstreams.
    Outbound,
}

impl Direction {
    /// Returns the direction, or inbound if unset.
    #[must_use]
    pub fn or_inbound(self) -> Self {
        match self {
            Self::Default => Self::Inbound,
            said => said,
        }
    }

    pub(super) fn require(self, field: &str) -> Result<(), Invalid> {
        match self {
            Self::Default => Err(Invalid::new(
                field,
                "it is required: set it to inbound or outbound",
            )),
            Self::Inbound | Self::Outbound => Ok(()),
        }
    }
}

/// Validates the proxy kind of an extension: `connect-proxy` or empty.
pub(super) fn validate_proxy_type(proxy_type: &str) -> Result<(), Invalid> {
    match proxy_type {
        "" | "connect-proxy" => Ok(()),
        other => Err(Invalid::new(
            "ProxyType",
            format!("unsupported ProxyType {other:?}, only \"connect-proxy\" is supported"),
        )),
    }
}
