//! Several servers of this workspace with one etcd as the control plane of a mesh: processes that
//! are killed and restarted, and members that are lost or hang.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use http::Method;
use legate_testkit::etcd;
use serde_json::Value;

use crate::client::{self, Answer};
use crate::control_plane::{DNS, HTTP, SERVERS};
use crate::mesh::{Datacenter, MANAGEMENT, MeshOptions};
use crate::server_process::ServerProcess;
use crate::wait;

/// The number of etcd members; one may be lost.
const MEMBERS: usize = 3;

/// The servers and their etcd. Dropping them kills all processes.
pub struct Replicas {
    /// The members.
    pub etcd: etcd::Cluster,
    servers: Vec<ServerProcess>,
    roots: PathBuf,
}

impl Replicas {
    /// Starts an etcd of three members, for servers that are started later, at `first` and the
    /// addresses after it.
    pub(crate) async fn new(first: Ipv4Addr, folder: &Path, options: &MeshOptions) -> Self {
        let etcd = etcd::Cluster::start(MEMBERS).await;
        let servers = servers(&etcd, first, folder, options);
        Self {
            etcd,
            servers,
            roots: folder.join("roots.pem"),
        }
    }

    /// The number of servers, running or not.
    #[must_use]
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Starts all stopped servers concurrently, and waits until they serve.
    ///
    /// # Panics
    ///
    /// If one does not.
    pub async fn start_all(&mut self) {
        for n in 0..self.count() {
            if self.servers[n].child.is_none() {
                self.servers[n].start();
            }
        }
        for n in 0..self.count() {
            self.servers[n].ready().await;
        }
        let http = (self.servers[0].address, HTTP).into();
        let roots = || async move {
            let answer = client::get(http, "/v1/connect/ca/roots?pem=true").await;
            answer.map_err(|error| error.to_string())
        };
        let has_roots = |answer: &Result<Answer, String>| matches!(answer, Ok((status, _)) if status.is_success());
        // A secondary datacenter gets them from the primary.
        let answer = wait::eventually("the servers have a CA", roots, has_roots).await;
        let (_, pem) = answer.expect("roots");
        std::fs::write(&self.roots, pem).expect("the roots can be written");
    }

    /// Kills every running server (SIGKILL).
    ///
    /// # Panics
    ///
    /// If one cannot be killed.
    pub async fn kill_all(&mut self) {
        for n in 0..self.count() {
            if self.servers[n].child.is_some() {
                self.kill(n).await;
            }
        }
    }

    /// Restarts a server.
    ///
    /// # Panics
    ///
    /// If it does not serve.
    pub async fn start(&mut self, n: usize) {
        self.servers[n].start();
        self.servers[n].ready().await;
    }

    /// Kills a server (SIGKILL).
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub async fn kill(&mut self, n: usize) {
        self.servers[n].kill().await;
    }

    /// Whether a server's process is running.
    pub fn runs(&mut self, n: usize) -> bool {
        self.servers[n].runs()
    }

    /// The address of a server.
    #[must_use]
    pub fn address(&self, n: usize) -> IpAddr {
        self.servers[n].address
    }

    /// The DNS address of a server.
    #[must_use]
    pub fn dns(&self, n: usize) -> SocketAddr {
        (self.address(n), DNS).into()
    }

    /// The addresses of all servers, for `-addresses` of sidecars.
    pub(crate) fn addresses(&self) -> String {
        let addresses = self.servers.iter().map(|server| server.address.to_string());
        addresses.collect::<Vec<_>>().join(",")
    }

    /// The CA file that verifies the certificate for gRPC over TLS.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.roots.clone()
    }

    /// The output of a server so far.
    #[must_use]
    pub fn log(&self, n: usize) -> String {
        self.servers[n].log()
    }

    /// Calls the HTTP API of one server, with the management token if ACLs are on.
    ///
    /// # Panics
    ///
    /// If there is no response.
    pub async fn call(&self, n: usize, method: Method, path: &str, body: Option<Value>) -> Answer {
        let server = &self.servers[n];
        let token = server.acl.then_some(MANAGEMENT);
        let http = (server.address, HTTP).into();
        let answer = client::send(method.clone(), http, path, token, body.as_ref()).await;
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}:\n{}", self.log(n)))
    }

    /// The response of one server to a read.
    ///
    /// # Panics
    ///
    /// On an error status, with the server's message.
    pub async fn ask(&self, n: usize, path: &str) -> String {
        let (status, text) = self.call(n, Method::GET, path, None).await;
        assert!(status.is_success(), "{path}: {status}: {text}");
        text
    }
}

/// The servers of a mesh, in the order of their addresses.
fn servers(
    etcd: &etcd::Cluster,
    first: Ipv4Addr,
    folder: &Path,
    options: &MeshOptions,
) -> Vec<ServerProcess> {
    let [a, b, c, d] = first.octets();
    let server = |place: u8| {
        let address = Ipv4Addr::new(a, b, c, d + place);
        let mut arguments = vec![
            format!("--bind={address}"),
            format!("--node-name=server-{place}"),
            format!("--etcd-endpoints={}", etcd.endpoints().join(",")),
            format!("--encryption-key-file={}", etcd.key_file().display()),
            "--default-intention-policy=deny".to_owned(),
        ];
        if options.acl {
            arguments.push("--acl".to_owned());
            arguments.push("--acl-default-policy=deny".to_owned());
        }
        if options.peering {
            arguments.push("--peering".to_owned());
        }
        if let Some(datacenter) = &options.datacenter {
            arguments.extend(of_datacenter(datacenter));
        }
        ServerProcess {
            program: "legate-server",
            address: address.into(),
            arguments,
            acl: options.acl,
            log: folder.join(format!("server-{place}.log")),
            child: None,
        }
    };
    (0..options.servers).map(server).collect()
}

/// The arguments of a server that servers of other datacenters reach.
fn of_datacenter(datacenter: &Datacenter) -> Vec<String> {
    let files = &datacenter.files;
    let mut arguments = vec![
        format!("--datacenter={}", datacenter.name),
        format!("--primary-datacenter={}", datacenter.primary),
        format!("--wan-port={SERVERS}"),
        // By default it is the other one, for servers that share the store.
        format!("--server-port={}", SERVERS + 10),
        format!("--wan-cert-file={}", files.certificate.display()),
        format!("--wan-key-file={}", files.key.display()),
        format!(
            "--wan-ca-file={}",
            files.policy.client_authorities[0].display()
        ),
    ];
    arguments.extend(
        datacenter
            .join
            .map(|join| format!("--retry-join-wan={join}")),
    );
    if let Some(gateways) = &datacenter.gateways {
        arguments.push("--mesh-gateway-wan-federation".to_owned());
        if datacenter.name != datacenter.primary {
            let gateways = gateways.iter();
            arguments.extend(gateways.map(|gateway| format!("--primary-gateway={gateway}")));
        }
    }
    arguments
}
