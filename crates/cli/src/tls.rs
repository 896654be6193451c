//! `tls`: creates certificates for servers and their clients, as files in the current folder.

use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::{Args, Subcommand};
use legate_identity::{
    AgentAuthorityRequest, AgentRequest, PrivateKey, generate_agent_authority, issue_for_agent,
};
use legate_runtime::Clock;

use crate::input;
use crate::output::line;

/// The maximum number of certificates with the same name in a folder.
const MOST: u32 = 10_000;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Manage CAs
    #[command(subcommand)]
    Ca(Ca),
    /// Manage certificates
    #[command(subcommand)]
    Cert(Cert),
}

#[derive(Subcommand)]
pub(crate) enum Ca {
    /// Create a CA
    Create(CreateCa),
}

#[derive(Subcommand)]
pub(crate) enum Cert {
    /// Create a certificate and its key
    Create(CreateCert),
}

#[derive(Args)]
pub(crate) struct CreateCa {
    /// Validity in days
    #[arg(long, default_value_t = 1825)]
    days: u32,
    /// Limit the CA to names below -domain, localhost and those of -additional-name-constraint
    #[arg(long)]
    name_constraint: bool,
    /// Domain of the cluster
    #[arg(long, default_value = "consul")]
    domain: String,
    /// Id of the cluster for the CA's URI
    #[arg(long, default_value = "", value_name = "ID")]
    cluster_id: String,
    /// Common name of the CA
    #[arg(long, default_value = "", value_name = "NAME")]
    common_name: String,
    /// Additional permitted domain; may be repeated
    #[arg(long, value_name = "DOMAIN")]
    additional_name_constraint: Vec<String>,
    #[arg(hide = true)]
    arguments: Vec<String>,
}

#[derive(Args)]
pub(crate) struct CreateCert {
    /// File of the CA certificate; #DOMAIN# is replaced by -domain
    #[arg(long, default_value = "#DOMAIN#-agent-ca.pem", value_name = "FILE")]
    ca: String,
    /// File of the CA's key
    #[arg(long, default_value = "#DOMAIN#-agent-ca-key.pem", value_name = "FILE")]
    key: String,
    /// Create a server certificate
    #[arg(long)]
    server: bool,
    /// Create a client certificate
    #[arg(long)]
    client: bool,
    /// Create a certificate for command line clients
    #[arg(long)]
    cli: bool,
    /// Node name of the server, added to the certificate's names
    #[arg(long, default_value = "", value_name = "NAME")]
    node: String,
    /// Validity in days
    #[arg(long, default_value_t = 365)]
    days: u32,
    /// Datacenter
    #[arg(long, default_value = "dc1", value_name = "NAME")]
    dc: String,
    /// Domain of the cluster
    #[arg(long, default_value = "consul")]
    domain: String,
    /// Additional DNS name; may be repeated
    #[arg(long, value_name = "NAME")]
    additional_dnsname: Vec<String>,
    /// Additional IP address; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    additional_ipaddress: Vec<IpAddr>,
    #[arg(hide = true)]
    arguments: Vec<String>,
}

