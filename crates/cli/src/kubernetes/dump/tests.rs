use serde_json::json;

use super::*;

fn document() -> Value {
    let socket =
        |host: &str, port: u16| json!({"socket_address": {"address": host, "port_value": port}});
    json!({"configs": [
        {
            "@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump",
            "bootstrap": {"dynamic_resources": {"ads_config": {"grpc_services": [{
                "initial_metadata": [{"key": "x-consul-token", "value": "secret-1"}],
            }]}}},
        },
        {
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
            "static_clusters": [{"cluster": {"name": "local_agent", "type": "STATIC"}}],
            "dynamic_active_clusters": [{"cluster": {"name": "api.default", "type": "EDS"}}],
            "dynamic_warming_clusters": [{"cluster": {"name": "new", "type": "EDS"}}],
        },
        {
            "@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump",
            "dynamic_endpoint_configs": [{"endpoint_config": {
                "cluster_name": "api.default",
                "endpoints": [{"lb_endpoints": [{
                    "endpoint": {"address": socket("10.0.0.9", 20000)},
                    "health_status": "HEALTHY", "load_balancing_weight": 1,
                }]}],
            }}],
        },
        {
            "@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
            "dynamic_listeners": [{"name": "public", "active_state": {"listener": {
                "name": "public", "address": socket("0.0.0.0", 20000),
                "traffic_direction": "INBOUND",
            }}}],
        },
        {
            "@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
            "dynamic_route_configs": [{"route_config": {"name": "api", "virtual_hosts": [{
                "name": "api", "domains": ["*"],
                "routes": [
                    {"match": {"prefix": "/v2"}, "route": {"cluster": "api.default"},
                     "request_headers_to_add": [{"header": {"key": "Authorization", "value": "secret-2"}}]},
                    {"match": {"path": "/a", "headers": [{}]}, "route": {"weighted_clusters": {
                        "clusters": [{"name": "a", "weight": 90}, {"name": "b", "weight": 10}]}}},
                    {"match": {"safe_regex": {"regex": "/x.*"}}, "direct_response": {"status": 404}},
                ],
            }]}}],
        },
        {
            "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
            "dynamic_active_secrets": [{"name": "leaf", "secret": {"tls_certificate": {
                "certificate_chain": {"inline_string": "public"},
                "private_key": {"inline_string": "secret-3"},
            }}}],
        },
    ]})
}

#[test]
fn all_secrets_are_removed() {
    let mut document = document();
    redact(&mut document);
    let text = document.to_string();
    assert!(!text.contains("secret-"), "{text}");
    assert_eq!(text.matches("***").count(), 3);
    assert!(text.contains("x-consul-token") && text.contains("public"));
}

#[test]
fn every_kind_is_a_table() {
    let document = document();
    let all: Vec<String> = Kind::ALL.iter().map(|kind| kind.text(&document)).collect();
    let expected = "\
CLUSTER       TYPE     STATE
local_agent   STATIC   active
api.default   EDS      active
new           EDS      warming

CLUSTER OF ENDPOINT   ADDRESS          HEALTH    WEIGHT
api.default           10.0.0.9:20000   HEALTHY   1

LISTENER   ADDRESS         DIRECTION   STATE
public     0.0.0.0:20000   INBOUND     active

ROUTES   DOMAINS   MATCH           CLUSTER
api      *         /v2*            api.default
api      *         /a and 1 more   a (90),b (10)
api      *         ~/x.*           (direct response)

SECRET   KIND          STATE
leaf     certificate   active
";
    assert_eq!(all.join("\n"), expected);
}

#[test]
fn an_envoy_without_a_kind_has_an_empty_table() {
    let text = Kind::Routes.text(&json!({"configs": []}));
    assert_eq!(text, "ROUTES   DOMAINS   MATCH   CLUSTER\n");
    assert!(Kind::Routes.of(&json!({})).is_none());
}

#[test]
fn addresses() {
    let of = |host: &str| address(&json!({"socket_address": {"address": host, "port_value": 80}}));
    assert_eq!(of("10.0.0.1"), "10.0.0.1:80");
    assert_eq!(of("::1"), "[::1]:80");
    assert_eq!(address(&json!({"pipe": {"path": "/run/x"}})), "/run/x");
}
