use super::*;

fn kind(name: &str, resources: u64, accepted: u64) -> Value {
    let urls = legate_api::type_url::ORDERED;
    let url = urls.iter().find(|url| url.ends_with(name)).unwrap();
    json!({
        "type_url": url, "wildcard": true, "names": 0, "unanswered_names": 0,
        "resources": resources, "bytes": resources * 700, "system_version": "7",
        "answered": true, "waiting_for_envoy": false, "accepted": accepted, "rejected": 0
    })
}

/// A proxy without any incidents.
fn ready() -> Value {
    json!({
        "version": "0.1.0",
        "ready": true,
        "components": [
            {"name": "session", "state": "ready"},
            {"name": "envoy", "state": "ready"},
            {"name": "configuration", "state": "ready"}
        ],
        "proxy": {
            "id": "web-sidecar-proxy", "node_name": "node-1", "node_id": "",
            "namespace": "default", "partition": ""
        },
        "session": {
            "state": "connected", "state_age": 192.4, "server": "10.0.0.1:8502",
            "known_servers": ["10.0.0.1:8502", "10.0.0.2:8502", "10.0.0.3:8502"],
            "heard": 12.7, "logins": 1,
            "accessor_id": "6f1cbd38-0000-0000-0000-000000000001",
            "token_age": 190.0,
            "bearer_expires": "2030-01-02T03:04:05Z",
            "client_certificate_expires": "2031-01-02T03:04:05Z"
        },
        "relay": {
            "upstream": {
                "server": "10.0.0.1:8502", "streams_opened": 1,
                "last_message_seconds_ago": 4, "refused": false
            },
            "envoy_streams": 1,
            "types": [kind("Cluster", 12, 3), kind("Listener", 2, 2)]
        },
        "envoy": {
            "pid": 4711, "state": "healthy", "admin": "127.0.0.1:19000", "starts": 1,
            "epochs": [{"epoch": 0, "pid": 4711, "state": "healthy"}]
        },
        "startup_seconds": {
            "bootstrap": 0.061, "connect": 0.052, "envoy": 0.09, "listen": 0.004, "ready": 0.412
        }
    })
}

#[test]
fn a_proxy_that_is_ready() {
    insta::assert_snapshot!(text(&ready()));
}

#[test]
fn a_proxy_that_waits_for_a_server() {
    let mut document = ready();
    let refused = "cannot connect to server 10.0.0.2:8502: Connection refused (os error 111)";
    document["ready"] = json!(false);
    document["components"] = json!([
        {"name": "session", "state": "pending",
         "reason": format!("{refused}; 3 servers are known, trying again in 3 s")},
        {"name": "envoy", "state": "pending",
         "reason": "not started yet: it needs the proxy's parameters from a server"},
        {"name": "configuration", "state": "pending",
         "reason": "Envoy has not asked for its configuration"}
    ]);
    document["session"] = json!({
        "state": "waiting", "state_age": 0.35, "next_attempt": 2.2,
        "known_servers": ["10.0.0.1:8502", "10.0.0.2:8502", "10.0.0.3:8502"],
        "last_error": {"error": refused, "code": "Unavailable", "age": 0.35},
        "logins": 0
    });
    document["relay"] = json!({
        "missing": "Envoy has not asked for its configuration",
        "upstream": {"streams_opened": 0, "refused": false},
        "envoy_streams": 0, "types": []
    });
    document["envoy"] = json!({"state": "not started", "admin": "127.0.0.1:19000", "starts": 0});
    document["startup_seconds"] = json!({"listen": 0.004});
    insta::assert_snapshot!(text(&document));
}

