//! Resources of typical snapshots in full. Review changes with `cargo insta review`.

use std::time::Duration;

use legate_intentions::Action;
use legate_model::{CheckStatus, Protocol};
use serde_json::json;

use crate::describe::{describe, one, type_urls};
use crate::support::{
    Web, api, connect_within, customise, instance, intentions, made, mesh, sidecar, upstream, web,
    weighted,
};

fn all(snapshot: &Web) -> String {
    describe(&made(snapshot))
}

/// Only the public listener and its routes.
pub(crate) fn public_listener(snapshot: &Web) -> String {
    let set = made(snapshot);
    let [_, _, listeners, routes, _] = type_urls();
    let (_, listener) = set
        .get(&listeners)
        .iter()
        .find(|(name, _)| name.starts_with("public_listener"))
        .unwrap();
    let mut out = one(listener);
    for child in &listener.children {
        out.push_str(&one(&set.get(&routes)[child]));
    }
    out
}

/// All resources of upstreams.
pub(crate) fn upstreams(snapshot: &Web) -> String {
    let set = made(snapshot);
    let mut out = String::new();
    for type_url in type_urls() {
        for (name, resource) in set.get(&type_url) {
            let own = ["local_app", "leaf", "roots"].contains(&&**name)
                || name.starts_with("public_listener");
            if !own {
                out.push_str(&one(resource));
            }
        }
    }
    for warning in set.warnings() {
        out.push_str(&format!("# warning: {warning}\n"));
    }
    out
}

#[test]
fn tcp_refused_by_default_with_one_allowed() {
    let snapshot = Web {
        intentions: intentions(&[("shop", json!("allow")), ("*", json!("deny"))]),
        upstreams: vec![api(Protocol::Tcp)],
        ..web()
    };
    insta::assert_snapshot!(all(&snapshot));
}

#[test]
fn http_with_permissions() {
    let permissions = json!([
        {"Action": "deny", "HTTP": {"PathPrefix": "/admin"}},
        {"Action": "allow", "HTTP": {
            "PathRegex": "/v[0-9]+/.*", "Methods": ["GET", "HEAD"],
            "Header": [
                {"Name": "x-a", "Present": true},
                {"Name": "x-b", "Exact": "b", "IgnoreCase": true},
                {"Name": "x-c", "Suffix": "c", "Invert": true},
                {"Name": "x-d", "Contains": "d"},
                {"Name": "x-e", "Regex": "e+"},
            ],
        }},
        {"Action": "allow", "HTTP": {"PathExact": "/health"}},
    ]);
    let snapshot = Web {
        protocol: Protocol::Http,
        intentions: intentions(&[
            ("shop", permissions),
            ("cart.v1", json!("allow")),
            ("batch", json!("deny")),
            (
                "*",
                json!([{"Action": "allow", "HTTP": {"PathExact": "/public"}}]),
            ),
        ]),
        ..web()
    };
    insta::assert_snapshot!(public_listener(&snapshot));
}

#[test]
fn tcp_cannot_see_requests_so_permissions_refuse() {
    let permissions = json!([{"Action": "allow", "HTTP": {"PathExact": "/"}}]);
    let list = intentions(&[("shop", permissions), ("*", json!("allow"))]);
    let snapshot = Web {
        intentions: list,
        ..web()
    };
    insta::assert_snapshot!(public_listener(&snapshot));
}

#[test]
fn allowed_by_default_with_one_denied() {
    let snapshot = Web {
        default_intention: Action::Allow,
        intentions: intentions(&[("shop", json!("deny"))]),
        ..web()
    };
    insta::assert_snapshot!(public_listener(&snapshot));
}

#[test]
fn nothing_said_and_refused_by_default() {
    insta::assert_snapshot!(public_listener(&web()));
}

#[test]
fn grpc_with_limits_and_timeouts() {
    let snapshot = Web {
        protocol: Protocol::Grpc,
        instance: sidecar(json!({
            "LocalServicePort": 8080,
            "Config": {
                "bind_address": "10.0.0.7", "bind_port": "21000", "max_inbound_connections": 42,
                "local_connect_timeout_ms": 1500, "local_request_timeout_ms": 0,
                "local_idle_timeout_ms": 2500, "balance_inbound_connections": "exact_balance",
            },
        })),
        ..web()
    };
    insta::assert_snapshot!(all(&snapshot));
}

#[test]
fn tcp_with_a_connection_limit() {
    let snapshot = Web {
        instance: sidecar(json!({
            "LocalServiceSocketPath": "/run/web.sock",
            "Config": {"max_inbound_connections": 3},
        })),
        ..web()
    };
    insta::assert_snapshot!(all(&snapshot));
}

