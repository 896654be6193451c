//! Merges central configuration into a registration. The registration takes precedence over
//! `service-defaults`, and `service-defaults` over `proxy-defaults`.
//!
//! Pure. A key of an opaque map is added only if the registration does not have it in any spelling.
//! Values of the registration are never changed.

use std::sync::Arc;
use std::time::Duration;

use legate_discovery_chain::Overrides;
use legate_model::{
    ConfigEntry, ConfigKind, InstanceRateLimits, MeshGateway, Opaque, Protocol, ProxyDefaults,
    ServiceDefaults, ServiceInstance, ServiceName, Tenancy, Upstream, UpstreamConfiguration,
    UpstreamDefaults,
};
use serde::Serialize;
use serde_json::Value;

use crate::opaque;

/// The config entries that are merged into a registration.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Central<'a> {
    /// The `proxy-defaults` entry.
    pub(crate) proxy_defaults: Option<&'a ConfigEntry>,
    /// The `service-defaults` entry of the proxy's service.
    pub(crate) service_defaults: Option<&'a ConfigEntry>,
}

impl<'a> Central<'a> {
    fn proxy(&self) -> Option<&'a ProxyDefaults> {
        match self.proxy_defaults {
            Some(ConfigEntry::ProxyDefaults(entry)) => Some(entry),
            _ => None,
        }
    }

    fn service(&self) -> Option<&'a ServiceDefaults> {
        match self.service_defaults {
            Some(ConfigEntry::ServiceDefaults(entry)) => Some(entry),
            _ => None,
        }
    }
}

/// A proxy's registration merged with the catalog's central configuration: the input of the proxy's
/// bootstrap and of its snapshots.
pub fn merge_central_config(
    instance: &ServiceInstance,
    catalog: &legate_store::ReadTxn<'_>,
) -> ServiceInstance {
    let proxy_defaults = catalog.config_entry(ConfigKind::ProxyDefaults, ProxyDefaults::NAME);
    let service_defaults = catalog.config_entry(ConfigKind::ServiceDefaults, instance.identity());
    let central = Central {
        proxy_defaults: proxy_defaults.as_deref(),
        service_defaults: service_defaults.as_deref(),
    };
    merge(instance, &central)
}

/// The registration with the values of `central` where it has none.
pub(crate) fn merge(instance: &ServiceInstance, central: &Central<'_>) -> ServiceInstance {
    let mut merged = instance.clone();
    fill(&mut merged.proxy.config, proxy_config(central));
    fill_fields(&mut merged, central);
    for upstream in &mut merged.proxy.upstreams {
        fill_upstream(upstream, instance, central);
    }
    merged
}

/// The opaque proxy config of both entries, merged.
fn proxy_config(central: &Central<'_>) -> Opaque {
    let mut config = central
        .proxy()
        .map(|entry| entry.config.clone())
        .unwrap_or_default();
    let Some(service) = central.service() else {
        return config;
    };
    let mut over = Opaque::new();
    set_text(&mut over, "protocol", &service.protocol);
    set_text(
        &mut over,
        "balance_inbound_connections",
        &service.balance_inbound_connections,
    );
    set_number(
        &mut over,
        "max_inbound_connections",
        service.max_inbound_connections,
    );
    set_number(
        &mut over,
        "local_connect_timeout_ms",
        service.local_connect_timeout_ms,
    );
    set_number(
        &mut over,
        "local_request_timeout_ms",
        service.local_request_timeout_ms,
    );
    fill(&mut over, std::mem::take(&mut config));
    over
}

