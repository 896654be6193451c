//! Real Consul servers as the control plane of a mesh.

use std::fs::OpenOptions;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use legate_testkit::certs::TestCa;
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::control_plane::{GRPC, GRPC_TLS};
use crate::mesh::{MANAGEMENT, MeshOptions};

/// The name in the certificate for gRPC over TLS, as created by Consul's own tools.
pub(crate) const SERVER_NAME: &str = "server.dc1.consul";

/// A server. Dropping it kills the process.
pub(crate) struct Consul {
    binary: PathBuf,
    address: IpAddr,
    config: PathBuf,
    log: PathBuf,
    /// `-dev`: a single server with a fast start and in-memory state.
    dev: bool,
    child: Option<Child>,
}

/// The servers of one datacenter and the CA of their certificates.
pub(crate) struct Cluster {
    pub(crate) servers: Vec<Consul>,
    ca: TestCa,
}

impl Cluster {
    /// Writes the configuration of servers, which are started later, at `first` and the addresses
    /// after it.
    pub(crate) fn new(
        binary: &Path,
        first: Ipv4Addr,
        folder: &Path,
        options: &MeshOptions,
    ) -> Self {
        let ca = TestCa::new();
        let [a, b, c, d] = first.octets();
        let server = |place: u8| {
            let address = Ipv4Addr::new(a, b, c, d + place);
            let content = configuration(address, first, &ca, folder, options);
            let config = folder.join(format!("consul-{place}.json"));
            std::fs::write(&config, content.to_string()).expect("the configuration can be written");
            Consul {
                binary: binary.to_owned(),
                address: address.into(),
                config,
                log: folder.join(format!("consul-{place}.log")),
                dev: !options.durable && options.servers < 2,
                child: None,
            }
        };
        Self {
            servers: (0..options.servers.max(1)).map(server).collect(),
            ca,
        }
    }

    /// The CA file that verifies the servers' certificates.
    pub(crate) fn ca_file(&self) -> PathBuf {
        self.ca.ca_file()
    }
}

impl Consul {
    /// Starts the process.
    pub(crate) fn start(&mut self) {
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.expect("the log can be written");
        let mut command = Command::new(&self.binary);
        command.arg("agent");
        if self.dev {
            command.arg("-dev");
        }
        command
            .arg("-config-file")
            .arg(&self.config)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be shared"))
            .stderr(log)
            .kill_on_drop(true);
        let child = command.spawn().expect("Consul can be started");
        self.child = Some(child);
    }

    /// Kills the process and waits for its end.
    pub(crate) async fn kill(&mut self) {
        let mut child = self.child.take().expect("Consul was started");
        let killed = child.kill().await;
        killed.expect("Consul can be killed");
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.child
            .as_mut()
            .is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

fn configuration(
    address: Ipv4Addr,
    first: Ipv4Addr,
    ca: &TestCa,
    folder: &Path,
    options: &MeshOptions,
) -> Value {
    let files = ca.server(&[SERVER_NAME, "localhost"]);
    let mut content = json!({
        "datacenter": "dc1",
        "node_name": format!("server-{}", address.octets()[3]),
        "bind_addr": address,
        "client_addr": address,
        "default_intention_policy": "deny",
        "performance": {"raft_multiplier": 1},
        "ports": {"grpc": GRPC, "grpc_tls": GRPC_TLS},
        "tls": {"grpc": {"ca_file": ca.ca_file(), "cert_file": files.cert, "key_file": files.key}},
    });
    if options.durable || options.servers > 1 {
        content["server"] = json!(true);
        content["bootstrap_expect"] = json!(options.servers.max(1));
        content["retry_join"] = json!([first]);
        content["retry_interval"] = json!("1s");
        content["connect"] = json!({"enabled": true});
        content["data_dir"] = json!(folder.join(format!("consul-{address}")));
    }
    if options.acl {
        content["acl"] = json!({
            "enabled": true,
            "default_policy": "deny",
            "tokens": {"initial_management": MANAGEMENT, "agent": MANAGEMENT},
        });
    }
    content
}
