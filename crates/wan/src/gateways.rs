//! Mesh gateways that lead to the servers of other datacenters: which ones lead where. Nothing is sent here.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The settings of a server that reaches other datacenters through mesh gateways only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The primary datacenter.
    pub primary: String,
    /// Gateways of the primary, which are used until it has said what its gateways are, and besides these.
    pub primary_gateways: Vec<GatewayAddress>,
    /// The time between two attempts to reach a primary that is not known yet.
    pub interval: std::time::Duration,
}

/// The address of a mesh gateway. Host names are resolved for each connection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GatewayAddress {
    /// An IP address or a host name.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Text that is not the address of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of a gateway: write HOST:PORT or [IPv6]:PORT")]
pub struct InvalidGatewayAddress(String);

impl fmt::Display for GatewayAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for GatewayAddress {
    type Err = InvalidGatewayAddress;

    fn from_str(text: &str) -> Result<Self, InvalidGatewayAddress> {
        let invalid = || InvalidGatewayAddress(text.to_owned());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let in_brackets = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        let host = match in_brackets {
            Some(ip) if ip.parse::<Ipv6Addr>().is_ok() => ip,
            Some(_) => return Err(invalid()),
            None if host.contains([':', '/', ' ']) => return Err(invalid()),
            None => host,
        };
        let port: u16 = port.parse().map_err(|_| invalid())?;
        if host.is_empty() || port == 0 {
            return Err(invalid());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }
}

/// The mesh gateways that expose servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownGateways {
    /// Those of this datacenter, at their addresses in it.
    pub own: Vec<GatewayAddress>,
    /// Those of other datacenters, at their addresses for callers elsewhere, by the datacenter in lower case.
    pub elsewhere: BTreeMap<String, Vec<GatewayAddress>>,
}

/// The gateways that lead to servers of another datacenter: those of this datacenter, which know the ones of all others,
/// and those of the other one. By the latter a secondary reaches the primary before it has a gateway, and servers find
/// each other when the gateways of this datacenter do not know the way.
pub(crate) fn routes(
    datacenter: &str,
    settings: &GatewaySettings,
    known: &KnownGateways,
) -> [Vec<GatewayAddress>; 2] {
    let datacenter = datacenter.to_ascii_lowercase();
    let mut direct = known
        .elsewhere
        .get(&datacenter)
        .cloned()
        .unwrap_or_default();
    if datacenter == settings.primary {
        direct.extend(settings.primary_gateways.iter().cloned());
    }
    direct.sort();
    direct.dedup();
    [known.own.clone(), direct]
}

/// The order in which gateways are tried: by turns from both groups, since the first ones may be many that lead nowhere.
pub(crate) fn by_turns([own, direct]: [Vec<GatewayAddress>; 2]) -> Vec<GatewayAddress> {
    let longest = own.len().max(direct.len());
    let at = |at: usize| own.get(at).into_iter().chain(direct.get(at));
    (0..longest).flat_map(at).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> GatewayAddress {
        text.parse().unwrap()
    }

    #[test]
    fn addresses_have_a_host_and_a_port() {
        for text in [
            "10.0.0.1:443",
            "[2001:db8::1]:8443",
            "gateway.example.com:443",
        ] {
            assert_eq!(address(text).to_string(), text);
        }
        for text in [
            "10.0.0.1",
            "10.0.0.1:0",
            ":443",
            "2001:db8::1:443",
            "https://x:443",
            "x:y",
            "x:70000",
            "[x]:1",
        ] {
            let refused = text.parse::<GatewayAddress>().unwrap_err();
            assert!(refused.to_string().contains("HOST:PORT"), "{refused}");
        }
    }

    #[test]
    fn own_gateways_lead_everywhere_and_others_to_their_datacenter() {
        let settings = GatewaySettings {
            primary: "dc1".to_owned(),
            primary_gateways: vec![address("b:1"), address("a:1")],
            interval: std::time::Duration::from_secs(30),
        };
        let all = |texts: &[&str]| texts.iter().map(|text| address(text)).collect::<Vec<_>>();
        let known = KnownGateways {
            own: all(&["own:1", "own:2", "own:3"]),
            elsewhere: [("dc1", &["c:1", "b:1"][..]), ("dc2", &["d:1"])]
                .map(|(name, texts)| (name.to_owned(), all(texts)))
                .into(),
        };
        let of = |datacenter, known: &KnownGateways| {
            let order = by_turns(routes(datacenter, &settings, known));
            order.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let to_primary = ["own:1", "a:1", "own:2", "b:1", "own:3", "c:1"];
        assert_eq!(of("DC1", &known), to_primary);
        assert_eq!(of("dc2", &known), ["own:1", "d:1", "own:2", "own:3"]);
        assert_eq!(of("dc3", &known), ["own:1", "own:2", "own:3"]);
        let nothing = KnownGateways::default();
        assert_eq!(of("dc1", &nothing), ["a:1", "b:1"]);
        assert!(of("dc2", &nothing).is_empty());
    }
}
