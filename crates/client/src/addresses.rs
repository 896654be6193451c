//! Parses `-addresses`: hosts, or a command that prints addresses.
//!
//! It looks up no names and runs no commands.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// `-addresses` is invalid; the text contains the reason and the correct form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressesError(String);

/// Prefix of a command.
const EXEC: &str = "exec=";

/// Source of the servers' addresses (`-addresses`).
///
/// As text, a command is shown without its arguments, because those of cloud discovery contain
/// credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum Addresses {
    /// IP addresses, and DNS names of which every A and AAAA record is a server. Names that do not
    /// resolve are ignored as long as another one does.
    Hosts(Vec<String>),
    /// A command with arguments that prints IP addresses, separated by white space, to standard
    /// output. It runs without a shell, in the working directory and environment of this process.
    Exec(Vec<String>),
}

impl Addresses {
    /// Names and IP addresses; empty for a command.
    pub(crate) fn hosts(&self) -> &[String] {
        match self {
            Self::Hosts(hosts) => hosts,
            Self::Exec(_) => &[],
        }
    }
}

impl FromStr for Addresses {
    type Err = AddressesError;

    /// Parses a flag's text: `exec=COMMAND ARGUMENTS…` split at white space without quoting, or
    /// hosts without ports, separated by commas or white space. IPv6 addresses may be in brackets.
    fn from_str(text: &str) -> Result<Self, AddressesError> {
        if let Some(command) = text.strip_prefix(EXEC) {
            let words: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            if words.is_empty() {
                let text = "-addresses is exec= without a command: write exec=COMMAND ARGUMENTS";
                return Err(AddressesError(text.to_owned()));
            }
            return Ok(Self::Exec(words));
        }
        let mut hosts = Vec::new();
        let separator = |character: char| character == ',' || character.is_whitespace();
        for item in text.split(separator).filter(|item| !item.is_empty()) {
            let host = host(item).map_err(AddressesError)?;
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        if hosts.is_empty() {
            let text = "no server address is given: set -addresses to a DNS name, an IP address or \
                        exec=COMMAND";
            return Err(AddressesError(text.to_owned()));
        }
        Ok(Self::Hosts(hosts))
    }
}

/// A single name or address, without brackets.
fn host(item: &str) -> Result<String, String> {
    if item.starts_with(EXEC) {
        return Err(format!(
            "-addresses contains a command among hosts, {item:?}: write exec=COMMAND ARGUMENTS and nothing \
             before it"
        ));
    }
    let bad = Err(format!(
        "-addresses contains {item:?}, which is neither a DNS name nor an IP address"
    ));
    let bare = item
        .strip_prefix('[')
        .and_then(|inner| inner.strip_suffix(']'));
    let is_v6 = |host: &str| {
        let unzoned = host.split('%').next().unwrap_or(host);
        unzoned.parse::<Ipv6Addr>().is_ok()
    };
    match bare {
        Some(inner) if is_v6(inner) => Ok(inner.to_owned()),
        Some(_) => bad,
        // A command's argument without the prefix. Its value may be a secret.
        None if item.contains('=') => Err(format!(
            "-addresses contains {}=***, which is neither a DNS name nor an IP address: write a command as \
             exec=COMMAND ARGUMENTS",
            item.split('=').next().unwrap_or_default()
        )),
        // A colon outside of an IPv6 address separates host and port.
        None if item.contains(':') && !is_v6(item) => Err(format!(
            "-addresses takes a host without a port, not {item:?}: set the port with -grpc-port"
        )),
        None if item.contains(['[', ']']) => bad,
        None => Ok(item.to_owned()),
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hosts(hosts) => f.write_str(&hosts.join(",")),
            Self::Exec(words) => {
                let hidden = if words.len() > 1 { " ***" } else { "" };
                let program = words.first().map(String::as_str).unwrap_or_default();
                write!(f, "{EXEC}{program}{hidden}")
            }
        }
    }
}

impl fmt::Debug for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Addresses({self})")
    }
}

