//! The outbound listener of a proxy in transparent mode. It receives all captured traffic of the
//! application: to virtual IPs of services, to single instances, to services outside the mesh
//! behind a gateway, to ports of Services of the cluster, and to other destinations outside.
//!
//! The original destination of a connection selects a filter chain. Each service has a chain with
//! its addresses. No two chains have the same match, because Envoy would refuse the listener.
//!
//! Envoy matches the port first, and ignores chains without a port once one matches it. So the
//! chains of services, which match all ports, are repeated for each port of a chain for services
//! outside the mesh or for a port of a Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::{CidrRange, TrafficDirection};
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch, Listener};
use envoy_types::pb::google::protobuf::UInt32Value;
use legate_model::{Protocol, ServiceInstance};
use legate_proxycfg::{Dialled, DialledKind, ImplicitUpstream};

use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::gateway::listener::{LeadsTo, leading_to};
use crate::listener::upstream::{self, FilterSettings};
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names::{FilterName, ORIGINAL_DESTINATION, OUTBOUND_LISTENER};
use crate::settings::ProxySettings;
use crate::telemetry::Telemetry;
use crate::upstream::UpstreamTarget;

/// The default port for captured traffic, the same as in Consul and in the tools that set up
/// redirection.
const PORT: u16 = 15001;

/// The filter chain for a service, its instances, or a service outside the mesh.
#[derive(Hash)]
pub(crate) struct Chain<'a> {
    /// Its name in statistics.
    pub(crate) filter: FilterName,
    /// The upstream's id.
    pub(crate) id: String,
    pub(crate) target: UpstreamTarget,
    pub(crate) protocol: Protocol,
    /// The maximum number of instances to try for a connection.
    pub(crate) attempts: u32,
    /// Whether connections from one address use the same instance.
    pub(crate) hash_source_ip: bool,
    pub(crate) dialled: Target<'a>,
}

/// A port of a Service of the cluster. No other has one of its addresses with the same port.
#[derive(Hash)]
pub(crate) struct ServicePort {
    /// Sorted and not empty.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) port: u16,
    /// Its name in statistics.
    pub(crate) name: String,
    pub(crate) leads_to: LeadsTo,
}

/// The original destination that a chain matches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target<'a> {
    /// One of these addresses on any port. Sorted and not empty.
    Service(&'a [IpAddr]),
    /// This address and port.
    Address(IpAddr, u16),
    /// The TLS server name on this port.
    ServerName(String, u16),
    /// Any address on this port.
    Port(u16),
}

impl Target<'_> {
    fn port(&self) -> Option<u16> {
        match self {
            Self::Service(_) => None,
            Self::Address(_, port) | Self::ServerName(_, port) | Self::Port(port) => Some(*port),
        }
    }
}

#[derive(Hash)]
struct Input<'a> {
    bind: &'a Bind,
    chains: &'a [Chain<'a>],
    ports: &'a [ServicePort],
    leads_outside: bool,
    telemetry: &'a Telemetry,
    fetch_timeout: Option<Duration>,
}

/// The listener's address.
pub(crate) fn bind(instance: &ServiceInstance) -> Result<Bind, GenerateError> {
    let port = match instance.proxy.transparent_proxy.outbound_listener_port {
        0 => PORT,
        port => port,
    };
    Bind::socket(OUTBOUND_LISTENER, "", port)
}

/// The listener. `leads_outside`: connections that match no chain continue to their original
/// destination. `None` if there is nothing to route.
pub(crate) fn listener(
    memo: &Memo,
    bind: &Bind,
    (chains, ports): (&[Chain<'_>], &[ServicePort]),
    leads_outside: bool,
    settings: &ProxySettings,
) -> Result<Option<Arc<EncodedResource>>, GenerateError> {
    if chains.is_empty() && ports.is_empty() && !leads_outside {
        return Ok(None);
    }
    let input = Input {
        bind,
        chains,
        ports,
        leads_outside,
        telemetry: &settings.telemetry,
        fetch_timeout: settings.fetch_timeout,
    };
    let made = memo.get(&input, |input| {
        let name = format!("{OUTBOUND_LISTENER}:{}", input.bind.suffix());
        let of_ports = input.ports.iter().filter_map(|one| one.leads_to.routes());
        let routes = input.chains.iter().filter_map(|one| one.target.routes());
        let routes: Vec<&str> = routes.chain(of_ports).collect();
        Ok(encode::resource(&name, &build(&name, input), &routes))
    })?;
    Ok(Some(made))
}

fn build(name: &str, input: &Input<'_>) -> Listener {
    let stats = FilterName::from(ORIGINAL_DESTINATION).stats();
    let outside = listener::tcp_proxy(&stats, ORIGINAL_DESTINATION, 1, false, input.telemetry);
    let outside = FilterChain {
        filters: vec![outside],
        ..FilterChain::default()
    };
    let mut ports: Ports<'_> = BTreeMap::new();
    for port in input.chains.iter().filter_map(|one| one.dialled.port()) {
        ports.entry(port).or_default();
    }
    for one in input.ports {
        ports.entry(one.port).or_default().extend(&one.addresses);
    }
    let of = |one| filter_chains(one, input, &ports);
    let of_ports = input.ports.iter().map(|one| port_chain(one, input));
    let chains = input.chains.iter().flat_map(of).chain(of_ports).collect();
    let by_name = input.chains.iter().filter_map(|one| match one.dialled {
        Target::ServerName(_, port) => Some(port),
        _ => None,
    });
    let server_name = listener::server_name(&by_name.collect());
    let waits = server_name.is_some();
    Listener {
        listener_filters_timeout: waits.then(|| proto_duration(listener::SERVER_NAME_WAIT)),
        continue_on_listener_filters_timeout: waits,
        listener_filters: [listener::original_destination()]
            .into_iter()
            .chain(server_name)
            .collect(),
        default_filter_chain: input.leads_outside.then_some(outside),
        ..listener::listener(
            name,
            input.bind,
            TrafficDirection::Outbound,
            false,
            input.telemetry,
            chains,
        )
    }
}

/// The ports that some chains match, each with the addresses of Services that have a chain of their own there.
type Ports<'a> = BTreeMap<u16, BTreeSet<&'a IpAddr>>;

/// Matches a service by its addresses: on any port, and on each of these ports, without the addresses that have a
/// chain of their own there.
fn by_addresses(addresses: &[IpAddr], ports: &Ports<'_>) -> Vec<FilterChainMatch> {
    let matches = |matched, addresses: &mut dyn Iterator<Item = &IpAddr>| {
        let prefix_ranges: Vec<_> = addresses.map(range).collect();
        (!prefix_ranges.is_empty()).then_some(FilterChainMatch {
            prefix_ranges,
            ..matched
        })
    };
    let on_ports = ports.iter().filter_map(|(port, taken)| {
        let mut others = addresses.iter().filter(|address| !taken.contains(address));
        matches(on_port(*port), &mut others)
    });
    let on_any = matches(FilterChainMatch::default(), &mut addresses.iter());
    on_any.into_iter().chain(on_ports).collect()
}

/// The filter chain of a port of a Service.
fn port_chain(one: &ServicePort, input: &Input<'_>) -> FilterChain {
    let stats = FilterName::from(one.name.as_str()).stats();
    let settings = (input.fetch_timeout, input.telemetry);
    FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            prefix_ranges: one.addresses.iter().map(range).collect(),
            ..on_port(one.port)
        }),
        // Without a filter, Envoy closes connections.
        filters: leading_to(&one.leads_to, &stats, settings, |_| {})
            .into_iter()
            .collect(),
        ..FilterChain::default()
    }
}

