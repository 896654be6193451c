//! Mesh gateways that lead to the servers of other datacenters: which ones lead where. Nothing is sent here.

use std::fmt;
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
            Some(ip) => ip,
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

/// The mesh gateways that expose servers, and are not critical.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownGateways {
    /// Those of this datacenter, at their addresses in it.
    pub own: Vec<GatewayAddress>,
    /// Those of the primary, at their addresses for other datacenters.
    pub of_primary: Vec<GatewayAddress>,
}

/// The gateways that lead from a secondary, or from the primary, to servers of another datacenter: those to try first,
/// and those to try if none of them leads there.
///
/// A gateway of the own datacenter knows those of all others. Only the primary's gateways are dialled directly, too: by
/// them a secondary reaches the primary before it has a gateway, and when its own gateways do not know the way.
pub(crate) fn ways(
    to_primary: bool,
    settings: &GatewaySettings,
    known: &KnownGateways,
) -> [Vec<GatewayAddress>; 2] {
    let mut direct = Vec::new();
    if to_primary {
        direct.extend(known.of_primary.iter().cloned());
        direct.extend(settings.primary_gateways.iter().cloned());
        direct.sort();
        direct.dedup();
    }
    [known.own.clone(), direct]
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
        ] {
            let refused = text.parse::<GatewayAddress>().unwrap_err();
            assert!(refused.to_string().contains("HOST:PORT"), "{refused}");
        }
    }

    #[test]
    fn own_gateways_lead_everywhere_and_those_of_the_primary_to_it() {
        let settings = GatewaySettings {
            primary: "dc1".to_owned(),
            primary_gateways: vec![address("b:1"), address("a:1")],
            interval: std::time::Duration::from_secs(30),
        };
        let known = KnownGateways {
            own: vec![address("own:1")],
            of_primary: vec![address("c:1"), address("b:1")],
        };
        let of = |to_primary, known: &KnownGateways| {
            ways(to_primary, &settings, known)
                .map(|group| group.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of(true, &known), [vec!["own:1"], vec!["a:1", "b:1", "c:1"]]);
        assert_eq!(of(false, &known), [vec!["own:1"], vec![]]);
        let nothing = KnownGateways::default();
        assert_eq!(of(true, &nothing), [vec![], vec!["a:1", "b:1"]]);
        assert_eq!(of(false, &nothing), [const { Vec::<&str>::new() }; 2]);
    }
}
