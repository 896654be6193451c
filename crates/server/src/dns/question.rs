//! What a DNS name asks for. Reads names only; whether there is an answer is decided elsewhere.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;
use legate_model::is_served_tenancy;

/// The domain that is served. Consul's default.
pub(super) const DOMAIN: &str = "consul";

/// Where a name leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Target {
    /// The domain itself.
    Apex,
    /// This server, as the domain's name server.
    NameServer,
    /// The instances of a service, or of those only that carry a tag.
    Service { name: String, tag: Option<String> },
    /// Where a service is reached in the mesh.
    Connect { name: String },
    /// The virtual IP of a mesh service.
    Virtual { name: String },
    /// The name of an address.
    Reverse(IpAddr),
    /// A node's address.
    Node { name: String },
    /// The address that the name itself spells in hexadecimal.
    Address(IpAddr),
    /// Nothing: the name is of the domain, but of no form that is served.
    Nothing,
    /// Another server's business.
    Elsewhere,
}

impl Target {
    /// Reads a name as a server of `datacenter` does.
    pub(super) fn of(name: &Name, datacenter: &str) -> Self {
        let mut labels: Vec<String> = name
            .iter()
            .map(|label| String::from_utf8_lossy(label).to_lowercase())
            .collect();
        match labels.pop().as_deref() {
            Some(DOMAIN) => {}
            Some("arpa") => return reverse(name),
            _ => return Self::Elsewhere,
        }
        match labels.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => return Self::Apex,
            ["ns"] => return Self::NameServer,
            _ => {}
        }
        let kinds = ["service", "connect", "virtual", "node", "addr"];
        let kind = labels
            .iter()
            .rposition(|label| kinds.contains(&label.as_str()));
        let Some(kind) = kind else {
            return Self::Nothing;
        };
        let (subject, rest) = labels.split_at(kind);
        if !is_here(&rest[1..], datacenter) {
            return Self::Nothing;
        }
        match rest[0].as_str() {
            "service" => service(subject),
            "connect" => match subject {
                [name] => Self::Connect { name: name.clone() },
                _ => Self::Nothing,
            },
            // One label after the kind names a peer here, not a datacenter.
            "virtual" if rest.len() != 2 => match subject {
                [.., name] => Self::Virtual { name: name.clone() },
                [] => Self::Nothing,
            },
            "node" if !subject.is_empty() => Self::Node {
                name: subject.join("."),
            },
            "addr" => address(subject),
            _ => Self::Nothing,
        }
    }
}

/// The whole address that a name below `in-addr.arpa` or `ip6.arpa` spells.
fn reverse(name: &Name) -> Target {
    let mut name = name.clone();
    name.set_fqdn(true);
    match name.parse_arpa_name() {
        Ok(net) if net.prefix_len() == net.max_prefix_len() => Target::Reverse(net.addr()),
        _ => Target::Nothing,
    }
}

/// `<name>`, `<tag>.<name>` or RFC 2782's `_<name>._<tag>`, where the tag `tcp` means any.
fn service(subject: &[String]) -> Target {
    let underscored = |label: &String| label.strip_prefix('_').map(str::to_owned);
    let (name, tag) = match subject {
        [] => return Target::Nothing,
        [first, second] if first.starts_with('_') && second.starts_with('_') => {
            let tag = underscored(second).filter(|tag| tag != "tcp");
            (underscored(first).unwrap_or_default(), tag)
        }
        [name] => (name.clone(), None),
        [tag @ .., name] => (name.clone(), Some(tag.join("."))),
    };
    Target::Service { name, tag }
}

/// Eight or thirty-two hexadecimal digits, as in the targets of SRV records.
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

/// What follows the kind: nothing, `<datacenter>`, or any of `<datacenter>.dc`, `default.ns` and
/// `default.ap` after one another. Other datacenters are not reached from here.
fn is_here(suffix: &[String], datacenter: &str) -> bool {
    match suffix {
        [] => true,
        [name] => name.eq_ignore_ascii_case(datacenter),
        pairs if pairs.len() % 2 == 0 => pairs.chunks(2).all(|pair| match pair[1].as_str() {
            "dc" => pair[0].eq_ignore_ascii_case(datacenter),
            "ns" | "ap" => is_served_tenancy(&pair[0]),
            _ => false,
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Target {
        // As bytes, because a name on the wire may hold anything.
        let labels = name.split('.').filter(|label| !label.is_empty());
        let name = Name::from_labels(labels.map(str::as_bytes)).unwrap();
        Target::of(&name, "dc1")
    }

    fn service(name: &str, tag: Option<&str>) -> Target {
        Target::Service {
            name: name.to_owned(),
            tag: tag.map(str::to_owned),
        }
    }

    #[test]
    fn services() {
        let web = service("web", None);
        for name in [
            "web.service.consul.",
            "WEB.Service.Consul.",
            "web.service.dc1.consul.",
            "web.service.dc1.dc.consul.",
            "web.service.default.ns.default.ap.dc1.dc.consul.",
            "_web._tcp.service.consul.",
        ] {
            assert_eq!(target(name), web, "{name}");
        }
        assert_eq!(target("v2.web.service.consul."), service("web", Some("v2")));
        assert_eq!(
            target("_web._v2.service.consul."),
            service("web", Some("v2"))
        );
        assert_eq!(
            target("a.b.web.service.consul."),
            service("web", Some("a.b"))
        );
        assert_eq!(target("service.service.consul."), service("service", None));
    }

    #[test]
    fn the_other_kinds() {
        let name = || "web".to_owned();
        assert_eq!(
            target("web.connect.consul."),
            Target::Connect { name: name() }
        );
        assert_eq!(
            target("web.node.dc1.consul."),
            Target::Node { name: name() }
        );
        let dotted = "vm.example".to_owned();
        assert_eq!(
            target("vm.example.node.consul."),
            Target::Node { name: dotted }
        );
        let ip = "127.0.0.1".parse().unwrap();
        assert_eq!(target("7f000001.addr.dc1.consul."), Target::Address(ip));
        let ip = "::1".parse().unwrap();
        let name = "00000000000000000000000000000001.addr.consul.";
        assert_eq!(target(name), Target::Address(ip));
        assert_eq!(
            target("web.virtual.consul."),
            Target::Virtual {
                name: "web".to_owned()
            }
        );
        let ip = "10.0.0.1".parse().unwrap();
        assert_eq!(target("1.0.0.10.in-addr.arpa."), Target::Reverse(ip));
        assert_eq!(target("consul."), Target::Apex);
        assert_eq!(target("ns.consul."), Target::NameServer);
    }

    #[test]
    fn names_of_the_domain_that_lead_nowhere() {
        for name in [
            "web.consul.",
            "web.virtual.peer.consul.",
            "virtual.consul.",
            "10.in-addr.arpa.",
            "in-addr.arpa.",
            "arpa.",
            "web.query.consul.",
            "web.ingress.consul.",
            "service.consul.",
            "node.consul.",
            "web.service.dc2.consul.",
            "web.service.dc2.dc.consul.",
            "web.service.team.ns.consul.",
            "web.service.dc1.extra.more.consul.",
            "a.web.connect.consul.",
            "7f00001.addr.consul.",
            "+f000001.addr.consul.",
        ] {
            assert_eq!(target(name), Target::Nothing, "{name}");
        }
    }

    #[test]
    fn other_domains() {
        for name in [".", "example.com.", "consul.example.com.", "web.service."] {
            assert_eq!(target(name), Target::Elsewhere, "{name}");
        }
    }
}