#[test]
fn a_configuration_that_envoy_rejects() {
    let mut document = ready();
    let why = "Error adding/updating listener(s) public_listener:0.0.0.0:20000:\n\
               Didn't find a registered implementation for 'odd.filter'\u{1b}[31m";
    document["ready"] = json!(false);
    document["components"][2] = json!({
        "name": "configuration", "state": "pending",
        "reason": format!("Envoy rejected its listeners: {why}")
    });
    document["relay"]["missing"] = json!(format!("Envoy rejected its listeners: {why}"));
    let listeners = &mut document["relay"]["types"][1];
    listeners["rejected"] = json!(4);
    listeners["last_rejection"] =
        json!({"message": why, "names": ["public_listener:0.0.0.0:20000", "other"]});
    let mut endpoints = kind("ClusterLoadAssignment", 10, 5);
    endpoints["names"] = json!(12);
    endpoints["unanswered_names"] = json!(2);
    let mut routes = kind("RouteConfiguration", 1, 0);
    routes["waiting_for_envoy"] = json!(true);
    let mut secrets = kind("Secret", 0, 0);
    secrets["answered"] = json!(false);
    let types = document["relay"]["types"].as_array_mut().unwrap();
    types.extend([endpoints, routes, secrets]);
    insta::assert_snapshot!(text(&document));
}

#[test]
fn a_hot_restart_with_two_epochs() {
    let mut document = ready();
    document["relay"]["envoy_streams"] = json!(2);
    document["envoy"] = json!({
        "pid": 4711, "state": "draining", "admin": "127.0.0.1:19000", "starts": 2,
        "epochs": [
            {"epoch": 0, "pid": 4711, "state": "draining", "age_seconds": 90061, "connections": 31},
            {"epoch": 1, "pid": 10815, "state": "healthy", "age_seconds": 42, "connections": 118,
             "adopted": false}
        ]
    });
    insta::assert_snapshot!(text(&document));
}

#[test]
fn a_restart_loop() {
    let mut document = ready();
    document["ready"] = json!(false);
    let reason = "Envoy is waiting to be started again, the last one killed by SIGSEGV";
    document["components"][1] = json!({"name": "envoy", "state": "pending", "reason": reason});
    let exit = |epoch: u64, reason: &str, lived: u64| {
        json!({
            "epoch": epoch, "pid": 4711 + epoch, "reason": reason, "expected": false,
            "lived_seconds": lived as f64 / 1000.0, "age_seconds": 8.5
        })
    };
    document["relay"]["upstream"] = json!({
        "streams_opened": 3, "refused": true, "last_error": "server 10.0.0.1:8502 does not know it"
    });
    document["envoy"] = json!({
        "state": "waiting to be started again", "admin": "127.0.0.1:19000", "starts": 3,
        "next_start_seconds": 8.2,
        "exits": [
            exit(0, "killed by SIGSEGV", 7_265_000),
            exit(1, "exited with code 3", 350),
            exit(12, "killed by SIGSEGV", 1_200)
        ]
    });
    insta::assert_snapshot!(text(&document));
}

#[test]
fn any_document_is_shown() {
    for document in [
        json!({}),
        json!([]),
        json!({"ready": "yes", "components": {}, "session": [], "relay": 7, "envoy": "running"}),
        json!({"components": [1, null, {}], "relay": {"types": [3, {"names": "x"}]},
               "envoy": {"state": {}, "epochs": 1, "exits": [null]}, "startup_seconds": {"a": "b"}}),
    ] {
        let text = text(&document);
        assert!(text.contains("is NOT READY"), "{text}");
    }
    let newer = json!({
        "ready": true, "generation": 9,
        "session": {"state": "connected", "quorum_age": 61.0, "zone": "eu\u{7}", "peers": [1]}
    });
    let text = text(&newer);
    for line in [
        "  generation  9\n",
        "  state       connected\n",
        "  peers       1\n",
        "  quorum age  1m1s\n",
        "  zone        eu\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn ages_have_two_units_at_most() {
    for (seconds, expected) in [
        (0.0, "0ms"),
        (0.35, "350ms"),
        (1.0, "1s"),
        (59.9, "59s"),
        (60.0, "1m"),
        (192.4, "3m12s"),
        (3600.0, "1h"),
        (3601.0, "1h"),
        (7500.0, "2h5m"),
        (90_061.0, "1d1h"),
        (-3.0, "0ms"),
        (f64::MAX, "213503982334601d7h"),
    ] {
        assert_eq!(age(seconds), expected);
    }
}
