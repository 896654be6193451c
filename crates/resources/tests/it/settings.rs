//! The effects of central configuration on all listeners and clusters of a proxy, in full.

use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::google::protobuf::Any;
use legate_model::{CheckServiceNode, MutualTlsMode, Protocol};
use legate_resources::ResourceSet;
use prost::Message;
use serde_json::{Value, json};

use crate::describe::{describe, one, type_urls};
use crate::golden::{public_listener, upstreams};
use crate::support::{
    Generator, Web, api, chained, instance, intentions, made, sidecar, upstream, web,
};

/// All listeners of a proxy.
fn listeners(snapshot: &Web) -> String {
    let set = made(snapshot);
    let [_, _, listeners, ..] = type_urls();
    let listeners = set.get(&listeners).values();
    let text: String = listeners.map(|listener| one(listener)).collect();
    let warnings = set.warnings();
    let warnings = warnings
        .iter()
        .map(|warning| format!("# warning: {warning}\n"));
    text + &warnings.collect::<String>()
}

#[test]
fn every_listener_logs_json_to_standard_output() {
    let proxy = json!({
        "LocalServicePort": 8080,
        "AccessLogs": {"Enabled": true},
        "Expose": {"Paths": [{"ListenerPort": 20300, "Path": "/live", "LocalPathPort": 8080}]},
    });
    let snapshot = Web {
        protocol: Protocol::Http,
        instance: sidecar(proxy),
        upstreams: vec![api(Protocol::Tcp)],
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

#[test]
fn captured_traffic_is_logged_to_a_file_as_text() {
    let proxy = json!({
        "LocalServicePort": 8080, "Mode": "transparent",
        "AccessLogs": {
            "Enabled": true, "DisableListenerLogs": true, "Type": "file", "Path": "/log/envoy",
            "TextFormat": "%START_TIME% %RESPONSE_FLAGS%",
        },
    });
    let snapshot = Web {
        instance: sidecar(proxy),
        implicit: Some(Default::default()),
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

#[test]
fn an_own_json_format_goes_to_standard_error() {
    let format = r#"{"status": "%RESPONSE_CODE%", "from": {"address": "%DOWNSTREAM_REMOTE_ADDRESS%"}, "version": 2}"#;
    let proxy = json!({
        "LocalServicePort": 8080,
        "AccessLogs": {"Enabled": true, "Type": "stderr", "JSONFormat": format},
    });
    let snapshot = Web {
        instance: sidecar(proxy),
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot));
}

/// From central configuration, because the registration itself has no such field.
fn permissive(mode: &str, port: u16) -> Web {
    let mut instance = sidecar(json!({"LocalServicePort": port, "Mode": mode}));
    Arc::make_mut(&mut instance).proxy.mutual_tls_mode = MutualTlsMode::Permissive;
    Web { instance, ..web() }
}

#[test]
fn permissive_lets_in_what_was_sent_to_the_application() {
    insta::assert_snapshot!(listeners(&permissive("transparent", 8080)));
}

#[test]
fn permissive_opens_nothing_where_nothing_is_captured() {
    let strict = |port| {
        listeners(&Web {
            instance: sidecar(json!({"LocalServicePort": port})),
            ..web()
        })
    };
    let direct = listeners(&permissive("direct", 8080));
    let warning =
        "# warning: MutualTLSMode permissive has no effect: the proxy is not in transparent mode\n";
    assert_eq!(direct, strict(8080) + warning);
    assert_eq!(listeners(&permissive("transparent", 0)), strict(0));
}

/// A listener with a chain for requests, one for TCP, and a default chain.
fn written_listener() -> String {
    let manager = json!({
        "name": "any",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "statPrefix": "own",
            "routeConfig": {"name": "own"},
            "httpFilters": [{
                "name": "envoy.filters.http.router",
                "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }],
        },
    });
    let proxy = json!({
        "name": "tcp",
        "typedConfig": {
            "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
            "statPrefix": "own", "cluster": "local_app",
        },
    });
    let plain = json!({
        "name": "envoy.transport_sockets.raw_buffer",
        "typedConfig": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"},
    });
    let listener = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "own",
        "address": {"socketAddress": {"address": "11.11.11.11", "portValue": 11111}},
        "filterChains": [
            {"filterChainMatch": {"destinationPort": 1}, "filters": [manager], "transportSocket": plain},
            {"filters": [proxy.clone()]},
        ],
        "defaultFilterChain": {"filters": [proxy]},
    });
    listener.to_string()
}

fn with_written_listener(protocol: Protocol, listener: &str) -> Web {
    let config = json!({"envoy_public_listener_json": listener});
    Web {
        protocol,
        instance: sidecar(json!({"LocalServicePort": 8080, "Config": config})),
        intentions: intentions(&[
            ("shop", json!("allow")),
            (
                "cart",
                json!([{"Action": "allow", "HTTP": {"PathPrefix": "/cart"}}]),
            ),
        ]),
        ..web()
    }
}

#[test]
fn a_written_listener_of_requests_has_tls_and_access_rules_in_every_chain() {
    let snapshot = with_written_listener(Protocol::Http, &written_listener());
    insta::assert_snapshot!(listeners(&snapshot));
    let set = made(&snapshot);
    let [.., routes, _] = type_urls();
    assert!(set.get(&routes).is_empty(), "it has routes of its own");
}

#[test]
fn a_written_listener_of_bytes_has_tls_and_access_rules_in_every_chain() {
    let snapshot = with_written_listener(Protocol::Tcp, &written_listener());
    insta::assert_snapshot!(listeners(&snapshot));
}

/// For upgrades, a separate list of filters replaces the others.
#[test]
fn upgrades_pass_the_access_rules_of_a_written_listener() {
    let mut listener: Value = serde_json::from_str(&written_listener()).unwrap();
    let manager = &mut listener["filterChains"][0]["filters"][0]["typedConfig"];
    manager["upgradeConfigs"] = json!([
        {"upgradeType": "websocket", "filters": manager["httpFilters"]}, {"upgradeType": "other"},
    ]);
    let rules = |listener: &str| {
        let snapshot = with_written_listener(Protocol::Http, listener);
        let listeners = listeners(&snapshot);
        listeners.matches("legate.intentions").count()
    };
    assert_eq!(rules(&listener.to_string()), rules(&written_listener()) + 1);
}

/// Including rules for requests, which are part of the listener.
#[test]
fn a_written_listener_is_made_again_when_an_intention_changes() {
    let generator = Generator::new();
    let before = with_written_listener(Protocol::Http, &written_listener());
    let set = generator.generate(&before, None);
    let after = Web {
        intentions: intentions(&[("shop", json!("deny"))]),
        ..before.clone()
    };
    let changed = generator.generate(&after, Some((&before, &set)));
    let [_, _, listeners, ..] = type_urls();
    let version = |set: &ResourceSet| set.get(&listeners)["own"].version.clone();
    assert_ne!(version(&set), version(&changed));
    assert_eq!(version(&changed), version(&made(&after)));
}

#[test]
fn a_listener_that_cannot_be_guarded_is_not_served() {
    let no_listener = r#"{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"}"#;
    let broken = written_listener().replace("statPrefix", "statPrefixes");
    let udp = written_listener().replace("\"portValue\"", "\"protocol\":\"UDP\",\"portValue\"");
    // Routes can disable a filter by name, in any spelling.
    let off =
        r#"{"@type":"type.googleapis.com/envoy.config.route.v3.FilterConfig","disabled":true}"#;
    let host = format!(
        r#"{{"name":"a","domains":["*"],"typedPerFilterConfig":{{"legate\u002eintentions":{off}}}}}"#
    );
    let routes = format!(r#""routeConfig":{{"virtualHosts":[{host}],"#);
    let off = written_listener().replace("\"routeConfig\":{", &routes);
    let from_a_file =
        json!({"configSource": {"pathConfigSource": {"path": "/r"}}, "routeConfigName": "r"});
    let mut elsewhere: Value = serde_json::from_str(&written_listener()).unwrap();
    let manager = &mut elsewhere["filterChains"][0]["filters"][0]["typedConfig"];
    manager.as_object_mut().unwrap().remove("routeConfig");
    manager["rds"] = from_a_file;
    let elsewhere = elsewhere.to_string();
    for (text, reason) in [
        (off.as_str(), "legate.intentions"),
        (&elsewhere, "routes from elsewhere"),
        ("{", "EOF"),
        (no_listener, "its @type is"),
        (&broken, "statPrefixes"),
        (&udp, "UDP"),
        (r#"{"name": "own"}"#, "@type"),
    ] {
        let snapshot = with_written_listener(Protocol::Http, text);
        let set = Generator::new().generate(&snapshot, None);
        let [_, _, listeners, ..] = type_urls();
        assert!(set.get(&listeners).is_empty(), "{text}");
        let error = set.failures()[0].reason.to_string();
        assert!(
            error.starts_with("envoy_public_listener_json cannot be used")
                && error.contains(reason),
            "{error}"
        );
    }
}

#[test]
fn a_written_cluster_of_the_application_replaces_the_usual_one() {
    let cluster = |name: &str| {
        json!({
            "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            "name": name, "connectTimeout": "5s",
            "metadata": {"filterMetadata": {"a": {}, "b": {}, "c": {}}},
        })
    };
    let snapshot = |name: &str| Web {
        instance: sidecar(json!({
            "LocalServicePort": 8080,
            "Config": {"EnvoyLocalClusterJSON": cluster(name).to_string()},
        })),
        ..web()
    };
    let [clusters, ..] = type_urls();
    let set = made(&snapshot("local_app"));
    let written = &set.get(&clusters)["local_app"];
    assert!(set.warnings().is_empty());
    let any = Any::decode(written.body.clone()).unwrap();
    let decoded = Cluster::decode(&*any.value).unwrap();
    assert_eq!(decoded.connect_timeout.unwrap().seconds, 5);
    assert_eq!(decoded.metadata.unwrap().filter_metadata.len(), 3);
    for _ in 0..8 {
        let again = made(&snapshot("local_app"));
        let again = &again.get(&clusters)["local_app"];
        assert_eq!(
            again.version, written.version,
            "in whichever order maps are"
        );
    }
    let set = made(&snapshot("mine"));
    assert!(set.get(&clusters).contains_key("mine"));
    assert!(
        set.warnings()[0].contains("is named \"mine\""),
        "{:?}",
        set.warnings()
    );
}

#[test]
fn requests_are_traced_as_configured() {
    let tracing = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager.Tracing",
        "randomSampling": {"value": 10}, "verbose": true,
    });
    let snapshot = |tracing: &str| Web {
        protocol: Protocol::Http,
        instance: sidecar(json!({
            "LocalServicePort": 8080,
            "Config": {"envoy_listener_tracing_json": tracing},
            "Expose": {"Paths": [{"ListenerPort": 20300, "Path": "/live", "LocalPathPort": 8080}]},
        })),
        upstreams: vec![api(Protocol::Http)],
        ..web()
    };
    insta::assert_snapshot!(listeners(&snapshot(&tracing.to_string())));
    let set = made(&snapshot("{}"));
    assert!(
        set.warnings()[0].contains("envoy_listener_tracing_json cannot be used"),
        "{:?}",
        set.warnings()
    );
}

#[test]
fn an_upstream_is_as_a_user_wrote_it() {
    let cluster = json!({
        "@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        "name": "own", "type": "EDS", "connectTimeout": "1s",
        "edsClusterConfig": {"edsConfig": {"ads": {}}},
        "transportSocketMatches": [{"name": "plain"}],
    });
    let listener = json!({
        "@type": "type.googleapis.com/envoy.config.listener.v3.Listener",
        "name": "own",
        "address": {"socketAddress": {"address": "127.0.0.1", "portValue": 9191}},
    });
    let definition = |cluster: &str| {
        json!({
            "DestinationName": "db", "LocalBindPort": 9191,
            "Config": {
                "envoy_cluster_json": cluster, "envoy_listener_json": listener.to_string(),
            },
        })
    };
    let db = |cluster: &str| {
        let instances = vec![instance("10.0.3.1", 20003, &[])];
        upstream(definition(cluster), Protocol::Tcp, instances)
    };
    let snapshot = Web {
        upstreams: vec![db(&cluster.to_string()), api(Protocol::Tcp)],
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));

    let broken = Web {
        upstreams: vec![db("{}")],
        ..web()
    };
    let set = Generator::new().generate(&broken, None);
    let [clusters, ..] = type_urls();
    assert_eq!(set.get(&clusters).len(), 1, "the application's");
    let error = set.failures()[0].reason.to_string();
    assert!(
        error.starts_with("envoy_cluster_json cannot be used"),
        "{error}"
    );
}

fn limited(protocol: Protocol, limits: Value) -> Web {
    let mut instance = sidecar(json!({"LocalServicePort": 8080}));
    Arc::make_mut(&mut instance).proxy.rate_limits = serde_json::from_value(limits).unwrap();
    Web {
        protocol,
        instance,
        ..web()
    }
}

#[test]
fn requests_are_limited_in_all_and_by_path() {
    let limits = json!({
        "RequestsPerSecond": 100, "RequestsMaxBurst": 200,
        "Routes": [
            {"PathExact": "/login", "RequestsPerSecond": 1},
            {"PathPrefix": "/api", "RequestsPerSecond": 10, "RequestsMaxBurst": 20},
            {"PathRegex": "/v[0-9]+", "RequestsPerSecond": 5},
        ],
    });
    insta::assert_snapshot!(public_listener(&limited(Protocol::Http, limits)));
}

#[test]
fn requests_are_limited_by_path_alone() {
    let limits = json!({"Routes": [{"PathExact": "/login", "RequestsPerSecond": 1}]});
    let text = public_listener(&limited(Protocol::Http, limits.clone()));
    let filter = "## envoy.filters.http.local_ratelimit";
    let parts: Vec<_> = text.split(filter).skip(1).collect();
    let [listener, route] = parts[..] else {
        panic!("{text}");
    };
    let own = listener.split("##").next().unwrap();
    assert!(!own.contains("token_bucket"), "{own}");
    assert!(route.contains("max_tokens: 1"), "{route}");

    let set = made(&limited(Protocol::Tcp, limits));
    assert!(set.warnings()[0].starts_with("RateLimits have no effect"));
}

/// As in the proxy's snapshot: the agent that assigned the ports to the checks is on the node.
#[test]
fn paths_of_checks_are_there_for_the_agents_machine() {
    let expose = json!({
        "Checks": true,
        "Paths": [
            {
                "ListenerPort": 21500, "Path": "/health", "LocalPathPort": 8080, "Protocol": "http",
                "ParsedFromCheck": true,
            },
            {
                "ListenerPort": 21501, "Path": "/grpc.health.v1.Health/Check", "LocalPathPort": 9090,
                "Protocol": "http2", "ParsedFromCheck": true,
            },
        ],
    });
    let snapshot = Web {
        instance: sidecar(json!({"LocalServicePort": 8080, "Expose": expose})),
        ..web()
    };
    insta::assert_snapshot!(upstreams(&snapshot));
    let has_v6 = Web {
        agent_ipv6: true,
        ..snapshot.clone()
    };
    assert!(upstreams(&has_v6).contains("\"::1\""));
    let v6 = Web {
        instance: sidecar(json!({
            "LocalServicePort": 8080, "Expose": expose, "Config": {"bind_address": "::1"},
        })),
        node_address: "fd00::1".into(),
        ..web()
    };
    let text = upstreams(&v6);
    assert!(
        text.contains("\"::1\"") && text.contains("\"fd00::1\""),
        "{text}"
    );
}

/// Zero disables the timeout; a negative number counts as absent.
#[test]
fn the_fetch_timeout_applies_to_endpoints_and_routes() {
    let snapshot = |millis: i64| Web {
        protocol: Protocol::Http,
        instance: sidecar(json!({
            "LocalServicePort": 8080, "Config": {"xds_fetch_timeout_ms": millis},
        })),
        upstreams: vec![api(Protocol::Http)],
        ..web()
    };
    let times = |millis| {
        let text = describe(&made(&snapshot(millis)));
        let all = text.matches("initial_fetch_timeout: Duration").count();
        (all, text.matches("nanos: 250000000").count())
    };
    // The endpoints of the upstream, and the routes of the public listener.
    assert_eq!(times(250), (2, 2));
    assert_eq!(times(0), (2, 0));
    assert_eq!(times(-1), (0, 0));
}

/// Instances in the caller's zone, in its region, in another region, and without a locality.
fn scattered() -> Vec<CheckServiceNode> {
    let at = |address: &str, port, region: &str, zone: &str| {
        let mut one = instance(address, port, &[]);
        let locality = json!({"Region": region, "Zone": zone});
        Arc::make_mut(&mut one.service).locality = serde_json::from_value(locality).unwrap();
        one
    };
    vec![
        at("10.0.3.1", 1, "r2", "a"),
        at("10.0.3.2", 2, "r1", "b"),
        instance("10.0.3.3", 3, &[]),
        at("10.0.3.4", 4, "r1", "a"),
    ]
}

fn assignment(locality: Option<Value>, mode: &str) -> String {
    let resolver = json!({
        "Kind": "service-resolver", "Name": "db", "PrioritizeByLocality": {"Mode": mode},
    });
    let definition = json!({"DestinationName": "db", "LocalBindPort": 9191});
    let mut instance = sidecar(json!({"LocalServicePort": 8080}));
    Arc::make_mut(&mut instance).locality =
        locality.map(|locality| serde_json::from_value(locality).unwrap());
    let snapshot = Web {
        instance,
        upstreams: vec![chained(definition, &[resolver], |_| scattered())],
        ..web()
    };
    let set = made(&snapshot);
    let [_, endpoints, ..] = type_urls();
    let all = set.get(&endpoints).values();
    all.map(|one_of_them| one(one_of_them)).collect()
}

#[test]
fn near_instances_are_asked_first() {
    let here = json!({"Region": "r1", "Zone": "a"});
    insta::assert_snapshot!(assignment(Some(here.clone()), "failover"));
    let usual = assignment(None, "");
    assert_eq!(usual.matches("LocalityLbEndpoints").count(), 1, "{usual}");
    for (locality, mode) in [(Some(here), "none"), (None, "failover")] {
        assert_eq!(assignment(locality, mode), usual);
    }
}
