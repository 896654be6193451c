//! The control planes: `legate-server` with each backend, and Consul.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use legate_testkit::envoy::workspace_binary;
use legate_testkit::network::free_port;
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::process::{Process, on_disk};

/// The deadline for a response after a start.
const START: Duration = Duration::from_secs(120);

/// The kind of control plane.
pub(crate) enum Kind {
    Memory,
    File,
    Etcd { members: usize },
    Consul { program: PathBuf },
}

impl Kind {
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Memory => "legate-server, memory".to_owned(),
            Self::File => "legate-server, file".to_owned(),
            Self::Etcd { members: 1 } => "legate-server, etcd of 1 member".to_owned(),
            Self::Etcd { members } => format!("legate-server, etcd of {members} members"),
            Self::Consul { .. } => crate::figures::CONSUL.to_owned(),
        }
    }
}

/// The killed processes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Killed {
    /// The server.
    Server,
    /// The server and every member of its etcd.
    All,
}

/// A running control plane with its files, which are removed on drop.
pub(crate) struct Plane {
    name: String,
    /// The address of the HTTP API.
    pub(crate) http: SocketAddr,
    server: Process,
    etcd: Vec<Process>,
    keeps: bool,
    data: TempDir,
    _logs: TempDir,
}

/// The resources of a control plane.
pub(crate) struct Usage {
    /// The size of all files in KiB.
    pub(crate) disk: f64,
    /// Resident memory in KiB of the server, and of all members of its etcd.
    pub(crate) resident: (f64, Option<f64>),
}

impl Plane {
    /// Starts a control plane with its data in a new folder below `directory`, and waits until it
    /// serves.
    pub(crate) async fn start(kind: &Kind, directory: &Path) -> Self {
        let data = TempDir::new_in(directory).expect("a folder for the data");
        let logs = TempDir::new().expect("a folder for the logs");
        let http = local();
        let mut etcd = Vec::new();
        let mut arguments = vec![
            format!("--http-port={}", http.port()),
            "--grpc-port=-1".to_owned(),
            "--grpc-tls-port=-1".to_owned(),
            "--dns-port=-1".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        let mut program = None;
        let folder = data.path().join("data").display().to_string();
        match kind {
            Kind::Memory => arguments.push("--in-memory".to_owned()),
            Kind::File => arguments.push(format!("--data-dir={folder}")),
            Kind::Etcd { members } => {
                let (processes, endpoints) = start_etcd(*members, data.path(), logs.path());
                etcd = processes;
                let key = logs.path().join("key");
                let written = std::fs::write(&key, "0123456789abcdef".repeat(4));
                written.expect("the key file can be written");
                arguments.push(format!("--etcd-endpoints={}", endpoints.join(",")));
                arguments.push(format!("--encryption-key-file={}", key.display()));
                arguments.push("--node-name=legate".to_owned());
                arguments.push("--server-port=0".to_owned());
                wait_for_etcd(&endpoints).await;
            }
            Kind::Consul { program: consul } => {
                let config = logs.path().join("consul.json");
                let written = std::fs::write(&config, consul_config(http, &folder));
                written.expect("the configuration can be written");
                arguments = vec![
                    "agent".to_owned(),
                    format!("-config-file={}", config.display()),
                ];
                program = Some(consul.clone());
            }
        }
        let program = program.unwrap_or_else(|| workspace_binary("legate-server"));
        let server = Process::start(program, arguments, logs.path().join("server.log"));
        let mut plane = Self {
            name: kind.name(),
            http,
            server,
            etcd,
            keeps: !matches!(kind, Kind::Memory),
            data,
            _logs: logs,
        };
        plane.until_answered("/v1/catalog/nodes", 1).await;
        plane
    }

    /// Whether its state outlives its process.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    pub(crate) fn ways_to_die(&self) -> Vec<Killed> {
        if self.etcd.is_empty() {
            vec![Killed::Server]
        } else {
            vec![Killed::Server, Killed::All]
        }
    }