/// The host as it appears in certificates: without the zone of an IPv6 address, which names a local
/// network interface.
pub(crate) fn without_zone(host: &str) -> &str {
    match host.split_once('%') {
        Some((address, _)) if address.parse::<IpAddr>().is_ok() => address,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn refused(text: &str) -> String {
        text.parse::<Addresses>().unwrap_err().to_string()
    }

    #[track_caller]
    fn hosts(text: &str) -> Vec<String> {
        text.parse::<Addresses>().unwrap().hosts().to_vec()
    }

    #[test]
    fn a_single_host_and_a_command_are_distinguished() {
        for text in ["consul.service", "10.0.0.1", "::1", "fe80::1%eth0"] {
            let parsed: Addresses = text.parse().unwrap();
            assert_eq!(parsed.hosts(), [text]);
            assert_eq!(parsed.to_string(), text);
        }
        let command: Addresses = "exec=discover -q  addrs exec=twice".parse().unwrap();
        assert_eq!(
            command,
            Addresses::Exec(
                ["discover", "-q", "addrs", "exec=twice"]
                    .map(String::from)
                    .to_vec()
            )
        );
        assert!(command.hosts().is_empty());
    }

    #[test]
    fn arguments_of_a_command_are_not_shown() {
        let addresses = "exec=discover addrs secret_access_key=hush";
        let config = crate::ClientConfig::new(addresses.parse().unwrap(), 8502);
        assert_eq!(config.addresses.to_string(), "exec=discover ***");
        let shown = format!("{config:?}");
        assert!(
            shown.contains("discover") && !shown.contains("hush"),
            "{shown}"
        );
        let bare: Addresses = "exec=discover".parse().unwrap();
        assert_eq!(bare.to_string(), "exec=discover");
        // Without the prefix, each word would be looked up and shown.
        for text in [
            "discover addrs secret_access_key=hush",
            "discover addrs secret_access_key=hu:sh provider=aws",
        ] {
            let error = refused(text);
            assert!(error.contains("secret_access_key=***"), "{error}");
            assert!(error.contains("exec=COMMAND"), "{error}");
            assert!(!error.contains("hu"), "{error}");
        }
    }

    #[test]
    fn several_hosts_are_separated_by_commas_or_white_space() {
        let mixed = ["consul-a", "10.0.0.1", "::1", "fe80::1%eth0"];
        for text in [
            "consul-a,10.0.0.1,::1,fe80::1%eth0",
            " consul-a 10.0.0.1\t[::1]\n[fe80::1%eth0] ",
            "consul-a, 10.0.0.1,, [::1] ,fe80::1%eth0,10.0.0.1,",
        ] {
            assert_eq!(hosts(text), mixed, "{text:?}");
        }
        assert_eq!(
            " 10.0.0.1, ".parse::<Addresses>().unwrap(),
            Addresses::Hosts(vec!["10.0.0.1".into()])
        );
        assert_eq!("a b".parse::<Addresses>().unwrap().to_string(), "a,b");
        assert_eq!(hosts("[::1]"), ["::1"]);
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_setting_to_change() {
        for nothing in ["", "  ", ",", " , "] {
            assert!(refused(nothing).contains("-addresses"), "{nothing:?}");
        }
        assert!(refused("exec=  ").contains("exec=COMMAND"));
        for port in ["localhost:8502", "10.0.0.1:8502", "[::1]:8502", "a,b:1"] {
            assert!(refused(port).contains("-grpc-port"), "{port:?}");
        }
        for bad in ["[::1", "::1]", "[consul]", "a,[10.0.0.1]", "x[y"] {
            let error = refused(bad);
            assert!(error.contains("-addresses"), "{bad:?}: {error}");
        }
        assert!(refused("a,exec=b").contains("\"exec=b\""));
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_and_hosts_read_back_the_same(text in "(exec=)?\\PC{0,40}") {
            if let Ok(parsed @ Addresses::Hosts(_)) = text.parse() {
                prop_assert_eq!(parsed.to_string().parse::<Addresses>().unwrap(), parsed);
            }
        }

        #[test]
        fn lists_in_any_form_hold_their_hosts(
            list in prop::collection::btree_set("[a-z]{1,8}|10\\.0\\.0\\.[1-9]|fd00::[1-9]", 1..6),
            separators in prop::collection::vec(prop_oneof![Just(","), Just(" "), Just(", "), Just("\t")], 6),
            brackets: bool,
        ) {
            let mut text = String::new();
            for (host, separator) in list.iter().zip(&separators) {
                let bracketed = brackets && host.contains(':');
                text += &if bracketed { format!("[{host}]") } else { host.clone() };
                text += separator;
            }
            prop_assert_eq!(hosts(&text), list.into_iter().collect::<Vec<_>>());
        }
    }
}
