//! The operator's flags. Each can also be set in the environment: `LEGATE_K8S_` and the flag's name
//! in capitals, with `_` for `-`.

use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use clap::{ArgAction, Args};

use crate::servers::ServerFlags;

/// The path of a pod's own service account token.
const SERVICE_ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

/// The operator's options.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Names.
    #[command(flatten)]
    pub names: Names,
    /// The servers.
    #[command(flatten)]
    pub servers: Servers,
    /// Injected containers.
    #[command(flatten)]
    pub sidecars: Sidecars,
    /// Ports.
    #[command(flatten)]
    pub ports: Ports,
}

/// The names of this installation.
#[derive(Debug, Clone, Args)]
pub struct Names {
    /// The chart's full name, the prefix of the names of all objects of the release.
    #[arg(long, env = "LEGATE_K8S_FULL_NAME")]
    pub full_name: String,

    /// Namespace of the release, in which the operator runs.
    #[arg(long, env = "LEGATE_K8S_NAMESPACE")]
    pub namespace: String,

    /// Name of the operator's own pod, which holds the lease.
    #[arg(long, env = "LEGATE_K8S_POD_NAME")]
    pub pod_name: String,
}

/// How servers are reached, by the operator and by the sidecars that it injects.
#[derive(Debug, Clone, Args)]
pub struct Servers {
    /// The HTTP API.
    #[command(flatten)]
    pub http: ServerFlags,

    /// Port of the servers' gRPC API.
    #[arg(
        long,
        env = "LEGATE_K8S_SERVER_GRPC_PORT",
        default_value_t = 8502,
        value_name = "PORT"
    )]
    pub server_grpc_port: u16,

    /// Issue the servers' CA and certificate, store them in Secrets named after --full-name, and
    /// renew them.
    #[arg(long, env = "LEGATE_K8S_MANAGED_CA", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub managed_ca: bool,

    /// File with the key of a CA in --ca-certs. The operator then signs the servers' certificate with it, stores it in
    /// the Secret `<full name>-server-cert`, and renews it.
    #[arg(
        long,
        env = "LEGATE_K8S_CA_KEY",
        value_name = "FILE",
        requires = "ca_certs",
        conflicts_with = "managed_ca"
    )]
    pub ca_key: Option<PathBuf>,

    /// Let sidecars use only --server-addresses, without discovering other servers.
    #[arg(long, env = "LEGATE_K8S_SKIP_SERVER_WATCH", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub skip_server_watch: bool,

    /// File with the operator's own ACL token.
    #[arg(
        long,
        env = "LEGATE_K8S_TOKEN_FILE",
        value_name = "FILE",
        conflicts_with = "login_auth_method"
    )]
    pub token_file: Option<PathBuf>,

    /// Auth method that the operator logs in with.
    #[arg(long, env = "LEGATE_K8S_LOGIN_AUTH_METHOD", value_name = "NAME")]
    pub login_auth_method: Option<String>,

    /// File with the service account token that the operator logs in with.
    #[arg(long, env = "LEGATE_K8S_LOGIN_BEARER_TOKEN_FILE", default_value = SERVICE_ACCOUNT_TOKEN, value_name = "FILE")]
    pub login_bearer_token_file: PathBuf,

    /// The servers' datacenter.
    #[arg(long, env = "LEGATE_K8S_DATACENTER", default_value = "dc1")]
    pub datacenter: String,
}

/// Settings of injected containers.
#[derive(Debug, Clone, Args)]
pub struct Sidecars {
    /// Image of the sidecar.
    #[arg(long, env = "LEGATE_K8S_DATAPLANE_IMAGE", value_name = "IMAGE")]
    pub dataplane_image: String,

    /// Image of the container that redirects a pod's traffic, which runs this program.
    #[arg(long, env = "LEGATE_K8S_REDIRECT_IMAGE", value_name = "IMAGE")]
    pub redirect_image: String,

    /// Pull policy of both images. Default: Kubernetes' default for the image's tag.
    #[arg(long, env = "LEGATE_K8S_IMAGE_PULL_POLICY", value_name = "POLICY",
        value_parser = ["Always", "IfNotPresent", "Never", ""])]
    pub image_pull_policy: Option<String>,

    /// Auth method for the login of sidecars. Default: none, without a token.
    #[arg(long, env = "LEGATE_K8S_SIDECAR_AUTH_METHOD", value_name = "NAME")]
    pub sidecar_auth_method: Option<String>,

    /// JSON file with the chart's values under connectInject, and dns.
    #[arg(long, env = "LEGATE_K8S_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The ports on which the operator listens.
#[derive(Debug, Clone, Args)]
pub struct Ports {
    /// Address of all ports.
    #[arg(long, env = "LEGATE_K8S_BIND", default_value_t = IpAddr::V6(Ipv6Addr::UNSPECIFIED))]
    pub bind: IpAddr,

    /// Port of the admission webhook.
    #[arg(
        long,
        env = "LEGATE_K8S_WEBHOOK_PORT",
        default_value_t = 8080,
        value_name = "PORT"
    )]
    pub webhook_port: u16,

    /// Port of /livez, /readyz and /metrics.
    #[arg(
        long,
        env = "LEGATE_K8S_HEALTH_PORT",
        default_value_t = 9444,
        value_name = "PORT"
    )]
    pub health_port: u16,

    /// Folder with tls.crt and tls.key for the webhook, reloaded when they change. Another
    /// component, such as cert-manager, issues them and sets the webhook's caBundle. Default: the
    /// operator does both.
    #[arg(long, env = "LEGATE_K8S_WEBHOOK_CERT_DIR", value_name = "FOLDER")]
    pub webhook_cert_dir: Option<PathBuf>,
}
