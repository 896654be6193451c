//! `connect envoy`: runs Envoy for a proxy that is registered, or prints its bootstrap document. Envoy asks
//! the server itself; legate-dataplane is the way with a supervisor.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use legate_envoy::find_executable;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use serde_json::Value;

use super::envoy_bootstrap;
use super::envoy_registration::{self, Registered};
use crate::output::{line, list, quoted, text, warn};
use crate::server_api::{Api, ApiFlags, encoded, encoded_path, environment, refused};

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
    bootstrap: bool,
    /// Envoy's program [default: envoy on PATH]
    #[arg(long, value_name = "PATH")]
    envoy_binary: Option<PathBuf>,
    /// Version of Envoy; every one that is supported gets the same document
    #[arg(long, default_value = "", value_name = "VERSION")]
    envoy_version: String,
    /// Do not look at Envoy's version; it is not looked at
    #[arg(long)]
    ignore_envoy_compatibility: bool,
    /// Say what is done
    #[arg(long)]
    enable_config_gen_logging: bool,
    /// Arguments for Envoy, after --
    arguments: Vec<String>,
    #[command(flatten)]
    pub(super) api: ApiFlags,
}

/// Which proxy.
#[derive(Args)]
pub(super) struct Which {
    /// Id of the proxy's registration [env: CONNECT_PROXY_ID]
    #[arg(long, value_name = "ID")]
    proxy_id: Option<String>,
    /// Node of the proxy, for one that is no agent's
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(super) node_name: String,
    /// Id of the service whose sidecar the proxy is [env: CONNECT_SIDECAR_FOR]
    #[arg(long, value_name = "ID")]
    sidecar_for: Option<String>,
    /// Kind of the gateway that the proxy is: mesh, terminating, ingress or api
    #[arg(long, default_value = "", value_name = "KIND")]
    gateway: String,
    /// The same as -gateway mesh
    #[arg(long)]
    mesh_gateway: bool,
    /// Name of the gateway's service [default: its kind]
    #[arg(long, default_value = "", value_name = "NAME")]
    service: String,
}

/// What the bootstrap document says besides who the proxy is.
#[derive(Args)]
pub(super) struct BootstrapOptions {
    /// Where Envoy's admin interface listens
    #[arg(long, default_value = "localhost:19000", value_name = "ADDRESS:PORT")]
    pub(super) admin_bind: String,
    /// File for the log of the admin interface
    #[arg(long, default_value = "/dev/null", value_name = "PATH")]
    pub(super) admin_access_log_path: String,
    /// Leave out what config entries say about the document
    #[arg(long)]
    pub(super) no_central_config: bool,
    /// Address of the server's gRPC API: ADDRESS:PORT, https://ADDRESS:PORT or unix:///PATH
    /// [env: CONSUL_GRPC_ADDR] [default: what the agent says]
    #[arg(long, value_name = "ADDRESS")]
    pub(super) grpc_addr: Option<String>,
    /// PEM file of the authorities of the gRPC API [env: CONSUL_GRPC_CACERT]
    #[arg(long, value_name = "FILE")]
    pub(super) grpc_ca_file: Option<PathBuf>,
    /// Folder of such files [env: CONSUL_GRPC_CAPATH]
    #[arg(long, value_name = "DIR")]
    pub(super) grpc_ca_path: Option<PathBuf>,
    /// Address of a listener that says whether Envoy is ready
    #[arg(long, default_value = "", value_name = "ADDRESS")]
    pub(super) envoy_ready_bind_address: String,
    /// Port of that listener
    #[arg(long, default_value_t = 0, value_name = "PORT")]
    pub(super) envoy_ready_bind_port: u16,
    /// Without tags of old versions; they are never there
    #[arg(long)]
    omit_deprecated_tags: bool,
    /// Port of this machine at which metrics are merged with those of the application
    #[arg(long, default_value = "", value_name = "PORT")]
    pub(super) prometheus_backend_port: String,
    /// Path that Prometheus asks for
    #[arg(long, default_value = "/metrics", value_name = "PATH")]
    pub(super) prometheus_scrape_path: String,
    /// PEM file of the authorities of those who ask for metrics
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

/// How a gateway is registered.
#[derive(Args)]
pub(super) struct Register {
    /// Register the gateway first
    #[arg(long)]
    register: bool,
    /// Address in the cluster
    #[arg(long, default_value = "", value_name = "ADDRESS[:PORT]")]
    pub(super) address: String,
    /// Address for other clusters
    #[arg(long, default_value = "", value_name = "ADDRESS[:PORT]")]
    pub(super) wan_address: String,
    /// Address that Envoy listens at, by a name; may be repeated
    #[arg(long, value_parser = crate::input::pair, value_name = "NAME=ADDRESS:PORT")]
    pub(super) bind_address: Vec<(String, String)>,
    /// Let other clusters reach the servers through the mesh gateway
    #[arg(long)]
    pub(super) expose_servers: bool,
    /// How long a gateway that is gone stays registered
    #[arg(long, default_value = "6h", value_name = "DURATION")]
    pub(super) deregister_after_critical: String,
}

/// The kind of gateways under a name of -gateway.
fn kind_of(gateway: &str) -> anyhow::Result<&'static str> {
    Ok(match gateway {
        "api" => "api-gateway",
        "mesh" => "mesh-gateway",
        "terminating" => "terminating-gateway",
        "ingress" => "ingress-gateway",
        _ => bail!("Gateway must be one of: api, terminating, mesh, or ingress"),
    })
}

