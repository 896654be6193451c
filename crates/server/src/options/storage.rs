//! The storage flags.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::bail;
use clap::{ArgAction, Args};
use legate_model::Secret;
use legate_server::{EtcdConfig, StoreConfig};

/// The variable with the password of `--etcd-user`.
pub(super) const ETCD_PASSWORD: &str = "LEGATE_ETCD_PASSWORD";

/// Storage of the catalog, configuration, CA and tokens.
#[derive(Debug, Args)]
pub(super) struct Storage {
    /// Directory of the catalog, configuration, CA and tokens. Created if it does not exist. Used by one server
    /// at a time.
    #[arg(long, default_value = "legate-data", value_name = "DIR")]
    data_dir: PathBuf,

    /// Keep all data in memory; it is lost when the process ends.
    #[arg(long, action = ArgAction::SetTrue, conflicts_with_all = ["data_dir", "etcd_endpoints"])]
    in_memory: bool,

    /// File with the key that encrypts the CA's private key and the tokens in the store: 32 bytes, in
    /// hexadecimal or base64. Default: store.key in --data-dir, created with the store. Required with etcd, and
    /// the same for all servers.
    #[arg(long, value_name = "FILE", conflicts_with = "in_memory")]
    encryption_key_file: Option<PathBuf>,

    /// Store the data in etcd, shared by several servers: the URLs of its members, such as https://etcd-0:2379,
    /// separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "URL,...",
        conflicts_with = "data_dir",
        requires = "encryption_key_file"
    )]
    etcd_endpoints: Vec<String>,

    /// CA certificates (PEM file) that verify etcd's certificates. Default: the system's roots.
    #[arg(long, value_name = "FILE", requires = "etcd_endpoints")]
    etcd_ca_file: Option<PathBuf>,

    /// Client certificate (PEM file) for etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_endpoints", "etcd_key_file"])]
    etcd_cert_file: Option<PathBuf>,

    /// Private key (PEM file) of --etcd-cert-file.
    #[arg(long, value_name = "FILE", requires = "etcd_cert_file")]
    etcd_key_file: Option<PathBuf>,

    /// User for etcd. Its password is in LEGATE_ETCD_PASSWORD.
    #[arg(long, value_name = "NAME", requires = "etcd_endpoints")]
    etcd_user: Option<String>,

    /// Prefix of all keys in etcd. Servers with the same prefix share a store.
    #[arg(long, value_name = "TEXT", default_value = "legate")]
    etcd_prefix: String,

    /// Port at which servers that share etcd reach each other; 0 picks a free port. Consul's ports.server.
    #[arg(long, value_name = "PORT", default_value_t = 8300)]
    server_port: u16,
}

/// Where this server listens for others, and where they reach it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addresses {
    pub(super) bind: IpAddr,
    pub(super) advertise: IpAddr,
}

impl Storage {
    pub(super) fn config(
        self,
        etcd_password: Option<Secret>,
        addresses: Addresses,
    ) -> anyhow::Result<StoreConfig> {
        if self.in_memory {
            return Ok(StoreConfig::Memory);
        }
        if self.etcd_endpoints.is_empty() {
            return Ok(StoreConfig::Disk {
                directory: self.data_dir,
                key_file: self.encryption_key_file,
            });
        }
        let Some(key_file) = self.encryption_key_file else {
            bail!("--etcd-endpoints needs --encryption-key-file, the same for all servers");
        };
        let user = match (self.etcd_user, etcd_password) {
            (Some(user), Some(password)) => Some((user, password)),
            (Some(user), None) => bail!("--etcd-user {user} needs its password in {ETCD_PASSWORD}"),
            (None, Some(_)) => bail!("{ETCD_PASSWORD} is set without --etcd-user: name the user"),
            (None, None) => None,
        };
        Ok(StoreConfig::Etcd(EtcdConfig {
            ca_file: self.etcd_ca_file,
            client_cert: self.etcd_cert_file.zip(self.etcd_key_file),
            user,
            prefix: self.etcd_prefix,
            listen: (addresses.bind, self.server_port).into(),
            advertise: Some(addresses.advertise),
            ..EtcdConfig::new(self.etcd_endpoints, key_file)
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        storage: Storage,
    }

    fn config(flags: &[&str], password: Option<&str>) -> anyhow::Result<StoreConfig> {
        let flags = ["program"].iter().chain(flags);
        let program = Program::try_parse_from(flags)?;
        let addresses = Addresses {
            bind: Ipv4Addr::UNSPECIFIED.into(),
            advertise: Ipv4Addr::new(10, 0, 0, 1).into(),
        };
        program
            .storage
            .config(password.map(Secret::from), addresses)
    }

    #[test]
    fn the_store_is_on_disk_by_default() {
        let disk = |directory: &str, key_file: Option<&str>| StoreConfig::Disk {
            directory: directory.into(),
            key_file: key_file.map(Into::into),
        };
        assert_eq!(config(&[], None).unwrap(), disk("legate-data", None));
        let named = config(&["--data-dir=d", "--encryption-key-file=k"], None);
        assert_eq!(named.unwrap(), disk("d", Some("k")));
        let memory = config(&["--in-memory"], None).unwrap();
        assert_eq!(memory, StoreConfig::Memory);
        assert!(config(&["--in-memory", "--data-dir=d"], None).is_err());
    }

    #[test]
    fn several_servers_share_etcd() {
        let flags = [
            "--etcd-endpoints=https://a:2379,https://b:2379",
            "--encryption-key-file=k",
            "--etcd-user=legate",
        ];
        let StoreConfig::Etcd(etcd) = config(&flags, Some("secret")).unwrap() else {
            panic!("etcd was asked for");
        };
        assert_eq!(etcd.endpoints, ["https://a:2379", "https://b:2379"]);
        assert_eq!(etcd.prefix, "legate");
        assert_eq!(etcd.listen, "0.0.0.0:8300".parse().unwrap());
        assert_eq!(etcd.advertise, Some("10.0.0.1".parse().unwrap()));
        assert!(!format!("{etcd:?}").contains("secret"));
    }

    #[test]
    fn missing_flags_are_named() {
        let text = |flags: &[&str], password| config(flags, password).unwrap_err().to_string();
        let keyless = text(&["--etcd-endpoints=a:2379"], None);
        assert!(keyless.contains("--encryption-key-file"), "{keyless}");
        let flags = ["--etcd-endpoints=a:2379", "--encryption-key-file=k"];
        assert!(text(&flags, Some("secret")).contains("--etcd-user"));
        let with_user = [&flags[..], &["--etcd-user=legate"]].concat();
        assert!(text(&with_user, None).contains(ETCD_PASSWORD));
        let lonely = text(&["--etcd-cert-file=c"], None);
        assert!(lonely.contains("--etcd-key-file"), "{lonely}");
    }
}
