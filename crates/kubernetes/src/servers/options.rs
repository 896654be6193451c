//! Options for requests to the servers.

use std::path::PathBuf;

use super::credentials::Credentials;

/// Address, verification and credentials of the servers.
#[derive(Clone, Debug)]
pub struct Options {
    /// DNS name or IP address. If a name has several addresses, the next is used when one does not
    /// answer.
    pub host: String,
    /// Port of the HTTP API: 8500, or 8501 with TLS.
    pub port: u16,
    /// TLS settings, or `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// The source of the token for requests.
    pub credentials: Credentials,
    /// The partition of all requests except those for the whole mesh; `None` means the default one.
    pub partition: Option<String>,
}

/// How servers are verified.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    /// PEM file of the CA, reloaded when it changes; `None` means the system's roots.
    pub ca: Option<PathBuf>,
    /// The name that certificates must have; [`Options::host`] by default.
    pub server_name: Option<String>,
}
