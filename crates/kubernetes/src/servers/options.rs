//! Where the servers are, and what requests are made with.

use std::path::PathBuf;

use super::credentials::Credentials;

/// Where the servers are and how to talk to them.
#[derive(Clone, Debug)]
pub struct Options {
    /// DNS name or IP address. Where a name has several addresses, the next one is taken when one
    /// does not answer.
    pub host: String,
    /// Port of the HTTP API: 8500, or 8501 with TLS.
    pub port: u16,
    /// Verified TLS, or `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// What requests are made with.
    pub credentials: Credentials,
    /// The partition that all requests are about but those about the mesh as a whole; `None` is the
    /// default one.
    pub partition: Option<String>,
}

/// How servers are verified.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// PEM file of the CA; read again when it changes. `None`: the roots of the system.
    pub ca: Option<PathBuf>,
    /// The name that certificates must have; default is [`Options::host`].
    pub server_name: Option<String>,
}
