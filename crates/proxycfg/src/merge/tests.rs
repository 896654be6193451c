//! The precedence of the sources of a setting.

use serde_json::json;

use super::*;

fn map(value: Value) -> Opaque {
    value.as_object().cloned().unwrap()
}

fn proxy_defaults(config: Value) -> ConfigEntry {
    ConfigEntry::ProxyDefaults(ProxyDefaults {
        name: ProxyDefaults::NAME.to_owned(),
        config: map(config),
        ..ProxyDefaults::default()
    })
}

fn service_defaults(entry: Value) -> ConfigEntry {
    ConfigEntry::ServiceDefaults(serde_json::from_value(entry).unwrap())
}

fn sidecar(proxy: Value) -> ServiceInstance {
    serde_json::from_value(json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": proxy,
    }))
    .unwrap()
}

#[test]
fn the_registration_wins_over_the_service_over_all() {
    let global = proxy_defaults(json!({
        "protocol": "http", "local_connect_timeout_ms": 1, "local_request_timeout_ms": 1, "a": 1,
    }));
    let service = service_defaults(json!({
        "Name": "web", "Protocol": "http2", "LocalConnectTimeoutMs": 2, "MaxInboundConnections": 7,
    }));
    let instance = sidecar(json!({
        "DestinationServiceName": "web", "Config": {"Local_Connect_Timeout_Ms": 3},
    }));
    let central = Central {
        proxy_defaults: Some(&global),
        service_defaults: Some(&service),
    };
    let merged = merge(&instance, &central);
    let expected = map(json!({
        "Local_Connect_Timeout_Ms": 3, "protocol": "http2", "local_request_timeout_ms": 1,
        "max_inbound_connections": 7, "a": 1,
    }));
    assert_eq!(merged.proxy.config, expected);
    assert_eq!(own_protocol(&merged), Protocol::Http2);
}

#[test]
fn limits_are_the_services() {
    let service = service_defaults(json!({
        "Name": "web", "RateLimits": {"InstanceLevel": {"RequestsPerSecond": 7}},
    }));
    let central = Central {
        proxy_defaults: None,
        service_defaults: Some(&service),
    };
    let merged = merge(&sidecar(json!({})), &central);
    assert_eq!(merged.proxy.rate_limits.unwrap().requests_per_second, 7);
}

#[test]
fn without_central_configuration_nothing_changes() {
    let instance = sidecar(json!({
        "DestinationServiceName": "web", "Config": {"protocol": "grpc"},
        "Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191, "Config": {"x": 1}}],
    }));
    assert_eq!(merge(&instance, &Central::default()), instance);
}

#[test]
fn upstreams_take_their_settings_from_the_callers_entry() {
    let service = service_defaults(json!({
        "Name": "web",
        "UpstreamConfig": {
            "Defaults": {"ConnectTimeoutMs": 1000, "Limits": {"MaxConnections": 3}},
            "Overrides": [{"Name": "db", "ConnectTimeoutMs": 2000, "Protocol": "tcp"}],
        },
    }));
    let instance = sidecar(json!({
        "DestinationServiceName": "web",
        "Upstreams": [
            {"DestinationName": "api", "LocalBindPort": 1, "Config": {"connect_timeout_ms": 9}},
            {"DestinationName": "db", "LocalBindPort": 2},
        ],
    }));
    let central = Central {
        proxy_defaults: None,
        service_defaults: Some(&service),
    };
    let upstreams = merge(&instance, &central).proxy.upstreams;
    assert_eq!(
        upstreams[0].config,
        map(json!({"connect_timeout_ms": 9, "limits": {"MaxConnections": 3}}))
    );
    assert_eq!(
        upstreams[1].config,
        map(
            json!({"connect_timeout_ms": 2000, "protocol": "tcp", "limits": {"MaxConnections": 3}})
        )
    );
}

#[test]
fn overrides_of_an_upstream() {
    let wanted = |config: Value| {
        overrides(&Upstream {
            config: map(config),
            ..Upstream::default()
        })
    };
    assert_eq!(wanted(json!({})), Overrides::default());
    let both = wanted(json!({"protocol": "GRPC", "connect_timeout_ms": "6000"}));
    assert_eq!(both.protocol, Some(Protocol::Grpc));
    assert_eq!(both.connect_timeout, Duration::from_secs(6));
    // Values that cannot be parsed count as absent.
    let unreadable = wanted(json!({"protocol": "quic", "connect_timeout_ms": -1}));
    assert_eq!(unreadable, Overrides::default());
}