/// Merges everything except the opaque maps.
fn fill_fields(merged: &mut ServiceInstance, central: &Central<'_>) {
    let (global, service) = (central.proxy(), central.service());
    let proxy = &mut merged.proxy;
    proxy.mode = first_set([
        Some(proxy.mode),
        service.map(|entry| entry.mode),
        global.map(|entry| entry.mode),
    ]);
    proxy.mutual_tls_mode = first_set([
        Some(proxy.mutual_tls_mode),
        service.map(|entry| entry.mutual_tls_mode),
        global.map(|entry| entry.mutual_tls_mode),
    ]);
    proxy.mesh_gateway.mode = first_set([
        Some(proxy.mesh_gateway.mode),
        service.map(|entry| entry.mesh_gateway.mode),
        global.map(|entry| entry.mesh_gateway.mode),
    ]);
    let captured = [
        service.map(|entry| &entry.transparent_proxy),
        global.map(|entry| &entry.transparent_proxy),
    ];
    let exposed = [
        service.map(|entry| &entry.expose),
        global.map(|entry| &entry.expose),
    ];
    for from in captured.into_iter().flatten() {
        if proxy.transparent_proxy.outbound_listener_port == 0 {
            proxy.transparent_proxy.outbound_listener_port = from.outbound_listener_port;
        }
        proxy.transparent_proxy.dialed_directly |= from.dialed_directly;
    }
    for from in exposed.into_iter().flatten() {
        proxy.expose.checks |= from.checks;
        if proxy.expose.paths.is_empty() {
            proxy.expose.paths.clone_from(&from.paths);
        }
    }
    if let Some(global) = global
        && proxy.access_logs == Default::default()
    {
        proxy.access_logs = global.access_logs.clone();
    }
    proxy.rate_limits = service
        .and_then(|entry| entry.rate_limits.as_ref())
        .map(|limits| limits.instance_level.clone())
        .filter(|limits| *limits != InstanceRateLimits::default());
    // Extensions come from central configuration only; those in a registration are ignored.
    proxy.envoy_extensions = global
        .into_iter()
        .flat_map(|entry| &entry.envoy_extensions)
        .chain(
            service
                .into_iter()
                .flat_map(|entry| &entry.envoy_extensions),
        )
        .cloned()
        .collect();
}

/// Applies the `service-defaults` of the caller to the mode and config of one upstream. If they
/// change nothing, the upstream stays the `Arc` of the catalog. They apply to services only, not to
/// prepared queries.
fn fill_upstream(upstream: &mut Arc<Upstream>, instance: &ServiceInstance, central: &Central<'_>) {
    if !upstream.destination_type.is_service() {
        return;
    }
    let settings = central
        .service()
        .and_then(|entry| entry.upstream_config.as_ref());
    let defaults = settings.and_then(|settings| settings.defaults.as_ref());
    let own = central
        .service()
        .map(|entry| Tenancy::new(&entry.partition, &entry.namespace));
    let own = own.unwrap_or_default();
    let overrides = settings.and_then(|settings| overriding(settings, upstream, &own));
    let mode = first_set([
        Some(upstream.mesh_gateway.mode),
        overrides.map(|entry| entry.mesh_gateway.mode),
        Some(instance.proxy.mesh_gateway.mode),
        defaults.map(|entry| entry.mesh_gateway.mode),
        central.service().map(|entry| entry.mesh_gateway.mode),
        central.proxy().map(|entry| entry.mesh_gateway.mode),
    ]);
    let is_gateway = |key: &String| opaque::spelled_alike(key, "mesh_gateway");
    let entries = [overrides, defaults];
    let changes = mode != upstream.mesh_gateway.mode
        || upstream.config.keys().any(is_gateway)
        || entries.iter().any(Option::is_some);
    if !changes {
        return;
    }
    let upstream = Arc::make_mut(upstream);
    upstream.mesh_gateway.mode = mode;
    upstream.config.retain(|key, _| !is_gateway(key));
    for entry in entries.into_iter().flatten() {
        fill(&mut upstream.config, upstream_config(entry));
    }
}

/// The override for one upstream, from the `service-defaults` of a caller in the tenancy `own`.
fn overriding<'a>(
    settings: &'a UpstreamConfiguration,
    upstream: &Upstream,
    own: &Tenancy,
) -> Option<&'a UpstreamDefaults> {
    settings.overrides.iter().find(|candidate| {
        candidate
            .name
            .eq_ignore_ascii_case(&upstream.destination_name)
            && candidate
                .peer
                .eq_ignore_ascii_case(&upstream.destination_peer)
            && own.resolve(&candidate.partition, &candidate.namespace) == upstream.tenancy(own)
    })
}

/// A service as an upstream of a caller in the tenancy `own`.
pub(crate) fn plain_upstream(service: &ServiceName, own: &Tenancy) -> Upstream {
    let (destination_partition, destination_namespace) = service.tenancy.named_from(own);
    Upstream {
        destination_partition,
        destination_namespace,
        destination_peer: service.tenancy.peer.as_ref().to_owned(),
        destination_name: service.name.as_ref().to_owned(),
        ..Upstream::default()
    }
}

/// Normalizes how the upstreams of an instance in the tenancy `own` name their tenancies.
pub(crate) fn name_tenancies(instance: &mut ServiceInstance, own: &Tenancy) {
    for upstream in &mut instance.proxy.upstreams {
        let (partition, namespace) = upstream.tenancy(own).named_from(own);
        if partition != upstream.destination_partition
            || namespace != upstream.destination_namespace
        {
            let upstream = Arc::make_mut(upstream);
            upstream.destination_partition = partition;
            upstream.destination_namespace = namespace;
        }
    }
}

