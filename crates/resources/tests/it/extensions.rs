//! The changes that extensions make, as lines of the resources' JSON, and what they cannot remove.

use std::fmt::Write;
use std::sync::Arc;

use legate_envoy_json::encode;
use legate_intentions::Action;
use legate_model::Protocol;
use legate_resources::ResourceSet;
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::support::{Generator, Web, api, intentions, made, sidecar, upstream, web};

/// `web` with this protocol, the upstreams `api` and `authz`, and these extensions.
fn with(protocol: Protocol, extensions: Value) -> Web {
    let authz = json!({"DestinationName": "authz", "LocalBindPort": 9192});
    Web {
        protocol,
        instance: sidecar(json!({"LocalServicePort": 8080, "EnvoyExtensions": extensions})),
        upstreams: vec![api(protocol), upstream(authz, Protocol::Grpc, Vec::new())],
        ..web()
    }
}

fn extension(name: &str, arguments: Value) -> Value {
    json!({"Name": format!("builtin/{name}"), "Arguments": arguments})
}

fn required(name: &str, arguments: Value) -> Value {
    let mut extension = extension(name, arguments);
    extension["Required"] = json!(true);
    extension
}

fn patch(kind: &str, direction: &str, op: &str, path: &str, value: Value) -> Value {
    json!({
        "ResourceFilter": {"ResourceType": kind, "TrafficDirection": direction},
        "Op": op, "Path": path, "Value": value,
    })
}

fn lines(type_url: &str, body: &[u8]) -> Vec<String> {
    let any = encode("google.protobuf.Any", body).unwrap();
    let mut any = any.as_object().unwrap().clone();
    any.remove("@type");
    let text = serde_json::to_string_pretty(&any).unwrap();
    assert!(type_url.starts_with("type.googleapis.com/"));
    text.lines().map(str::to_owned).collect()
}

/// The lines that are in only one of the two, without context.
fn difference(before: &[String], after: &[String]) -> String {
    let mut longest = vec![vec![0; after.len() + 1]; before.len() + 1];
    for i in (0..before.len()).rev() {
        for j in (0..after.len()).rev() {
            longest[i][j] = match before[i] == after[j] {
                true => longest[i + 1][j + 1] + 1,
                false => longest[i + 1][j].max(longest[i][j + 1]),
            };
        }
    }
    let (mut i, mut j, mut out) = (0, 0, String::new());
    while i < before.len() || j < after.len() {
        if i < before.len() && j < after.len() && before[i] == after[j] {
            (i, j) = (i + 1, j + 1);
        } else if j < after.len() && (i == before.len() || longest[i][j + 1] >= longest[i + 1][j]) {
            writeln!(out, "+{}", after[j]).unwrap();
            j += 1;
        } else {
            writeln!(out, "-{}", before[i]).unwrap();
            i += 1;
        }
    }
    out
}

fn changes(before: &ResourceSet, after: &ResourceSet) -> String {
    let mut out = String::new();
    for type_url in type_urls() {
        let kind = type_url.rsplit('.').next().unwrap().to_owned();
        for (name, resource) in after.get(&type_url) {
            let old = before.get(&type_url).get(name);
            if old.is_some_and(|old| old.version == resource.version) {
                continue;
            }
            let old = old.map_or_else(Vec::new, |old| lines(&type_url, &old.body));
            let new = lines(&type_url, &resource.body);
            writeln!(out, "== {kind} {name}\n{}", difference(&old, &new)).unwrap();
        }
        for name in before.get(&type_url).keys() {
            if !after.get(&type_url).contains_key(name) {
                writeln!(out, "== {kind} {name} is gone\n").unwrap();
            }
        }
    }
    for warning in after.warnings() {
        writeln!(out, "# warning: {warning}").unwrap();
    }
    for failure in after.failures() {
        writeln!(out, "# failure: {}: {}", failure.resource, failure.reason).unwrap();
    }
    out
}

/// The changes that the extensions make.
fn changed(protocol: Protocol, extensions: Value) -> String {
    let without = made(&with(protocol, json!([])));
    let set = Generator::new().generate(&with(protocol, extensions), None);
    changes(&without, &set)
}

fn lua(listener: &str) -> Value {
    let script = "function envoy_on_request(handle) end";
    extension("lua", json!({"Listener": listener, "Script": script}))
}

#[test]
fn lua_for_requests_from_the_mesh() {
    insta::assert_snapshot!(changed(Protocol::Http, json!([lua("inbound")])));
}

