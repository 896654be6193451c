//! DNS settings, as plain values. [`crate::dns::CurrentDns`] documents which of them can change while the
//! server runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::Name;

/// The maximum TTL of a record, in seconds (RFC 2181 §8).
const MAX_TTL: u32 = i32::MAX as u32;

/// The domains served by DNS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsDomains {
    /// Never empty. The first one is used in answers to queries that contain no domain.
    all: Vec<Domain>,
}

/// A domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Domain {
    pub(crate) name: Name,
    /// In lower case.
    labels: Vec<String>,
}

/// A domain that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a valid domain: give labels of letters, digits and hyphens with dots between them"
)]
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
    /// The primary domain, and optionally an alternative one. Surrounding dots and case are ignored.
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

    /// The domains in text form, the primary one first.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.all.iter().map(|one| one.labels.join("."))
    }

    /// The domain that these lower-case labels end in, and the number of labels before it. If one domain is a
    /// subdomain of the other, the longer match wins.
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
        // Names that end in `arpa` are reserved for reverse lookups.
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

/// Fields of the zone's SOA record, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DnsSoa {
    /// Default 3600.
    pub refresh: u32,
    /// Default 600.
    pub retry: u32,
    /// Default 86400.
    pub expire: u32,
    /// TTL of negative answers. Default 0.
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

/// Order in which recursors are tried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecursorStrategy {
    /// In the order of the list.
    #[default]
    Sequential,
    /// In random order.
    Random,
}

/// TTLs of answers about services. Default: 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceTtls {
    names: BTreeMap<String, u32>,
    prefixes: BTreeMap<String, u32>,
}

impl ServiceTtls {
    /// TTLs by service name. A name that ends in `*` matches by prefix. An exact name takes precedence over
    /// prefixes, and a longer prefix over a shorter one.
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

    /// The TTL of a service, in seconds.
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

/// DNS settings. Values and defaults are those of Consul's `dns_config`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsSettings {
    /// Whether instances in state `warning` are omitted. Default: no.
    pub only_passing: bool,
    /// TTL of answers about nodes. Default 0.
    pub node_ttl: Duration,
    /// TTLs of answers about services.
    pub service_ttl: ServiceTtls,
    /// The zone's SOA record.
    pub soa: DnsSoa,
    /// Maximum answers over UDP to clients without EDNS0. Default 3, at most 8.
    pub udp_answer_limit: usize,
    /// Maximum address records in one answer. Default 0: no limit.
    pub a_record_limit: usize,
    /// Whether truncated answers set the TC bit, so that clients retry over TCP. Default: no.
    pub enable_truncate: bool,
    /// Whether name compression is disabled. Default: no.
    pub disable_compression: bool,
    /// Whether nodes' metadata is added to answers with their addresses, as TXT records. Default: yes.
    pub node_meta_txt: bool,
    /// Whether a single label between the kind and the domain is a namespace rather than a datacenter.
    pub prefer_namespace: bool,
    /// Upstream DNS servers for names in other domains. Default: none.
    pub recursors: Vec<SocketAddr>,
    /// Order in which recursors are tried.
    pub recursor_strategy: RecursorStrategy,
    /// Timeout of a query to one recursor. Default 2 s.
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

/// Converts a TTL to seconds, limited to the maximum of DNS.
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
