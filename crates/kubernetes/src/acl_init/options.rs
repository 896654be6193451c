//! The flags of `acl-init`. Each one can come from the environment too: `LEGATE_K8S_` and the name of
//! the flag in capitals, with `_` for `-`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use legate_model::duration;

use crate::servers::ServerFlags;

/// What `acl-init` is started with.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The chart's full name: every object is named after it.
    #[arg(long, env = "LEGATE_K8S_FULL_NAME")]
    pub full_name: String,

    /// Namespace of the release, in which the Secrets are.
    #[arg(long, env = "LEGATE_K8S_NAMESPACE")]
    pub namespace: String,

    /// The servers.
    #[command(flatten)]
    pub servers: ServerFlags,

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
    /// The Secret with the first token.
    pub(super) fn token_secret(&self) -> String {
        format!("{}-bootstrap-acl-token", self.full_name)
    }

    /// The Secret with the token that servers review others with.
    pub(super) fn reviewer_secret(&self) -> String {
        format!("{}-auth-method", self.full_name)
    }
}
