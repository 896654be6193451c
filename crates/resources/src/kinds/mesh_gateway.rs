//! The mesh gateway: it forwards TLS connections by their server name (SNI) and terminates none. A
//! cluster for each service and subset of its partition has that server name as its name, so that
//! one filter chain serves all of them.

use std::cell::LazyCell;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::FilterChain;
use envoy_types::pb::envoy::extensions::filters::network::sni_cluster::v3::SniCluster;
use legate_model::{ServiceName, sni};
use legate_proxycfg::{Instances, MeshGateway, MeshService, Proxy, opaque};

use super::change::{Positions, SameProxy};
use crate::composer::Composer;
use crate::encode::{self, EncodedResource};
use crate::endpoint;
use crate::error::GenerateError;
use crate::gateway::bind::{self, Address};
use crate::gateway::cluster::{self, ServiceCluster};
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names::{self, SNI_CLUSTER};
use crate::part::{Made, UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;
use crate::settings::{Limits, ProxySettings, Settings};
use crate::telemetry::Telemetry;

/// The services, one unit each.
const SERVICES: Section = Section("services");

/// The listeners, one for each address.
const LISTENERS: Section = Section("listeners");

/// The connect timeout for services without one, as in Consul.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    let last = last.map(|(_, last)| last);
    let services = Services {
        memo: composer.memo,
        proxy,
        settings: &settings,
        limits: (*own.limits).as_ref().map(Limits::of),
        connect_timeout: connect_timeout(proxy, &mut Vec::new()),
        same: same.mesh_name
            && same.instance
            && last.is_some_and(|last| Arc::ptr_eq(&last.limits, &own.limits)),
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
    listeners(composer, proxy, same, &settings);
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

/// Adds the listeners, in the order of their names.
fn listeners(composer: &mut Composer<'_>, proxy: &Proxy, same: SameProxy, settings: &Settings<'_>) {
    let memo = composer.memo;
    let mut unit = composer.unit(LISTENERS, Some(0));
    if same.instance && unit.is_sound() && unit.take_over() {
        composer.add(LISTENERS, unit);
        return;
    }
    let mut warnings = settings.1.clone();
    connect_timeout(proxy, &mut warnings);
    let addresses = bind::addresses(&proxy.instance, &mut warnings);
    for address in &addresses {
        unit.part(
            Type::Listener,
            || address.name.clone(),
            false,
            |own| {
                own.append(&mut warnings);
                let bind = Bind::socket("the address of the gateway", &address.host, address.port)?;
                let resource = listener(memo, address, &bind, &settings.0.telemetry)?;
                Ok(Some(Made {
                    resource,
                    bind: Some(Box::new(bind)),
                }))
            },
        );
    }
    composer.add(LISTENERS, unit);
}

/// The connect timeout of the registration.
fn connect_timeout(proxy: &Proxy, warnings: &mut Vec<String>) -> Duration {
    let read = opaque::integer(&proxy.instance.proxy.config, "connect_timeout_ms");
    let millis = read.unwrap_or_else(|error| {
        warnings.push(format!("Proxy.Config: {error}; the default is used"));
        None
    });
    let positive = millis
        .and_then(|millis| u64::try_from(millis).ok())
        .filter(|millis| *millis > 0);
    positive.map_or(CONNECT_TIMEOUT, Duration::from_millis)
}

#[derive(Hash)]
struct ListenerInput<'a> {
    address: &'a Address,
    bind: &'a Bind,
    telemetry: &'a Telemetry,
}

/// The listener at one address.
fn listener(
    memo: &Memo,
    address: &Address,
    bind: &Bind,
    telemetry: &Telemetry,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = ListenerInput {
        address,
        bind,
        telemetry,
    };
    memo.get(&input, |input| {
        let name = format!("{}:{}", input.address.name, input.bind.suffix());
        // The first filter sets the cluster: the server name of the connection.
        let by_name = listener::network_filter(SNI_CLUSTER, encode::any(&SniCluster {}));
        let stats = names::stat_prefix("mesh_gateway_local.", &input.address.name);
        let proxy = listener::tcp_proxy(&stats, "", 1, false, input.telemetry);
        let chain = FilterChain {
            filters: vec![by_name, proxy],
            ..FilterChain::default()
        };
        let direction = TrafficDirection::Unspecified;
        let mut made = listener::listener(
            &name,
            input.bind,
            direction,
            false,
            input.telemetry,
            vec![chain],
        );
        made.listener_filters = vec![listener::tls_inspector()];
        Ok(encode::resource(&name, &made, &[]))
    })
}
