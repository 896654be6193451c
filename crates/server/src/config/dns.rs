//! How DNS answers: the settings, as values. Which of them may change while the server runs is said
//! where they are kept, in [`crate::dns::CurrentDns`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::Name;

/// The longest time that a record may be kept, in seconds (RFC 2181 §8).
const MAX_TTL: u32 = i32::MAX as u32;

/// The domains that DNS answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsDomains {
    /// Never empty; the first is the one of answers to questions that name none.
    all: Vec<Domain>,
}

/// A domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) name: Name,
    /// In small letters.
    labels: Vec<String>,
}

/// A domain that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no domain: give labels of letters, digits and hyphens with dots between them")]
pub struct InvalidDomain(String);

impl Default for DnsDomains {
    /// `consul`
    fn default() -> Self {
        let labels = vec!["consul".to_owned()];
        let name = Name::from_labels(labels.iter().map(String::as_bytes)).unwrap_or_default();
        Self {
            all: vec![Domain { name, labels }],
        }
    }
}

impl DnsDomains {
    /// The domain that answers are in, and another one that is served, too. Dots around them and
    /// capital letters do not matter.
    ///
    /// # Errors
    /// [`InvalidDomain`]
    pub fn new(domain: &str, other: Option<&str>) -> Result<Self, InvalidDomain> {
        let mut all = vec![Domain::new(domain)?];
        if let Some(other) = other {
            all.push(Domain::new(other)?);
        }
        all.dedup();
        Ok(Self { all })
    }

    pub(crate) fn main(&self) -> &Domain {
        &self.all[0]
    }

    /// The domain that labels in small letters end in, and how many are before it. The longest one
    /// where one domain is below the other.
    pub(crate) fn of(&self, labels: &[String]) -> Option<(&Domain, usize)> {
        let found = self.all.iter().filter(|one| labels.ends_with(&one.labels));
        let longest = found.max_by_key(|one| one.labels.len())?;
        Some((longest, labels.len() - longest.labels.len()))
    }
}

impl Domain {
    fn new(text: &str) -> Result<Self, InvalidDomain> {
        let invalid = || InvalidDomain(text.to_owned());
        let lower = text.trim_matches('.').to_ascii_lowercase();
        let labels: Vec<String> = lower.split('.').map(str::to_owned).collect();
        let is_fine = |label: &String| {
            let mut bytes = label.bytes();
            !label.is_empty() && bytes.all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
        };
        // What ends in `arpa` are the names of addresses.
        if !labels.iter().all(is_fine) || labels.last().is_some_and(|last| last == "arpa") {
            return Err(invalid());
        }
        let name = Name::from_labels(labels.iter().map(String::as_bytes));
        Ok(Self {
            name: name.map_err(|_| invalid())?,
            labels,
        })
    }
}

/// The times of the zone's own record, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DnsSoa {
    /// Default 3600.
    pub refresh: u32,
    /// Default 600.
    pub retry: u32,
    /// Default 86400.
    pub expire: u32,
    /// How long it may be remembered that a name does not exist. Default 0.
    pub min_ttl: u32,
}

impl Default for DnsSoa {
    fn default() -> Self {
        Self {
            refresh: 3600,
            retry: 600,
            expire: 86_400,
            min_ttl: 0,
        }
    }
}

/// Which server for other names is asked first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecursorStrategy {
    /// The first of the list.
    #[default]
    Sequential,
    /// Any.
    Random,
}

/// How long answers about services may be kept. Default: not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceTtls {
    names: BTreeMap<String, u32>,
    prefixes: BTreeMap<String, u32>,
}

impl ServiceTtls {
    /// A time for each name of a service; what ends in `*` is for all names that begin so. The name
    /// itself counts before prefixes, and of those the longest.
    pub fn new(times: impl IntoIterator<Item = (String, Duration)>) -> Self {
        let mut all = Self::default();
        for (name, time) in times {
            let name = name.to_lowercase();
            match name.strip_suffix('*') {
                Some(prefix) => all.prefixes.insert(prefix.to_owned(), seconds(time)),
                None => all.names.insert(name, seconds(time)),
            };
        }
        all
    }