/// An upstream without a registration, with the settings of its caller's `service-defaults`.
pub(crate) fn unregistered_upstream(
    service: &ServiceName,
    own: &Tenancy,
    central: &Central<'_>,
) -> Upstream {
    let mut upstream = Arc::new(plain_upstream(service, own));
    fill_upstream(&mut upstream, &ServiceInstance::default(), central);
    let mut upstream = Arc::unwrap_or_clone(upstream);
    if upstream.destination_peer.is_empty() {
        // It has no effect here, and without it the upstream is the same for every caller.
        upstream.mesh_gateway = MeshGateway::default();
    }
    upstream
}

/// Whether the caller's `service-defaults` have settings for upstreams.
pub(crate) fn has_upstream_config(central: &Central<'_>) -> bool {
    let settings = central
        .service()
        .and_then(|one| one.upstream_config.as_ref());
    settings.is_some()
}

/// Whether the caller's `service-defaults` say how it reaches what is behind gateways.
pub(crate) fn has_gateway_mode(central: &Central<'_>) -> bool {
    let mode = central.service().map(|one| &one.mesh_gateway);
    mode.is_some_and(|mode| *mode != MeshGateway::default())
}

fn upstream_config(entry: &UpstreamDefaults) -> Opaque {
    let mut config = Opaque::new();
    set_text(
        &mut config,
        "envoy_listener_json",
        &entry.envoy_listener_json,
    );
    set_text(&mut config, "envoy_cluster_json", &entry.envoy_cluster_json);
    set_text(&mut config, "protocol", &entry.protocol);
    set_number(&mut config, "connect_timeout_ms", entry.connect_timeout_ms);
    set_object(&mut config, "limits", entry.limits.as_ref());
    set_object(
        &mut config,
        "passive_health_check",
        entry.passive_health_check.as_ref(),
    );
    set_text(
        &mut config,
        "balance_outbound_connections",
        &entry.balance_outbound_connections,
    );
    config
}

/// The first value that is not its type's default, which means unset.
fn first_set<T: Copy + Default + PartialEq, const N: usize>(values: [Option<T>; N]) -> T {
    values
        .into_iter()
        .flatten()
        .find(|value| *value != T::default())
        .unwrap_or_default()
}

/// Adds the keys of `from` that `config` does not have in any spelling.
fn fill(config: &mut Opaque, from: Opaque) {
    for (key, value) in from {
        if !config.keys().any(|own| opaque::spelled_alike(own, &key)) {
            config.insert(key, value);
        }
    }
}

fn set_text(config: &mut Opaque, key: &str, value: &str) {
    if !value.is_empty() {
        config.insert(key.to_owned(), Value::from(value));
    }
}

fn set_number(config: &mut Opaque, key: &str, value: u32) {
    if value != 0 {
        config.insert(key.to_owned(), Value::from(value));
    }
}

fn set_object(config: &mut Opaque, key: &str, value: Option<&impl Serialize>) {
    // These types are plain structs of numbers and texts, which always have a JSON form.
    if let Some(value) = value.and_then(|value| serde_json::to_value(value).ok()) {
        config.insert(key.to_owned(), value);
    }
}

/// The protocol of the service behind a merged registration.
pub(crate) fn own_protocol(instance: &ServiceInstance) -> Protocol {
    config_protocol(&instance.proxy.config).unwrap_or_default()
}

/// Whether all instances of a service with this central configuration may be dialled directly.
pub(crate) fn is_dialled_directly(callee: &Central<'_>) -> bool {
    let service = callee.service().map(|entry| &entry.transparent_proxy);
    let global = callee.proxy().map(|entry| &entry.transparent_proxy);
    let mut both = service.into_iter().chain(global);
    both.any(|settings| settings.dialed_directly)
}

/// A protocol that cannot be parsed counts as unset: the config is opaque and was never validated.
fn config_protocol(config: &Opaque) -> Option<Protocol> {
    let text = opaque::text(config, "protocol").ok().flatten()?;
    text.parse().ok().filter(|_| !text.is_empty())
}

/// The settings of a caller's registration, or of its `service-defaults`, that make the chain
/// differ from that of other callers.
pub(crate) fn overrides(upstream: &Upstream) -> Overrides {
    let timeout = opaque::count(&upstream.config, "connect_timeout_ms");
    let timeout = timeout.ok().flatten().unwrap_or_default();
    Overrides {
        mesh_gateway: upstream.mesh_gateway.mode,
        protocol: config_protocol(&upstream.config),
        // A timeout of zero overrides nothing.
        connect_timeout: Duration::from_millis(timeout.into()),
    }
}

#[cfg(test)]
mod tests;
