//! The mesh gateway: it forwards TLS connections by their server name (SNI) and terminates none, except those of peers to
//! services with requests ([`super::peering`]). A cluster for each service and subset of its partition has that server name as its name, so that
//! one filter chain serves all of them. Connections to another datacenter, whose server names are below
//! that of its gateways, go to these. A gateway that exposes servers also forwards the connections of
//! servers, to one or to any of its own datacenter, or to the gateways of another one.
//!
//! A connection that an instance or a gateway does not accept is tried with others: callers elsewhere
//! cannot choose another one, and would take all of them for dead.

use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{FilterChain, FilterChainMatch};
use envoy_types::pb::envoy::extensions::filters::network::sni_cluster::v3::SniCluster;
use legate_model::{ServiceName, sni};
use legate_proxycfg::{
    GatewaysElsewhere, GatewaysOf, Instances, MeshGateway, MeshService, Proxy, Servers,
};

use super::change::{Positions, SameProxy};
use super::peering::{self, Peering, Terminated};
use crate::balancing::Balancing;
use crate::composer::Composer;
use crate::encode::{self, EncodedResource};
use crate::endpoint;
use crate::error::GenerateError;
use crate::gateway::bind::{self, Address};
use crate::gateway::cluster::{self, ServiceCluster};
use crate::gateway::external::{self, Discovery, ExternalCluster};
use crate::gateway::settings::GatewaySettings;
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names::{self, SNI_CLUSTER};
use crate::part::{Made, UnitBuilder, made};
use crate::resource_type::Type;
use crate::retry::ATTEMPTS;
use crate::section::Section;
use crate::settings::{Limits, ProxySettings, Settings};
use crate::telemetry::Telemetry;

/// The services, one unit each.
const SERVICES: Section = Section("services");

/// The listeners, one for each address.
const LISTENERS: Section = Section("listeners");

/// Other datacenters, one unit each.
const ELSEWHERE: Section = Section("other datacenters");

/// All servers of this datacenter, in one unit.
const SERVERS: Section = Section("servers");

/// The servers of this datacenter, one unit each.
const SERVER: Section = Section("server");

pub(super) fn compose(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    own: &MeshGateway,
    last: Option<(&Proxy, &MeshGateway)>,
) {
    let same = last.map_or_else(SameProxy::default, |(last, _)| {
        SameProxy::between(last, proxy)
    });
    let settings: Settings<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = Vec::new();
        let settings = ProxySettings::read(&proxy.instance, &mut warnings);
        (settings, warnings)
    }));
    let gateway = GatewaySettings::read(&proxy.instance, &mut Vec::new());
    let last = last.map(|(_, last)| last);
    let services = Services {
        memo: composer.memo,
        proxy,
        settings: &settings,
        limits: (*own.limits).as_ref().map(Limits::of),
        connect_timeout: gateway.connect_timeout,
        same: same.mesh_name
            && same.instance
            && last.is_some_and(|last| Arc::ptr_eq(&last.limits, &own.limits)),
    };
    let elsewhere = Elsewhere {
        proxy,
        now: &own.elsewhere,
        last: last.map(|last| &*last.elsewhere),
        servers: (*own.servers).as_ref(),
        last_servers: last.and_then(|last| (*last.servers).as_ref()),
        same,
    };
    let peering = Peering {
        proxy,
        now: own,
        last,
        same,
    };
    let last = last.map(|last| &*last.services);
    let positions = Positions::of(
        last.is_some_and(|last| std::ptr::eq(last, &*own.services)),
        last.into_iter()
            .flat_map(|last| &last.0)
            .map(|one| &one.service),
    );
    for (at, service) in own.services.0.iter().enumerate() {
        let in_place = last.and_then(|last| last.0.get(at));
        // Nearly all services are, and then no names are compared.
        let before = match in_place.is_some_and(|last| Arc::ptr_eq(last, service)) {
            true => Some(at),
            false => positions.before(at, &&service.service),
        };
        let mut unit = composer.unit(SERVICES, before);
        let earlier = before.and_then(|at| last?.0.get(at));
        services.add_parts(&mut unit, service, earlier);
        composer.add(SERVICES, unit);
    }
    elsewhere.add_clusters(composer, &gateway, &settings);
    elsewhere.add_servers(composer, &gateway, &settings);
    peering.add(composer, &gateway, &settings, services.limits.as_ref());
    listeners(composer, &elsewhere, &peering, &settings);
}