/// A proxy, as far as flags and the agent say.
pub(super) struct Proxy {
    pub(super) id: String,
    /// The service that it is a sidecar of, or the gateway.
    pub(super) stands_for: String,
    /// For a gateway that is registered here.
    pub(super) kind: Option<&'static str>,
}

pub(super) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    options.check()?;
    let api = options.api.connect()?;
    let proxy = options.which.proxy(&api, options.register.register).await?;
    if options.register.register {
        let Some(kind) = proxy.kind else {
            bail!("Auto-Registration can only be used for gateways");
        };
        let service = envoy_registration::service(&options.register, &proxy, kind)?;
        let name = text(&service, "Name");
        let done = api
            .put("/v1/agent/service/register")
            .json(&service)
            .ok()
            .await;
        done.with_context(|| format!("Error registering service {}", quoted(name)))?;
        if !options.bootstrap {
            line(&format!("Registered service: {name}"))?;
        }
    }
    if options.bootstrap_of.admin_access_log_path != "/dev/null" {
        warn(
            "-admin-access-log-path is deprecated and will be removed in a future version of Consul. \
             Configure access logging with proxy-defaults.accessLogs.",
        );
    }
    let document = envoy_bootstrap::document(&options, &api, &proxy).await?;
    if options.bootstrap {
        line(&crate::output::json(&document, "  "))?;
        return Ok(ExitCode::SUCCESS);
    }
    Err(execute(&options, &document))
}

impl Options {
    fn check(&self) -> anyhow::Result<()> {
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
            bail!("-expose-servers is not served: servers of one cluster are reached directly");
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
    fn given(&self, flag: &Option<String>, variable: &str) -> Option<String> {
        let given = flag.clone().or_else(|| environment(variable));
        given.filter(|id| !id.is_empty())
    }

    fn gateway(&self) -> &str {
        if self.mesh_gateway {
            "mesh"
        } else {
            &self.gateway
        }
    }

    /// Finds the proxy among those of the agent, where its id is not given.
    async fn proxy(&self, api: &Api, register: bool) -> anyhow::Result<Proxy> {
        let sidecar_for = self.given(&self.sidecar_for, "CONNECT_SIDECAR_FOR");
        let kind = match self.gateway() {
            "" => None,
            gateway => Some(kind_of(gateway)?),
        };
        let mut name = match (self.service.as_str(), kind) {
            ("", Some(kind)) => kind.to_owned(),
            (name, _) => name.to_owned(),
        };
        let id = match (
            self.given(&self.proxy_id, "CONNECT_PROXY_ID"),
            &sidecar_for,
            kind,
        ) {
            (Some(id), ..) => id,
            (None, Some(service), _) => sidecar_of(api, service).await?,
            (None, None, Some(_)) if register => name.clone(),
            (None, None, Some(kind)) => {
                let gateway = only_gateway(api, kind).await?;
                name = text(&gateway, "Service").to_owned();
                text(&gateway, "ID").to_owned()
            }
            (None, None, None) => bail!(
                "No proxy ID specified. One of -proxy-id, -sidecar-for, or -gateway is required"
            ),
        };
        let stands_for = match (sidecar_for, kind) {
            (Some(service), _) => service,
            (None, Some(_)) => name,
            (None, None) => id.clone(),
        };
        Ok(Proxy {
            id,
            stands_for,
            kind,
        })
    }
}

/// The id of the only sidecar of a service.
async fn sidecar_of(api: &Api, service: &str) -> anyhow::Result<String> {
    let services = api.get("/v1/agent/services").value().await;
    let services =
        services.with_context(|| format!("Failed looking up sidecar proxy info for {service}"))?;
    let is_sidecar = |one: &&Value| {
        let of = text(&one["Proxy"], "DestinationServiceID");
        one["Kind"] == "connect-proxy" && of.eq_ignore_ascii_case(service)
    };
    let services = services
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, one)| one);
    let ids: Vec<&str> = services
        .filter(is_sidecar)
        .map(|one| text(one, "ID"))
        .collect();
    match ids.as_slice() {
        [] => bail!("No sidecar proxy registered for {service}"),
        [id] => Ok((*id).to_owned()),
        several => bail!(
            "More than one sidecar proxy registered for {service}.\n    Start proxy with -proxy-id \
             and one of the following IDs: {}",
            several.join(", ")
        ),
    }
}