#[test]
fn lua_for_requests_to_upstreams() {
    insta::assert_snapshot!(changed(Protocol::Http, json!([lua("outbound")])));
}

#[test]
fn lua_is_for_requests_only() {
    let changes = changed(Protocol::Tcp, json!([lua("inbound")]));
    assert_eq!(changes, "");
}

#[test]
fn ext_authz_over_http_on_the_same_machine() {
    let arguments = json!({"Config": {
        "StatusOnError": 503,
        "MetadataContextNamespaces": ["more"],
        "WithRequestBody": {"MaxRequestBytes": 1024, "AllowPartialMessage": true},
        "HttpService": {
            "Target": {"URI": "127.0.0.1:9000", "Timeout": "1.5s"},
            "PathPrefix": "/check",
            "AuthorizationRequest": {
                "AllowedHeaders": [{"Exact": "x-token", "IgnoreCase": true}, {"SafeRegex": "x-.*"}],
                "HeadersToAdd": [{"Key": "x-from", "Value": "mesh"}],
            },
            "AuthorizationResponse": {
                "AllowedUpstreamHeaders": [{"Prefix": "x-user"}],
                "AllowedClientHeaders": [{"Suffix": "-reason"}],
                "DynamicMetadataFromHeaders": [{"Contains": "meta"}],
            },
        },
    }});
    insta::assert_snapshot!(changed(
        Protocol::Http,
        json!([required("ext-authz", arguments)])
    ));
}

fn by_grpc(target: Value) -> Value {
    json!({"Config": {"GrpcService": {
        "Target": target, "Authority": "authz", "InitialMetadata": [{"Key": "a", "Value": "b"}],
    }}})
}

#[test]
fn ext_authz_by_an_upstream() {
    let arguments = by_grpc(json!({"Service": {"Name": "authz"}}));
    insta::assert_snapshot!(changed(
        Protocol::Http2,
        json!([extension("ext-authz", arguments)])
    ));
}

#[test]
fn ext_authz_about_connections() {
    let mut arguments = by_grpc(json!({"URI": "localhost:9000"}));
    arguments["InsertOptions"] = json!({"Location": "First"});
    insta::assert_snapshot!(changed(
        Protocol::Tcp,
        json!([required("ext-authz", arguments)])
    ));
}

#[test]
fn without_its_authorization_service_ext_authz_rejects_everything() {
    let missing = by_grpc(json!({"Service": {"Name": "nowhere"}}));
    insta::assert_snapshot!(changed(
        Protocol::Http,
        json!([
            extension("ext-authz", missing.clone()),
            required("ext-authz", missing),
        ])
    ));
}

#[test]
fn two_programs_on_one_machine_have_two_clusters() {
    let one = |uri: &str| extension("ext-authz", by_grpc(json!({"URI": uri})));
    let all = json!([one("127.0.0.1:1"), one("127.0.0.1:2"), one("127.0.0.1:1")]);
    let set = made(&with(Protocol::Http, all));
    let [clusters, ..] = type_urls();
    let names = set.get(&clusters).keys().map(|name| &**name);
    let names: Vec<&str> = names.filter(|name| name.starts_with("local_ext")).collect();
    assert_eq!(names, ["local_ext_authz", "local_ext_authz_2"]);
}

fn wasm(protocol: &str, code: Value) -> Value {
    json!({
        "Protocol": protocol, "ListenerType": "inbound",
        "PluginConfig": {
            "Name": "plugin", "RootID": "root", "Configuration": "plugin settings",
            "VmConfig": {
                "VmID": "vm", "Code": code, "Configuration": "vm settings",
                "EnvironmentVariables": {"HostEnvKeys": ["PATH"], "KeyValues": {"B": "2", "A": "1"}},
            },
            "CapabilityRestrictionConfiguration": {
                "AllowedCapabilities": {"proxy_on_vm_start": {}, "proxy_log": {}},
            },
        },
    })
}

#[test]
fn wasm_from_a_file() {
    let arguments = wasm("http", json!({"Local": {"Filename": "/plugin.wasm"}}));
    let changes = changed(Protocol::Grpc, json!([extension("wasm", arguments)]));
    insta::assert_snapshot!(changes);
}

#[test]
fn wasm_from_an_upstream() {
    let remote = json!({"Remote": {
        "HttpURI": {"Service": {"Name": "api"}, "URI": "https://api/plugin.wasm", "Timeout": "5s"},
        "SHA256": "D05D88B0CE8A8F1D5176481E0AF3AE5C65ED82CBFB8C61506C5354B076078545",
        "RetryPolicy": {"NumRetries": 3, "RetryBackOff": {"BaseInterval": "3s", "MaxInterval": "15s"}},
    }});
    let arguments = wasm("tcp", remote);
    let changes = changed(Protocol::Tcp, json!([required("wasm", arguments)]));
    insta::assert_snapshot!(changes);
}