/// What the clusters of all services are made from.
struct Services<'a, 's> {
    memo: &'a Memo,
    proxy: &'a Proxy,
    settings: &'a Settings<'s>,
    limits: Option<Limits>,
    /// For services without one.
    connect_timeout: Duration,
    /// Whether all of it is unchanged.
    same: bool,
}

impl Services<'_, '_> {
    /// Adds a cluster with its endpoints for the service and for each of its subsets.
    fn add_parts(
        &self,
        unit: &mut UnitBuilder<'_>,
        now: &Arc<MeshService>,
        last: Option<&Arc<MeshService>>,
    ) {
        if self.same && last.is_some_and(|last| Arc::ptr_eq(last, now)) && unit.take_over() {
            return;
        }
        let names = |one: &MeshService| {
            one.subsets
                .iter()
                .map(|(name, _)| name.clone())
                .collect::<Vec<_>>()
        };
        let last = last.filter(|last| self.same && names(last) == names(now));
        let same_cluster = last.is_some_and(|last| {
            last.connect_timeout == now.connect_timeout && last.load_balancer == now.load_balancer
        });
        let subsets = now
            .subsets
            .iter()
            .map(|(name, instances)| (name.as_str(), instances));
        let all = [("", &now.instances)].into_iter().chain(subsets);
        for (at, (subset, instances)) in all.enumerate() {
            let before = last.and_then(|last| match at.checked_sub(1) {
                None => Some(&last.instances),
                Some(at) => last.subsets.get(at).map(|(_, instances)| instances),
            });
            self.add_cluster(unit, now, subset, same_cluster, (instances, before));
        }
    }

    fn add_cluster(
        &self,
        unit: &mut UnitBuilder<'_>,
        service: &MeshService,
        subset: &str,
        same_cluster: bool,
        (instances, before): (&Arc<Instances>, Option<&Arc<Instances>>),
    ) {
        let name = || self.name(&service.service, subset);
        unit.part(Type::Cluster, name, same_cluster, |_| {
            let settings = &self.settings.0;
            let cluster = ServiceCluster {
                name: &name(),
                connect_timeout: match service.connect_timeout {
                    timeout if timeout.is_zero() => self.connect_timeout,
                    timeout => timeout,
                },
                fetch_timeout: settings.fetch_timeout,
                // What is hashed is inside TLS.
                balancer: service
                    .load_balancer
                    .as_ref()
                    .filter(|one| !one.is_hash_based()),
                limits: self.limits.as_ref(),
            };
            made(cluster::of_service(self.memo, &cluster))
        });
        let unchanged = before.is_some_and(|before| Arc::ptr_eq(before, instances));
        unit.part(Type::Endpoints, name, unchanged, |warnings| {
            made(endpoint::assignment(
                self.memo,
                &name(),
                instances,
                None,
                warnings,
            ))
        });
    }

    /// The server name of a service or one of its subsets, as its callers send it.
    fn name(&self, service: &ServiceName, subset: &str) -> String {
        let Proxy {
            datacenter,
            trust_domain,
            ..
        } = self.proxy;
        sni::subset(service, subset, datacenter, trust_domain)
    }
}

/// The gateways of other datacenters.
struct Elsewhere<'a> {
    proxy: &'a Proxy,
    now: &'a GatewaysElsewhere,
    last: Option<&'a GatewaysElsewhere>,
    /// The servers of this datacenter. `None`: the gateway leads to no servers.
    servers: Option<&'a Servers>,
    last_servers: Option<&'a Servers>,
    same: SameProxy,
}

/// A cluster of gateways or servers.
pub(super) struct Group<'a> {
    pub(super) name: String,
    pub(super) now: &'a Arc<Instances>,
    pub(super) last: Option<&'a Arc<Instances>>,
}

