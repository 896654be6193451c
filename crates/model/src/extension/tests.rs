//! Arguments that are accepted, and those that are refused by name.

use serde_json::{Value, json};

use super::*;

fn extension(name: &str, arguments: Value) -> EnvoyExtension {
    serde_json::from_value(json!({"Name": name, "Arguments": arguments})).unwrap()
}

fn refused(name: &str, arguments: Value) -> String {
    match Extension::read(&extension(name, arguments)) {
        Ok(taken) => panic!("{taken:?} is taken"),
        Err(error) => error.to_string(),
    }
}

fn taken(name: &str, arguments: Value) -> Extension {
    Extension::read(&extension(name, arguments)).unwrap()
}

#[test]
fn unsupported_names_are_refused() {
    let lambda = refused("builtin/aws/lambda", json!({"ARN": "arn:aws:x"}));
    assert!(
        lambda.starts_with("Name: builtin/aws/lambda is not served"),
        "{lambda}"
    );
    let other = refused("builtin/mine", json!({}));
    assert!(
        other.contains("\"builtin/mine\" is not a built-in extension"),
        "{other}"
    );
    assert_eq!(refused("", json!({})), "Name: it is required");
}

#[test]
fn errors_name_the_entry_and_the_argument() {
    let list = [
        extension(LUA, json!({"Listener": "inbound", "Script": "x"})),
        extension(LUA, json!({"Listener": "inbound", "Scrip": "x"})),
    ];
    let error = validate_extensions(&list).unwrap_err().to_string();
    assert_eq!(
        error,
        "EnvoyExtensions[1].Arguments: 1 error: invalid config key \"Scrip\""
    );
}

