//! The control plane of `legate dev`, driven through its HTTP API.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use http::Method;
use legate_intentions::Action;
use legate_runtime::file_limit;
use legate_server::{Parts, Server, ServerConfig, StoreConfig};
use serde_json::{Value, json};

use super::folder::Folder;
use super::service::Service;
use crate::http_client::expect_success;

/// The catalog node of all registrations of the demo.
pub(crate) const NODE: &str = "dev";

/// Options of the control plane.
#[derive(Args)]
pub(crate) struct ControlPlaneOptions {
    /// Port of the HTTP API; 0 selects a free one
    #[arg(long, default_value_t = 8500)]
    http_port: u16,

    /// Directory for the control plane's data. Default: in memory, lost on exit.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Port of the gRPC API with TLS; 0 selects a free one
    #[arg(long, default_value_t = 8503)]
    grpc_tls_port: u16,
    /// Port of DNS; 0 selects a free one
    #[arg(long, default_value_t = 8600)]
    dns_port: u16,
}

/// A running server, and the folder for the sidecars' files.
pub(crate) struct ControlPlane {
    server: Server,
    http: SocketAddr,
    grpc_tls: SocketAddr,
    folder: Folder,
}

/// A proxy to run as a sidecar.
pub(crate) struct Proxy {
    /// Instance ID of the proxy in the catalog.
    pub(crate) id: String,
    /// The address for connections of other sidecars.
    pub(crate) public: SocketAddr,
    /// The service of the sidecar.
    pub(crate) service: &'static str,
}

impl ControlPlane {
    /// Starts the server. Intentions deny by default, so that only explicitly allowed calls pass.
    pub(crate) async fn start(options: &ControlPlaneOptions) -> anyhow::Result<Self> {
        file_limit::raise().context("cannot raise the limit of open files")?;
        let loopback = |port| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let config = ServerConfig {
            http: loopback(options.http_port),
            grpc: None,
            grpc_tls: loopback(options.grpc_tls_port),
            dns: loopback(options.dns_port),
            default_intention_policy: Some(Action::Deny),
            store: match &options.data_dir {
                Some(directory) => StoreConfig::Disk {
                    directory: directory.clone(),
                    key_file: None,
                },
                None => StoreConfig::Memory,
            },
            ..ServerConfig::default()
        };
        let server = Server::start(config, Parts::default())
            .await
            .context("cannot start the control plane (--http-port, --grpc-tls-port and --dns-port choose other ports)")?;
        let http = server.http_addr().context("the HTTP API is on")?;
        let grpc_tls = server.grpc_tls_addr().context("gRPC with TLS is on")?;
        let folder = Folder::make(&std::env::temp_dir())?;
        let this = Self {
            server,
            http,
            grpc_tls,
            folder,
        };
        let roots =
            expect_success(Method::GET, http, "/v1/connect/ca/roots?pem=true", None).await?;
        std::fs::write(this.roots_file(), &roots).context("cannot write the root certificates")?;
        Ok(this)
    }

    /// Address of the HTTP API.
    pub(crate) fn http(&self) -> SocketAddr {
        self.http
    }

    /// Address of the gRPC API, with TLS.
    pub(crate) fn grpc_tls(&self) -> SocketAddr {
        self.grpc_tls
    }

    /// Address of DNS.
    pub(crate) fn dns(&self) -> Option<SocketAddr> {
        self.server.dns_addr()
    }

    /// File with the root certificates with which sidecars verify the server.
    pub(crate) fn roots_file(&self) -> PathBuf {
        self.folder.path().join("roots.pem")
    }

    /// Folder for log files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Registers an HTTP service and its sidecar proxy.
    pub(crate) async fn register(
        &self,
        service: &Service,
        upstreams: &[(&str, SocketAddr)],
    ) -> anyhow::Result<Proxy> {
        let public = free_address()?;
        let proxy_id = format!("{}-sidecar-proxy", service.name);
        let upstreams: Vec<Value> = upstreams
            .iter()
            .map(|(name, bind)| {
                json!({"DestinationName": name, "LocalBindAddress": bind.ip().to_string(), "LocalBindPort": bind.port()})
            })
            .collect();
        let defaults =
            json!({"Kind": "service-defaults", "Name": service.name, "Protocol": "http"});
        expect_success(Method::PUT, self.http, "/v1/config", Some(&defaults)).await?;
        let instance =
            json!({"ID": service.name, "Service": service.name, "Port": service.address.port()});
        let proxy = json!({
            "Kind": "connect-proxy",
            "ID": proxy_id,
            "Service": proxy_id,
            "Address": public.ip().to_string(),
            "Port": public.port(),
            "Proxy": {
                "DestinationServiceName": service.name,
                "DestinationServiceID": service.name,
                "LocalServicePort": service.address.port(),
                "Upstreams": upstreams,
            },
        });
        for service in [instance, proxy] {
            let registration = json!({"Node": NODE, "Address": "127.0.0.1", "Service": service});
            expect_success(
                Method::PUT,
                self.http,
                "/v1/catalog/register",
                Some(&registration),
            )
            .await?;
        }
        Ok(Proxy {
            id: proxy_id,
            public,
            service: service.name,
        })
    }

    /// Writes an intention: `allow` or `deny`.
    pub(crate) async fn intend(
        &self,
        source: &str,
        destination: &str,
        action: &str,
    ) -> anyhow::Result<()> {
        let path = intention_path(source, destination);
        expect_success(
            Method::PUT,
            self.http,
            &path,
            Some(&json!({"Action": action})),
        )
        .await?;
        Ok(())
    }

    /// All intentions as `source → destination: action`.
    pub(crate) async fn intentions(&self) -> anyhow::Result<Vec<String>> {
        let answer = expect_success(Method::GET, self.http, "/v1/connect/intentions", None).await?;
        let intentions: Vec<Value> = serde_json::from_slice(&answer)?;
        let text = |intention: &Value, key: &str| intention[key].as_str().unwrap_or("?").to_owned();
        Ok(intentions
            .iter()
            .map(|i| {
                format!(
                    "{} → {}: {}",
                    text(i, "SourceName"),
                    text(i, "DestinationName"),
                    text(i, "Action")
                )
            })
            .collect())
    }

    /// The URL of an intention, for changes.
    pub(crate) fn intention_url(&self, source: &str, destination: &str) -> String {
        format!(
            "http://{}{}",
            self.http,
            intention_path(source, destination)
        )
    }

    /// Waits until a component of the server fails.
    pub(crate) async fn failed(&self) -> anyhow::Error {
        self.server.failed().await.into()
    }

    /// Stops the server.
    pub(crate) async fn stop(self, limit: Duration) -> anyhow::Result<()> {
        self.server
            .stop(limit)
            .await
            .context("the control plane did not stop cleanly")
    }
}

fn intention_path(source: &str, destination: &str) -> String {
    format!("/v1/connect/intentions/exact?source={source}&destination={destination}")
}

/// Below the ephemeral port range of common systems, because any outgoing connection may take a
/// port of that range before it is bound.
const PORTS: Range<u16> = 10_000..30_000;

/// The number of ports to try.
const ATTEMPTS: usize = 100;

/// A loopback address with a port that is currently free.
pub(crate) fn free_address() -> anyhow::Result<SocketAddr> {
    let free = (0..ATTEMPTS).find_map(|_| {
        let port = rand::random_range(PORTS);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        listener.local_addr().ok()
    });
    free.context("no free port was found on 127.0.0.1")
}
