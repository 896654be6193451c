//! The flags by which programs reach the servers' HTTP API. Each one can come from the environment too:
//! `LEGATE_K8S_` and the name of the flag in capitals, with `_` for `-`.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{Credentials, Options, Tls};

/// Where the servers are and how they are verified.
#[derive(Debug, Clone, Args)]
pub struct ServerFlags {
    /// Host name or IP address of the servers.
    #[arg(long, env = "LEGATE_K8S_SERVER_ADDRESSES", value_name = "HOST")]
    pub server_addresses: String,

    /// Port of the servers' HTTP API. Default: 8501 with --tls, 8500 without.
    #[arg(long, env = "LEGATE_K8S_SERVER_HTTP_PORT", value_name = "PORT")]
    pub server_http_port: Option<u16>,

    /// Talk to the servers with TLS.
    #[arg(long, env = "LEGATE_K8S_TLS", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub tls: bool,

    /// PEM file with the authorities that the servers are verified against, read again when it
    /// changes. Default: the system's.
    #[arg(
        long,
        env = "LEGATE_K8S_CA_CERTS",
        value_name = "FILE",
        requires = "tls",
        conflicts_with = "use_system_roots"
    )]
    pub ca_certs: Option<PathBuf>,

    /// Verify the servers against the system's authorities, which is also the default.
    #[arg(long, env = "LEGATE_K8S_USE_SYSTEM_ROOTS", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub use_system_roots: bool,

    /// Name that the servers' certificate carries. Default: the host of --server-addresses.
    #[arg(long, env = "LEGATE_K8S_TLS_SERVER_NAME", value_name = "NAME")]
    pub tls_server_name: Option<String>,
}

impl ServerFlags {
    /// What a client needs.
    #[must_use]
    pub fn options(&self, credentials: Credentials) -> Options {
        let default_port = if self.tls { 8501 } else { 8500 };
        Options {
            host: self.server_addresses.clone(),
            port: self.server_http_port.unwrap_or(default_port),
            tls: self.tls.then(|| Tls {
                ca: self.ca_certs.clone(),
                server_name: self.tls_server_name.clone(),
            }),
            credentials,
        }
    }
}
