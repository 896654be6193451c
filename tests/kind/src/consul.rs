//! A real Consul server on this machine, outside of the cluster, with TLS and access control.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::cluster::{Cluster, eventually, output};

/// The name in its certificate.
pub(crate) const NAME: &str = "server.dc1.consul";

/// One server, which ends when this is dropped.
pub(crate) struct Consul {
    program: PathBuf,
    process: Child,
    folder: TempDir,
    /// Its address, as pods see it.
    pub(crate) address: IpAddr,
    pub(crate) https: u16,
    pub(crate) grpc: u16,
    /// May do everything.
    pub(crate) token: String,
    /// The URL of the cluster's API server, as Consul sees it.
    pub(crate) kubernetes: String,
}

impl Consul {
    /// Starts it, and waits until it answers.
    pub(crate) fn start(program: &Path, cluster: &Cluster) -> anyhow::Result<Self> {
        let kubernetes = api_server(cluster)?;
        let address = address_towards(kubernetes)?;
        let folder = TempDir::new()?;
        let ca = ["tls", "ca", "create"];
        output(command(program, folder.path()).args(ca), "")?;
        let name = format!("-additional-ipaddress={address}");
        let certificate = ["tls", "cert", "create", "-server", "-dc=dc1", &name];
        output(command(program, folder.path()).args(certificate), "")?;
        let [https, grpc, rpc, serf] = free_ports(address)?;
        let token = Uuid::new_v4().to_string();
        let config = json!({
            "datacenter": "dc1",
            "node_name": "consul",
            "server": true,
            "bootstrap_expect": 1,
            "disable_update_check": true,
            "data_dir": folder.path().join("data"),
            "bind_addr": address,
            "client_addr": address,
            "ports": {
                "http": -1, "https": https, "grpc": -1, "grpc_tls": grpc,
                "dns": -1, "server": rpc, "serf_lan": serf, "serf_wan": -1,
            },
            "performance": {"raft_multiplier": 1},
            "tls": {"defaults": {
                "ca_file": folder.path().join(CA),
                "cert_file": folder.path().join("dc1-server-consul-0.pem"),
                "key_file": folder.path().join("dc1-server-consul-0-key.pem"),
                "verify_outgoing": true,
            }},
            "acl": {
                "enabled": true,
                "default_policy": "deny",
                "tokens": {"initial_management": token, "agent": token},
            },
            "connect": {"enabled": true},
        });
        let file = folder.path().join("config.json");
        fs::write(&file, config.to_string())?;
        let log = File::create(folder.path().join("log"))?;
        // With this program the kernel ends it, however this program ends.
        let mut agent = Command::new("setpriv");
        agent
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["agent", "-config-file"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let process = agent
            .spawn()
            .context("cannot start setpriv (Debian: util-linux)")?;
        let consul = Self {
            program: program.to_path_buf(),
            process,
            folder,
            address,
            https,
            grpc,
            token,
            kubernetes: format!("https://{kubernetes}"),
        };
        let itself = ["acl", "token", "read", "-self"];
        let answers = eventually("Consul answers", || consul.run(&itself));
        answers.map_err(|error| error.context(consul.log()))?;
        Ok(consul)
    }

    /// What `consul` prints as a client of this server.
    pub(crate) fn run(&self, words: &[&str]) -> anyhow::Result<String> {
        let mut client = command(&self.program, self.folder.path());
        let url = format!("https://{}", SocketAddr::new(self.address, self.https));
        client
            .env("CONSUL_HTTP_ADDR", url)
            .env("CONSUL_HTTP_TOKEN", &self.token)
            .env("CONSUL_CACERT", self.authority())
            .env("CONSUL_TLS_SERVER_NAME", NAME);
        output(client.args(words), "")
    }

    /// Names of the services that have a name with this beginning.
    pub(crate) fn services(&self, beginning: &str) -> anyhow::Result<Vec<String>> {
        let all = self.run(&["catalog", "services"])?;
        let names = all.lines().filter(|name| name.starts_with(beginning));
        Ok(names.map(str::to_owned).collect())
    }

    /// The tokens of logins through an auth method whose description has a text in it.
    pub(crate) fn logins(&self, method: &str, text: &str) -> anyhow::Result<Vec<String>> {
        let tokens = self.run(&["acl", "token", "list", "-format=json"])?;
        let tokens: Value = serde_json::from_str(&tokens)?;
        let of_the_method = |token: &&Value| token["AuthMethod"] == method;
        let description = |token: &Value| token["Description"].as_str().map(str::to_owned);
        let tokens = tokens.as_array().context("tokens are a list")?.iter();
        let descriptions = tokens.filter(of_the_method).filter_map(description);
        Ok(descriptions.filter(|is| is.contains(text)).collect())
    }

    /// The file with the authority of its certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join(CA)
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = &lines[lines.len().saturating_sub(40)..];
        format!("# consul\n{}", last.join("\n"))
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The authority that `consul tls` makes.
const CA: &str = "consul-agent-ca.pem";

fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    command
}

/// Where the API server is, for pods and for this machine.
fn api_server(cluster: &Cluster) -> anyhow::Result<SocketAddr> {
    let slice = cluster.json(&["get", "endpointslice", "kubernetes", "--namespace=default"])?;
    let address = slice["endpoints"][0]["addresses"][0].as_str();
    let port = slice["ports"][0]["port"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok());
    let (address, port) = address.zip(port).with_context(|| slice.to_string())?;
    Ok(SocketAddr::new(address.parse()?, port))
}

/// The address of this machine from which it reaches another, which therefore reaches it there.
fn address_towards(other: SocketAddr) -> anyhow::Result<IpAddr> {
    let any = match other {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(other)?;
    let address = socket.local_addr()?.ip();
    ensure!(
        !address.is_loopback(),
        "pods do not reach this machine at {address}, from where it reaches the API server at {other}"
    );
    Ok(address)
}

/// Ports that nobody listens at.
fn free_ports<const N: usize>(address: IpAddr) -> anyhow::Result<[u16; N]> {
    let mut listeners = Vec::new();
    for _ in 0..N {
        listeners.push(TcpListener::bind((address, 0))?);
    }
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}