/// The only gateway of a kind.
async fn only_gateway(api: &Api, kind: &str) -> anyhow::Result<Value> {
    let ask = api
        .get("/v1/agent/services")
        .query("filter", format!("Kind == `{kind}`"));
    let services = ask.value().await;
    let services = services.with_context(|| format!("Failed looking up {kind} instances"))?;
    let mut services = services
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, one)| one);
    match (services.next(), services.next()) {
        (None, _) => bail!("No {kind} services registered with this agent"),
        (Some(one), None) => Ok(one.clone()),
        _ => bail!(
            "Cannot lookup the {kind}'s proxy ID because multiple are registered with the agent"
        ),
    }
}

/// The registration of a proxy: with the agent, or with a node.
pub(super) async fn registration(api: &Api, node: &str, id: &str) -> anyhow::Result<Registered> {
    if node.is_empty() {
        let service = api
            .get(format!("/v1/agent/service/{}", encoded_path(id)))
            .value()
            .await;
        let service = service.context("failed fetch proxy config from local agent")?;
        return Ok(Registered {
            datacenter: text(&service, "Datacenter").to_owned(),
            service,
        });
    }
    let ask = api.get(format!("/v1/catalog/node-services/{}", encoded(node)));
    let ask = ask.query("filter", format!("ID == {}", quoted(id)));
    let found = ask.flag("merge-central-config", true).value().await;
    let found = found
        .with_context(|| format!("failed to fetch proxy config from catalog for node {node:?}"))?;
    match list(&found, "Services") {
        [] => bail!("Proxy service with ID {id:?} not found"),
        [service] => Ok(Registered {
            service: service.clone(),
            datacenter: text(&found["Node"], "Datacenter").to_owned(),
        }),
        _ => bail!("Expected to find only one proxy service with ID {id:?}, but more were found"),
    }
}

/// Warns where Envoy is given no token although there are ACLs.
pub(super) async fn check_token(api: &Api) {
    if api.token().is_some() {
        return;
    }
    let own = api.get("/v1/acl/token/self").value().await;
    if own.is_err_and(|error| refused(&error) == Some(http::StatusCode::FORBIDDEN)) {
        warn(
            "No ACL token was provided to Envoy. Because the ACL system is enabled, pass a suitable \
             ACL token for this service to Envoy to avoid potential communication failure.",
        );
    }
}

/// Replaces this program by Envoy. It returns only what went wrong.
fn execute(options: &Options, document: &Value) -> anyhow::Error {
    let path = environment("PATH").map(OsString::from);
    let envoy = find_executable(options.envoy_binary.as_deref(), path.as_deref());
    let envoy = match envoy {
        Ok(envoy) => envoy,
        Err(error) => return anyhow!("Couldn't find envoy binary: {error}"),
    };
    let file = match inherited(document) {
        Ok(file) => file,
        Err(error) => return error.context("cannot hand the bootstrap document to Envoy"),
    };
    let mut command = std::process::Command::new(envoy);
    command
        .arg("--config-path")
        .arg(format!("/dev/fd/{}", file.as_raw_fd()));
    // Several Envoys of one machine would share memory and sockets.
    let restarts = |argument: &String| argument.starts_with("--restart-epoch");
    if !options.arguments.iter().any(restarts) {
        command.arg("--disable-hot-restart");
    }
    anyhow!(
        "Failed to exec envoy: {}",
        command.args(&options.arguments).exec()
    )
}

/// A file without a name that a program which is executed keeps open: the document may have a token.
fn inherited(document: &Value) -> anyhow::Result<std::fs::File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(document.to_string().as_bytes())?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(file)
}
