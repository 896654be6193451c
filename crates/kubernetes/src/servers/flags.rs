//! The flags for access to the servers' HTTP API. Each can also be set in the environment:
//! `LEGATE_K8S_` and the flag's name in capitals, with `_` for `-`.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::credentials::Credentials;
use super::options::{Options, Tls};
use crate::tenancy::{TenancyFlags, Tenants};

/// The servers' address and how they are verified.
#[derive(Debug, Clone, Args)]
pub struct ServerFlags {
    /// Host name or IP address of the servers.
    #[arg(long, env = "LEGATE_K8S_SERVER_ADDRESSES", value_name = "HOST")]
    pub server_addresses: String,

    /// Port of the servers' HTTP API. Default: 8501 with --tls, 8500 without.
    #[arg(long, env = "LEGATE_K8S_SERVER_HTTP_PORT", value_name = "PORT")]
    pub server_http_port: Option<u16>,

    /// Use TLS to connect to the servers.
    #[arg(long, env = "LEGATE_K8S_TLS", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub tls: bool,

    /// PEM file with the CA certificates that verify the servers, reloaded when it changes. Default:
    /// the system's.
    #[arg(
        long,
        env = "LEGATE_K8S_CA_CERTS",
        value_name = "FILE",
        requires = "tls"
    )]
    pub ca_certs: Option<PathBuf>,

    /// Verify the servers with the system's CA certificates, which is also the default.
    #[arg(long, env = "LEGATE_K8S_USE_SYSTEM_ROOTS", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value_t = false, default_missing_value = "true")]
    pub use_system_roots: bool,

    /// Name that the servers' certificate must have. Default: the host of --server-addresses.
    #[arg(long, env = "LEGATE_K8S_TLS_SERVER_NAME", value_name = "NAME")]
    pub tls_server_name: Option<String>,

    /// The tenants of the cluster's pods and resources.
    #[command(flatten)]
    pub tenancy: TenancyFlags,
}

impl ServerFlags {
    /// The options of the client.
    ///
    /// # Errors
    ///
    /// If two ways to verify the servers are set.
    pub fn options(&self, credentials: Credentials) -> anyhow::Result<Options> {
        // clap would report a conflict for --use-system-roots=false, too.
        anyhow::ensure!(
            !(self.use_system_roots && self.ca_certs.is_some()),
            "--ca-certs cannot be used with --use-system-roots: remove one of them"
        );
        let default_port = if self.tls { 8501 } else { 8500 };
        Ok(Options {
            host: self.server_addresses.clone(),
            port: self.server_http_port.unwrap_or(default_port),
            tls: self.tls.then(|| Tls {
                ca: self.ca_certs.clone(),
                server_name: self.tls_server_name.clone(),
            }),
            credentials,
            partition: self.tenants().partition().map(str::to_owned),
        })
    }

    /// The tenants of the cluster's pods and resources.
    #[must_use]
    pub fn tenants(&self) -> Tenants {
        Tenants::of(&self.tenancy)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        servers: ServerFlags,
    }

    fn parse(flags: &[&str]) -> anyhow::Result<Options> {
        let own = ["program", "--server-addresses=consul"];
        let program = Program::try_parse_from(own.iter().chain(flags))?;
        program.servers.options(Credentials::None)
    }

    #[test]
    fn the_port_is_that_of_the_scheme_unless_given() {
        assert_eq!(parse(&[]).unwrap().port, 8500);
        assert_eq!(parse(&["--tls"]).unwrap().port, 8501);
        let given = parse(&["--tls=false", "--server-http-port=1"]).unwrap();
        assert!(given.port == 1 && given.tls.is_none());
    }

    #[test]
    fn servers_are_verified_in_one_way() {
        let tls = parse(&["--tls", "--use-system-roots"])
            .unwrap()
            .tls
            .unwrap();
        assert_eq!(tls.ca, None);
        let file = ["--tls", "--ca-certs=ca.pem", "--use-system-roots=false"];
        let tls = parse(&file).unwrap().tls.unwrap();
        assert_eq!(tls.ca, Some(PathBuf::from("ca.pem")));
        for refused in [
            &["--ca-certs=ca.pem"][..],
            &["--tls", "--ca-certs=ca.pem", "--use-system-roots"],
        ] {
            assert!(parse(refused).is_err(), "{refused:?}");
        }
    }
}