impl Elsewhere<'_> {
    /// The server name of the gateways of a datacenter, which is also the name of their cluster.
    fn name(&self, datacenter: &str) -> String {
        let Proxy {
            id, trust_domain, ..
        } = self.proxy;
        sni::gateway(&id.tenancy.partition, datacenter, trust_domain)
    }

    /// What is behind a filter chain, in the names of its statistics: the datacenter, after the partition unless that
    /// is `default`.
    fn key(&self, datacenter: &str) -> String {
        let tenancy = &self.proxy.id.tenancy;
        match tenancy.is_default_partition() {
            true => datacenter.to_owned(),
            false => format!("{}.{datacenter}", tenancy.partition),
        }
    }

    fn has_same_names(&self) -> bool {
        let names = |all: &GatewaysElsewhere| {
            let names = all.0.iter().map(|one| one.datacenter.clone());
            names.collect::<Vec<_>>()
        };
        self.same.mesh_name && self.last.is_some_and(|last| names(last) == names(self.now))
    }

    /// The name of the servers of a datacenter in certificates, which is also the name of their cluster. `None`: the
    /// gateway leads to no servers.
    fn servers_of(&self, datacenter: &str) -> Option<String> {
        let domain = &self.servers?.domain;
        Some(format!("server.{datacenter}.{domain}"))
    }

    /// Adds the clusters of each datacenter: its gateways and, if this one leads to servers, those that do too.
    fn add_clusters(
        &self,
        composer: &mut Composer<'_>,
        gateway: &GatewaySettings,
        settings: &Settings<'_>,
    ) {
        for now in &self.now.0 {
            let last = self.last.map_or(&[][..], |last| &last.0);
            let is_it = |one: &GatewaysOf| one.datacenter == now.datacenter;
            let before = last.iter().position(is_it);
            let last = before.and_then(|at| last.get(at));
            let mut unit = composer.unit(ELSEWHERE, before);
            let gateways = Group {
                name: self.name(&now.datacenter),
                now: &now.instances,
                last: last.map(|last| &last.instances),
            };
            add_group(
                composer.memo,
                &mut unit,
                &gateways,
                self.same,
                (gateway, settings),
            );
            if let Some(name) = self.servers_of(&now.datacenter) {
                let last = last.filter(|_| self.last_servers.is_some());
                let gateways = Group {
                    name,
                    now: &now.to_servers,
                    last: last.map(|last| &last.to_servers),
                };
                add_group(
                    composer.memo,
                    &mut unit,
                    &gateways,
                    self.same,
                    (gateway, settings),
                );
            }
            composer.add(ELSEWHERE, unit);
        }
    }

    /// Adds the clusters of the servers of this datacenter: one of all, and one of each.
    fn add_servers(
        &self,
        composer: &mut Composer<'_>,
        gateway: &GatewaySettings,
        settings: &Settings<'_>,
    ) {
        let Some(servers) = self.servers.filter(|servers| !servers.all.is_empty()) else {
            return;
        };
        let last = self.last_servers.filter(|last| !last.all.is_empty());
        let name = self.servers_of(&self.proxy.datacenter).unwrap_or_default();
        let mut unit = composer.unit(SERVERS, last.map(|_| 0));
        let all = Group {
            name: name.clone(),
            now: &servers.all,
            last: last.map(|last| &last.all),
        };
        add_group(
            composer.memo,
            &mut unit,
            &all,
            self.same,
            (gateway, settings),
        );
        composer.add(SERVERS, unit);
        for (node, server) in &servers.by_node {
            let is_it = |(name, _): &(String, _)| name == node;
            let before = last.and_then(|last| last.by_node.iter().position(is_it));
            let last = last.zip(before).map(|(last, at)| &last.by_node[at].1);
            let mut unit = composer.unit(SERVER, before);
            let group = Group {
                name: format!("{node}.{name}"),
                now: server,
                last,
            };
            add_group(
                composer.memo,
                &mut unit,
                &group,
                self.same,
                (gateway, settings),
            );
            composer.add(SERVER, unit);
        }
    }

    /// The filter chains that lead to other datacenters and to servers.
    fn chains(&self) -> Vec<ChainInput> {
        let datacenters = || self.now.0.iter().map(|one| &one.datacenter);
        let to_services = datacenters().map(|datacenter| {
            let cluster = self.name(datacenter);
            let stats = Stats::at_address("mesh_gateway_remote.", self.key(datacenter));
            ChainInput::plain(format!("*.{cluster}"), cluster, stats)
        });
        let to_servers = datacenters().filter_map(|datacenter| {
            let cluster = self.servers_of(datacenter)?;
            let stats = Stats::at_address("mesh_gateway_remote.", self.key(datacenter));
            Some(ChainInput::plain(format!("*.{cluster}"), cluster, stats))
        });
        let own = self.proxy.datacenter.as_ref();
        let servers = self.servers.iter().flat_map(|servers| &servers.by_node);
        let to_own = servers.filter_map(|(node, _)| {
            let cluster = format!("{node}.{}", self.servers_of(own)?);
            let stats = Stats::at_address("mesh_gateway_local_server.", own.to_owned());
            Some(ChainInput::plain(cluster.clone(), cluster, stats))
        });
        to_services.chain(to_servers).chain(to_own).collect()
    }

    fn has_same_chains(&self) -> bool {
        let nodes = |servers: Option<&Servers>| {
            let domain = servers.map(|servers| Arc::clone(&servers.domain));
            let nodes = servers.iter().flat_map(|servers| &servers.by_node);
            let nodes = nodes.map(|(node, _)| node.clone());
            (domain, nodes.collect::<Vec<_>>())
        };
        self.has_same_names() && nodes(self.servers) == nodes(self.last_servers)
    }
}