#[test]
fn wasm_for_another_protocol_changes_nothing() {
    let arguments = wasm("tcp", json!({"Local": {"Filename": "/plugin.wasm"}}));
    let changes = changed(Protocol::Http, json!([extension("wasm", arguments)]));
    assert_eq!(changes, "");
}

#[test]
fn access_logs_by_opentelemetry() {
    let arguments = json!({"ListenerType": "outbound", "Config": {
        "GrpcService": {"Target": {"URI": "127.0.0.1:4317", "Timeout": "2s"}},
        "BufferFlushInterval": "3s", "BufferSizeBytes": 4096,
        "FilterStateObjectsToLog": ["a"],
        "RetryPolicy": {"NumRetries": 3, "RetryBackOff": {}},
        "Body": "%PROTOCOL%",
        "Attributes": {"text": "%UPSTREAM_HOST%"},
        "ResourceAttributes": {"service": "web", "flag": true, "whole": 3, "part": 0.5},
    }});
    let all = json!([extension("otel-access-logging", arguments)]);
    insta::assert_snapshot!(changed(Protocol::Http, all));
}

#[test]
fn properties_of_every_type() {
    let mut for_api = patch(
        "cluster",
        "outbound",
        "remove",
        "/outlier_detection",
        Value::Null,
    );
    for_api["ResourceFilter"]["Services"] = json!([{"Name": "API"}]);
    let seconds = "/outlier_detection/max_ejection_time/seconds";
    let patches = json!([
        patch("cluster", "outbound", "add", seconds, json!(120)),
        for_api,
        patch("cluster", "inbound", "add", "/alt_stat_name", json!("app")),
        patch(
            "listener",
            "inbound",
            "add",
            "/stat_prefix",
            json!("custom.stats")
        ),
        patch(
            "route",
            "inbound",
            "add",
            "/max_direct_response_body_size_bytes",
            json!(1)
        ),
        patch(
            "cluster-load-assignment",
            "outbound",
            "add",
            "/policy/overprovisioning_factor",
            json!(200),
        ),
        patch(
            "cluster-load-assignment",
            "inbound",
            "add",
            "/policy",
            json!({"overprovisioning_factor": 300}),
        ),
    ]);
    let all = json!([extension("property-override", json!({"Patches": patches}))]);
    insta::assert_snapshot!(changed(Protocol::Http, all));
}

#[test]
fn properties_of_what_another_extension_adds() {
    let patches = json!([patch(
        "cluster",
        "outbound",
        "add",
        "/alt_stat_name",
        json!("x")
    )]);
    let override_ = extension("property-override", json!({"Patches": patches}));
    let authz = extension("ext-authz", by_grpc(json!({"URI": "127.0.0.1:1"})));
    let clusters = |all: Value| {
        let set = made(&with(Protocol::Http, all));
        let [clusters, ..] = type_urls();
        lines(&clusters, &set.get(&clusters)["local_ext_authz"].body).join("\n")
    };
    assert!(clusters(json!([authz, override_])).contains("altStatName"));
    assert!(!clusters(json!([override_, authz])).contains("altStatName"));
}

#[test]
fn a_patch_that_does_not_fit_leaves_the_resource_or_fails_it() {
    let patches = json!([
        patch(
            "listener",
            "inbound",
            "add",
            "/stat_prefix",
            json!("custom")
        ),
        patch("listener", "inbound", "add", "/nothing", json!(1)),
    ]);
    let arguments = json!({"Patches": patches});
    insta::assert_snapshot!(changed(
        Protocol::Tcp,
        json!([
            extension("property-override", arguments.clone()),
            lua("inbound")
        ])
    ));
    insta::assert_snapshot!(changed(
        Protocol::Tcp,
        json!([required("property-override", arguments)])
    ));
}

#[test]
fn resources_without_a_matching_extension_are_unchanged() {
    let generator = Generator::new();
    let without = generator.generate(&with(Protocol::Http, json!([])), None);
    let set = generator.generate(&with(Protocol::Http, json!([lua("inbound")])), None);
    for type_url in type_urls() {
        for (name, resource) in set.get(&type_url) {
            let same = Arc::ptr_eq(resource, &without.get(&type_url)[name]);
            assert_eq!(same, !name.starts_with("public_listener:"), "{name}");
        }
    }
}

