//! Which proxies an extension is for, and which of their traffic.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// Which of a proxy's traffic an extension is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Not said.
    #[default]
    #[serde(rename = "")]
    Default,
    /// From the mesh to the application.
    Inbound,
    /// From the application to its upstreams.
    Outbound,
}

impl Direction {
    /// The direction itself, inbound where none is said.
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

/// The kind of proxy that an extension is for: `connect-proxy`, or left out.
pub(super) fn validate_proxy_type(proxy_type: &str) -> Result<(), Invalid> {
    match proxy_type {
        "" | "connect-proxy" => Ok(()),
        other => Err(Invalid::new(
            "ProxyType",
            format!("unsupported ProxyType {other:?}, only \"connect-proxy\" is supported"),
        )),
    }
}
