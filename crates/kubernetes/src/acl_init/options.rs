//! The flags of `acl-init`. Each can also be set in the environment: `LEGATE_K8S_` and the flag's
//! name in capitals, with `_` for `-`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, Args};
use legate_model::duration;

use super::gateways::GatewayName;
use crate::servers::ServerFlags;

/// The name of the Secret with the token with which secondary datacenters follow this one. That of consul-k8s.
pub(crate) fn replication_secret(full_name: &str) -> String {
    format!("{full_name}-acl-replication-acl-token")
}

/// The options of `acl-init`.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// The chart's full name, the prefix of all object names.
    #[arg(long, env = "LEGATE_K8S_FULL_NAME")]
    pub full_name: String,

    /// Namespace of the release and of its Secrets.
    #[arg(long, env = "LEGATE_K8S_NAMESPACE")]
    pub namespace: String,

    /// The servers.
    #[command(flatten)]
    pub servers: ServerFlags,

    /// File with a management token. Servers without ACL bootstrap get this token. Default: the token
    /// of the Secret `<full name>-bootstrap-acl-token`, which is created if it does not exist.
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

    /// Selector of the service accounts that may log in as the service of the same name.
    #[arg(
        long,
        env = "LEGATE_K8S_BINDING_RULE_SELECTOR",
        value_name = "SELECTOR",
        default_value = "serviceaccount.name!=default"
    )]
    pub binding_rule_selector: String,

    /// Name of the mesh gateways' service; they log in as the service account `<full name>-mesh-gateway`.
    #[arg(long, env = "LEGATE_K8S_MESH_GATEWAY", value_name = "NAME")]
    pub mesh_gateway: Option<GatewayName>,

    /// Name of an ingress gateway, which logs in as the service account `<full name>-<NAME>`, and its
    /// namespace in the mesh. Repeatable.
    #[arg(
        long,
        env = "LEGATE_K8S_INGRESS_GATEWAY",
        value_name = "NAME[.NAMESPACE]",
        value_delimiter = ','
    )]
    pub ingress_gateway: Vec<GatewayName>,

    /// The same of a terminating gateway. Rights on the services that it represents are not
    /// included: link a policy with them to its role.
    #[arg(
        long,
        env = "LEGATE_K8S_TERMINATING_GATEWAY",
        value_name = "NAME[.NAMESPACE]",
        value_delimiter = ','
    )]
    pub terminating_gateway: Vec<GatewayName>,

    /// Let gateways of the Gateway API log in: each service account as the service
    /// `<namespace>--<account>`, which no pod has by its own name.
    #[arg(long, env = "LEGATE_K8S_API_GATEWAYS", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub api_gateways: bool,

    /// Give the operator and mesh gateways the rights for peerings with other clusters.
    #[arg(long, env = "LEGATE_K8S_PEERING", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub peering: bool,

    /// In a primary datacenter, create a token with which others follow it, in the Secret
    /// `<full name>-acl-replication-acl-token`.
    #[arg(long, env = "LEGATE_K8S_CREATE_REPLICATION_TOKEN", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true",
        conflicts_with = "replication_token_file")]
    pub create_replication_token: bool,

    /// A secondary datacenter.
    #[command(flatten)]
    pub secondary: SecondaryFlags,

    /// How long to wait for servers and Secrets, such as 10m. The Job retries afterwards.
    #[arg(long, env = "LEGATE_K8S_TIMEOUT", value_name = "TIME", default_value = "10m",
        value_parser = duration::parse)]
    pub timeout: Duration,
}

/// The flags of a secondary datacenter.
#[derive(Debug, Clone, Args)]
pub struct SecondaryFlags {
    /// In a secondary datacenter: file with the token with which its servers follow the primary. Nothing is
    /// bootstrapped; what all datacenters share is written to the primary.
    #[arg(long, env = "LEGATE_K8S_REPLICATION_TOKEN_FILE", value_name = "FILE",
        requires_all = ["datacenter", "primary_datacenter", "primary_kubernetes_host"],
        conflicts_with = "bootstrap_token_file")]
    pub replication_token_file: Option<PathBuf>,

    /// The datacenter of the servers. Names of shared objects end with it.
    #[arg(long, env = "LEGATE_K8S_DATACENTER", value_name = "NAME")]
    pub datacenter: Option<String>,

    /// The primary datacenter.
    #[arg(long, env = "LEGATE_K8S_PRIMARY_DATACENTER", value_name = "NAME")]
    pub primary_datacenter: Option<String>,

    /// Address of this cluster's API server, as the servers of the primary datacenter see it.
    #[arg(long, env = "LEGATE_K8S_PRIMARY_KUBERNETES_HOST", value_name = "URL")]
    pub primary_kubernetes_host: Option<String>,
}

/// A secondary datacenter.
#[derive(Debug, Clone, Copy)]
pub(super) struct Secondary<'a> {
    /// File with the replication token.
    pub(super) token_file: &'a Path,
    pub(super) datacenter: &'a str,
    pub(super) primary: &'a str,
    /// The API server's address for the primary.
    pub(super) kubernetes_host: &'a str,
}

impl Options {
    /// The flags of a secondary datacenter; `None` in others.
    pub(super) fn secondary(&self) -> Option<Secondary<'_>> {
        let flags = &self.secondary;
        Some(Secondary {
            token_file: flags.replication_token_file.as_deref()?,
            datacenter: flags.datacenter.as_deref()?,
            primary: flags.primary_datacenter.as_deref()?,
            kubernetes_host: flags.primary_kubernetes_host.as_deref()?,
        })
    }

    /// The name of an object that all datacenters have. Each secondary has its own.
    pub(super) fn shared_name(&self, end: &str) -> String {
        let full = &self.full_name;
        match self.secondary() {
            Some(secondary) => format!("{full}-{end}-{}", secondary.datacenter),
            None => format!("{full}-{end}"),
        }
    }

    /// The name of the Secret with the replication token.
    pub(super) fn replication_secret(&self) -> String {
        replication_secret(&self.full_name)
    }

    /// The name of the Secret with the first token.
    pub(super) fn token_secret(&self) -> String {
        format!("{}-bootstrap-acl-token", self.full_name)
    }

    /// The name of the Secret with the token for token reviews.
    pub(super) fn reviewer_secret(&self) -> String {
        format!("{}-auth-method", self.full_name)
    }
}
