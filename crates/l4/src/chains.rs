//! The filter chains of a listener, compiled so that a connection's chain is found in microseconds, also among 10,000.
//!
//! The order is Envoy's: destination port, destination address, server name, transport, ALPN. At each step the most
//! specific value that a chain names and the connection has is taken, and there is no way back: if no chain with this
//! value fits in a later step, the connection gets the default chain, although another chain without a value at this
//! step may fit. It decides nothing about what happens to the connection.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::model::{Address, Chain, ChainMatch, InspectTls, Listener, Prefix, Transport};

/// The filter chains of one listener.
#[derive(Debug, Clone, Default)]
pub struct Chains {
    chains: Vec<Arc<Chain>>,
    default: Option<Arc<Chain>>,
    /// The chains by destination port; 0 for those that name none.
    ports: HashMap<u16, Addresses>,
    by_match: HashMap<Arc<ChainMatch>, usize>,
    inspect: Option<InspectTls>,
}

/// What a chain is chosen by.
#[derive(Debug, Clone, Copy)]
pub struct Connection<'a> {
    /// Where the connection was going: the original destination if the listener uses it, otherwise the address that
    /// accepted it. `None` for a unix socket.
    pub destination: Option<SocketAddr>,
    /// The server name in the ClientHello, in lower case.
    pub server_name: Option<&'a str>,
    /// What the inspection has found; `Raw` if nothing was inspected.
    pub transport: Transport,
    /// The ALPN protocols that the client offers, in its order.
    pub alpn: &'a [String],
}

/// What identifies a chain over changes of its listener.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ChainId {
    /// The chain with this match.
    Match(Arc<ChainMatch>),
    /// The default chain, whatever its match.
    Default,
}

/// The index of a chain in [`Chains::chains`].
type Index = usize;

/// Chains by ranges of destination addresses.
#[derive(Debug, Clone, Default)]
struct Addresses {
    /// Chains with a range, by its length and its first bits.
    v4: HashMap<(u8, u128), Names>,
    v6: HashMap<(u8, u128), Names>,
    /// The lengths that occur, the longest first.
    v4_lengths: Vec<u8>,
    v6_lengths: Vec<u8>,
    /// Chains without a range.
    any: Option<Names>,
}

/// Chains by server name: a whole one, or `.` and a suffix for a wildcard; empty for chains without a name.
type Names = HashMap<Box<str>, Transports>;

/// Chains by transport.
#[derive(Debug, Clone, Default)]
struct Transports {
    raw: Option<Protocols>,
    tls: Option<Protocols>,
    any: Option<Protocols>,
}

/// Chains by ALPN protocol; empty for chains without one.
type Protocols = HashMap<Box<str>, Index>;

impl Chains {
    /// Compiles a listener's chains. An error has Envoy's words, which name the listener's address.
    pub fn new(listener: &Listener) -> Result<Self, String> {
        let error = |text: String| {
            let address = shown(&listener.address);
            format!("error adding listener '{address}': {text}")
        };
        let mut chains = Self {
            chains: listener.chains.clone(),
            default: listener.default_chain.clone(),
            inspect: listener.inspect_tls.clone(),
            ..Self::default()
        };
        for (index, chain) in listener.chains.iter().enumerate() {
            if let Some(other) = chains.by_match.insert(chain.matches.clone(), index) {
                let other = listener.chains.get(other);
                return Err(error(format!(
                    "filter chain '{}' has the same matching rules defined as '{}'. duplicate matcher is: {}",
                    chain.name,
                    other.map_or("", |other| &other.name),
                    json(&chain.matches),
                )));
            }
            chains.insert(index, &chain.matches).map_err(error)?;
        }
        for addresses in chains.ports.values_mut() {
            addresses.v4_lengths = lengths(&addresses.v4);
            addresses.v6_lengths = lengths(&addresses.v6);
        }
        Ok(chains)
    }

