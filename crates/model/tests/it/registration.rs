//! Registrations: accepted and refused requests, and derived values.

use legate_model::json::{UnknownFields, from_value};
use legate_model::{CheckStatus, DeregisterRequest, RegisterRequest, ServiceKind};
use serde_json::{Value, json};

fn request(value: Value) -> RegisterRequest {
    from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
}

/// A valid request with parts of it replaced.
fn with(changes: Value) -> RegisterRequest {
    let mut base = json!({
        "Node": "n1",
        "Address": "10.0.0.1",
        "Service": {
            "Kind": "connect-proxy",
            "Service": "web-sidecar-proxy",
            "Port": 21000,
            "Proxy": {
                "DestinationServiceName": "web",
                "Upstreams": [{"DestinationName": "api", "LocalBindPort": 9191}],
            },
        },
    });
    merge(&mut base, changes);
    request(base)
}

fn merge(base: &mut Value, changes: Value) {
    match (base, changes) {
        (Value::Object(base), Value::Object(changes)) => {
            for (key, value) in changes {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, value) => *base = value,
    }
}

#[test]
fn a_sidecar_is_accepted() {
    assert_eq!(with(json!({})).validate(), Ok(()));
    let node_alone = request(json!({"Node": "n1", "Address": "10.0.0.1"}));
    assert_eq!(node_alone.validate(), Ok(()));
    let skipping = request(json!({"Node": "n1", "SkipNodeUpdate": true}));
    assert_eq!(skipping.validate(), Ok(()));
}

/// As in Consul, whose agents set reserved keys; keys of services permit fewer characters.
#[test]
fn metadata_keys_of_nodes_may_have_any_characters() {
    let node = with(json!({"NodeMeta": {"a=b": "c", "a b/é": "", "consul-x": "y"}}));
    node.validate().unwrap();
    let service = with(json!({"Service": {"Meta": {"a=b": "c"}}}));
    let refused = service.validate().unwrap_err().to_string();
    assert!(refused.contains("Service.Meta"), "{refused}");
}

/// As in Consul: if one weight is set, the other one defaults to 0.
#[test]
fn an_omitted_weight_is_zero() {
    let weights = |weights: serde_json::Value| {
        let request = with(json!({"Service": {"Weights": weights}}));
        request.validate().unwrap();
        let weights = request.service.unwrap().weights;
        (weights.passing, weights.warning)
    };
    assert_eq!(weights(json!({"Passing": 10})), (10, 0));
    assert_eq!(weights(json!({"Passing": 10, "Warning": null})), (10, 0));
    assert_eq!(weights(json!({})), (1, 1));
    assert_eq!(weights(json!(null)), (1, 1));
    assert_eq!(weights(json!({"Passing": 0})), (1, 1));
}

/// Go's client sends zeros for unset weights.
#[test]
fn weights_of_zero_are_the_default() {
    let unset = with(json!({"Service": {"Weights": {"Passing": 0, "Warning": 0}}}));
    assert_eq!(unset.validate(), Ok(()));
    let weights = unset.service.unwrap().weights;
    assert_eq!((weights.passing, weights.warning), (1, 1));
    let set = with(json!({"Service": {"Weights": {"Passing": 3, "Warning": 0}}}));
    let weights = set.service.unwrap().weights;
    assert_eq!((weights.passing, weights.warning), (3, 0));
}

/// Asserts that every change makes the request invalid, with an error at the field that contains the
/// text.
fn refuses<const N: usize>(cases: [(Value, &str, &str); N]) {
    for (changes, field, part) in cases {
        let Err(error) = with(changes.clone()).validate() else {
            panic!("{changes} is accepted");
        };
        assert_eq!(error.path(), field, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn refusals_of_nodes_name_the_field() {
    refuses([
        (json!({"Node": ""}), "Node", "must not be empty"),
        (json!({"Node": "a/b"}), "Node", "slash"),
        (json!({"Node": "n".repeat(100_000)}), "Node", "at most 512"),
        (json!({"Address": ""}), "Address", "SkipNodeUpdate"),
        (json!({"Address": "not an address"}), "Address", "host name"),
        (
            json!({"Address": "10.0.0.1:80"}),
            "Address",
            "without a port",
        ),
        (json!({"Address": "http://web/"}), "Address", "host name"),
        (
            json!({"Address": "0.0.0.0"}),
            "Address",
            "the unspecified address",
        ),
        (
            json!({"TaggedAddresses": {"lan": "a b"}}),
            "TaggedAddresses.lan",
            "host name",
        ),
        (json!({"ID": "7"}), "ID", "UUID"),
        (
            json!({"NodeMeta": {"k".repeat(129): "c"}}),
            "NodeMeta",
            "more than 128",
        ),
    ]);
}

/// Each of them would have invalidated the proxy's whole configuration.
#[test]
fn registrations_unusable_for_envoy_are_refused() {
    let upstream = |more: Value| {
        let mut one = json!({"DestinationName": "api"});
        merge(&mut one, more);
        json!({"Service": {"Proxy": {"Upstreams": [one]}}})
    };
    refuses([
        (
            upstream(json!({"LocalBindPort": 1, "LocalBindAddress": "localhost"})),
            "Service.Proxy.Upstreams[0].LocalBindAddress",
            "IP address",
        ),
        (
            upstream(json!({"LocalBindSocketPath": "/x", "LocalBindSocketMode": "rwx"})),
            "Service.Proxy.Upstreams[0].LocalBindSocketMode",
            "octal",
        ),
        (
            upstream(json!({"LocalBindSocketPath": "/x", "LocalBindSocketMode": "1777"})),
            "Service.Proxy.Upstreams[0].LocalBindSocketMode",
            "0777",
        ),
        (
            json!({"Service": {"Proxy": {"LocalServiceAddress": "localhost"}}}),
            "Service.Proxy.LocalServiceAddress",
            "IP address",
        ),
        (
            json!({"Service": {"Proxy": {"Config": {"bind_address": "eth0"}}}}),
            "Service.Proxy.Config.bind_address",
            "IP address",
        ),
        (
            json!({"Service": {"Address": "web.example.com"}}),
            "Service.Address",
            "bind_address",
        ),
        (
            json!({"Service": {"Port": 0, "SocketPath": "/run/web.sock"}}),
            "Service.SocketPath",
            "not served",
        ),
    ]);
    let elsewhere = json!({"Service": {
        "Address": "web.example.com", "Proxy": {"Config": {"bind_address": "0.0.0.0"}},
    }});
    assert_eq!(with(elsewhere).validate(), Ok(()));
}

#[test]
fn refusals_of_services_name_the_field() {
    let many: serde_json::Map<String, Value> =
        (0..65).map(|i| (format!("k{i}"), json!(""))).collect();
    refuses([
        (
            json!({"Service": {"Service": ""}}),
            "Service.Service",
            "must not be empty",
        ),
        (
            json!({"Service": {"Service": "*"}}),
            "Service.Service",
            "every service",
        ),
        (json!({"Service": {"ID": "a/b"}}), "Service.ID", "slashes"),
        (
            json!({"Service": {"Port": 0}}),
            "Service.Port",
            "connect-proxy needs the port",
        ),
        (
            json!({"Service": {"SocketPath": "/s"}}),
            "Service.SocketPath",
            "together with Port",
        ),
        (
            json!({"Service": {"Address": "0.0.0.0"}}),
            "Service.Address",
            "the unspecified address",
        ),
        (
            json!({"Service": {"Address": "[::]"}}),
            "Service.Address",
            "the unspecified address",
        ),
        (
            json!({"Service": {"Address": "a b"}}),
            "Service.Address",
            "host name",
        ),
        (
            json!({"Service": {"Weights": {"Warning": 1}}}),
            "Service.Weights.Passing",
            "1 to",
        ),
        (
            json!({"Service": {"Weights": {"Passing": 1, "Warning": 65536}}}),
            "Service.Weights.Warning",
            "0 to",
        ),
        (
            json!({"Service": {"Meta": {"consul-x": ""}}}),
            "Service.Meta",
            "reserved",
        ),
        (
            json!({"Service": {"Meta": {"": ""}}}),
            "Service.Meta",
            "key is empty",
        ),
        (
            json!({"Service": {"Meta": {"k".repeat(129): ""}}}),
            "Service.Meta",
            "more than 128",
        ),
        (
            json!({"Service": {"Meta": {"k": "v".repeat(513)}}}),
            "Service.Meta",
            "more than 512",
        ),
        (
            json!({"Service": {"Meta": many}}),
            "Service.Meta",
            "at most 64",
        ),
        (
            json!({"Service": {"Connect": {"Native": true}}}),
            "Service.Connect.Native",
            "native",
        ),
    ]);
}

#[test]
fn refusals_of_proxies_name_the_field() {
    refuses([
        (
            json!({"Service": {"Proxy": {"DestinationServiceName": ""}}}),
            "Service.Proxy.DestinationServiceName",
            "needs the name",
        ),
        (
            json!({"Service": {"Proxy": {"DestinationServiceName": "*"}}}),
            "Service.Proxy.DestinationServiceName",
            "one service",
        ),
        (
            json!({"Service": {"Proxy": {
                "LocalServicePort": 1, "LocalServiceSocketPath": "/s"
            }}}),
            "Service.Proxy.LocalServiceSocketPath",
            "together",
        ),
    ]);
}

#[test]
fn refusals_of_upstreams_name_the_field() {
    let upstreams = |list: Value| json!({"Service": {"Proxy": {"Upstreams": list}}});
    refuses([
        (
            upstreams(json!([{"DestinationName": "", "LocalBindPort": 1}])),
            "Service.Proxy.Upstreams[0].DestinationName",
            "must not be empty",
        ),
        (
            upstreams(json!([{"DestinationName": "*", "LocalBindPort": 1}])),
            "Service.Proxy.Upstreams[0].DestinationName",
            "upstream destination name cannot be a wildcard",
        ),
        (
            upstreams(json!([{"DestinationName": "a"}])),
            "Service.Proxy.Upstreams[0].LocalBindPort",
            "the application connects to it",
        ),
        (
            upstreams(json!([
                {"DestinationName": "a", "LocalBindPort": 1, "LocalBindSocketPath": "/s"}
            ])),
            "Service.Proxy.Upstreams[0].LocalBindSocketPath",
            "together",
        ),
        (
            upstreams(json!([
                {"DestinationName": "a", "LocalBindPort": 1},
                {"DestinationName": "a", "DestinationType": "service", "LocalBindPort": 2},
            ])),
            "Service.Proxy.Upstreams[1]",
            "a is already given as Upstreams[0]",
        ),
        (
            upstreams(json!([
                {"DestinationName": "a", "LocalBindPort": 1},
                {"DestinationName": "b", "LocalBindPort": 1, "LocalBindAddress": "127.0.0.1"},
            ])),
            "Service.Proxy.Upstreams[1]",
            "same address, 127.0.0.1:1",
        ),
        (
            upstreams(json!([
                {"DestinationName": "a", "LocalBindSocketPath": "/s"},
                {"DestinationName": "b", "LocalBindSocketPath": "/s"},
            ])),
            "Service.Proxy.Upstreams[1]",
            "same socket, /s",
        ),
        (
            upstreams(json!([
                {"DestinationName": "a", "LocalBindPort": 1, "DestinationType": "prepared_query"},
                {"DestinationName": "a", "LocalBindPort": 2},
                {"DestinationName": "a", "LocalBindPort": 3, "DestinationType": "prepared_query"},
            ])),
            "Service.Proxy.Upstreams[2]",
            "prepared_query:a is already given as Upstreams[0]",
        ),
    ]);
}

#[test]
fn refusals_of_upstreams_of_peers_name_the_field() {
    let upstreams = |list: Value| json!({"Service": {"Proxy": {"Upstreams": list}}});
    refuses([
        (
            upstreams(json!([{
                "DestinationName": "a", "LocalBindPort": 1, "DestinationPeer": "p",
                "Datacenter": "dc2",
            }])),
            "Service.Proxy.Upstreams[0].DestinationPeer",
            "upstream cannot specify both destination peer and datacenter",
        ),
        (
            upstreams(json!([{
                "DestinationName": "a", "LocalBindPort": 1, "DestinationPeer": "p.q",
            }])),
            "Service.Proxy.Upstreams[0].DestinationPeer",
            "p.q is not a valid peer name",
        ),
        (
            upstreams(json!([{
                "DestinationName": "a", "LocalBindPort": 1, "DestinationPeer": "p",
                "DestinationType": "prepared_query",
            }])),
            "Service.Proxy.Upstreams[0].DestinationPeer",
            "a prepared query names the peer itself",
        ),
        (
            upstreams(json!([{
                "DestinationName": "a", "LocalBindPort": 1, "DestinationPeer": "p",
                "DestinationPartition": "x",
            }])),
            "Service.Proxy.Upstreams[0].DestinationPartition",
            "a peering belongs to the partition of the proxy",
        ),
    ]);
}

#[test]
fn refusals_of_exposed_paths_logs_and_checks_name_the_field() {
    let expose = |list: Value| json!({"Service": {"Proxy": {"Expose": {"Paths": list}}}});
    let path = json!({"Path": "/m", "ListenerPort": 2, "LocalPathPort": 3});
    refuses([
        (
            expose(json!([{"Path": "", "ListenerPort": 2, "LocalPathPort": 3}])),
            "Service.Proxy.Expose.Paths[0].Path",
            "start with /",
        ),
        (
            expose(json!([{"Path": "/m", "LocalPathPort": 3}])),
            "Service.Proxy.Expose.Paths[0].ListenerPort",
            "1 to 65535",
        ),
        (
            expose(json!([path, path])),
            "Service.Proxy.Expose.Paths[1].ListenerPort",
            "already used",
        ),
        (
            expose(json!([
                {"Path": "/m", "ListenerPort": 2, "LocalPathPort": 3, "Protocol": "grpc"}
            ])),
            "Service.Proxy.Expose.Paths[0].Protocol",
            "http or http2",
        ),
        (
            json!({"Service": {"Proxy": {"AccessLogs": {"Type": "file"}}}}),
            "Service.Proxy.AccessLogs.Path",
            "needs a path",
        ),
        (
            json!({"Check": {"Status": "passing"}}),
            "Check.CheckID",
            "CheckID or Name",
        ),
        (
            json!({"Checks": [{"CheckID": "c", "Node": "n2"}]}),
            "Checks[0].Node",
            "not the node",
        ),
    ]);
}

#[test]
fn gateways_have_their_own_rules() {
    let gateway = |kind: &str, service: Value| {
        let mut base = json!({"Node": "n1", "Address": "a", "Service": {"Service": "gw"}});
        merge(&mut base, json!({"Service": {"Kind": kind}}));
        merge(&mut base, json!({"Service": service}));
        request(base).validate()
    };
    assert_eq!(gateway("ingress-gateway", json!({})), Ok(()));
    assert_eq!(gateway("api-gateway", json!({})), Ok(()));
    let federated = json!({"Port": 443, "Meta": {"consul-wan-federation": "1"}});
    assert_eq!(gateway("mesh-gateway", federated), Ok(()));
    for (kind, service, field) in [
        ("mesh-gateway", json!({}), "Service.Port"),
        ("terminating-gateway", json!({}), "Service.Port"),
        (
            "ingress-gateway",
            json!({"Proxy": {"DestinationServiceName": "web"}}),
            "Service.Proxy.DestinationServiceName",
        ),
        (
            "ingress-gateway",
            json!({"Proxy": {"LocalServicePort": 1}}),
            "Service.Proxy.LocalServicePort",
        ),
        (
            "api-gateway",
            json!({"Proxy": {"Upstreams": [{"DestinationName": "a", "LocalBindPort": 1}]}}),
            "Service.Proxy.Upstreams",
        ),
    ] {
        assert_eq!(gateway(kind, service).unwrap_err().path(), field);
    }
}

#[test]
fn ids_and_check_details_are_derived() {
    let parts = request(json!({
        "ID": "0000000A-0000-0000-0000-00000000000a",
        "Node": "n1",
        "Address": "10.0.0.1",
        "Service": {"Service": "web", "Tags": ["t"]},
        "Check": {"Name": "alive"},
        "Checks": [
            {"CheckID": "c", "ServiceID": "web", "Status": "warning"},
            {"CheckID": "d", "ServiceID": "other", "ServiceName": "kept"},
        ],
    }))
    .into_parts("dc1");
    assert_eq!(parts.node.id, "0000000a-0000-0000-0000-00000000000a");
    assert_eq!(parts.node.datacenter, "dc1");
    let service = parts.service.unwrap();
    assert_eq!(
        (service.id.as_str(), service.kind),
        ("web", ServiceKind::Typical)
    );
    let [alive, own, other] = parts.checks.as_slice() else {
        panic!("{:?}", parts.checks)
    };
    assert_eq!(
        (alive.check_id.as_str(), alive.node.as_str()),
        ("alive", "n1")
    );
    assert_eq!(
        (alive.status, alive.service_name.as_str()),
        (CheckStatus::Critical, "")
    );
    assert_eq!(
        (own.service_name.as_str(), own.status),
        ("web", CheckStatus::Warning)
    );
    assert_eq!(own.service_tags, ["t"]);
    assert_eq!(other.service_name, "kept");
}

#[test]
fn deregistering_requires_a_node() {
    let request = |value| -> DeregisterRequest {
        from_value(value, UnknownFields::Refuse).unwrap_or_else(|error| panic!("{error}"))
    };
    let good = request(json!({"Node": "n1", "ServiceID": "web", "CheckID": "c"}));
    assert_eq!(good.validate(), Ok(()));
    let bad = request(json!({"ServiceID": "web"}));
    assert_eq!(bad.validate().unwrap_err().path(), "Node");
}
