//! The measured servers, as processes with an empty store on disk and without rate limits, and a
//! client for their HTTP API.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::{Method, Request};
use http_body_util::Full;
use legate_runtime::BoxError;
use legate_tests::client;
use legate_tests::program::{Program, Running};
use legate_tests::wait::eventually_within;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::catalog::Write;
use crate::protocol::References;

/// The deadline for the start, with a wide margin.
const START: Duration = Duration::from_secs(60);

/// The deadline for a response.
const ANSWER: Duration = Duration::from_secs(60);

/// The number of concurrent registrations.
const AT_ONCE: usize = 32;

/// The connection limit per address, because all proxies have the same address.
const CONNECTIONS: usize = 16_384;

const HTTP: u16 = 8500;
const GRPC: u16 = 8502;

/// The vendor of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Legate,
    Consul,
}

impl Kind {
    pub(crate) fn of(program: &Program) -> Self {
        match program.name {
            "consul" => Self::Consul,
            _ => Self::Legate,
        }
    }
}

/// What a server is started with in addition to what all have.
#[derive(Debug, Default)]
pub(crate) struct Additional {
    /// Flags of `legate-server`, in the place of those with the same names.
    pub(crate) flags: Vec<String>,
    /// Consul's settings, in the place of those with the same names.
    pub(crate) settings: Value,
}

/// A running server. Dropping it kills it.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) running: Running,
    address: Ipv4Addr,
    _folder: TempDir,
}

impl Server {
    /// Starts the server and waits until it has a root certificate.
    pub(crate) async fn start(program: &Program, address: Ipv4Addr) -> Self {
        Self::start_with(program, address, &Additional::default()).await
    }

    /// The same with additional settings.
    pub(crate) async fn start_with(
        program: &Program,
        address: Ipv4Addr,
        additional: &Additional,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let kind = Kind::of(program);
        let data = folder.path().join("data").display().to_string();
        let arguments = match kind {
            Kind::Legate => {
                let name = |flag: &str| flag.split('=').next().map(str::to_owned);
                let mut flags = legate_flags(address, &data);
                flags.retain(|flag| {
                    let mut replaced = additional.flags.iter();
                    !replaced.any(|other| name(other) == name(flag))
                });
                [flags, additional.flags.clone()].concat()
            }
            Kind::Consul => {
                let file = folder.path().join("consul.json");
                let mut settings = consul_settings(address, &data);
                for (name, value) in additional.settings.as_object().into_iter().flatten() {
                    settings[name] = value.clone();
                }
                std::fs::write(&file, settings.to_string()).expect("the settings can be written");
                vec![
                    "agent".to_owned(),
                    format!("-config-file={}", file.display()),
                ]
            }
        };
        let log = folder.path().join("log");
        let mut server = Self {
            kind,
            running: Running::start(&program.path, &arguments, log),
            address,
            _folder: folder,
        };
        server.serves().await;
        if kind == Kind::Legate {
            // There is no flag for it. With the limit a signature would wait, and its cost would be
            // that of waking up.
            let limits = json!({"CSRMaxPerSecond": 0, "CSRMaxConcurrent": 0});
            let body = json!({"Provider": "consul", "Config": limits});
            let lifted = server.put(&("/v1/connect/ca/configuration", body)).await;
            lifted.expect("the limit of signatures is lifted");
        }
        server
    }

    async fn serves(&mut self) {
        let http = self.http();
        let probe = || {
            self.running.check();
            async move {
                let answer = client::get(http, "/v1/connect/ca/roots").await;
                let roots = answer.map(|(_, body)| body).unwrap_or_default();
                let roots: Value = serde_json::from_str(&roots).unwrap_or_default();
                roots["ActiveRootID"]
                    .as_str()
                    .is_some_and(|id| !id.is_empty())
            }
        };
        eventually_within(START, "the server serves", probe, |serves| *serves).await;
    }

