//! Three servers that share an etcd, each with a connection to it that can be cut.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use legate_testkit::envoy::workspace_binary;
use legate_testkit::etcd::Cluster;
use legate_testkit::network::{Cuttable, free_port};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::client::Client;
use crate::process::Process;

pub(crate) const SERVERS: usize = 3;
/// The deadline of a start.
const START: Duration = Duration::from_secs(30);

pub(crate) struct Servers {
    etcd: Cluster,
    prefix: String,
    servers: Vec<Server>,
    logs: TempDir,
}

struct Server {
    http: SocketAddr,
    /// Where other servers reach it.
    peer: SocketAddr,
    /// Its way to each member of etcd.
    ways: Vec<Cuttable>,
    process: Option<Process>,
}

fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, free_port()).into()
}

impl Servers {
    /// Starts etcd, and no server yet.
    pub(crate) async fn new(members: usize) -> Self {
        let etcd = Cluster::start(members).await;
        let mut servers = Vec::new();
        for _ in 0..SERVERS {
            let mut ways = Vec::new();
            for member in &etcd.members {
                ways.push(Cuttable::start(member.client).await);
            }
            servers.push(Server {
                http: local(),
                peer: local(),
                ways,
                process: None,
            });
        }
        Self {
            etcd,
            prefix: "bench".to_owned(),
            servers,
            logs: TempDir::new().expect("a folder for the logs"),
        }
    }

    pub(crate) fn http(&self, n: usize) -> SocketAddr {
        self.servers[n].http
    }

    /// Starts a server, and waits until it has stored a write.
    pub(crate) async fn start(&mut self, n: usize) -> Duration {
        let started = Instant::now();
        self.launch(n);
        self.serves(n, started).await;
        started.elapsed()
    }

    fn launch(&mut self, n: usize) {
        let server = &mut self.servers[n];
        if let Some(process) = &mut server.process {
            process.start_again();
            return;
        }
        let ways = server.ways.iter();
        let endpoints: Vec<_> = ways
            .map(|way| format!("http://{}", way.address()))
            .collect();
        let arguments = vec![
            format!("--http-port={}", server.http.port()),
            "--grpc-port=-1".to_owned(),
            "--grpc-tls-port=-1".to_owned(),
            "--dns-port=-1".to_owned(),
            "--log-level=warn".to_owned(),
            format!("--node-name=server-{n}"),
            format!("--server-port={}", server.peer.port()),
            format!("--etcd-endpoints={}", endpoints.join(",")),
            format!("--etcd-prefix={}", self.prefix),
            format!("--encryption-key-file={}", self.etcd.key_file().display()),
        ];
        let log = self.logs.path().join(format!("server-{n}.log"));
        let program = workspace_binary("legate-server");
        server.process = Some(Process::start(program, arguments, log));
    }

    async fn serves(&mut self, n: usize, started: Instant) {
        let server = &mut self.servers[n];
        let path = format!("/v1/kv/started/{n}");
        loop {
            if let Ok(mut client) = Client::connect(server.http).await {
                let value = Value::from(started.elapsed().as_nanos().to_string());
                if client.put(&path, &value).await.is_ok() {
                    return;
                }
            }
            server.process.as_mut().expect("it was started").check();
            assert!(started.elapsed() < START, "server {n} does not serve");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Kills a server (SIGKILL).
    pub(crate) async fn kill(&mut self, n: usize) {
        let process = self.servers[n].process.as_mut();
        process.expect("it was started").kill().await;
    }

    /// Sends a signal to a server: SIGSTOP makes it hang, SIGCONT resumes it.
    pub(crate) fn signal(&self, n: usize, signal: Signal) {
        let process = self.servers[n].process.as_ref().expect("it was started");
        kill(Pid::from_raw(process.id()), signal).expect("it can be signalled");
    }

    /// Cuts a server off from etcd, but not from the other servers.
    pub(crate) async fn partition(&self, n: usize) {
        for way in &self.servers[n].ways {
            way.cut().await;
        }
    }

    pub(crate) async fn heal(&self, n: usize) {
        for way in &self.servers[n].ways {
            way.restore().await;
        }
    }

    /// The server with the lease, `None` between two.
    pub(crate) fn leader(&self) -> Option<usize> {
        use base64::Engine as _;
        let base64 = base64::engine::general_purpose::STANDARD;
        let key = base64.encode(format!("{}/committer", self.prefix));
        let answer = self
            .etcd
            .post(0, "kv/range", &format!(r#"{{"key":"{key}"}}"#));
        let value = answer.split(r#""value":""#).nth(1)?.split('"').next()?;
        let value = String::from_utf8(base64.decode(value).ok()?).ok()?;
        let peers = self.servers.iter();
        peers
            .map(|server| server.peer.to_string())
            .position(|peer| value.contains(&peer))
    }

    /// Waits until a server leads.
    pub(crate) async fn led(&self) -> usize {
        let started = Instant::now();
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(started.elapsed() < START, "no server leads");
            sleep(Duration::from_millis(10)).await;
        }
    }
}
