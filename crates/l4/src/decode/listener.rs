//! Makes a listener of its tree.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::problem::Problem;
use super::tree::Node;
use super::{access_log, parts, rbac, tls};
use crate::model::{
    Address, Chain, ChainMatch, ConnectionLimit, Direction, Filter, InspectTls, Listener, Prefix,
    TcpProxy, Transport,
};

/// How long Envoy waits for the listener filters by default.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long both directions may be silent by default.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Ranges of ports, without the last one.
type Ports = Vec<(u32, u32)>;

/// Makes a listener.
pub(super) fn listener(node: &Node<'_>) -> Result<Listener, Problem> {
    let name = parts::required(node, "name")?;
    let address = node.child("address", parts::address_without_names)?;
    let address = address.ok_or_else(|| {
        Problem::invalid(format!(
            "error adding listener named '{name}': address is necessary"
        ))
    })?;
    let timeout = node.duration("listener_filters_timeout")?;
    let mut listener = Listener {
        stat_prefix: node.text("stat_prefix").to_owned(),
        direction: match node.choice("traffic_direction") {
            1 => Direction::Inbound,
            2 => Direction::Outbound,
            _ => Direction::Unspecified,
        },
        original_destination: false,
        inspect_tls: None,
        inspect_timeout: timeout.unwrap_or(INSPECT_TIMEOUT),
        continue_on_timeout: node.flag("continue_on_listener_filters_timeout"),
        chains: node.each("filter_chains", |node| chain(node).map(Arc::new))?,
        default_chain: node.child("default_filter_chain", default_chain)?,
        access_logs: node.each("access_log", access_log::access_log)?,
        name,
        address,
    };
    node.each("listener_filters", |node| {
        listener_filter(node, &mut listener)
    })?;
    if listener.chains.is_empty() && listener.default_chain.is_none() {
        let place = shown(&listener.address);
        let text = format!("error adding listener '{place}': no filter chains specified");
        return Err(Problem::invalid(text));
    }
    Ok(listener)
}

/// An address as Envoy writes it.
fn shown(address: &Address) -> String {
    match address {
        Address::Socket(address) => address.to_string(),
        Address::Pipe { path, .. } => path.display().to_string(),
        Address::Dns(name, port) => format!("{name}:{port}"),
    }
}

fn listener_filter(node: &Node<'_>, listener: &mut Listener) -> Result<(), Problem> {
    let config = typed_config(node)?;
    let disabled = node.child("filter_disabled", ports)?;
    if config.message_name().ends_with(".OriginalDst") {
        if disabled.is_some() {
            let what = "for original_dst";
            return Err(Problem::needs_envoy(what).within("filter_disabled"));
        }
        listener.original_destination = true;
        return Ok(());
    }
    if listener.inspect_tls.is_some() {
        return Err(Problem::needs_envoy("tls_inspector occurs twice"));
    }
    listener.inspect_tls = match disabled {
        None => Some(InspectTls::default()),
        Some(Disabled::Always) => None,
        Some(Disabled::Ports(ports)) => Some(InspectTls {
            only_ports: None,
            except_ports: ports,
        }),
        Some(Disabled::OtherPorts(ports)) => Some(InspectTls {
            only_ports: Some(ports),
            except_ports: Vec::new(),
        }),
    };
    Ok(())
}

/// For which connections a listener filter is disabled.
enum Disabled {
    Always,
    Ports(Ports),
    OtherPorts(Ports),
}

fn ports(node: &Node<'_>) -> Result<Disabled, Problem> {
    if let Some(port_range) = node.child("destination_port_range", port_range)? {
        return Ok(Disabled::Ports(vec![port_range]));
    }
    let any_of = node.child("or_match", |set| {
        let ranges = set.each("rules", |rule| match ports(rule)? {
            Disabled::Ports(ports) => Ok(ports),
            _ => Err(Problem::needs_envoy(
                "a combination of other rules than ports",
            )),
        })?;
        if ranges.len() < 2 {
            return Err(Problem::invalid("value must contain at least 2 item(s)").within("rules"));
        }
        Ok(ranges.concat())
    })?;
    if let Some(ports) = any_of {
        return Ok(Disabled::Ports(ports));
    }
    if let Some(inner) = node.child("not_match", ports)? {
        return match inner {
            Disabled::Ports(ports) => Ok(Disabled::OtherPorts(ports)),
            Disabled::OtherPorts(ports) => Ok(Disabled::Ports(ports)),
            Disabled::Always => Err(Problem::needs_envoy("a rule that never matches")),
        };
    }
    if node.flag("any_match") {
        return Ok(Disabled::Always);
    }
    Err(Problem::invalid(
        "a rule is required, and any_match must be true",
    ))
}