fn range(ip: &IpAddr) -> CidrRange {
    CidrRange {
        address_prefix: ip.to_string(),
        prefix_len: Some(UInt32Value {
            value: if ip.is_ipv4() { 32 } else { 128 },
        }),
    }
}

fn on_port(port: u16) -> FilterChainMatch {
    FilterChainMatch {
        destination_port: Some(UInt32Value { value: port.into() }),
        ..FilterChainMatch::default()
    }
}

/// The filter chains of one destination, one for each match.
fn filter_chains(one: &Chain<'_>, input: &Input<'_>, ports: &Ports<'_>) -> Vec<FilterChain> {
    let filter = upstream::filter(&FilterSettings {
        id: &one.id,
        filter: &one.filter,
        target: &one.target,
        protocol: one.protocol,
        attempts: one.attempts,
        hash_source_ip: one.hash_source_ip,
        fetch_timeout: input.fetch_timeout,
        telemetry: input.telemetry,
    });
    let matches = match &one.dialled {
        Target::Service(addresses) => by_addresses(addresses, ports),
        Target::Address(ip, port) => vec![FilterChainMatch {
            prefix_ranges: vec![range(ip)],
            ..on_port(*port)
        }],
        Target::ServerName(name, port) => vec![FilterChainMatch {
            server_names: vec![name.clone()],
            ..on_port(*port)
        }],
        Target::Port(port) => vec![on_port(*port)],
    };
    let chain = |matched| FilterChain {
        filter_chain_match: Some(matched),
        filters: vec![filter.clone()],
        ..FilterChain::default()
    };
    matches.into_iter().map(chain).collect()
}

/// The addresses that select one service and no other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    /// Addresses of the service itself.
    pub(crate) service: Vec<IpAddr>,
    /// Addresses of its instances.
    pub(crate) instances: Vec<IpAddr>,
}

impl Own {
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.service.iter().chain(&self.instances).copied()
    }
}

/// The addresses of each service, in the order of the services. An address of several services is
/// assigned to one of them, with a warning.
pub(crate) fn owners(upstreams: &[Arc<ImplicitUpstream>], warnings: &mut Vec<String>) -> Vec<Own> {
    let mut taken: BTreeMap<IpAddr, (Dialled, usize)> = BTreeMap::new();
    let name = |at: usize| upstreams[at].upstream.upstream.id();
    for (at, upstream) in upstreams.iter().enumerate() {
        for dialled in &upstream.addresses {
            let claim = (*dialled, at);
            let held = *taken.entry(dialled.ip).or_insert(claim);
            let (wins, loses) = (held.min(claim), held.max(claim));
            taken.insert(dialled.ip, wins);
            // Instances come and go: the catalog may briefly have two with one address.
            if wins.1 != loses.1 && loses.0.kind != DialledKind::Instance {
                warnings.push(format!(
                    "services {} and {} both have the virtual IP {}: it is routed to {}",
                    name(wins.1),
                    name(loses.1),
                    dialled.ip,
                    name(wins.1),
                ));
            }
        }
    }
    let mut owners = vec![Own::default(); upstreams.len()];
    for (ip, (dialled, at)) in taken {
        match dialled.kind {
            DialledKind::Service | DialledKind::Tagged => owners[at].service.push(ip),
            DialledKind::Instance => owners[at].instances.push(ip),
        }
    }
    owners
}