    /// In seconds.
    pub(crate) fn of(&self, service: &str) -> u32 {
        let name = service.to_lowercase();
        let longest = || {
            let fits = |(prefix, _): &(&String, _)| name.starts_with(prefix.as_str());
            let found = self.prefixes.iter().filter(fits);
            found.max_by_key(|(prefix, _)| prefix.len())
        };
        let exact = self.names.get(&name).copied();
        exact
            .or_else(|| longest().map(|(_, ttl)| *ttl))
            .unwrap_or_default()
    }
}

/// How DNS answers. Values and defaults are those of Consul's `dns_config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Whether instances in `warning` are left out. Default: they are shown.
    pub only_passing: bool,
    /// How long answers about nodes may be kept. Default: not at all.
    pub node_ttl: Duration,
    /// How long answers about services may be kept.
    pub service_ttl: ServiceTtls,
    /// The zone's own record.
    pub soa: DnsSoa,
    /// Most answers over UDP to clients that say nothing of larger ones. Default 3, at most 8.
    pub udp_answer_limit: usize,
    /// Most addresses in one answer. Default 0: no limit.
    pub a_record_limit: usize,
    /// Whether answers that were cut say so, which makes clients ask again over TCP. Default: no.
    pub enable_truncate: bool,
    /// Whether names are written in full each time. Default: no.
    pub disable_compression: bool,
    /// Whether nodes' metadata is added to answers that are about their addresses. Default: yes.
    pub node_meta_txt: bool,
    /// Whether one label between the kind and the domain is a namespace, in place of a datacenter.
    pub prefer_namespace: bool,
    /// Servers that are asked for names of other domains. Default: none.
    pub recursors: Vec<SocketAddr>,
    /// Which of them is asked first.
    pub recursor_strategy: RecursorStrategy,
    /// How long one of them may take. Default 2 s.
    pub recursor_timeout: Duration,
}

impl Default for DnsSettings {
    fn default() -> Self {
        Self {
            only_passing: false,
            node_ttl: Duration::ZERO,
            service_ttl: ServiceTtls::default(),
            soa: DnsSoa::default(),
            udp_answer_limit: 3,
            a_record_limit: 0,
            enable_truncate: false,
            disable_compression: false,
            node_meta_txt: true,
            prefer_namespace: false,
            recursors: Vec::new(),
            recursor_strategy: RecursorStrategy::Sequential,
            recursor_timeout: Duration::from_secs(2),
        }
    }
}

/// A time to live, in seconds.
pub(crate) fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).map_or(MAX_TTL, |seconds| seconds.min(MAX_TTL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_before_prefixes_and_a_long_prefix_before_a_short_one() {
        let times = [("*", 1), ("web-*", 2), ("web-a*", 3), ("WEB-api", 4)];
        let times = times.map(|(name, time)| (name.to_owned(), Duration::from_secs(time)));
        let times = ServiceTtls::new(times);
        for (name, ttl) in [
            ("db", 1),
            ("web-1", 2),
            ("Web-App", 3),
            ("web-api", 4),
            ("web", 1),
        ] {
            assert_eq!(times.of(name), ttl, "{name}");
        }
        assert_eq!(ServiceTtls::default().of("web"), 0);
        assert_eq!(seconds(Duration::MAX), MAX_TTL);
    }

    #[test]
    fn domains() {
        let domains = DnsDomains::new("Mesh.example.", Some("sub.mesh.example")).unwrap();
        let of = |name: &str| {
            let labels: Vec<String> = name.split('.').map(str::to_owned).collect();
            let found = domains.of(&labels);
            found.map(|(domain, before)| (domain.name.to_ascii(), before))
        };
        assert_eq!(of("web.mesh.example"), Some(("mesh.example.".into(), 1)));
        let below = Some(("sub.mesh.example.".into(), 1));
        assert_eq!(of("web.sub.mesh.example"), below);
        assert_eq!(of("mesh.example"), Some(("mesh.example.".into(), 0)));
        assert_eq!(of("example"), None);
        for wrong in ["", ".", "a..b", "a b", "in-addr.arpa", "ä"] {
            assert!(DnsDomains::new(wrong, None).is_err(), "{wrong}");
            assert!(DnsDomains::new("consul", Some(wrong)).is_err(), "{wrong}");
        }
        assert!(DnsDomains::new(&["a"; 128].join("."), None).is_err());
    }
}
