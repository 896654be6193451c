//! A real etcd of one or three members on loopback, and servers' stores over it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use legate_identity::SealingKey;
use legate_runtime::Scope;
use legate_testkit::certs::CertFiles;
use legate_testkit::network::free_port;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::{EtcdConfig, OpenError, Store, StoreConfig};

/// How long anything may take that the tests wait for.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// The members. They are killed and their files removed when it is dropped.
pub(super) struct Cluster {
    pub(super) members: Vec<Member>,
    folder: tempfile::TempDir,
    tls: bool,
    /// For requests where authentication is enabled.
    token: String,
}

pub(super) struct Member {
    pub(super) client: SocketAddr,
    command: Command,
    process: Option<Child>,
}

/// Certificates of the members, and the CA that clients' certificates must be from.
pub(super) struct ClusterTls {
    pub(super) files: CertFiles,
    pub(super) ca: PathBuf,
}

impl Cluster {
    /// Starts members and waits until they answer.
    pub(super) async fn start(size: usize) -> Self {
        Self::start_with(size, None).await
    }

    pub(super) async fn start_with(size: usize, tls: Option<ClusterTls>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let peers: Vec<_> = (0..size).map(|_| local(free_port())).collect();
        let names = peers.iter().enumerate();
        let names = names.map(|(n, peer)| format!("m{n}=http://{peer}"));
        let names: Vec<_> = names.collect();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let members = peers.iter().enumerate().map(|(n, peer)| {
            let client = local(free_port());
            let mut command = Command::new("etcd");
            command
                .args(["--name", &format!("m{n}")])
                .args(["--log-level", "error"])
                .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
                .args(["--initial-cluster", &names.join(",")])
                .arg("--data-dir")
                .arg(folder.path().join(format!("m{n}")))
                .arg(format!("--listen-client-urls={scheme}://{client}"))
                .arg(format!("--advertise-client-urls={scheme}://{client}"))
                .arg(format!("--listen-peer-urls=http://{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            if let Some(tls) = &tls {
                command
                    .arg("--client-cert-auth")
                    .arg("--trusted-ca-file")
                    .arg(&tls.ca)
                    .arg("--cert-file")
                    .arg(&tls.files.cert)
                    .arg("--key-file")
                    .arg(&tls.files.key);
            }
            Member {
                client,
                command,
                process: None,
            }
        });
        let mut cluster = Self {
            members: members.collect(),
            tls: tls.is_some(),
            token: String::new(),
            folder,
        };
        for n in 0..size {
            cluster.start_member(n);
        }
        let key = SealingKey::generate().unwrap();
        std::fs::write(cluster.key_file(), key.to_text()).unwrap();
        if !cluster.tls {
            cluster.ready().await;
        }
        cluster
    }

    /// Waits until every member has a leader.
    async fn ready(&self) {
        let end = Instant::now() + PATIENCE;
        for n in 0..self.members.len() {
            while self.try_post(n, "kv/range", r#"{"key":"AA=="}"#).is_none() {
                assert!(Instant::now() < end, "etcd does not start");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    pub(super) fn start_member(&mut self, n: usize) {
        let member = &mut self.members[n];
        let process = member.command.spawn();
        member.process = Some(process.expect("etcd is installed (Debian: etcd-server)"));
    }

    /// SIGKILL.
    pub(super) fn kill(&mut self, n: usize) {
        let mut process = self.members[n].process.take().expect("it runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    pub(super) fn signal(&self, n: usize, signal: Signal) {
        let process = self.members[n].process.as_ref().expect("it runs");
        kill(Pid::from_raw(process.id().try_into().unwrap()), signal).unwrap();
    }

    pub(super) fn key_file(&self) -> PathBuf {
        self.folder.path().join("key")
    }

    pub(super) fn config(&self) -> EtcdConfig {
        let scheme = if self.tls { "https" } else { "http" };
        let endpoints = self.members.iter();
        let endpoints = endpoints.map(|member| format!("{scheme}://{}", member.client));
        EtcdConfig::new(endpoints.collect(), self.key_file())
    }

    /// A server that asks the members in an order of its own.
    pub(super) async fn server(&self, first: usize) -> Server {
        let mut config = self.config();
        config.endpoints.rotate_left(first);
        Server::open(config).await.expect("the store opens")
    }

    pub(super) async fn servers<const N: usize>(&self) -> [Server; N] {
        let mut servers = Vec::new();
        for n in 0..N {
            servers.push(self.server(n % self.members.len()).await);
        }
        servers.try_into().map_err(|_| "N were made").unwrap()
    }

    /// Asks a member by its JSON interface, as an operator does with `etcdctl`.
    pub(super) fn post(&self, n: usize, path: &str, body: &str) -> String {
        let answer = self.try_post(n, path, body);
        answer.unwrap_or_else(|| panic!("{path} {body} is refused"))
    }

    fn try_post(&self, n: usize, path: &str, body: &str) -> Option<String> {
        let mut stream = TcpStream::connect(self.members[n].client).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        let length = body.len();
        let token = match &*self.token {
            "" => String::new(),
            token => format!("authorization: {token}\r\n"),
        };
        let request = format!(
            "POST /v3/{path} HTTP/1.1\r\nhost: etcd\r\nconnection: close\r\n\
             {token}content-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }

    /// Makes later requests as a user.
    pub(super) fn log_in(&mut self, name: &str, password: &str) {
        let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
        let answer = self.post(0, "auth/authenticate", &body);
        let token = answer.split("\"token\":\"").nth(1).unwrap();
        self.token = token.split('"').next().unwrap().to_owned();
    }

    /// Forgets all revisions but the newest.
    pub(super) fn compact(&self, n: usize) {
        let answer = self.post(n, "kv/range", r#"{"key":"AA=="}"#);
        let revision = answer.split("\"revision\":\"").nth(1).unwrap();
        let revision = revision.split('"').next().unwrap();
        let body = format!(r#"{{"revision":"{revision}","physical":true}}"#);
        self.post(n, "kv/compaction", &body);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(process) = &mut member.process {
                drop(process.kill());
                drop(process.wait());
            }
        }
    }
}

/// A server's store, and the scope that its tasks run in.
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) scope: Scope,
}

impl Server {
    pub(super) async fn open(config: EtcdConfig) -> Result<Self, OpenError> {
        let scope = Scope::new("test");
        let store = Store::open(StoreConfig::Etcd(config), &scope.spawner()).await?;
        Ok(Self { store, scope })
    }

    pub(super) async fn stop(self) {
        drop(self.store);
        self.scope.stop(PATIENCE).await.unwrap();
    }

    /// Waits until it has seen an index.
    pub(super) async fn reaches(&self, index: u64) {
        let end = Instant::now() + PATIENCE;
        while self.store.state().index() < index {
            let now = self.store.state().index();
            assert!(Instant::now() < end, "{index} is not reached, but {now}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