/// Adds a cluster, with its endpoints unless some have host names.
pub(super) fn add_group(
    memo: &Memo,
    unit: &mut UnitBuilder<'_>,
    group: &Group<'_>,
    same: SameProxy,
    (gateway, settings): (&GatewaySettings, &Settings<'_>),
) {
    let Group { name, now, last } = group;
    let is_listed = |one: &Arc<Instances>| !external::has_names(one);
    let is_same = same.mesh_name && last.is_some_and(|last| Arc::ptr_eq(last, now));
    let both_listed = same.mesh_name && is_listed(now) && last.is_some_and(is_listed);
    let unchanged = same.instance && (is_same || both_listed);
    unit.part(
        Type::Cluster,
        || name.clone(),
        unchanged,
        |warnings| {
            let discovery = match is_listed(now) {
                true => Discovery::Endpoints,
                false => Discovery::of_names(name, now, gateway, warnings),
            };
            let cluster = ExternalCluster {
                name,
                discovery,
                connect_timeout: gateway.connect_timeout,
                http2: false,
                balancing: Balancing::default(),
                keepalive: gateway.keepalive,
                tls: None,
                proxy_protocol: None,
                fetch_timeout: settings.0.fetch_timeout,
            };
            made(external::cluster(memo, &cluster))
        },
    );
    unit.part(
        Type::Endpoints,
        || name.clone(),
        is_same,
        |warnings| {
            if !is_listed(now) {
                return Ok(None);
            }
            made(endpoint::assignment(memo, name, now, None, warnings))
        },
    );
}

/// A filter chain by which connections with some server names go to a cluster.
#[derive(Hash)]
pub(super) struct ChainInput {
    pub(super) server_names: Vec<String>,
    /// Not used if it terminates them.
    pub(super) cluster: String,
    pub(super) stats: Stats,
    /// How it terminates connections, if it does.
    pub(super) terminated: Option<Terminated>,
}

/// The prefix of the statistics of a filter chain.
#[derive(Hash)]
pub(super) struct Stats {
    beginning: &'static str,
    /// Whether the name of the gateway's address follows.
    has_address: bool,
    /// What is behind the chain.
    behind: String,
}

impl Stats {
    pub(super) fn of(beginning: &'static str, behind: String) -> Self {
        Self {
            beginning,
            has_address: false,
            behind,
        }
    }

    /// With the name of the gateway's address.
    pub(super) fn at_address(beginning: &'static str, behind: String) -> Self {
        Self {
            has_address: true,
            ..Self::of(beginning, behind)
        }
    }

    fn prefix(&self, address: &str) -> String {
        let Self {
            beginning, behind, ..
        } = self;
        match self.has_address {
            true => names::stat_prefix(&format!("{beginning}{address}."), behind),
            false => names::stat_prefix(beginning, behind),
        }
    }
}

impl ChainInput {
    /// Those with one server name.
    fn plain(server_name: String, cluster: String, stats: Stats) -> Self {
        Self {
            server_names: vec![server_name],
            cluster,
            stats,
            terminated: None,
        }
    }
}

/// Adds the listeners, in the order of their names.
fn listeners(
    composer: &mut Composer<'_>,
    elsewhere: &Elsewhere<'_>,
    peering: &Peering<'_>,
    settings: &Settings<'_>,
) {
    let (memo, proxy) = (composer.memo, elsewhere.proxy);
    let mut unit = composer.unit(LISTENERS, Some(0));
    let same_chains = elsewhere.has_same_chains() && peering.has_same_chains();
    let unchanged = elsewhere.same.instance && same_chains;
    if unchanged && unit.is_sound() && unit.take_over() {
        composer.add(LISTENERS, unit);
        return;
    }
    let mut warnings = settings.1.clone();
    GatewaySettings::read(&proxy.instance, &mut warnings);
    // In the order of Consul.
    let chains = peering
        .exported_chains(memo, settings.0.fetch_timeout)
        .map(|mut chains| {
            chains.extend(elsewhere.chains());
            chains.extend(peering.server_chains());
            peering::deduplicated(chains)
        });
    let addresses = bind::addresses(&proxy.instance, &mut warnings);
    for address in &addresses {
        unit.part(
            Type::Listener,
            || address.name.clone(),
            false,
            |own| {
                own.append(&mut warnings);
                let chains = chains.as_ref().map_err(Clone::clone)?;
                let bind = Bind::socket("the address of the gateway", &address.host, address.port)?;
                let input = ListenerInput {
                    address,
                    bind: &bind,
                    chains,
                    telemetry: &settings.0.telemetry,
                };
                let resource = listener(memo, &input)?;
                Ok(Some(Made {
                    resource,
                    bind: Some(Box::new(bind)),
                }))
            },
        );
    }
    composer.add(LISTENERS, unit);
}

#[derive(Hash)]
struct ListenerInput<'a> {
    address: &'a Address,
    bind: &'a Bind,
    /// Those before the one for services of this datacenter.
    chains: &'a [ChainInput],
    telemetry: &'a Telemetry,
}

