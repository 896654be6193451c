//! Invalid values fail with an error that names the setting, or are ignored with a warning.

use std::sync::Arc;

use legate_model::{Intention, Protocol, Secret, ServiceInstance};
use legate_resources::GenerateError;
use serde_json::json;

use crate::describe::type_urls;
use crate::support::{
    Generator, Web, api, intentions, leaf, made, mesh, roots, sidecar, upstream, web,
};

/// The common reason of all failures.
fn error(snapshot: &Web) -> GenerateError {
    let set = Generator::new().generate(snapshot, None);
    let mut failures = set.failures().iter();
    let first = failures.next().unwrap();
    assert!(failures.all(|failure| failure.reason == first.reason));
    for failure in set.failures() {
        assert!(!failure.kept && set.cannot_make(failure.type_url(), &failure.resource));
        let mut names = set.get(failure.type_url()).keys();
        assert!(!names.any(|name| set.cannot_make(failure.type_url(), name)));
    }
    first.reason.clone()
}

#[test]
fn without_certificates_nothing_is_made() {
    let mut lost = Arc::unwrap_or_clone(leaf("web", "lost"));
    lost.key_pem = Secret::default();
    let no_key = Web {
        leaf: Arc::new(lost),
        ..web()
    };
    assert_eq!(
        error(&no_key),
        GenerateError::NoLeaf("service web".to_owned())
    );

    let mut empty = Arc::unwrap_or_clone(roots("one"));
    empty.roots.clear();
    let no_roots = Web {
        roots: Arc::new(empty),
        ..web()
    };
    assert_eq!(error(&no_roots), GenerateError::NoRoots);
}

#[test]
fn without_the_wanted_tls_nothing_is_made() {
    for (tls, named) in [
        (
            json!({"Incoming": {"TLSMinVersion": "TLSv9"}}),
            "TLS.Incoming.TLSMinVersion",
        ),
        (
            json!({"Outgoing": {"TLSMaxVersion": "x"}}),
            "TLS.Outgoing.TLSMaxVersion",
        ),
        (json!({"Incoming": {"CipherSuites": ["ROT13"]}}), "ROT13"),
    ] {
        let snapshot = Web {
            mesh: mesh(json!({"TLS": tls})),
            upstreams: vec![api(Protocol::Tcp)],
            ..web()
        };
        let text = error(&snapshot).to_string();
        assert!(text.contains(named), "{text}");
    }
}

#[test]
fn without_the_wanted_normalisation_nothing_is_made() {
    let normalization = json!({"PathWithEscapedSlashesAction": "GUESS"});
    let snapshot = Web {
        mesh: mesh(json!({"HTTP": {"Incoming": {"RequestNormalization": normalization}}})),
        ..web()
    };
    let text = error(&snapshot).to_string();
    assert!(
        text.contains("GUESS") && text.contains("PathWithEscapedSlashesAction"),
        "{text}"
    );
}

#[test]
fn without_every_access_rule_nothing_is_made() {
    let list = intentions(&[(
        "shop",
        json!([{"Action": "deny", "HTTP": {"PathPrefix": "/"}}]),
    )]);
    let mut broken: Intention = (*list[0]).clone();
    broken.permissions[0].http =
        serde_json::from_value(json!({"Header": [{"Name": "x"}]})).unwrap();
    let snapshot = Web {
        protocol: Protocol::Http,
        default_intention: legate_intentions::Action::Allow,
        intentions: Arc::new(vec![Arc::new(broken)]),
        ..web()
    };
    let text = error(&snapshot).to_string();
    assert!(text.contains("shop") && text.contains("\"x\""), "{text}");
}

#[test]
fn addresses_must_be_ip_addresses() {
    let bind = Web {
        instance: sidecar(json!({"Config": {"bind_address": "web.internal"}})),
        ..web()
    };
    let local = Web {
        instance: sidecar(json!({"LocalServiceAddress": "localhost"})),
        ..web()
    };
    let definition = json!({"DestinationName": "api", "LocalBindPort": 1, "LocalBindAddress": "x"});
    let dialled = Web {
        upstreams: vec![upstream(definition, Protocol::Tcp, Vec::new())],
        ..web()
    };
    for (snapshot, setting) in [
        (bind, "bind_address"),
        (local, "LocalServiceAddress"),
        (dialled, "LocalBindAddress of upstream api"),
    ] {
        let text = error(&snapshot).to_string();
        assert!(text.contains(setting), "{text}");
    }
    let nowhere = Web {
        instance: Arc::new(ServiceInstance {
            port: 0,
            ..ServiceInstance::clone(&web().instance)
        }),
        ..web()
    };
    assert_eq!(error(&nowhere), GenerateError::NoPort);
}

#[test]
fn socket_permissions_must_be_octal() {
    for mode in ["rw", "0o9", "7777"] {
        let definition = json!({
            "DestinationName": "api", "LocalBindSocketPath": "/a", "LocalBindSocketMode": mode,
        });
        let snapshot = Web {
            upstreams: vec![upstream(definition, Protocol::Tcp, Vec::new())],
            ..web()
        };
        assert!(
            matches!(error(&snapshot), GenerateError::SocketMode { .. }),
            "{mode}"
        );
    }
}