    fn insert(&mut self, index: Index, matches: &ChainMatch) -> Result<(), String> {
        let names: Vec<&str> = match matches.server_names.as_slice() {
            [] => vec![""],
            names => names.iter().map(String::as_str).collect(),
        };
        let protocols: Vec<&str> = match matches.alpn.as_slice() {
            [] => vec![""],
            protocols => protocols.iter().map(String::as_str).collect(),
        };
        let addresses = self.ports.entry(matches.port.unwrap_or(0)).or_default();
        let ranges: Vec<Option<Prefix>> = match matches.prefixes.as_slice() {
            [] => vec![None],
            prefixes => prefixes.iter().copied().map(Some).collect(),
        };
        for range in ranges {
            let by_name = addresses.range(range);
            for name in &names {
                let key = match name.strip_prefix('*') {
                    Some(suffix) if suffix.starts_with('.') => suffix,
                    _ => *name,
                };
                if key.contains('*') {
                    return Err(
                        "partial wildcards are not supported in \"server_names\"".to_owned()
                    );
                }
                let transports = by_name.entry(key.into()).or_default();
                let by_protocol = transports.of(matches.transport).get_or_insert_default();
                for protocol in &protocols {
                    match by_protocol.entry((*protocol).into()) {
                        Entry::Vacant(entry) => entry.insert(index),
                        Entry::Occupied(_) => {
                            return Err(
                                "multiple filter chains with overlapping matching rules are defined"
                                    .to_owned(),
                            );
                        }
                    };
                }
            }
        }
        Ok(())
    }

    /// The chain of a connection; `None` if there is none, and no default.
    pub fn find(&self, connection: &Connection<'_>) -> Option<&Arc<Chain>> {
        let index = self.specific(connection);
        index
            .and_then(|index| self.chains.get(index))
            .or(self.default.as_ref())
    }

    fn specific(&self, connection: &Connection<'_>) -> Option<Index> {
        let port = connection.destination.map_or(0, |address| address.port());
        let addresses = self.ports.get(&port).or_else(|| self.ports.get(&0))?;
        // A unix socket has this address in Envoy.
        let address = connection.destination.map(|address| address.ip());
        let names = addresses.get(address.unwrap_or(IpAddr::V4(Ipv4Addr::BROADCAST)))?;
        let transports = by_name(names, connection.server_name.unwrap_or_default())?;
        let exact = match connection.transport {
            Transport::Raw => &transports.raw,
            Transport::Tls => &transports.tls,
        };
        let protocols = exact.as_ref().or(transports.any.as_ref())?;
        let mut offered = connection.alpn.iter();
        offered
            .find_map(|protocol| protocols.get(protocol.as_str()))
            .or_else(|| protocols.get(""))
            .copied()
    }

    /// Whether the first bytes of a connection have to be inspected. `destination_port` is `None` for a unix socket.
    pub fn needs_inspection(&self, destination_port: Option<u16>) -> bool {
        let Some(inspect) = &self.inspect else {
            return false;
        };
        let within = |ranges: &[(u32, u32)]| {
            destination_port.is_some_and(|port| {
                let mut ranges = ranges.iter();
                ranges.any(|(from, to)| (*from..*to).contains(&u32::from(port)))
            })
        };
        let wanted = inspect.only_ports.as_deref();
        wanted.is_none_or(within) && !within(&inspect.except_ports)
    }

    /// What identifies a chain that [`Self::find`] has returned.
    pub fn id(&self, chain: &Arc<Chain>) -> ChainId {
        match &self.default {
            Some(default) if Arc::ptr_eq(default, chain) => ChainId::Default,
            _ => ChainId::Match(chain.matches.clone()),
        }
    }

    /// The chain with this identity.
    pub fn get(&self, id: &ChainId) -> Option<&Arc<Chain>> {
        match id {
            ChainId::Default => self.default.as_ref(),
            ChainId::Match(matches) => {
                let index = self.by_match.get(matches)?;
                self.chains.get(*index)
            }
        }
    }

    /// All chains with their identities, the default chain last.
    pub fn iter(&self) -> impl Iterator<Item = (ChainId, &Arc<Chain>)> {
        let matched = self.chains.iter();
        let matched = matched.map(|chain| (ChainId::Match(chain.matches.clone()), chain));
        let default = self.default.iter().map(|chain| (ChainId::Default, chain));
        matched.chain(default)
    }
}

