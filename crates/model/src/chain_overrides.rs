//! Overrides in a request for a service's discovery chain.

use std::time::Duration;

use serde::Deserialize;

use crate::duration;
use crate::invalid::Invalid;
use crate::protocol::Protocol;
use crate::proxy::MeshGateway;

/// The body of `POST /v1/discovery-chain/:service`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ChainOverrides {
    /// Mesh gateway mode.
    pub override_mesh_gateway: MeshGateway,
    /// Protocol; empty means that of the config entries.
    pub override_protocol: String,
    /// Connect timeout; zero means that of the config entries.
    #[serde(deserialize_with = "duration::text::deserialize")]
    pub override_connect_timeout: Duration,
}

impl ChainOverrides {
    /// The protocol, if it is overridden.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the protocol is unknown.
    pub fn protocol(&self) -> Result<Option<Protocol>, Invalid> {
        let text = self.override_protocol.as_str();
        let protocol = (!text.is_empty()).then(|| text.parse::<Protocol>());
        protocol
            .transpose()
            .map_err(|error| Invalid::new("OverrideProtocol", error.to_string()))
    }
}
