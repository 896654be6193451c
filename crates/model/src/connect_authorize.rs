//! The request for whether a caller may connect, used by services that verify certificates
//! themselves.

use serde::Deserialize;

use crate::tenancy::{Ignored, TenancyName};

/// Body of `POST /v1/agent/connect/authorize`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ConnectAuthorize {
    /// The called service.
    pub target: String,
    /// Its namespace.
    pub namespace: TenancyName,
    /// Its partition.
    pub partition: TenancyName,
    /// The SPIFFE id in the caller's certificate.
    #[serde(rename = "ClientCertURI")]
    pub client_cert_uri: String,
    /// Ignored, as in Consul, since certificates are not revoked.
    pub client_cert_serial: Ignored,
}
