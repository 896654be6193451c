//! What holds for every pod that is injected: a value of its own, so that the patch is a pure function.

use crate::context::{Config, Servers, Sidecars};
use crate::tenancy::Tenants;

use super::dns::ResolvConf;

/// The installation, as admission sees it.
#[derive(Debug, Clone)]
pub struct Installation {
    /// The chart's full name.
    pub full_name: String,
    /// Namespace of the release, whose pods are never injected.
    pub namespace: String,
    /// How sidecars reach the servers.
    pub servers: Servers,
    /// Images, and the auth method.
    pub sidecars: Sidecars,
    /// The chart's values.
    pub config: Config,
    /// Level that sidecars log from.
    pub log_level: String,
    /// Sidecars log JSON.
    pub log_json: bool,
    /// What the cluster's version can do.
    pub cluster: Cluster,
    /// The authorities that sidecars verify servers against, as PEM; `None` where there is no TLS,
    /// or where the system's are used.
    pub ca_certs: Option<String>,
    /// How the operator's own pod looks up names, which is how all pods do.
    pub resolv_conf: ResolvConf,
}

impl Installation {
    /// Which namespaces of the mesh pods are in.
    pub(super) fn tenants(&self) -> Tenants {
        self.servers.http.tenants()
    }
}

/// What a version of Kubernetes can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cluster {
    /// Init containers that keep running: on by default since 1.29.
    pub native_sidecars: bool,
    /// `preStop` hooks that sleep: on by default since 1.30.
    pub sleep_hooks: bool,
}

impl Cluster {
    /// From what `/version` says: `1`, and `29` or `29+`.
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
