//! The flags about other datacenters.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args};
use legate_identity::tls::ServerPolicy;
use legate_server::{AgentFiles, GatewayAddress, PrimaryGateways, WanSettings};

use super::storage::Addresses;

/// The variable with the token for what a secondary datacenter asks of the primary. Not a flag, because command lines
/// are visible to all users of the machine.
pub(super) const REPLICATION_TOKEN: &str = "LEGATE_REPLICATION_TOKEN";

/// The time between two attempts to join. Consul's default.
const RETRY: Duration = Duration::from_secs(30);

/// Servers of other datacenters.
#[derive(Debug, Args)]
pub(super) struct Datacenters {
    /// The datacenter whose CA, config entries and ACLs apply here too. Default: this one.
    #[arg(long, value_name = "NAME", requires = "wan_cert_file")]
    pub(super) primary_datacenter: Option<String>,

    /// Certificate chain (PEM file) of this server for servers of other datacenters, with the name
    /// server.<datacenter>.consul. With it there is a port for these servers.
    #[arg(long, value_name = "FILE", requires_all = ["wan_key_file", "wan_ca_file"])]
    wan_cert_file: Option<PathBuf>,

    /// Private key (PEM file) of --wan-cert-file.
    #[arg(long, value_name = "FILE", requires = "wan_cert_file")]
    wan_key_file: Option<PathBuf>,

    /// CA certificates (PEM file) of the servers of all datacenters.
    #[arg(long, value_name = "FILE", requires = "wan_cert_file")]
    wan_ca_file: Option<PathBuf>,

    /// Port for servers of other datacenters; 0 picks a free port.
    #[arg(long, value_name = "PORT", default_value_t = 8302)]
    wan_port: u16,

    /// Address at which servers of other datacenters reach this one. Default: that of --advertise.
    #[arg(long, value_name = "ADDRESS", requires = "wan_cert_file")]
    advertise_wan: Option<IpAddr>,

    /// Server of another datacenter to join, with or without a port; may be repeated.
    #[arg(long, value_name = "ADDRESS", requires = "wan_cert_file")]
    retry_join_wan: Vec<String>,

    /// Give clients the addresses `wan` of nodes and instances of other datacenters, over HTTP and DNS. Consul's
    /// translate_wan_addrs.
    #[arg(long, action = ArgAction::SetTrue, requires = "wan_cert_file")]
    pub(super) translate_wan_addrs: bool,

    /// Reach other datacenters through mesh gateways only. The certificate also needs the name
    /// <node>.server.<datacenter>.consul. Consul's connect.enable_mesh_gateway_wan_federation.
    #[arg(long, action = ArgAction::SetTrue, requires = "wan_cert_file", conflicts_with = "retry_join_wan")]
    mesh_gateway_wan_federation: bool,

    /// Mesh gateway of the primary datacenter, as HOST:PORT; may be repeated.
    #[arg(long, value_name = "ADDRESS", requires_all = ["mesh_gateway_wan_federation", "primary_datacenter"])]
    primary_gateway: Vec<GatewayAddress>,
}

impl Datacenters {
    /// The primary datacenter, if it is another one.
    pub(super) fn primary(&self, datacenter: &str) -> Option<String> {
        let primary = self.primary_datacenter.as_ref()?;
        (!primary.eq_ignore_ascii_case(datacenter)).then(|| primary.to_ascii_lowercase())
    }

    /// `None` without a certificate.
    pub(super) fn config(
        self,
        datacenter: &str,
        addresses: Addresses,
    ) -> anyhow::Result<Option<WanSettings>> {
        if !self.primary_gateway.is_empty() && self.primary(datacenter).is_none() {
            bail!(
                "--primary-gateway is for a secondary datacenter: --primary-datacenter is this one"
            );
        }
        let pair = self.wan_cert_file.zip(self.wan_key_file);
        let Some(((certificate, key), authority)) = pair.zip(self.wan_ca_file) else {
            return Ok(None);
        };
        let gateways = self.mesh_gateway_wan_federation.then_some(PrimaryGateways {
            addresses: self.primary_gateway,
            interval: RETRY,
        });
        Ok(Some(WanSettings {
            listen: SocketAddr::new(addresses.bind, self.wan_port),
            advertise: self.advertise_wan.unwrap_or(addresses.advertise),
            files: Some(AgentFiles {
                certificate,
                key,
                policy: ServerPolicy {
                    client_authorities: vec![authority],
                    ..ServerPolicy::default()
                },
            }),
            join: self.retry_join_wan,
            retry_interval: RETRY,
            retry_max: 0,
            through_gateways: gateways,
        }))
    }
}

#[cfg(test)]
mod tests {
    use legate_model::Secret;

    use super::super::Secrets;
    use super::super::tests::{config, config_with};
    use super::*;

    const FILES: [&str; 3] = ["--wan-cert-file=c", "--wan-key-file=k", "--wan-ca-file=ca"];

    fn with_files(flags: &[&str]) -> anyhow::Result<legate_server::ServerConfig> {
        config(&[&FILES[..], flags].concat())
    }

    #[test]
    fn servers_of_other_datacenters_need_a_certificate() {
        let alone = config(&[]).unwrap();
        assert!(alone.wan.is_none() && !alone.agent.registers_itself);
        let one = with_files(&["--bind=10.0.0.1", "--retry-join-wan=192.0.2.1"]).unwrap();
        let wan = one.wan.unwrap();
        assert_eq!(wan.listen.to_string(), "10.0.0.1:8302");
        assert_eq!(wan.advertise.to_string(), "10.0.0.1");
        assert_eq!(wan.join, ["192.0.2.1"]);
        let policy = wan.files.unwrap().policy;
        assert_eq!(policy.client_authorities, [PathBuf::from("ca")]);
        assert!(one.agent.registers_itself, "mesh gateways lead to it");
        assert_eq!(one.primary_datacenter, None);
        let refused = |flags: &[&str]| config(flags).unwrap_err().to_string();
        assert!(refused(&["--primary-datacenter=dc0"]).contains("--wan-cert-file"));
        assert!(refused(&["--wan-cert-file=c"]).contains("--wan-key-file"));
    }

    #[test]
    fn secondaries_name_gateways_and_have_a_token() {
        let through = ["--mesh-gateway-wan-federation", "--primary-datacenter=DC0"];
        let gateway = "--primary-gateway=gateway.example:443";
        let server = with_files(&[&through[..], &[gateway]].concat()).unwrap();
        assert_eq!(server.primary_datacenter.as_deref(), Some("dc0"));
        let known = server.wan.unwrap().through_gateways.unwrap();
        assert_eq!(known.addresses[0].to_string(), "gateway.example:443");

        let refused = |flags: &[&str]| with_files(flags).unwrap_err().to_string();
        assert!(refused(&[gateway]).contains("--mesh-gateway-wan-federation"));
        let own = [
            "--mesh-gateway-wan-federation",
            "--primary-datacenter=dc1",
            gateway,
        ];
        assert!(refused(&own).contains("for a secondary datacenter"));
        let join = [&through[..], &["--retry-join-wan=a"]].concat();
        assert!(refused(&join).contains("--retry-join-wan"));
        let with_acls = [&through[..], &["--acl"]].concat();
        assert!(refused(&with_acls).contains(REPLICATION_TOKEN));
        let secrets = Secrets {
            replication_token: Some(Secret::new("x")),
            ..Secrets::default()
        };
        let flags = [&FILES[..], &with_acls].concat();
        let server = config_with(&flags, secrets).unwrap();
        assert_eq!(server.agent.tokens.replication, Some(Secret::new("x")));
    }
}
