//! The flags of `connect envoy` and their constraints.

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;

use crate::server_api::{ApiFlags, environment};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(super) which: Which,
    #[command(flatten)]
    pub(super) bootstrap_of: BootstrapOptions,
    #[command(flatten)]
    pub(super) register: Register,
    /// Print the bootstrap document instead of running Envoy
    #[arg(long)]
    pub(super) bootstrap: bool,
    /// Path of Envoy [default: envoy on PATH]
    #[arg(long, value_name = "PATH")]
    pub(super) envoy_binary: Option<PathBuf>,
    /// Version of Envoy; the document is the same for all supported versions
    #[arg(long, default_value = "", value_name = "VERSION")]
    envoy_version: String,
    /// Skip the check of Envoy's version; there is none
    #[arg(long)]
    ignore_envoy_compatibility: bool,
    /// Log the generation of the document
    #[arg(long)]
    enable_config_gen_logging: bool,
    /// Arguments for Envoy, after --
    pub(super) arguments: Vec<String>,
    #[command(flatten)]
    pub(super) api: ApiFlags,
}

/// Selects the proxy.
#[derive(Args)]
pub(super) struct Which {
    /// Id of the proxy's registration [env: CONNECT_PROXY_ID]
    #[arg(long, value_name = "ID")]
    pub(super) proxy_id: Option<String>,
    /// Node of the proxy, if it is not registered with an agent
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(super) node_name: String,
    /// Id of the service that the sidecar proxy belongs to [env: CONNECT_SIDECAR_FOR]
    #[arg(long, value_name = "ID")]
    pub(super) sidecar_for: Option<String>,
    /// Kind of the gateway: mesh, terminating, ingress or api
    #[arg(long, default_value = "", value_name = "KIND")]
    gateway: String,
    /// The same as -gateway mesh
    #[arg(long)]
    mesh_gateway: bool,
    /// Name of the gateway's service [default: its kind]
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(super) service: String,
}

/// Options of the bootstrap document.
#[derive(Args)]
pub(super) struct BootstrapOptions {
    /// Address of Envoy's admin interface
    #[arg(long, default_value = "localhost:19000", value_name = "ADDRESS:PORT")]
    pub(super) admin_bind: String,
    /// Access log file of the admin interface
    #[arg(long, default_value = "/dev/null", value_name = "PATH")]
    pub(super) admin_access_log_path: String,
    /// Ignore config entries for the document
    #[arg(long)]
    pub(super) no_central_config: bool,
    /// Address of the server's gRPC API: ADDRESS:PORT, https://ADDRESS:PORT or unix:///PATH [env:
    /// CONSUL_GRPC_ADDR] [default: that of the agent]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) grpc_addr: Option<String>,
    /// PEM file with CA certificates of the gRPC API [env: CONSUL_GRPC_CACERT]
    #[arg(long, value_name = "FILE")]
    pub(super) grpc_ca_file: Option<PathBuf>,
    /// Folder of such files [env: CONSUL_GRPC_CAPATH]
    #[arg(long, value_name = "DIR")]
    pub(super) grpc_ca_path: Option<PathBuf>,
    /// Address of a listener for Envoy's readiness
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    pub(super) envoy_ready_bind_address: String,
    /// Port of that listener
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(super) envoy_ready_bind_port: u16,
    /// Omit the tags of metrics that were renamed in Consul 1.9, such as consul.service
    #[arg(long)]
    pub(super) omit_deprecated_tags: bool,
    /// Local port that serves the merged metrics of Envoy and the application
    #[arg(long, default_value = "", value_name = "PORT")]
    pub(super) prometheus_backend_port: String,
    /// Path that Prometheus scrapes
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub(super) prometheus_scrape_path: String,
    /// PEM file with CA certificates of metrics clients
    #[arg(long, value_name = "FILE")]
    pub(super) prometheus_ca_file: Option<PathBuf>,
    /// Folder of such files
    #[arg(long, value_name = "DIR")]
    pub(super) prometheus_ca_path: Option<PathBuf>,
    /// PEM file of the certificate for metrics
    #[arg(long, value_name = "FILE")]
    pub(super) prometheus_cert_file: Option<PathBuf>,
    /// PEM file of its key
    #[arg(long, value_name = "FILE")]
    pub(super) prometheus_key_file: Option<PathBuf>,
}

/// Options for the registration of a gateway.
#[derive(Args)]
pub(super) struct Register {
    /// Register the gateway first
    #[arg(long)]
    pub(super) register: bool,
    /// LAN address
    #[arg(long, default_value = "", value_name = "ADDRESS[:PORT]")]
    pub(super) address: String,
    /// WAN address
    #[arg(long, default_value = "", value_name = "ADDRESS[:PORT]")]
    pub(super) wan_address: String,
    /// Named address on which Envoy listens; may be repeated
    #[arg(long, value_parser = crate::input::pair, value_name = "NAME=ADDRESS:PORT")]
    pub(super) bind_address: Vec<(String, String)>,
    /// Mark the mesh gateway as one through which other datacenters reach the servers; has an effect
    /// with federation
    #[arg(long)]
    pub(super) expose_servers: bool,
    /// How long an unreachable gateway stays registered
    #[arg(long, default_value = "6h", value_name = "DURATION")]
    pub(super) deregister_after_critical: String,
}

/// The service kind for a value of -gateway.
pub(super) fn kind_of(gateway: &str) -> anyhow::Result<&'static str> {
    Ok(match gateway {
        "api" => "api-gateway",
        "mesh" => "mesh-gateway",
        "terminating" => "terminating-gateway",
        "ingress" => "ingress-gateway",
        _ => bail!("Gateway must be one of: api, terminating, mesh, or ingress"),
    })
}

impl Options {
    /// # Errors
    /// Names the contradicting flags.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let (which, register) = (&self.which, &self.register);
        let by_id = which.given(&which.proxy_id, "CONNECT_PROXY_ID");
        ensure!(
            which.node_name.is_empty() || by_id.is_some(),
            "'-node-name' requires '-proxy-id'"
        );
        ensure!(
            !which.mesh_gateway || which.gateway.is_empty(),
            "The mesh-gateway flag is deprecated and cannot be used alongside the gateway flag"
        );
        if register.expose_servers {
            ensure!(
                which.gateway() == "mesh",
                "'-expose-servers' can only be used for mesh gateways"
            );
            ensure!(register.register, "'-expose-servers' requires '-register'");
        }
        if !which.gateway().is_empty() {
            kind_of(which.gateway())?;
        }
        ensure!(
            !register.register || which.node_name.is_empty(),
            "'-register' cannot be used with '-node-name'"
        );
        let of = &self.bootstrap_of;
        let files = [
            of.prometheus_ca_file.is_some() || of.prometheus_ca_path.is_some(),
            of.prometheus_cert_file.is_some(),
            of.prometheus_key_file.is_some(),
        ];
        ensure!(
            files.iter().all(|there| *there) || files.iter().all(|there| !there),
            "Must provide a CA (-prometheus-ca-file or -prometheus-ca-path) as well as \
             -prometheus-cert-file and -prometheus-key-file to enable TLS for prometheus metrics"
        );
        Ok(())
    }
}

impl Which {
    pub(super) fn given(&self, flag: &Option<String>, variable: &str) -> Option<String> {
        let given = flag.clone().or_else(|| environment(variable));
        given.filter(|id| !id.is_empty())
    }

    pub(super) fn gateway(&self) -> &str {
        if self.mesh_gateway {
            "mesh"
        } else {
            &self.gateway
        }
    }
}
