//! The DNS configuration of a pod that resolves the mesh's names: the sidecar first, then the
//! cluster's nameservers.

use k8s_openapi::api::core::v1::{PodDNSConfig, PodDNSConfigOption};

/// Kubernetes' limit for nameservers of a pod.
const NAMESERVERS: usize = 3;

/// The content of `/etc/resolv.conf`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResolvConf {
    /// Nameservers, in order.
    pub nameservers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options, such as `ndots:5`.
    pub options: Vec<String>,
}

impl ResolvConf {
    /// Parses the file; unknown lines are ignored.
    #[must_use]
    pub fn parse(text: &str) -> ResolvConf {
        let mut conf = ResolvConf::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let keyword = words.next();
            let rest = words.map(str::to_owned);
            match keyword {
                Some("nameserver") => conf.nameservers.extend(rest.take(1)),
                // The last `search` line wins.
                Some("search") => conf.searches = rest.collect(),
                Some("options") => conf.options.extend(rest),
                _ => {}
            }
        }
        conf
    }

    /// The DNS configuration of a pod in `namespace` whose sidecar answers on 127.0.0.1. `own` is
    /// the namespace of the pod from which the file was read.
    #[must_use]
    pub fn with_sidecar(&self, own: &str, namespace: &str) -> PodDNSConfig {
        let nameservers = std::iter::once("127.0.0.1".to_owned())
            .chain(self.nameservers.iter().cloned())
            .take(NAMESERVERS);
        let own = format!("{own}.svc.");
        let searches = self.searches.iter().map(|search| {
            search
                .strip_prefix(&own)
                .map_or_else(|| search.clone(), |rest| format!("{namespace}.svc.{rest}"))
        });
        let options = self.options.iter().map(|option| {
            let (name, value) = match option.split_once(':') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (option.as_str(), None),
            };
            PodDNSConfigOption {
                name: Some(name.to_owned()),
                value,
            }
        });
        let none_if_empty = |list: Vec<_>| (!list.is_empty()).then_some(list);
        PodDNSConfig {
            nameservers: Some(nameservers.collect()),
            searches: none_if_empty(searches.collect()),
            options: Some(options.collect::<Vec<_>>()).filter(|list| !list.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sidecar_comes_first_and_the_namespace_is_the_pods() {
        let conf = ResolvConf::parse(
            "# made by the kubelet\nsearch mesh.svc.cluster.local svc.cluster.local example.org\n\
             nameserver 10.96.0.10\nnameserver fd00::10\nnameserver 10.96.0.11\noptions ndots:5 edns0\n",
        );
        let config = conf.with_sidecar("mesh", "shop");
        assert_eq!(
            config.nameservers.unwrap(),
            ["127.0.0.1", "10.96.0.10", "fd00::10"]
        );
        assert_eq!(
            config.searches.unwrap(),
            ["shop.svc.cluster.local", "svc.cluster.local", "example.org"]
        );
        let options = config.options.unwrap();
        assert_eq!(options[0].name.as_deref(), Some("ndots"));
        assert_eq!(options[0].value.as_deref(), Some("5"));
        assert_eq!(options[1].value, None);
    }

    #[test]
    fn an_empty_file_leaves_the_sidecar() {
        let config = ResolvConf::parse("").with_sidecar("mesh", "shop");
        assert_eq!(config.nameservers.unwrap(), ["127.0.0.1"]);
        assert!(config.searches.is_none() && config.options.is_none());
    }
}