    pub(crate) fn http(&self) -> SocketAddr {
        (self.address, HTTP).into()
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        (self.address, GRPC).into()
    }

    /// The names that its clusters and listeners refer to. Consul's contain certificates and routes
    /// inline.
    pub(crate) fn references(&self) -> References {
        match self.kind {
            Kind::Legate => References {
                secrets: &["leaf", "roots"],
                routes: &["public_listener"],
            },
            Kind::Consul => References {
                secrets: &[],
                routes: &[],
            },
        }
    }

    /// Sends a request to its HTTP API.
    ///
    /// # Errors
    /// If there is no response in time, or an error status.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, BoxError> {
        let answer = client::transfer(ANSWER, method, self.http(), path, body).await;
        let (status, body) = answer.map_err(|error| format!("{path}: {error}"))?;
        if status.is_success() {
            return Ok(body);
        }
        let text = String::from_utf8_lossy(&body);
        Err(format!("{path}: {status}: {text}").into())
    }

    /// Reads something that can be waited for: its index, and the body.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub(crate) async fn indexed(&self, path: &str) -> Result<(u64, Bytes), BoxError> {
        let request = Request::get(path).header("host", self.http().to_string());
        let answer = client::ask(self.http(), request.body(Full::default())?).await;
        let (head, body) = answer
            .map_err(|error| format!("{path}: {error}"))?
            .into_parts();
        let index = head.headers.get("x-consul-index");
        let index = index.and_then(|index| index.to_str().ok()?.parse().ok());
        match index.filter(|_| head.status.is_success()) {
            Some(index) => Ok((index, body)),
            None => {
                let text = String::from_utf8_lossy(&body);
                Err(format!("{path}: {}: {text}", head.status).into())
            }
        }
    }

    pub(crate) async fn put(&self, (path, body): &Write) -> Result<(), BoxError> {
        let put = self.call(Method::PUT, path, body.to_string().into());
        put.await.map(drop)
    }

    /// Sends all writes in arbitrary order.
    pub(crate) async fn put_all(&self, writes: &[Write]) {
        let writes = futures_util::stream::iter(writes);
        let put = writes.for_each_concurrent(AT_ONCE, async |write| {
            self.put(write).await.expect("it is registered");
        });
        put.await;
    }
}

fn legate_flags(address: Ipv4Addr, data: &str) -> Vec<String> {
    [
        format!("--bind={address}"),
        format!("--data-dir={data}"),
        format!("--http-port={HTTP}"),
        format!("--grpc-port={GRPC}"),
        "--grpc-tls-port=-1".to_owned(),
        "--dns-port=-1".to_owned(),
        format!("--grpc-max-connections-per-address={CONNECTIONS}"),
        "--default-intention-policy=deny".to_owned(),
        "--log-level=warn".to_owned(),
    ]
    .into()
}

/// The configuration of a single server with a store on disk. Consul's default limits are disabled:
/// connections, requests, proxy updates, and signed certificates per second.
fn consul_settings(address: Ipv4Addr, data: &str) -> Value {
    json!({
        "datacenter": "dc1",
        "node_name": "server",
        "server": true,
        "bootstrap_expect": 1,
        "data_dir": data,
        "bind_addr": address,
        "client_addr": address,
        "log_level": "warn",
        "disable_update_check": true,
        "default_intention_policy": "deny",
        "ports": {"http": HTTP, "grpc": GRPC, "grpc_tls": -1, "dns": -1},
        "connect": {
            "enabled": true,
            "ca_config": {"csr_max_per_second": 0, "csr_max_concurrent": 0},
        },
        "performance": {"raft_multiplier": 1},
        "xds": {"update_max_per_second": 1_000_000},
        "limits": {
            "http_max_conns_per_client": CONNECTIONS,
            "rpc_max_conns_per_client": CONNECTIONS,
            "request_limits": {"mode": "disabled"},
        },
    })
}
