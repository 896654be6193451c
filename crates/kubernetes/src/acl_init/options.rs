//! The flags of `acl-init`. Each one can come from the environment too: `LEGATE_K8S_` and the name of
//! the flag in capitals, with `_` for `-`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use legate_model::duration;

use crate::servers::{Credentials, Options as ServersOptions, Tls};

/// What `acl-init` is started with.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The chart's full name: every object is named after it.
    #[arg(long, env = "LEGATE_K8S_FULL_NAME")]
    pub full_name: String,

    /// Namespace of the release, in which the Secrets are.
    #[arg(long, env = "LEGATE_K8S_NAMESPACE")]
    pub namespace: String,

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
    #[arg(long, env = "LEGATE_K8S_USE_SYSTEM_ROOTS", action = ArgAction::SetTrue)]
    pub use_system_roots: bool,

    /// Name that the servers' certificate carries. Default: the host of --server-addresses.
    #[arg(long, env = "LEGATE_K8S_TLS_SERVER_NAME", value_name = "NAME")]
    pub tls_server_name: Option<String>,

    /// File with a token that may do everything. Servers that have none yet get this one. Default: a
    /// token of the Secret `<full name>-bootstrap-acl-token`, which is made when it does not exist.
    #[arg(long, env = "LEGATE_K8S_BOOTSTRAP_TOKEN_FILE", value_name = "FILE")]
    pub bootstrap_token_file: Option<PathBuf>,

    /// Address of this cluster's API server, as the servers see it.
    #[arg(
        long,
        env = "LEGATE_K8S_KUBERNETES_HOST",
        value_name = "URL",
        default_value = "https://kubernetes.default.svc"
    )]
    pub kubernetes_host: String,

    /// Which service accounts may log in as the service of their name.
    #[arg(
        long,
        env = "LEGATE_K8S_BINDING_RULE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "serviceaccount.name!=default"
    )]
    pub binding_rule_selector: String,

    /// How long to wait for servers and Secrets, such as 10m. The Job starts it again afterwards.
    #[arg(long, env = "LEGATE_K8S_TIMEOUT", value_name = "TIME", default_value = "10m",
        value_parser = duration::parse)]
    pub timeout: Duration,
}

impl Options {
    /// Where the servers are. Requests name their tokens themselves.
    pub(super) fn servers(&self) -> ServersOptions {
        ServersOptions {
            host: self.server_addresses.clone(),
            port: self
                .server_http_port
                .unwrap_or(if self.tls { 8501 } else { 8500 }),
            tls: self.tls.then(|| Tls {
                ca: self.ca_certs.clone(),
                server_name: self.tls_server_name.clone(),
            }),
            credentials: Credentials::None,
        }
    }

    /// The Secret with the first token.
    pub(super) fn token_secret(&self) -> String {
        format!("{}-bootstrap-acl-token", self.full_name)
    }

    /// The Secret with the token that servers review others with.
    pub(super) fn reviewer_secret(&self) -> String {
        format!("{}-auth-method", self.full_name)
    }
}