fn port_range(node: &Node<'_>) -> Result<(u32, u32), Problem> {
    let bound = |name| {
        let bound = u32::try_from(node.signed(name))
            .ok()
            .filter(|port| *port <= 65_536);
        bound.ok_or_else(|| Problem::needs_envoy("it is no port").within(name))
    };
    Ok((bound("start")?, bound("end")?))
}

/// The configuration of a filter.
fn typed_config<'n, 'a>(node: &'n Node<'a>) -> Result<&'n Node<'a>, Problem> {
    let config = node.node("typed_config");
    config.ok_or_else(|| Problem::invalid("a configuration is necessary").within("typed_config"))
}

fn default_chain(node: &Node<'_>) -> Result<Arc<Chain>, Problem> {
    let chain = chain(node)?;
    if *chain.matches != ChainMatch::default() {
        let what = "for a chain that is the default";
        return Err(Problem::needs_envoy(what).within("filter_chain_match"));
    }
    Ok(Arc::new(chain))
}

fn chain(node: &Node<'_>) -> Result<Chain, Problem> {
    let socket = node.child("transport_socket", |socket| {
        let config = typed_config(socket)?;
        let made = tls::downstream(config);
        made.map_err(|problem| problem.within("typed_config"))
    })?;
    let handshake = node.duration("transport_socket_connect_timeout")?;
    let (filters, tcp) = filters(node)?;
    Ok(Chain {
        name: node.text("name").to_owned(),
        matches: Arc::new(
            node.child("filter_chain_match", chain_match)?
                .unwrap_or_default(),
        ),
        tls: socket.map(Arc::new),
        handshake_timeout: handshake.unwrap_or_default(),
        filters,
        tcp,
    })
}

/// The filters of a chain, the last of which has to be the proxy.
fn filters(node: &Node<'_>) -> Result<(Vec<Filter>, TcpProxy), Problem> {
    /// One filter.
    enum Made {
        Filter(Filter),
        Proxy(Box<TcpProxy>),
    }
    let made = node.each("filters", |filter| {
        let config = typed_config(filter)?;
        let name = config.message_name().rsplit('.').next();
        let made = match name {
            Some("RBAC") => {
                rbac::filter(config).map(|rbac| Made::Filter(Filter::Rbac(Arc::new(rbac))))
            }
            Some("ConnectionLimit") => {
                connection_limit(config).map(|limit| Made::Filter(Filter::ConnectionLimit(limit)))
            }
            Some("SniCluster") => Ok(Made::Filter(Filter::SniCluster)),
            _ => tcp_proxy(config).map(|proxy| Made::Proxy(Box::new(proxy))),
        };
        made.map_err(|problem| problem.within("typed_config"))
    })?;
    let last = made.len().checked_sub(1);
    let Some(last) = last else {
        return Err(Problem::needs_envoy("a chain without filters").within("filters"));
    };
    let mut filters = Vec::new();
    for (index, made) in made.into_iter().enumerate() {
        match made {
            Made::Proxy(proxy) if index == last => return Ok((filters, *proxy)),
            Made::Proxy(_) => {
                let text = "terminal filter envoy.filters.network.tcp_proxy must be the last filter in a network \
                            filter chain.";
                return Err(Problem::invalid(text).within_element("filters", index));
            }
            Made::Filter(filter) => filters.push(filter),
        }
    }
    let text = "non-terminal filter is the last filter in a network filter chain.";
    Err(Problem::invalid(text).within_element("filters", last))
}

