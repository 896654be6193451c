//! Addresses and configuration of the Envoys of a test, and their supervision.

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use legate_envoy::admin::AdminClient;
use legate_envoy::process::{DrainStrategy, EnvoyLog, Launch};
use legate_envoy::supervision::{
    Ended, EnvoyConfig, EnvoyHost, Handle, HotRestart, Options, Report, handle, run,
};
use legate_runtime::logging::Level;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Far longer than any step takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(110);
pub(crate) const ADMIN: u16 = 19000;
pub(crate) const HTTP: u16 = 18080;
pub(crate) const TCP: u16 = 18081;
pub(crate) const ECHO: u16 = 18082;

/// Addresses of one test. Concurrent runs of the tests use different ones.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) third: u8,
    pub(crate) fourth: u8,
}

impl Place {
    pub(crate) fn new(test: u8) -> Self {
        let third = u8::try_from(std::process::id() % 250).unwrap() + 1;
        Self {
            third,
            fourth: test,
        }
    }

    pub(crate) fn at(self, port: u16) -> SocketAddr {
        ([127, 77, self.third, self.fourth], port).into()
    }

    pub(crate) fn admin(self) -> AdminClient {
        AdminClient::new(self.at(ADMIN))
    }

    pub(crate) fn address(self, port: u16) -> Value {
        let address = self.at(port).ip().to_string();
        json!({ "socket_address": { "address": address, "port_value": port } })
    }

    /// Responds to HTTP directly and proxies TCP to the echo server.
    pub(crate) fn document(self) -> Value {
        let filter = |name: &str, kind: &str, mut config: Value| {
            config["@type"] = format!("type.googleapis.com/envoy.extensions.filters.{kind}").into();
            json!({ "name": name, "typed_config": config })
        };
        let route = json!({ "match": { "prefix": "/" },
            "direct_response": { "status": 200, "body": { "inline_string": "ok" } } });
        let router = filter("router", "http.router.v3.Router", json!({}));
        let http = filter(
            "http",
            "network.http_connection_manager.v3.HttpConnectionManager",
            json!({
                "stat_prefix": "load", "http_filters": [router],
                "route_config": { "virtual_hosts": [{ "name": "all", "domains": ["*"], "routes": [route] }] },
            }),
        );
        let tcp = filter(
            "tcp",
            "network.tcp_proxy.v3.TcpProxy",
            json!({ "stat_prefix": "echo", "cluster": "echo" }),
        );
        let listener = |name: &str, port, filter: Value| json!({ "name": name, "address": self.address(port), "filter_chains": [{ "filters": [filter] }] });
        let endpoint = json!({ "endpoint": { "address": self.address(ECHO) } });
        json!({
            "admin": { "address": self.address(ADMIN) },
            "node": { "id": "web", "cluster": "web" },
            "static_resources": {
                "listeners": [listener("http", HTTP, http), listener("tcp", TCP, tcp)],
                "clusters": [{ "name": "echo", "load_assignment":
                    { "cluster_name": "echo", "endpoints": [{ "lb_endpoints": [endpoint] }] } }],
            },
        })
    }

    pub(crate) fn config(self) -> EnvoyConfig {
        config(&self.document())
    }
}

pub(crate) fn config(document: &Value) -> EnvoyConfig {
    EnvoyConfig::new(Launch {
        executable: legate_testkit::envoy::binary(),
        bootstrap: document.to_string(),
        log: EnvoyLog {
            level: Level::Error,
            json: false,
        },
        concurrency: 1,
        drain_time: Duration::from_secs(1),
        drain_strategy: DrainStrategy::Immediate,
        extra_args: Vec::new(),
    })
}

/// Parents live for a second after their handover. Every family has its own file.
pub(crate) fn hot(folder: &Path) -> HotRestart {
    HotRestart {
        base_id: folder.join("base-id"),
        parent_shutdown: Duration::from_secs(1),
        ..HotRestart::new(Duration::ZERO)
    }
}

pub(crate) type Supervisor = Handle<EnvoyConfig>;

/// Supervises concurrently with `requests`, which must end it.
pub(crate) async fn supervise<F: Future<Output = ()>>(
    host: EnvoyHost,
    config: EnvoyConfig,
    options: Options,
    requests: impl FnOnce(Supervisor) -> F,
) -> Ended {
    let (handle, controls) = handle();
    let requests = requests(handle);
    let both = async { tokio::join!(run(host, config, options, controls), requests) };
    let (ended, ()) = timeout(PATIENCE, both)
        .await
        .expect("supervision ended in time");
    ended.unwrap()
}

pub(crate) async fn until(supervisor: &Supervisor, wanted: impl FnMut(&Report) -> bool) -> Report {
    let mut seen = supervisor.watch();
    seen.wait_for(wanted)
        .await
        .expect("the supervisor runs")
        .clone()
}

/// Whether this epoch is the only one left, and serves.
pub(crate) fn alone(report: &Report, epoch: u32) -> bool {
    matches!(report.epochs.as_slice(), [only] if only.epoch == epoch && only.state.serves())
}

pub(crate) fn send(pid: u32, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
}
