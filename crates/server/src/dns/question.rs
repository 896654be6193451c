//! Parses DNS names into lookup targets. Looks nothing up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::{Name, RecordType};
use legate_model::Tenancy;

use crate::config::dns::{DnsDomains, Domain};

/// The labels that set the kind of lookup.
const KINDS: [&str; 7] = [
    "service", "connect", "virtual", "ingress", "node", "query", "addr",
];

/// The labels that set the meaning of the label before them.
const PARTS: [&str; 5] = ["dc", "ns", "ap", "peer", "sg"];

/// The target of a lookup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// The domain itself.
    Apex,
    /// This server, as the domain's name server.
    NameServer,
    /// The instances of a service, optionally with a tag.
    Service {
        name: String,
        tag: Option<String>,
        tenancy: Tenancy,
    },
    /// The proxies of a service in the mesh.
    Connect { name: String, tenancy: Tenancy },
    /// The ingress gateways that expose a service.
    Ingress { name: String, tenancy: Tenancy },
    /// The virtual IP of a mesh service.
    Virtual { name: String, tenancy: Tenancy },
    /// The result of a prepared query.
    Query { name: String },
    /// A node's address.
    Node { name: String, tenancy: Tenancy },
    /// The address that the name encodes in hexadecimal.
    Address(IpAddr),
    /// A reverse lookup.
    Reverse(IpAddr),
    /// A name in the domain that has no supported form.
    Nothing,
    /// A name in another domain.
    Elsewhere,
}

impl Target {
    /// Whether the lookup reads the catalog. Others do not count against rate limits.
    pub(super) fn is_read(&self) -> bool {
        match self {
            Self::Service { .. }
            | Self::Connect { .. }
            | Self::Ingress { .. }
            | Self::Virtual { .. }
            | Self::Query { .. }
            | Self::Node { .. }
            | Self::Reverse(_) => true,
            Self::Apex | Self::NameServer | Self::Address(_) | Self::Nothing | Self::Elsewhere => {
                false
            }
        }
    }
}

/// The context in which names are parsed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    pub(super) domains: &'a DnsDomains,
    /// This datacenter.
    pub(super) datacenter: &'a str,
    /// The tenancy of names that specify none.
    pub(super) tenancy: &'a Tenancy,
    /// Whether a single label after the kind is a namespace rather than a datacenter.
    pub(super) prefer_namespace: bool,
}

impl<'a> Names<'a> {
    /// Parses a name in a query of type `kind`. Also returns the domain to use in answers.
    pub(super) fn read(self, name: &Name, kind: RecordType) -> (Target, &'a Domain) {
        let labels: Vec<String> = name
            .iter()
            .map(|label| String::from_utf8_lossy(label).to_lowercase())
            .collect();
        match self.domains.of(&labels) {
            Some((domain, before)) => (self.target(&labels[..before], kind), domain),
            None if labels.last().is_some_and(|last| last == "arpa") => {
                (reverse(name), self.domains.main())
            }
            None => (Target::Elsewhere, self.domains.main()),
        }
    }

    fn target(self, labels: &[String], kind: RecordType) -> Target {
        match labels {
            [] => return Target::Apex,
            [ns] if ns == "ns" => return Target::NameServer,
            _ => {}
        }
        // RFC 2782 names have no label `service`.
        let is_service = |label: &str| kind == RecordType::SRV && label.starts_with('_');
        let is_kind = |label: &String| KINDS.contains(&label.as_str()) || is_service(label);
        let Some(at) = labels.iter().rposition(is_kind) else {
            return Target::Nothing;
        };
        let suffix = &labels[at + 1..];
        let target = match (labels[at].as_str(), &labels[..at]) {
            ("addr", subject) => Some(address(subject)),
            (_, []) if !labels[at].starts_with('_') => None,
            ("service", subject) => self.service(subject, suffix),
            ("connect", [.., name]) => self.place(suffix).map(|tenancy| Target::Connect {
                name: name.clone(),
                tenancy,
            }),
            ("ingress", [.., name]) => self.place(suffix).map(|tenancy| Target::Ingress {
                name: name.clone(),
                tenancy,
            }),
            ("virtual", [.., name]) => self.place_of_virtual(suffix).map(|tenancy| {
                let name = name.clone();
                Target::Virtual { name, tenancy }
            }),
            ("node", subject) => self.node(subject, suffix),
            ("query", subject) => self.query(subject, suffix),
            _ => self.service(&labels[..=at], suffix),
        };
        target.unwrap_or(Target::Nothing)
    }

    /// `<name>`, `<tag>.<name>` or RFC 2782's `_<name>._<tag>`, where the tag `tcp` means any.
    fn service(self, subject: &[String], suffix: &[String]) -> Option<Target> {
        let tenancy = self.place(suffix)?;
        let underscored = |label: &String| label.strip_prefix('_').map(str::to_owned);
        let (name, tag) = match subject {
            [] => return None,
            [first, second] if first.starts_with('_') && second.starts_with('_') => {
                let tag = underscored(second).filter(|tag| tag != "tcp");
                (underscored(first)?, tag)
            }
            [name] => (name.clone(), None),
            [tag @ .., name] => (name.clone(), Some(tag.join("."))),
        };
        Some(Target::Service { name, tag, tenancy })
    }