#[test]
fn lua() {
    let script = taken(LUA, json!({"listener": "outbound", "Script": "x"}));
    assert!(matches!(script, Extension::Lua(lua) if lua.listener == Direction::Outbound));
    for (arguments, expected) in [
        (
            json!({"Listener": "inbound"}),
            "Arguments.Script: missing Script value",
        ),
        (json!({"Script": "x"}), "Arguments.Listener: it is required"),
        (
            json!({"Script": "x", "Listener": "up"}),
            "Arguments.Listener",
        ),
        (
            json!({"Script": 1, "Listener": "inbound"}),
            "Arguments.Script",
        ),
        (
            json!({"Script": "x", "Listener": "inbound", "ProxyType": "mesh-gateway"}),
            "unsupported ProxyType \"mesh-gateway\"",
        ),
    ] {
        let error = refused(LUA, arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn targets() {
    let authz = |target: Value| json!({"Config": {"HttpService": {"Target": target}}});
    for (uri, host, port) in [
        ("127.0.0.1:9000", "127.0.0.1", 9000),
        ("http://localhost:1", "localhost", 1),
        (":80", "localhost", 80),
        ("::1:80", "::1", 80),
    ] {
        let Extension::ExtAuthz(taken) = taken(EXT_AUTHZ, authz(json!({"URI": uri}))) else {
            panic!("another extension");
        };
        let address = taken.config.target().and_then(Target::address).unwrap();
        assert_eq!((address.host.as_str(), address.port), (host, port));
    }
    for (target, expected) in [
        (json!({}), "exactly one of Target.Service or Target.URI"),
        (
            json!({"URI": "localhost:1", "Service": {"Name": "a"}}),
            "exactly one of Target.Service or Target.URI",
        ),
        (json!({"URI": "localhost"}), "expected host:port"),
        (json!({"URI": "localhost:0"}), "expected host:port"),
        (json!({"URI": "localhost:http"}), "expected host:port"),
        (json!({"URI": "10.0.0.1:80"}), "invalid host for Target.URI"),
        (
            json!({"URI": "localhost:80", "Timeout": "2"}),
            "Target.Timeout",
        ),
        (
            json!({"URI": "localhost:80", "Timeout": "-2s"}),
            "Target.Timeout",
        ),
    ] {
        let error = refused(EXT_AUTHZ, authz(target));
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn ext_authz() {
    let grpc = json!({"Target": {"Service": {"Name": "authz"}}});
    let one = json!({"Target": {"URI": "localhost:9000"}, "AuthorizationRequest": {
        // A list of one, as Consul's command line sends it.
        "AllowedHeaders": {"Exact": "x"},
    }});
    let Extension::ExtAuthz(authz) = taken(EXT_AUTHZ, json!({"Config": {"HttpService": one}}))
    else {
        panic!("another extension");
    };
    let service = authz.config.http_service.unwrap();
    assert_eq!(service.authorization_request.allowed_headers[0].exact, "x");
    for (arguments, expected) in [
        (json!({}), "exactly one of GrpcService or HttpService"),
        (
            json!({"Config": {"GrpcService": grpc, "HttpService": one}}),
            "exactly one of GrpcService or HttpService",
        ),
        (
            json!({"Config": {"GrpcService": grpc, "StatusOnError": 299}}),
            "status code 299 is not supported by Envoy",
        ),
        (
            json!({"Config": {"GrpcService": grpc}, "InsertOptions": {"Location": "Last"}}),
            "InsertOptions.Location: Last is not served",
        ),
        (
            json!({"Config": {"GrpcService": grpc}, "InsertOptions": {"Location": "Here"}}),
            "InsertOptions.Location",
        ),
        (
            json!({"Config": {"GrpcService": grpc}, "InsertOptions": {"Location": "AfterFirstMatch"}}),
            "InsertOptions.FilterName",
        ),
        (
            json!({"Config": {"GrpcService": grpc, "WithRequestBody": {"PackAsBytes": true}}}),
            "WithRequestBody.MaxRequestBytes",
        ),
        (
            json!({"Config": {"HttpService": {"Target": {"URI": ":1"}, "AuthorizationRequest": {
                "HeadersToAdd": [{"Key": "a", "Value": "100%"}],
            }}}}),
            "HeadersToAdd[0].Value",
        ),
        (
            json!({"Config": {"HttpService": {"Target": {"URI": ":1"}, "PathPrefix": "x"}}}),
            "PathPrefix",
        ),
        (
            json!({"Config": {"HttpService": {"Target": {"URI": ":1"}, "AuthorizationResponse": {
                "AllowedClientHeaders": [{"Exact": "x"}, {"Exact": "x", "Prefix": "y"}],
            }}}}),
            "AuthorizationResponse.AllowedClientHeaders[1].Exact: exactly one of",
        ),
        (
            json!({"Config": {"HttpService": {"Target": {"URI": ":1"}, "AuthorizationRequest": {
                "AllowedHeaders": [{"SafeRegex": "("}],
            }}}}),
            "AllowedHeaders[0].SafeRegex",
        ),
    ] {
        let error = refused(EXT_AUTHZ, arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn wasm() {
    let sum = "a".repeat(64);
    let with = |code: Value, more: Value| {
        let mut all = json!({
            "Protocol": "http", "ListenerType": "inbound",
            "PluginConfig": {"VmConfig": {"Code": code}},
        });
        all.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        all
    };
    let remote = |change: &dyn Fn(&mut Value)| {
        let mut remote = json!({
            "HttpURI": {"Service": {"Name": "files"}, "URI": "https://files/a.wasm"},
            "SHA256": sum,
        });
        change(&mut remote);
        with(json!({"Remote": remote}), json!({}))
    };
    let local = json!({"Local": {"Filename": "/a.wasm"}});
    taken(WASM, with(local.clone(), json!({})));
    taken(WASM, remote(&|_| {}));
    let back_off = |base: &str, max: &str| {
        let back_off = json!({"BaseInterval": base, "MaxInterval": max});
        move |remote: &mut Value| remote["RetryPolicy"] = json!({"RetryBackOff": back_off})
    };
    taken(WASM, remote(&back_off("1s", "2s")));
    for (arguments, expected) in [
        (
            with(local.clone(), json!({"Protocol": ""})),
            "Arguments.Protocol",
        ),
        (
            with(local.clone(), json!({"Protocol": "grpc"})),
            "Arguments.Protocol",
        ),
        (
            with(local.clone(), json!({"ListenerType": ""})),
            "Arguments.ListenerType",
        ),
        (with(json!({}), json!({})), "exactly one of Local or Remote"),
        (
            with(
                json!({"Local": {"Filename": "/a"}, "Remote": {"HttpURI": {"URI": "x"}}}),
                json!({}),
            ),
            "exactly one of Local or Remote",
        ),
        (
            remote(&|remote| remote["SHA256"] = json!("")),
            "SHA256 checksum is required",
        ),
        (
            remote(&|remote| remote["SHA256"] = json!("0x")),
            "SHA256 checksum is required",
        ),
        (
            remote(&|remote| remote["HttpURI"]["URI"] = json!("://bogus")),
            "invalid HttpURI.URI",
        ),
        (
            remote(&|remote| remote["HttpURI"]["URI"] = json!("")),
            "both Service and URI are required",
        ),
        (
            remote(&|remote| remote["HttpURI"]["Timeout"] = json!("invalid")),
            "HttpURI.Timeout",
        ),
        (
            remote(&|remote| remote["RetryPolicy"] = json!({"NumRetries": -1})),
            "RetryPolicy.NumRetries",
        ),
        (remote(&back_off("0s", "1s")), "RetryBackOff.BaseInterval"),
        (remote(&back_off("10s", "5s")), "RetryBackOff.MaxInterval"),
        (remote(&back_off("", "5s")), "RetryBackOff.BaseInterval"),
    ] {
        let error = refused(WASM, arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn property_override() {
    let patches = |patches: Value| json!({"Patches": patches});
    let patch = |kind: &str, direction: &str, op: &str, path: &str, value: Value| {
        json!({
            "ResourceFilter": {"ResourceType": kind, "TrafficDirection": direction},
            "Op": op, "Path": path, "Value": value,
        })
    };
    let good = patch(
        "cluster",
        "outbound",
        "add",
        "/connect_timeout/seconds",
        json!(1),
    );
    taken(PROPERTY_OVERRIDE, patches(json!([good])));
    // As Consul's command line sends it.
    let mut from_hcl = good.clone();
    from_hcl["ResourceFilter"] = json!([from_hcl["ResourceFilter"]]);
    taken(PROPERTY_OVERRIDE, patches(from_hcl));
    let listed = |change: &dyn Fn(&mut Value)| {
        let mut changed = good.clone();
        change(&mut changed);
        patches(json!([changed]))
    };
    for (arguments, expected) in [
        (json!({}), "at least one patch is required"),
        (
            listed(&|patch| patch["ResourceFilter"] = json!({})),
            "Patches[0].ResourceFilter.ResourceType",
        ),
        (
            listed(&|patch| patch["ResourceFilter"]["ResourceType"] = json!("secret")),
            "ResourceType",
        ),
        (
            listed(&|patch| patch["ResourceFilter"]["TrafficDirection"] = json!("")),
            "TrafficDirection",
        ),
        (
            listed(&|patch| {
                patch["ResourceFilter"]["TrafficDirection"] = json!("inbound");
                patch["ResourceFilter"]["Services"] = json!([{"Name": "a"}]);
            }),
            "TrafficDirection is not \"outbound\"",
        ),
        (
            listed(&|patch| patch["ResourceFilter"]["Services"] = json!([{}])),
            "service name is required",
        ),
        (
            listed(&|patch| patch["Op"] = json!("replace")),
            "invalid Op \"replace\"",
        ),
        (
            listed(&|patch| patch["Op"] = json!("remove")),
            "not supported for remove",
        ),
    ] {
        let error = refused(PROPERTY_OVERRIDE, arguments);
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn otel_access_logging() {
    let with = |more: Value| {
        let mut config = json!({"GrpcService": {"Target": {"URI": "localhost:4317"}}});
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"Config": config})
    };
    taken(
        OTEL_ACCESS_LOGGING,
        with(json!({
            "Body": "%PROTOCOL%", "Attributes": {"a": "1"}, "BufferFlushInterval": 1_000_000_000,
            "RetryPolicy": {"NumRetries": 3, "RetryBackOff": {"BaseInterval": "2s"}},
        })),
    );
    for (arguments, expected) in [
        (json!({}), "missing GrpcService"),
        (with(json!({"Body": {}})), "Config.Body"),
        (
            with(json!({"Attributes": {"a": []}})),
            "Config.Attributes.a",
        ),
        // Envoy would refuse a listener with such a log.
        (with(json!({"Attributes": {"a": 1}})), "Config.Attributes.a"),
        (with(json!({"Body": true})), "Config.Body"),
        (with(json!({"Body": "100%"})), "Config.Body"),
        (
            with(json!({"ResourceAttributes": {"a": {}}})),
            "Config.ResourceAttributes.a",
        ),
        (
            with(json!({"BufferFlushInterval": "0s"})),
            "Config.BufferFlushInterval",
        ),
        (
            with(json!({"RetryPolicy": {"RetryBackOff": {"BaseInterval": "31s"}}})),
            "RetryBackOff.MaxInterval",
        ),
    ] {
        let error = refused(OTEL_ACCESS_LOGGING, arguments);
        assert!(error.contains(expected), "{error}");
    }
}