/// The listener at one address.
fn listener(memo: &Memo, input: &ListenerInput<'_>) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(input, |input| {
        let name = format!("{}:{}", input.address.name, input.bind.suffix());
        // The first filter sets the cluster: the server name of the connection.
        let by_name = listener::network_filter(SNI_CLUSTER, encode::any(&SniCluster {}));
        let stats = names::stat_prefix("mesh_gateway_local.", &input.address.name);
        let proxy = listener::tcp_proxy(&stats, "", ATTEMPTS, false, input.telemetry);
        let named = input.chains.iter().map(|chain| {
            let (cluster, telemetry) = (&chain.cluster, input.telemetry);
            let stats = chain.stats.prefix(&input.address.name);
            let names = FilterChainMatch {
                server_names: chain.server_names.clone(),
                ..FilterChainMatch::default()
            };
            FilterChain {
                filter_chain_match: Some(names),
                ..match &chain.terminated {
                    Some(terminated) => peering::terminated(terminated, &stats, telemetry),
                    None => FilterChain {
                        filters: vec![listener::tcp_proxy(
                            &stats, cluster, ATTEMPTS, false, telemetry,
                        )],
                        ..FilterChain::default()
                    },
                }
            }
        });
        let every_other = FilterChain {
            filters: vec![by_name, proxy],
            ..FilterChain::default()
        };
        let chains = named.chain([every_other]).collect();
        let direction = TrafficDirection::Unspecified;
        let mut made =
            listener::listener(&name, input.bind, direction, false, input.telemetry, chains);
        made.listener_filters = vec![listener::tls_inspector()];
        let terminated = input
            .chains
            .iter()
            .filter_map(|one| one.terminated.as_ref());
        let routes: Vec<&str> = terminated.map(|one| &*one.routes).collect();
        Ok(encode::resource(&name, &made, &routes))
    })
}
