//! The listener of a proxy in transparent mode, at which all that the application sends arrives: to
//! a service by its virtual IPs, to one of its instances, to a service outside the mesh that has a gateway, or
//! to somewhere else outside.
//!
//! What the application dialled is what it was redirected from. Each service has a filter chain of
//! its own, which its addresses choose; no two chains have the same one, for Envoy would refuse the
//! listener.
//!
//! Envoy looks at the port first, and once a chain is for that port, at no chain without one. So the chains
//! of services, which are for all ports, are repeated for each port that a chain outside the mesh is for.

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
use crate::listener::upstream::{self, Way};
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names::{ORIGINAL_DESTINATION, OUTBOUND_LISTENER};
use crate::settings::ProxySettings;
use crate::telemetry::Telemetry;
use crate::upstream::Leads;

/// Where captured traffic arrives when nothing says otherwise. Consul's, and where whatever captures
/// it sends it to by default.
const PORT: u16 = 15001;

/// What leads to one service, its instances, or a service outside the mesh.
#[derive(Hash)]
pub(crate) struct Chain<'a> {
    /// As in statistics.
    pub(crate) filter: String,
    /// Of the upstream.
    pub(crate) id: String,
    pub(crate) leads: Leads,
    pub(crate) protocol: Protocol,
    /// How many instances are dialled at most until one connection is made.
    pub(crate) attempts: u32,
    /// Whether connections from one address go to one instance.
    pub(crate) hash_source_ip: bool,
    pub(crate) dialled: Target<'a>,
}

/// What an application dials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Target<'a> {
    /// One of these addresses, on any port. They are in their order, and not empty.
    Service(&'a [IpAddr]),
    /// This address and port.
    Address(IpAddr, u16),
    /// The server with this name, by TLS, on this port.
    ServerName(String, u16),
    /// Anything on this port.
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
    leads_outside: bool,
    telemetry: &'a Telemetry,
    fetch_timeout: Option<Duration>,
}

/// Where the listener listens.
pub(crate) fn bind(instance: &ServiceInstance) -> Result<Bind, GenerateError> {
    let port = match instance.proxy.transparent_proxy.outbound_listener_port {
        0 => PORT,
        port => port,
    };
    Bind::socket(OUTBOUND_LISTENER, "", port)
}

/// The listener. `leads_outside`: what no chain is for goes where it was sent to. `None` where
/// there is nowhere to go.
pub(crate) fn listener(
    memo: &Memo,
    bind: &Bind,
    chains: &[Chain<'_>],
    leads_outside: bool,
    settings: &ProxySettings,
) -> Result<Option<Arc<EncodedResource>>, GenerateError> {
    if chains.is_empty() && !leads_outside {
        return Ok(None);
    }
    let input = Input {
        bind,
        chains,
        leads_outside,
        telemetry: &settings.telemetry,
        fetch_timeout: settings.fetch_timeout,
    };
    let made = memo.get(&input, |input| {
        let name = format!("{OUTBOUND_LISTENER}:{}", input.bind.suffix());
        let routes: Vec<&str> = input
            .chains
            .iter()
            .filter_map(|one| one.leads.routes())
            .collect();
        Ok(encode::resource(&name, &build(&name, input), &routes))
    })?;
    Ok(Some(made))
}

fn build(name: &str, input: &Input<'_>) -> Listener {
    let stats = upstream::stats(ORIGINAL_DESTINATION);
    let outside = listener::tcp_proxy(&stats, ORIGINAL_DESTINATION, 1, false, input.telemetry);
    let outside = FilterChain {
        filters: vec![outside],
        ..FilterChain::default()
    };
    let ports = input.chains.iter().filter_map(|one| one.dialled.port());
    let ports = ports.collect();
    let of = |one| filter_chains(one, input, &ports);
    let chains = input.chains.iter().flat_map(of).collect();
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

/// What chooses a service by its addresses: on any port, then on each of these. No chain for one of the
/// ports is for one of the addresses.
fn by_addresses(addresses: &[IpAddr], ports: &BTreeSet<u16>) -> Vec<FilterChainMatch> {
    let ranges: Vec<_> = addresses.iter().map(range).collect();
    let matches = [FilterChainMatch::default()].into_iter();
    let matches = matches.chain(ports.iter().map(|port| on_port(*port)));
    let with_addresses = |matched| FilterChainMatch {
        prefix_ranges: ranges.clone(),
        ..matched
    };
    matches.map(with_addresses).collect()
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

/// The filter chains of one.
/// `ports` are those that services outside the mesh are dialled on.
fn filter_chains(one: &Chain<'_>, input: &Input<'_>, ports: &BTreeSet<u16>) -> Vec<FilterChain> {
    let filter = upstream::filter(&Way {
        id: &one.id,
        filter: &one.filter,
        leads: &one.leads,
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

/// The addresses of one service for which no other service counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Own {
    /// Those that stand for the service.
    pub(crate) service: Vec<IpAddr>,
    /// Those of its instances.
    pub(crate) instances: Vec<IpAddr>,
}

impl Own {
    pub(crate) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.service.iter().chain(&self.instances).copied()
    }
}

/// The addresses of each service, in the order of the services. Where several have the same one, one
/// of them gets it, and a warning says so.
pub(crate) fn owners(upstreams: &[Arc<ImplicitUpstream>], warnings: &mut Vec<String>) -> Vec<Own> {
    let mut taken: BTreeMap<IpAddr, (Dialled, usize)> = BTreeMap::new();
    let name = |at: usize| upstreams[at].upstream.upstream.id();
    for (at, upstream) in upstreams.iter().enumerate() {
        for dialled in &upstream.addresses {
            let claim = (*dialled, at);
            let held = *taken.entry(dialled.ip).or_insert(claim);
            let (wins, loses) = (held.min(claim), held.max(claim));
            taken.insert(dialled.ip, wins);
            // Instances come and go: the catalog may show two at one address for a while.
            if wins.1 != loses.1 && loses.0.kind != DialledKind::Instance {
                warnings.push(format!(
                    "services {} and {} both have the virtual IP {}: it leads to {}",
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