impl Addresses {
    /// The chains of a range.
    fn range(&mut self, range: Option<Prefix>) -> &mut Names {
        let Some(range) = range else {
            return self.any.get_or_insert_default();
        };
        let (of_family, bits, width) = match range.address {
            IpAddr::V4(address) => (&mut self.v4, u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (&mut self.v6, u128::from(address), 128),
        };
        let length = range.length.min(width);
        of_family
            .entry((length, first(bits, length, width)))
            .or_default()
    }

    /// The chains of the longest range with an address; those without a range if there is none.
    fn get(&self, address: IpAddr) -> Option<&Names> {
        let (of_family, lengths, bits, width) = match address.to_canonical() {
            IpAddr::V4(address) => (
                &self.v4,
                &self.v4_lengths,
                u128::from(u32::from(address)),
                32,
            ),
            IpAddr::V6(address) => (&self.v6, &self.v6_lengths, u128::from(address), 128),
        };
        let mut ranges = lengths.iter();
        ranges
            .find_map(|length| of_family.get(&(*length, first(bits, *length, width))))
            .or(self.any.as_ref())
    }
}

impl Transports {
    fn of(&mut self, transport: Option<Transport>) -> &mut Option<Protocols> {
        match transport {
            None => &mut self.any,
            Some(Transport::Raw) => &mut self.raw,
            Some(Transport::Tls) => &mut self.tls,
        }
    }
}

/// The first bits of an address of this width.
fn first(bits: u128, length: u8, width: u8) -> u128 {
    bits.checked_shr(u32::from(width - length)).unwrap_or(0)
}

/// The lengths that occur, the longest first.
fn lengths(ranges: &HashMap<(u8, u128), Names>) -> Vec<u8> {
    let mut all: Vec<u8> = ranges.keys().map(|(length, _)| *length).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    all
}

/// The chains with this name, or the longest suffix of it, or without a name.
fn by_name<'a>(names: &'a Names, name: &str) -> Option<&'a Transports> {
    if let Some(exact) = names.get(name) {
        return Some(exact);
    }
    // The first label is not empty, and neither is the last.
    let dots = name.match_indices('.').map(|(at, _)| at);
    let mut suffixes = dots.filter(|at| *at > 0 && at + 1 < name.len());
    suffixes
        .find_map(|at| names.get(name.get(at..)?))
        .or_else(|| names.get(""))
}

/// An address as Envoy writes it.
fn shown(address: &Address) -> String {
    match address {
        Address::Socket(address) => address.to_string(),
        Address::Pipe { path, .. } => path.display().to_string(),
        Address::Dns(name, port) => format!("{name}:{port}"),
    }
}