    /// The name of a node may contain dots. Nodes have no namespace.
    fn node(self, subject: &[String], suffix: &[String]) -> Option<Target> {
        let names = Self {
            prefer_namespace: false,
            ..self
        };
        let tenancy = names.place(suffix)?;
        let is_default = tenancy.namespace == self.tenancy.namespace
            || tenancy.namespace == Tenancy::default().namespace;
        is_default.then(|| Target::Node {
            name: subject.join("."),
            tenancy: Tenancy {
                namespace: Tenancy::default().namespace,
                ..tenancy
            },
        })
    }

    /// The name of a prepared query may contain dots. `_<name>._<protocol>` is the RFC 2782 form.
    fn query(self, subject: &[String], suffix: &[String]) -> Option<Target> {
        let is_here = match suffix {
            [] => true,
            [datacenter] => self.is_own(datacenter),
            [datacenter, dc] => dc == "dc" && self.is_own(datacenter),
            _ => false,
        };
        let name = match subject {
            [first, middle @ .., last] if first.starts_with('_') && last.starts_with('_') => {
                let mut name = first[1..].to_owned();
                for label in middle {
                    name.push('.');
                    name.push_str(label);
                }
                name
            }
            labels => labels.join("."),
        };
        is_here.then_some(Target::Query { name })
    }

    fn is_own(self, datacenter: &str) -> bool {
        datacenter.eq_ignore_ascii_case(self.datacenter)
    }

    /// Parses the labels after the kind: none, `<datacenter>`, `<namespace>.<datacenter>`, or any of
    /// `<datacenter>.dc`, `<namespace>.ns` and `<partition>.ap` in sequence. Other datacenters and peers are
    /// not supported.
    fn place(self, suffix: &[String]) -> Option<Tenancy> {
        match suffix {
            [one] if self.prefer_namespace => Some(self.of_namespace(one)),
            [one] => self.is_own(one).then(|| self.tenancy.clone()),
            [namespace, datacenter] if !PARTS.contains(&datacenter.as_str()) => self
                .is_own(datacenter)
                .then(|| self.of_namespace(namespace)),
            parts => self.of_parts(parts),
        }
    }

    /// Parses the labels of a virtual IP lookup. A single label is a peer; of two, the first is a namespace.
    fn place_of_virtual(self, suffix: &[String]) -> Option<Tenancy> {
        let of_peer = |peer: &String, tenancy: Tenancy| Tenancy {
            peer: peer.as_str().into(),
            ..tenancy
        };
        match suffix {
            [peer] => Some(of_peer(peer, self.tenancy.clone())),
            [namespace, peer] if !PARTS.contains(&peer.as_str()) => {
                Some(of_peer(peer, self.of_namespace(namespace)))
            }
            parts => self.of_parts(parts),
        }
    }

    fn of_namespace(self, namespace: &str) -> Tenancy {
        Tenancy {
            namespace: namespace.into(),
            ..self.tenancy.clone()
        }
    }

    /// Each part at most once, in any order. A datacenter and a peer exclude each other.
    fn of_parts(self, parts: &[String]) -> Option<Tenancy> {
        if !parts.len().is_multiple_of(2) || parts.len() > 2 * PARTS.len() {
            return None;
        }
        let mut tenancy = self.tenancy.clone();
        let mut seen = Vec::new();
        for pair in parts.chunks(2) {
            let (value, part) = (pair[0].as_str(), pair[1].as_str());
            let part = if part == "peer" { "dc" } else { part };
            if seen.contains(&part) {
                return None;
            }
            seen.push(part);
            match pair[1].as_str() {
                "dc" if self.is_own(value) => {}
                "ns" => tenancy.namespace = value.into(),
                "ap" => tenancy.partition = value.into(),
                "peer" => tenancy.peer = value.into(),
                _ => return None,
            }
        }
        Some(tenancy)
    }
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` encodes. Partial ones are not supported.
fn reverse(name: &Name) -> Target {
    let mut name = name.clone();
    name.set_fqdn(true);
    match name.parse_arpa_name() {
        Ok(net) if net.prefix_len() == net.max_prefix_len() => Target::Reverse(net.addr()),
        _ => Target::Nothing,
    }
}

/// Eight or thirty-two hexadecimal digits, as in SRV targets. Labels after the kind are ignored.
fn address(subject: &[String]) -> Target {
    let [digits] = subject else {
        return Target::Nothing;
    };
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Target::Nothing;
    }
    let ip = match digits.len() {
        8 => u32::from_str_radix(digits, 16)
            .ok()
            .map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        32 => u128::from_str_radix(digits, 16)
            .ok()
            .map(|bits| IpAddr::V6(Ipv6Addr::from_bits(bits))),
        _ => None,
    };
    ip.map_or(Target::Nothing, Target::Address)
}

#[cfg(test)]
mod tests;