#[test]
fn proxies_share_extended_resources() {
    let generator = Generator::new();
    let snapshot = || with(Protocol::Http, json!([lua("inbound"), lua("outbound")]));
    let first = generator.generate(&snapshot(), None);
    let second = generator.generate(&snapshot(), None);
    for type_url in type_urls() {
        for (name, resource) in first.get(&type_url) {
            assert!(
                Arc::ptr_eq(resource, &second.get(&type_url)[name]),
                "{name}"
            );
        }
    }
}

/// Makes the next snapshot as a stream does.
fn then(generator: &Generator, before: (&Web, &ResourceSet), now: &Web) -> ResourceSet {
    generator.generate(now, Some(before))
}

#[test]
fn a_change_of_extensions_can_be_reverted() {
    let generator = Generator::new();
    let authz = extension("ext-authz", by_grpc(json!({"URI": "127.0.0.1:1"})));
    let steps = [
        json!([]),
        json!([lua("outbound"), authz]),
        json!([lua("outbound")]),
        json!([authz, lua("outbound")]),
        json!([]),
    ];
    let mut last: Option<(Web, ResourceSet)> = None;
    for extensions in steps {
        let now = with(Protocol::Http, extensions.clone());
        let fresh = Generator::new().generate(&now, None);
        let set = match &last {
            Some((snapshot, set)) => then(&generator, (snapshot, set), &now),
            None => generator.generate(&now, None),
        };
        assert_eq!(changes(&fresh, &set), "", "{extensions}");
        assert_eq!(changes(&set, &fresh), "", "{extensions}");
        last = Some((now, set));
    }
}

#[test]
fn a_failed_extension_keeps_the_last_good_version() {
    let generator = Generator::new();
    let good = with(Protocol::Http, json!([lua("inbound")]));
    let first = generator.generate(&good, None);
    let patches = json!([patch("listener", "inbound", "add", "/nothing", json!(1))]);
    let bad = with(
        Protocol::Http,
        json!([required("property-override", json!({"Patches": patches}))]),
    );
    let second = then(&generator, (&good, &first), &bad);
    assert_eq!(second.failures().len(), 1);
    assert!(second.failures()[0].kept);
    let [_, _, listeners, ..] = type_urls();
    let kept = |set: &ResourceSet| set.get(&listeners)["public_listener:0.0.0.0:20000"].clone();
    assert!(Arc::ptr_eq(&kept(&first), &kept(&second)));
}

/// A TCP service has its rules in the listener, an HTTP service in its routes.
#[test]
fn a_required_extension_that_fails_does_not_keep_old_rules() {
    let [_, _, listeners, routes, _] = type_urls();
    let generator = Generator::new();
    for protocol in [Protocol::Tcp, Protocol::Http] {
        let patches = json!([patch("listener", "inbound", "add", "/nothing", json!(1))]);
        let patches = json!({"Patches": patches});
        let good = with(protocol, json!([]));
        let bad = with(protocol, json!([required("property-override", patches)]));
        let denied = Web {
            default_intention: Action::Allow,
            intentions: intentions(&[("shop", json!("deny"))]),
            ..bad
        };
        let first = generator.generate(&good, None);
        let second = then(&generator, (&good, &first), &denied);
        let failed: Vec<_> = second.failures().iter().map(|one| &*one.resource).collect();
        assert_eq!(failed, ["public_listener"]);
        let listener = |set: &ResourceSet| {
            set.get(&listeners)
                .get("public_listener:0.0.0.0:20000")
                .cloned()
        };
        if protocol == Protocol::Tcp {
            assert_eq!(listener(&second), None);
            continue;
        }
        assert_eq!(listener(&first), listener(&second));
        let rules = second.get(&routes)["public_listener"].clone();
        let lines = lines(&listeners, &rules.body).join("");
        assert!(lines.contains("svc/shop"));
    }
}

#[test]
fn the_called_cluster_is_tracked() {
    let generator = Generator::new();
    let arguments = by_grpc(json!({"Service": {"Name": "authz"}}));
    let with_upstream = with(Protocol::Http, json!([extension("ext-authz", arguments)]));
    let mut without = with_upstream.clone();
    without.upstreams.pop();
    let first = generator.generate(&without, None);
    assert_eq!(first.warnings().len(), 1, "{:?}", first.warnings());
    let second = then(&generator, (&without, &first), &with_upstream);
    assert_eq!(second.warnings().len(), 0, "{:?}", second.warnings());
    let fresh = made(&with_upstream);
    assert_eq!(changes(&fresh, &second), "");
}