/// A match as JSON, in the order of the fields' numbers.
fn json(matches: &ChainMatch) -> Value {
    let mut all = Map::new();
    if !matches.prefixes.is_empty() {
        let prefixes = matches.prefixes.iter().map(|prefix| {
            serde_json::json!({
                "address_prefix": prefix.address.to_string(),
                "prefix_len": prefix.length,
            })
        });
        all.insert("prefix_ranges".to_owned(), prefixes.collect());
    }
    if let Some(port) = matches.port {
        all.insert("destination_port".to_owned(), port.into());
    }
    if let Some(transport) = matches.transport {
        let transport = match transport {
            Transport::Raw => "raw_buffer",
            Transport::Tls => "tls",
        };
        all.insert("transport_protocol".to_owned(), transport.into());
    }
    for (field, values) in [
        ("application_protocols", &matches.alpn),
        ("server_names", &matches.server_names),
    ] {
        if !values.is_empty() {
            all.insert(field.to_owned(), values.as_slice().into());
        }
    }
    Value::Object(all)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::model::{Direction, TcpProxy};

    /// A chain to a cluster.
    pub(crate) fn chain(cluster: &str, matches: ChainMatch) -> Chain {
        Chain {
            name: cluster.to_owned(),
            matches: Arc::new(matches),
            tls: None,
            handshake_timeout: Duration::ZERO,
            filters: Vec::new(),
            tcp: TcpProxy {
                stat_prefix: String::new(),
                clusters: vec![(cluster.into(), 1)],
                max_connect_attempts: 1,
                idle_timeout: None,
                max_duration: None,
                access_logs: Vec::new(),
            },
        }
    }

    /// A listener with chains.
    pub(crate) fn listener(chains: Vec<Chain>, default: Option<Chain>) -> Listener {
        Listener {
            name: "l".into(),
            address: Address::Socket(([127, 0, 0, 1], 20000).into()),
            stat_prefix: String::new(),
            direction: Direction::Unspecified,
            original_destination: false,
            inspect_tls: None,
            inspect_timeout: Duration::from_secs(15),
            continue_on_timeout: false,
            chains: chains.into_iter().map(Arc::new).collect(),
            default_chain: default.map(Arc::new),
            access_logs: Vec::new(),
        }
    }

    fn prefix(text: &str) -> Prefix {
        let (address, length) = text.split_once('/').unwrap();
        Prefix {
            address: address.parse().unwrap(),
            length: length.parse().unwrap(),
        }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    struct Client<'a> {
        to: &'a str,
        name: &'a str,
        transport: Transport,
        alpn: &'a [&'a str],
    }

    /// The name of the chain that a client gets.
    fn found<'a>(chains: &'a Chains, client: &Client<'_>) -> Option<&'a str> {
        let alpn = names(client.alpn);
        let chain = chains.find(&Connection {
            destination: client.to.parse().ok(),
            server_name: Some(client.name).filter(|name| !name.is_empty()),
            transport: client.transport,
            alpn: &alpn,
        });
        chain.map(|chain| chain.name.as_str())
    }

    #[test]
    fn no_way_back() {
        let chains = Chains::new(&listener(
            vec![
                chain(
                    "port",
                    ChainMatch {
                        port: Some(443),
                        server_names: names(&["a.example"]),
                        ..ChainMatch::default()
                    },
                ),
                chain(
                    "range",
                    ChainMatch {
                        prefixes: vec![prefix("10.0.0.0/8")],
                        ..ChainMatch::default()
                    },
                ),
                chain(
                    "address",
                    ChainMatch {
                        prefixes: vec![prefix("10.1.2.3/32")],
                        transport: Some(Transport::Tls),
                        ..ChainMatch::default()
                    },
                ),
                chain(
                    "wildcard",
                    ChainMatch {
                        server_names: names(&["*.example"]),
                        ..ChainMatch::default()
                    },
                ),
                chain(
                    "exact",
                    ChainMatch {
                        server_names: names(&["b.example"]),
                        alpn: names(&["h2"]),
                        ..ChainMatch::default()
                    },
                ),
                chain("any", ChainMatch::default()),
            ],
            Some(chain("default", ChainMatch::default())),
        ))
        .unwrap();
        let client = |to, name, transport, alpn| Client {
            to,
            name,
            transport,
            alpn,
        };
        let (raw, tls) = (Transport::Raw, Transport::Tls);
        for (client, expected) in [
            (client("1.1.1.1:443", "a.example", tls, &[]), "port"),
            // The port has a chain, so that those without a port do not count.
            (client("1.1.1.1:443", "b.example", tls, &["h2"]), "default"),
            (client("10.1.2.3:1", "", tls, &[]), "address"),
            (client("10.1.2.3:1", "", raw, &[]), "default"),
            (client("10.1.2.4:1", "x.example", raw, &[]), "range"),
            (client("[::ffff:10.1.2.4]:1", "", raw, &[]), "range"),
            (client("1.1.1.1:1", "x.y.example", raw, &[]), "wildcard"),
            (client("1.1.1.1:1", "example", raw, &[]), "any"),
            (client("1.1.1.1:1", ".example", raw, &[]), "wildcard"),
            (
                client("1.1.1.1:1", "b.example", tls, &["h3", "h2"]),
                "exact",
            ),
            (client("1.1.1.1:1", "b.example", tls, &[]), "default"),
            (client("[::1]:1", "", raw, &["h2"]), "any"),
            (client("a unix socket", "", raw, &[]), "any"),
        ] {
            let Client { to, name, .. } = client;
            assert_eq!(found(&chains, &client), Some(expected), "{to} {name}");
        }
    }

    #[test]
    fn nothing_matches_without_a_chain() {
        let chains = Chains::new(&listener(Vec::new(), None)).unwrap();
        let client = Client {
            to: "1.1.1.1:1",
            name: "",
            transport: Transport::Raw,
            alpn: &[],
        };
        assert_eq!(found(&chains, &client), None);
    }

    #[test]
    fn errors_are_those_of_envoy() {
        let of = |matches: Vec<ChainMatch>| {
            let mut chains = Vec::new();
            for (index, matches) in matches.into_iter().enumerate() {
                chains.push(chain(&format!("c{index}"), matches));
            }
            Chains::new(&listener(chains, None)).unwrap_err()
        };
        let named = |all: &[&str]| ChainMatch {
            port: Some(1),
            server_names: names(all),
            ..ChainMatch::default()
        };
        assert_eq!(
            of(vec![named(&["a"]), named(&["a"])]),
            "error adding listener '127.0.0.1:20000': filter chain 'c1' has the same matching rules defined as 'c0'. \
             duplicate matcher is: {\"destination_port\":1,\"server_names\":[\"a\"]}"
        );
        let overlap = "error adding listener '127.0.0.1:20000': multiple filter chains with overlapping matching rules \
                       are defined";
        assert_eq!(of(vec![named(&["a", "b"]), named(&["b", "c"])]), overlap);
        assert_eq!(of(vec![named(&["a", "a"])]), overlap);
        let range = |text| ChainMatch {
            prefixes: vec![prefix(text)],
            ..ChainMatch::default()
        };
        assert_eq!(of(vec![range("10.0.0.1/8"), range("10.2.0.0/8")]), overlap);
        assert_eq!(
            of(vec![named(&["a*.example"])]),
            "error adding listener '127.0.0.1:20000': partial wildcards are not supported in \"server_names\""
        );
    }

    #[test]
    fn inspects_by_port() {
        let with = |inspect| {
            let mut listener = listener(Vec::new(), None);
            listener.inspect_tls = inspect;
            Chains::new(&listener).unwrap()
        };
        let needs = |chains: &Chains| {
            [None, Some(9), Some(10), Some(19), Some(20)].map(|port| chains.needs_inspection(port))
        };
        assert_eq!(needs(&with(None)), [false; 5]);
        assert_eq!(needs(&with(Some(InspectTls::default()))), [true; 5]);
        let only = InspectTls {
            only_ports: Some(vec![(10, 20)]),
            except_ports: vec![(19, 20)],
        };
        assert_eq!(needs(&with(Some(only))), [false, false, true, false, false]);
        let except = InspectTls {
            only_ports: None,
            except_ports: vec![(10, 20)],
        };
        assert_eq!(needs(&with(Some(except))), [true, true, false, false, true]);
    }

    #[test]
    fn identities_find_their_chains() {
        let chains = Chains::new(&listener(
            vec![chain("any", ChainMatch::default())],
            Some(chain("default", ChainMatch::default())),
        ))
        .unwrap();
        for (id, chain) in chains.iter() {
            assert_eq!(chains.id(chain), id);
            assert!(Arc::ptr_eq(chains.get(&id).unwrap(), chain));
        }
        assert_eq!(chains.get(&ChainId::Default).unwrap().name, "default");
    }

    #[test]
    fn ten_thousand_chains() {
        let all = (0..10_000_u16).map(|n| {
            let [high, low] = n.to_be_bytes();
            let matches = ChainMatch {
                port: Some(n % 10),
                prefixes: vec![prefix(&format!("10.0.{high}.{low}/32"))],
                server_names: names(&[&format!("s{n}.example")]),
                ..ChainMatch::default()
            };
            chain(&n.to_string(), matches)
        });
        let chains = Chains::new(&listener(all.collect(), None)).unwrap();
        for n in 0..10_000_u16 {
            let [high, low] = n.to_be_bytes();
            let client = Client {
                to: &format!("10.0.{high}.{low}:{}", n % 10),
                name: &format!("s{n}.example"),
                transport: Transport::Raw,
                alpn: &[],
            };
            assert_eq!(found(&chains, &client), Some(n.to_string().as_str()));
        }
    }

    const RANGES: [&str; 7] = [
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.1.1/32",
        "0.0.0.0/0",
        "fd00::/8",
        "fd00::1/128",
        "::/0",
    ];
    const NAMES: [&str; 6] = ["a.b.c", "b.c", "*.c", "*.b.c", "c", "*.a.b.c"];

    fn matches() -> impl Strategy<Value = ChainMatch> {
        // Most are empty, so that several chains differ in a later step only.
        let port = proptest::option::weighted(0.2, 1_u16..3);
        let ranges = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(RANGES.to_vec(), 0..3)];
        let server_names =
            prop_oneof![2 => Just(Vec::new()), 1 => subsequence(NAMES.to_vec(), 0..3)];
        let transport = proptest::option::of(select(vec![Transport::Raw, Transport::Tls]));
        let alpn = subsequence(vec!["h2", "h3"], 0..=2);
        (port, ranges, server_names, transport, alpn).prop_map(
            |(port, ranges, server_names, transport, alpn)| ChainMatch {
                port,
                prefixes: ranges.into_iter().map(prefix).collect(),
                server_names: names(&server_names),
                transport,
                alpn: names(&alpn),
            },
        )
    }

    /// How specifically a chain has a value: the most specific of those that fit.
    fn most<T>(values: &[T], any: u8, specific: impl Fn(&T) -> Option<u8>) -> Option<u8> {
        match values {
            [] => Some(any),
            values => values.iter().filter_map(specific).max(),
        }
    }

    /// How specifically a chain fits in one step; `None` if it does not.
    type Step<'a> = &'a dyn Fn(&ChainMatch) -> Option<u8>;

    /// What a naive reading of the order finds: in each step, only the chains stay that fit most specifically.
    fn naive<'a>(all: &'a [Chain], client: &Client<'_>) -> Option<&'a str> {
        let to: SocketAddr = client.to.parse().unwrap();
        let alpn = client.alpn;
        let steps: [Step<'_>; 5] = [
            &|of| {
                most(of.port.as_slice(), 0, |port| {
                    (*port == to.port()).then_some(1)
                })
            },
            &|of| {
                most(&of.prefixes, 0, |range| {
                    let bits = |address| match address {
                        IpAddr::V4(address) => format!("4{:032b}", u32::from(address)),
                        IpAddr::V6(address) => format!("6{:0128b}", u128::from(address)),
                    };
                    let length = usize::from(range.length) + 1;
                    let (range_bits, to) = (bits(range.address), bits(to.ip()));
                    to.starts_with(&range_bits[..length])
                        .then_some(range.length + 1)
                })
            },
            &|of| {
                most(&of.server_names, 0, |name| match name.strip_prefix('*') {
                    Some(suffix) => client.name.ends_with(suffix).then_some(suffix.len() as u8),
                    None => (name == client.name).then_some(u8::MAX),
                })
            },
            &|of| {
                most(of.transport.as_slice(), 0, |transport| {
                    (*transport == client.transport).then_some(1)
                })
            },
            &|of| {
                most(&of.alpn, 0, |protocol| {
                    let at = alpn.iter().position(|offered| offered == protocol)?;
                    Some(100 - at as u8)
                })
            },
        ];
        let mut left: Vec<&Chain> = all.iter().collect();
        for step in steps {
            let best = left.iter().filter_map(|chain| step(&chain.matches)).max()?;
            left.retain(|chain| step(&chain.matches) == Some(best));
        }
        left.first().map(|chain| chain.name.as_str())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1024))]

        /// Finds what a naive search finds.
        #[test]
        fn finds_what_a_naive_search_finds(
            matches in proptest::collection::vec(matches(), 1..8),
            to in select(vec!["10.1.1.1:1", "10.1.2.1:2", "10.2.0.0:3", "[fd00::1]:1", "[fd00::2]:3", "9.9.9.9:1"]),
            name in select(vec!["", "a.b.c", "x.b.c", "c", "x.c", "z", "y.a.b.c"]),
            transport in select(vec![Transport::Raw, Transport::Tls]),
            alpn in subsequence(vec!["x", "h3", "h2"], 0..=3),
        ) {
            let mut all: Vec<Chain> = Vec::new();
            for (index, matches) in matches.into_iter().enumerate() {
                all.push(chain(&index.to_string(), matches));
                // Those that overlap are left out.
                if Chains::new(&listener(all.clone(), None)).is_err() {
                    all.pop();
                }
            }
            let chains = Chains::new(&listener(all.clone(), None)).unwrap();
            let client = Client { to, name, transport, alpn: &alpn };
            prop_assert_eq!(found(&chains, &client), naive(&all, &client));
        }
    }
}