#[test]
fn settings_without_effect_are_warned_about() {
    let strange = json!({
        "DestinationName": "api", "LocalBindPort": 9191,
        "Config": {"limits": 7, "balance_outbound_connections": "fair"},
    });
    let snapshot = Web {
        instance: sidecar(json!({
            "Config": {"envoy_telemetry_collector_bind_socket_dir": "/run", "local_connect_timeout_ms": "soon"},
            "Expose": {"Checks": true},
            "EnvoyExtensions": [{"Name": "builtin/lua"}],
        })),
        upstreams: vec![
            upstream(strange, Protocol::Tcp, Vec::new()),
            api(Protocol::Tcp),
        ],
        ..web()
    };
    let set = made(&snapshot);
    let warnings = set.warnings().join("\n");
    for part in [
        "envoy_telemetry_collector_bind_socket_dir",
        "\"local_connect_timeout_ms\" is \"soon\"",
        "Proxy.Expose.Checks exposes nothing",
        "builtin/lua is not applied to public_listener",
        "\"limits\" is 7",
        "\"fair\"",
        "upstream api listens on 127.0.0.1:9191, as another one does",
    ] {
        assert!(warnings.contains(part), "{part} is missing in:\n{warnings}");
    }
}

#[test]
fn two_listeners_of_one_name_are_warned_about() {
    let written = |name: &str, port: u16| {
        let listener = json!({
            "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "same",
            "address": {"socketAddress": {"address": "127.0.0.1", "portValue": port}},
        });
        let definition = json!({
            "DestinationName": name, "LocalBindPort": port,
            "Config": {"envoy_listener_json": listener.to_string()},
        });
        upstream(definition, Protocol::Tcp, Vec::new())
    };
    let snapshot = Web {
        upstreams: vec![written("api", 9191), written("admin", 9192)],
        ..web()
    };
    let set = made(&snapshot);
    let expected = ["two different listeners are named same: the first one is used"];
    assert_eq!(set.warnings(), expected);
}

/// The default address of the public listener is free then.
#[test]
fn an_exposed_path_keeps_off_a_written_listener() {
    let listener = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "own",
        "address": {"socketAddress": {"address": "0.0.0.0", "portValue": 20300}},
        "filterChains": [{"filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "statPrefix": "own", "cluster": "local_app",
            },
        }]}],
    });
    let path =
        |path: &str, port: u16| json!({"Path": path, "ListenerPort": port, "LocalPathPort": 8080});
    let snapshot = Web {
        instance: sidecar(json!({
            "LocalServicePort": 8080,
            "Config": {"envoy_public_listener_json": listener.to_string()},
            "Expose": {"Paths": [path("/usual", 20000), path("/own", 20300)]},
        })),
        ..web()
    };
    let set = made(&snapshot);
    let listeners: Vec<_> = set
        .get(&type_urls()[2])
        .keys()
        .map(|name| &**name)
        .collect();
    assert_eq!(listeners, ["exposed_path_usual:0.0.0.0:20000", "own"]);
    let warnings = set.warnings().join("\n");
    let expected =
        "/own has no listener, because 0.0.0.0:20300 is the address of the public listener";
    assert!(warnings.contains(expected), "{warnings}");
}

#[test]
fn two_listeners_on_one_port_are_warned_about() {
    let path =
        |path: &str, port: u16| json!({"Path": path, "ListenerPort": port, "LocalPathPort": 8080});
    let on_exposed = json!({
        "DestinationName": "api", "LocalBindPort": 20301, "LocalBindAddress": "0.0.0.0",
    });
    let snapshot = Web {
        instance: sidecar(json!({
            "LocalServicePort": 8080,
            "Expose": {"Paths": [
                path("/public", 20000), path("/a", 20300), path("/b", 20300), path("/c", 20301),
            ]},
        })),
        upstreams: vec![upstream(on_exposed, Protocol::Tcp, Vec::new())],
        ..web()
    };
    let set = made(&snapshot);
    let warnings = set.warnings().join("\n");
    for part in [
        "/public has no listener, because 0.0.0.0:20000 is the address of the public listener",
        "listener exposed_path_b listens on 0.0.0.0:20300, as another one does",
        "upstream api listens on 0.0.0.0:20301, as another one does",
    ] {
        assert!(warnings.contains(part), "{part} is missing in:\n{warnings}");
    }
    let listeners: Vec<_> = set.get(&type_urls()[2]).keys().collect();
    let expected = [
        "exposed_path_a:0.0.0.0:20300",
        "exposed_path_c:0.0.0.0:20301",
        "public_listener:0.0.0.0:20000",
    ];
    assert!(
        listeners.iter().map(|name| &***name).eq(expected),
        "{listeners:?}"
    );
}
