//! A real Consul server on this machine, outside of the cluster, with TLS and ACLs.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::cluster::{Cluster, eventually, output};
use crate::host::{Process, address_towards, api_server, free_ports};

/// The name in its certificate.
pub(crate) const NAME: &str = "server.dc1.consul";

/// A server that is stopped on drop.
pub(crate) struct Consul {
    program: PathBuf,
    process: Process,
    folder: TempDir,
    /// Its address from within pods.
    pub(crate) address: IpAddr,
    pub(crate) https: u16,
    pub(crate) grpc: u16,
    /// A management token.
    pub(crate) token: String,
    /// The URL of the cluster's API server from Consul.
    pub(crate) kubernetes: String,
}

impl Consul {
    /// Starts it and waits until it responds.
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
        let mut agent = Command::new(program);
        agent.args(["agent", "-config-file"]).arg(&file);
        let process = Process::start(agent, folder.path())?;
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

    /// Runs `consul` as a client of this server and returns its output.
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

    /// Names of the services with this prefix.
    pub(crate) fn services(&self, beginning: &str) -> anyhow::Result<Vec<String>> {
        let all = self.run(&["catalog", "services"])?;
        let names = all.lines().filter(|name| name.starts_with(beginning));
        Ok(names.map(str::to_owned).collect())
    }

    /// The tokens of logins with an auth method whose description contains a text.
    pub(crate) fn logins(&self, method: &str, text: &str) -> anyhow::Result<Vec<String>> {
        let tokens = self.run(&["acl", "token", "list", "-format=json"])?;
        let tokens: Value = serde_json::from_str(&tokens)?;
        let of_the_method = |token: &&Value| token["AuthMethod"] == method;
        let description = |token: &Value| token["Description"].as_str().map(str::to_owned);
        let tokens = tokens.as_array().context("tokens are a list")?.iter();
        let descriptions = tokens.filter(of_the_method).filter_map(description);
        Ok(descriptions.filter(|is| is.contains(text)).collect())
    }

    /// The file with the CA of its certificate.
    pub(crate) fn authority(&self) -> PathBuf {
        self.folder.path().join(CA)
    }

    /// The last lines of its log.
    pub(crate) fn log(&self) -> String {
        format!("# consul\n{}", self.process.log())
    }
}

/// The CA that `consul tls` creates.
const CA: &str = "consul-agent-ca.pem";

fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    command
}