#[test]
fn two_upstreams_that_speak_differently() {
    let mut slow = upstream(
        json!({
            "DestinationName": "db", "LocalBindPort": 5432, "LocalBindAddress": "127.0.0.2",
            "Config": {
                "limits": {"max_connections": 10, "MaxPendingRequests": 0},
                "passive_health_check": {
                    "interval": "10s", "MaxFailures": 2, "EnforcingConsecutive5xx": 0,
                    "max_ejection_percent": 50, "base_ejection_time": 30_000_000_000_i64,
                },
                "balance_outbound_connections": "exact_balance",
            },
        }),
        Protocol::Tcp,
        vec![instance("10.0.3.1", 20003, &[])],
    );
    connect_within(&mut slow, Duration::from_millis(1234));
    customise(&mut slow, Some("0badcafe"));
    let snapshot = Web {
        upstreams: vec![api(Protocol::Grpc), slow],
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));
}

#[test]
fn an_http_upstream_in_another_datacenter() {
    let definition = json!({"DestinationName": "api", "LocalBindPort": 9191, "Datacenter": "dc2"});
    let snapshot = Web {
        upstreams: vec![upstream(definition, Protocol::Http, Vec::new())],
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));
}

#[test]
fn an_upstream_without_instances_gets_empty_endpoints() {
    let none = json!({"DestinationName": "api", "LocalBindPort": 9191});
    let snapshot = Web {
        upstreams: vec![upstream(none, Protocol::Tcp, Vec::new())],
        ..web()
    };
    let set = made(&snapshot);
    let endpoints = set.get(&type_urls()[1]);
    let [assignment] = endpoints.values().collect::<Vec<_>>()[..] else {
        panic!("{endpoints:?}");
    };
    insta::assert_snapshot!(one(assignment));
}

#[test]
fn health_and_weights() {
    use CheckStatus::{Critical, Passing, Warning};
    let instances = vec![
        weighted("10.0.2.1", 1, &[Passing, Passing], (10, 1)),
        weighted("10.0.2.2", 2, &[Passing, Warning], (10, 3)),
        weighted("10.0.2.3", 3, &[Warning, Critical], (10, 3)),
        weighted("10.0.2.4", 4, &[Warning], (10, 0)),
        weighted("fd00::5", 5, &[], (65535, 1)),
        // The node's address is the default.
        weighted("", 6, &[], (1, 1)),
        weighted("api.internal", 7, &[], (1, 1)),
        weighted("10.0.2.8", 0, &[], (1, 1)),
    ];
    let definition = json!({"DestinationName": "api", "LocalBindPort": 9191});
    let snapshot = Web {
        upstreams: vec![upstream(definition, Protocol::Tcp, instances)],
        ..web()
    };
    let set = made(&snapshot);
    let endpoints = set.get(&type_urls()[1]);
    let text: String = endpoints.values().map(|resource| one(resource)).collect();
    insta::assert_snapshot!(text + &set.warnings().join("\n"));
}

#[test]
fn an_upstream_on_a_unix_socket() {
    let definition = json!({
        "DestinationName": "api", "LocalBindSocketPath": "/run/api.sock",
        "LocalBindSocketMode": "0640",
    });
    let snapshot = Web {
        upstreams: vec![upstream(definition, Protocol::Tcp, Vec::new())],
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));
}

#[test]
fn the_mesh_sets_tls_and_http() {
    let snapshot = Web {
        protocol: Protocol::Http2,
        mesh: mesh(json!({
            "TLS": {
                "Incoming": {
                    "TLSMinVersion": "TLSv1_2",
                    "CipherSuites": ["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"],
                },
                "Outgoing": {"TLSMinVersion": "TLSv1_3", "TLSMaxVersion": "TLSv1_3"},
            },
            "HTTP": {
                "SanitizeXForwardedClientCert": true,
                "Incoming": {"RequestNormalization": {
                    "InsecureDisablePathNormalization": true, "MergeSlashes": true,
                    "PathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD",
                    "HeadersWithUnderscoresAction": "REJECT_REQUEST",
                }},
            },
        })),
        upstreams: vec![api(Protocol::Http)],
        ..web()
    };
    insta::assert_snapshot!(all(&snapshot));
}

/// Probes reach these paths without a certificate: on the application's own port (two with the same
/// path, one of them with HTTP/2, which the application's cluster does not support), on a second
/// port with both versions, and on a third with HTTP/2.
#[test]
fn exposed_paths() {
    let path = |listener: u16, path: &str, port: u16| json!({"ListenerPort": listener, "Path": path, "LocalPathPort": port});
    let http2 = |listener, name, port| {
        let mut path = path(listener, name, port);
        path["Protocol"] = json!("http2");
        path
    };
    let health = "/grpc.health.v1.Health/Check";
    let proxy = json!({
        "LocalServicePort": 8080,
        "Expose": {"Paths": [
            path(20300, "/live", 8080),
            path(20400, "/ready", 8080),
            path(20500, "/ready", 8080),
            http2(20401, health, 8080),
            http2(20301, "/metrics", 9102),
            path(20302, "/other", 9102),
            http2(20402, health, 9103),
        ]},
    });
    let snapshot = Web {
        instance: sidecar(proxy),
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));
}