    pub(crate) fn name(&self, killed: Killed) -> String {
        match killed {
            Killed::Server => self.name.clone(),
            Killed::All => format!("{}, killed too", self.name),
        }
    }

    pub(crate) async fn kill(&mut self, killed: Killed) -> Killed {
        self.server.kill().await;
        if killed == Killed::All {
            for member in &mut self.etcd {
                member.kill().await;
            }
        }
        killed
    }

    /// Restarts the killed processes. A server refuses to start without its etcd; a supervisor
    /// would restart it, which happens here at once.
    pub(crate) fn start_again(&mut self, killed: Killed) {
        if killed == Killed::All {
            self.etcd.iter_mut().for_each(Process::start_again);
        }
        self.server.start_again();
    }

    /// Polls a path until it returns a list with at least this many elements; returns their number.
    pub(crate) async fn until_answered(&mut self, path: &str, entries: usize) -> usize {
        let started = Instant::now();
        loop {
            if let Ok(mut client) = Client::connect(self.http).await
                && let Ok(found) = client.count(path).await
                && found >= entries
            {
                return found;
            }
            self.server.check();
            assert!(
                started.elapsed() < START,
                "{} does not answer {path} with {entries} entries",
                self.name
            );
            sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) fn usage(&self) -> Usage {
        let members = self.etcd.iter().map(Process::resident);
        Usage {
            disk: on_disk(self.data.path()),
            resident: (
                self.server.resident(),
                (!self.etcd.is_empty()).then(|| members.sum()),
            ),
        }
    }
}

fn local() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// An etcd cluster with default settings, and its client addresses.
fn start_etcd(members: usize, data: &Path, logs: &Path) -> (Vec<Process>, Vec<String>) {
    let addresses: Vec<_> = (0..members).map(|_| (local(), local())).collect();
    let cluster = addresses.iter().enumerate();
    let cluster: Vec<_> = cluster
        .map(|(n, (_, peer))| format!("m{n}=http://{peer}"))
        .collect();
    let start = |(n, (client, peer)): (usize, &(SocketAddr, SocketAddr))| {
        let arguments = vec![
            format!("--name=m{n}"),
            "--log-level=error".to_owned(),
            format!("--initial-cluster={}", cluster.join(",")),
            format!("--data-dir={}", data.join(format!("m{n}")).display()),
            format!("--listen-client-urls=http://{client}"),
            format!("--advertise-client-urls=http://{client}"),
            format!("--listen-peer-urls=http://{peer}"),
            format!("--initial-advertise-peer-urls=http://{peer}"),
        ];
        Process::start(
            legate_testkit::etcd::binary(),
            arguments,
            logs.join(format!("m{n}.log")),
        )
    };
    let processes = addresses.iter().enumerate().map(start).collect();
    let clients = addresses.iter();
    let clients = clients.map(|(client, _)| format!("http://{client}"));
    (processes, clients.collect())
}

/// Waits until the members have a leader.
async fn wait_for_etcd(endpoints: &[String]) {
    let started = Instant::now();
    for endpoint in endpoints {
        let address = endpoint.strip_prefix("http://").expect("made here");
        let address: SocketAddr = address.parse().expect("made here");
        loop {
            if let Ok(mut client) = Client::connect(address).await
                && client.get("/health").await.is_ok()
            {
                break;
            }
            assert!(started.elapsed() < START, "etcd does not start");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// A single durable server with its own CA, and the timing that its vendor recommends for
/// production.
fn consul_config(http: SocketAddr, data: &str) -> String {
    let config = json!({
        "server": true,
        "bootstrap_expect": 1,
        "data_dir": data,
        "bind_addr": "127.0.0.1",
        "client_addr": "127.0.0.1",
        "log_level": "WARN",
        "disable_update_check": true,
        "connect": {"enabled": true},
        "performance": {"raft_multiplier": 1},
        "ports": {
            "http": http.port(),
            "server": free_port(),
            "serf_lan": free_port(),
            "serf_wan": -1,
            "grpc": -1,
            "grpc_tls": -1,
            "dns": -1,
        },
    });
    config.to_string()
}