/// Creates files in the current folder; existing files are never replaced.
///
/// # Errors
///
/// If a file exists already, or cannot be read or written.
pub(crate) fn run(command: Command) -> anyhow::Result<ExitCode> {
    let here = Path::new(".");
    match command {
        Command::Ca(Ca::Create(options)) => options.run(here)?,
        Command::Cert(Cert::Create(options)) => options.run(here)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn days(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 24 * 3600)
}

/// A unique serial number.
fn serial() -> u128 {
    rand::random::<u128>() >> 1
}

/// Creates a new file with the permissions `mode`.
fn save(folder: &Path, name: &str, content: &str, mode: u32) -> anyhow::Result<()> {
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(folder.join(name))
        .with_context(|| format!("cannot write {name}"))?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    line(&format!("==> Saved {name}"))
}

fn save_both(
    folder: &Path,
    [certificate_file, key_file]: [&str; 2],
    certificate: &str,
    key: &PrivateKey,
) -> anyhow::Result<()> {
    save(folder, certificate_file, certificate, 0o666)?;
    save(folder, key_file, &key.to_pem(), 0o600)
}

impl CreateCa {
    fn run(self, folder: &Path) -> anyhow::Result<()> {
        let domain = &self.domain;
        let names = [
            format!("{domain}-agent-ca.pem"),
            format!("{domain}-agent-ca-key.pem"),
        ];
        for name in &names {
            ensure!(!folder.join(name).exists(), "{name} already exists.");
        }
        let serial = serial();
        let mut permitted_domains = Vec::new();
        if self.name_constraint {
            permitted_domains = self.additional_name_constraint;
            permitted_domains.extend([domain.clone(), "localhost".to_owned()]);
        }
        let (certificate, key) = generate_agent_authority(AgentAuthorityRequest {
            common_name: match self.common_name.as_str() {
                "" => format!("Consul Agent CA {serial}"),
                name => name.to_owned(),
            },
            uri: match self.cluster_id.as_str() {
                "" => None,
                id => Some(format!("spiffe://{id}.{domain}")),
            },
            permitted_domains,
            serial,
            now: Clock::system().now(),
            ttl: days(self.days),
        })?;
        save_both(folder, [&names[0], &names[1]], &certificate, &key)
    }
}

impl CreateCert {
    fn run(self, folder: &Path) -> anyhow::Result<()> {
        ensure!(!self.ca.is_empty(), "Please provide the ca");
        ensure!(!self.key.is_empty(), "Please provide the key");
        let kinds = [self.server, self.client, self.cli];
        ensure!(
            kinds.iter().filter(|kind| **kind).count() == 1,
            "Please provide either -server, -client, or -cli"
        );
        ensure!(
            self.node.is_empty() || self.server,
            "-node requires -server"
        );
        let names = self.names();
        let kind = names.kind;
        let prefix = format!("{}-{kind}-{}", self.dc, self.domain);
        let free = (0..=MOST).find_map(|number| {
            let names = [
                format!("{prefix}-{number}.pem"),
                format!("{prefix}-{number}-key.pem"),
            ];
            let free = names.iter().all(|name| !folder.join(name).exists());
            free.then_some(names)
        });
        let files = free.context("Could not find a filename that doesn't already exist")?;
        let of = |file: &str| file.replacen("#DOMAIN#", &self.domain, 1);
        let (ca_file, key_file) = (of(&self.ca), of(&self.key));
        let read = |file: &str, what: &str| {
            std::fs::read_to_string(folder.join(file))
                .map_err(|error| anyhow!("{what}: open {file}: {}", input::reason(&error)))
        };
        let ca = read(&ca_file, "Error reading CA")?;
        let ca_key = read(&key_file, "Error reading CA key")?;
        if self.server {
            line(
                "==> WARNING: a holder of a server certificate can act as a server, and so read and \
                 change\n    everything that servers store. Deploy it to servers only, and protect it like \
                 the\n    CA's key.",
            )?;
        }
        line(&format!("==> Using {ca_file} and {key_file}"))?;
        let (certificate, key) = issue_for_agent(
            &ca,
            &ca_key,
            AgentRequest {
                common_name: names.name,
                dns_names: names.dns,
                ips: names.ips,
                handshakes: !self.cli,
                serial: serial(),
                now: Clock::system().now(),
                ttl: days(self.days),
            },
        )?;
        save_both(folder, [&files[0], &files[1]], &certificate, &key)
    }

    fn names(&self) -> Names {
        let (dc, domain) = (&self.dc, &self.domain);
        let localhost = "localhost".to_owned();
        if self.cli {
            let name = format!("cli.{dc}.{domain}");
            return Names {
                kind: "cli",
                dns: vec![name.clone(), localhost],
                name,
                ips: Vec::new(),
            };
        }
        let kind = if self.server { "server" } else { "client" };
        let name = format!("{kind}.{dc}.{domain}");
        let given = self.additional_dnsname.iter().map(|name| name.trim());
        let given = given.filter(|name| !name.is_empty());
        let mut dns: Vec<String> = given.map(str::to_owned).collect();
        if !self.node.is_empty() {
            dns.push(format!("{}.server.{dc}.{domain}", self.node));
        }
        dns.extend([name.clone(), localhost]);
        let mut ips = self.additional_ipaddress.clone();
        ips.push(IpAddr::from([127, 0, 0, 1]));
        Names {
            kind,
            name,
            dns,
            ips,
        }
    }
}

/// The names in a certificate.
struct Names {
    kind: &'static str,
    name: String,
    dns: Vec<String>,
    ips: Vec<IpAddr>,
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: Command,
    }

    fn made(folder: &Path, words: &str) -> anyhow::Result<()> {
        let line = std::iter::once("tls").chain(words.split(' '));
        match Program::try_parse_from(line)?.command {
            Command::Ca(Ca::Create(options)) => options.run(folder),
            Command::Cert(Cert::Create(options)) => options.run(folder),
        }
    }

    #[test]
    fn files_are_numbered_and_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        made(folder, "ca create --name-constraint").unwrap();
        let again = made(folder, "ca create").unwrap_err().to_string();
        assert_eq!(again, "consul-agent-ca.pem already exists.");
        for _ in 0..2 {
            made(
                folder,
                "cert create --server --node n1 --additional-ipaddress 10.0.0.1",
            )
            .unwrap();
        }
        made(folder, "cert create --cli").unwrap();
        for file in [
            "dc1-server-consul-0.pem",
            "dc1-server-consul-1-key.pem",
            "dc1-cli-consul-0.pem",
        ] {
            assert!(folder.join(file).exists(), "{file}");
        }
        let outside = "cert create --client --additional-dnsname web.example";
        let outside = made(folder, outside).unwrap_err().to_string();
        assert!(outside.contains("may not sign"), "{outside}");
        assert!(!folder.join("dc1-client-consul-0.pem").exists());
        let neither = made(folder, "cert create").unwrap_err().to_string();
        assert_eq!(neither, "Please provide either -server, -client, or -cli");
    }
}