fn chain_match(node: &Node<'_>) -> Result<ChainMatch, Problem> {
    let port = node.wrapped_number("destination_port").map(|port| {
        let port = u16::try_from(port).ok().filter(|port| *port > 0);
        port.ok_or_else(|| {
            Problem::invalid("value must be inside range [1, 65535]").within("destination_port")
        })
    });
    let server_names: Vec<String> = node.texts("server_names").map(str::to_owned).collect();
    for name in &server_names {
        // "*.example" is a suffix; a star elsewhere is nothing that Envoy knows.
        if name.strip_prefix("*.").unwrap_or(name).contains('*') {
            let text = format!("partial wildcards are not supported in \"server_names\": {name}");
            return Err(Problem::invalid(text).within("server_names"));
        }
    }
    Ok(ChainMatch {
        port: port.transpose()?,
        prefixes: node.each("prefix_ranges", prefix)?,
        server_names,
        transport: match node.text("transport_protocol") {
            "" => None,
            "raw_buffer" => Some(Transport::Raw),
            "tls" => Some(Transport::Tls),
            other => return Err(Problem::needs_envoy(other).within("transport_protocol")),
        },
        alpn: node
            .texts("application_protocols")
            .map(str::to_owned)
            .collect(),
    })
}

fn prefix(node: &Node<'_>) -> Result<Prefix, Problem> {
    let text = node.text("address_prefix");
    let address: IpAddr = text.parse().map_err(|_| {
        Problem::invalid(format!("malformed IP address: {text}")).within("address_prefix")
    })?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = node.wrapped_number("prefix_len").unwrap_or_default();
    let length = u8::try_from(length)
        .ok()
        .filter(|length| *length <= longest);
    let length = length.ok_or_else(|| {
        Problem::invalid(format!("invalid length of a prefix of {text}")).within("prefix_len")
    })?;
    Ok(Prefix {
        address: masked(address, length),
        length,
    })
}

/// The first bits of an address, the others 0: ranges are the same if these are.
fn masked(address: IpAddr, length: u8) -> IpAddr {
    let length = u32::from(length);
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - length).unwrap_or_default();
            IpAddr::V4((u32::from(address) & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - length).unwrap_or_default();
            IpAddr::V6((u128::from(address) & mask).into())
        }
    }
}

fn connection_limit(node: &Node<'_>) -> Result<ConnectionLimit, Problem> {
    let stat_prefix = parts::required(node, "stat_prefix")?;
    let max = node.wrapped_large("max_connections").filter(|max| *max > 0);
    let max = max.ok_or_else(|| {
        Problem::invalid("value must be greater than or equal to 1").within("max_connections")
    })?;
    Ok(ConnectionLimit {
        stat_prefix: stat_prefix.to_string(),
        max,
        delay: node.duration("delay")?.unwrap_or_default(),
    })
}

fn tcp_proxy(node: &Node<'_>) -> Result<TcpProxy, Problem> {
    let stat_prefix = parts::required(node, "stat_prefix")?;
    let weighted = node.child("weighted_clusters", |weighted| {
        let clusters =
            weighted.each("clusters", |cluster| {
                let name = parts::required(cluster, "name")?;
                match cluster.number("weight") {
                    0 => Err(Problem::invalid("value must be greater than or equal to 1")
                        .within("weight")),
                    weight => Ok((name, weight)),
                }
            })?;
        if clusters.is_empty() {
            return Err(
                Problem::invalid("value must contain at least 1 item(s)").within("clusters")
            );
        }
        Ok(clusters)
    })?;
    let clusters = match weighted {
        Some(clusters) => clusters,
        // An empty name is a name: the SNI decides, or no cluster has it.
        None if node.has("cluster") => vec![(node.text("cluster").into(), 1)],
        None => return Err(Problem::invalid("a cluster is required")),
    };
    let attempts = node.wrapped_number("max_connect_attempts").unwrap_or(1);
    if attempts == 0 {
        let text = "value must be greater than or equal to 1";
        return Err(Problem::invalid(text).within("max_connect_attempts"));
    }
    let max_duration = node.duration("max_downstream_connection_duration")?;
    if max_duration.is_some_and(|duration| duration < Duration::from_millis(1)) {
        let text = "value must be greater than or equal to 1ms";
        return Err(Problem::invalid(text).within("max_downstream_connection_duration"));
    }
    let idle = node.duration("idle_timeout")?.unwrap_or(IDLE_TIMEOUT);
    Ok(TcpProxy {
        stat_prefix: stat_prefix.to_string(),
        clusters,
        max_connect_attempts: attempts,
        idle_timeout: Some(idle).filter(|idle| !idle.is_zero()),
        max_duration,
        access_logs: node.each("access_log", access_log::access_log)?,
    })
}
