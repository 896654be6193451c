//! The settings of the installation that apply to every injected pod, as a value, so that the patch is
//! a pure function.

use crate::context::{Config, Servers, Sidecars};
use crate::tenancy::Tenants;

use super::dns::ResolvConf;

/// The installation, as used by admission.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The chart's full name.
    pub full_name: String,
    /// Namespace of the release, whose pods are never injected.
    pub namespace: String,
    /// How sidecars connect to the servers.
    pub servers: Servers,
    /// Images and auth method of sidecars.
    pub sidecars: Sidecars,
    /// The chart's values.
    pub config: Config,
    /// The log level of sidecars.
    pub log_level: String,
    /// Whether sidecars log JSON.
    pub log_json: bool,
    /// The features of the cluster's version.
    pub cluster: Cluster,
    /// The CA certificates that sidecars verify servers with, as PEM; `None` without TLS, or if the
    /// system's are used.
    pub ca_certs: Option<String>,
    /// The DNS configuration of the operator's own pod, which is that of all pods.
    pub resolv_conf: ResolvConf,
}

impl Installation {
    /// Whether the servers can be verified as the flags say.
    #[must_use]
    pub fn knows_servers(&self) -> bool {
        let servers = &self.servers;
        let expected = servers.http.tls && (servers.managed_ca || servers.http.ca_certs.is_some());
        !expected || self.ca_certs.is_some()
    }

    /// Its mark on injected pods.
    pub(crate) fn mark(&self) -> String {
        mark(&self.namespace, &self.full_name)
    }

    /// How pods map to namespaces of the mesh.
    pub(crate) fn tenants(&self) -> Tenants {
        self.servers.http.tenants()
    }
}

/// The mark of an installation on the pods that it registers, by its namespace and full name.
#[must_use]
pub fn mark(namespace: &str, full_name: &str) -> String {
    format!("{namespace}/{full_name}")
}

/// Features of a version of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cluster {
    /// Init containers that keep running; enabled by default since 1.29.
    pub native_sidecars: bool,
    /// `preStop` hooks that sleep; enabled by default since 1.30.
    pub sleep_hooks: bool,
}

impl Cluster {
    /// Parses the fields of `/version`: `1`, and `29` or `29+`.
    #[must_use]
    pub fn of_version(major: &str, minor: &str) -> Cluster {
        let digits = |text: &str| -> u32 {
            let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().unwrap_or_default()
        };
        let version = (digits(major), digits(minor));
        Cluster {
            native_sidecars: version >= (1, 29),
            sleep_hooks: version >= (1, 30),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let of = |minor| {
            let cluster = Cluster::of_version("1", minor);
            (cluster.native_sidecars, cluster.sleep_hooks)
        };
        assert_eq!(of("28"), (false, false));
        assert_eq!(of("29+"), (true, false));
        assert_eq!(of("34"), (true, true));
        assert_eq!(of(""), (false, false));
        assert!(Cluster::of_version("2", "0").native_sidecars);
    }
}
