//! What is compiled from the entries of a gateway.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use legate_identity::{Authority, RootRequest};
use legate_model::ConfigEntry;
use legate_routes::{Action, Certificate, Content, PathMatch, Target, Tls};
use legate_store::{Command, Store};
use serde_json::{Value, json};

use super::compile::{Compiled, compiled};

/// `{"keys": [{"kty": "oct", "k": "AQ"}]}`.
const KEYS: &str = "eyJrZXlzIjogW3sia3R5IjogIm9jdCIsICJrIjogIkFRIn1dfQ==";

fn write(store: &Store, entry: Value) {
    let mut entry: ConfigEntry = serde_json::from_value(entry).unwrap();
    entry.validate().unwrap();
    entry.normalise();
    let command = Command::UpsertConfigEntry {
        entry: Box::new(entry),
        cas: None,
    };
    store.apply(command).now_or_never().unwrap().unwrap();
}

fn of(store: &Store) -> Arc<Compiled> {
    let state = store.state();
    compiled(&state.read(), &"api".into(), "dc1")
}

fn http(service: &str) -> Value {
    json!({ "Kind": "service-defaults", "Name": service, "Protocol": "http" })
}

fn gateway(listeners: Value) -> Value {
    json!({ "Kind": "api-gateway", "Name": "api", "Listeners": listeners })
}

fn route(name: &str, hosts: Value, rules: Value) -> Value {
    json!({
        "Kind": "http-route", "Name": name, "Parents": [{ "Name": "api" }], "Hostnames": hosts,
        "Rules": rules,
    })
}

fn to(path: &str, service: &str) -> Value {
    json!({
        "Matches": [{ "Path": { "Match": "prefix", "Value": path } }],
        "Services": [{ "Name": service }],
    })
}

/// A line for each rule: the host, the path, and where requests go.
fn rules(compiled: &Compiled) -> Vec<String> {
    let mut lines = Vec::new();
    for listener in &compiled.listeners {
        let [Content::Http(hosts)] = &listener.contents[..] else {
            continue;
        };
        for (host, rule) in hosts
            .iter()
            .flat_map(|host| host.rules.iter().map(move |rule| (host, rule)))
        {
            let action = match &rule.action {
                Action::Answer(status) => status.to_string(),
                Action::Forward(backends) => {
                    let each = backends.iter().map(|one| match &one.target {
                        Target::Service(service) => format!("{} {service}", one.weight),
                        Target::Answer(status) => format!("{} {status}", one.weight),
                        Target::Backend(backend) => panic!("{backend:?}"),
                    });
                    each.collect::<Vec<_>>().join(", ")
                }
                Action::Redirect(redirect) => panic!("{redirect:?}"),
            };
            let kind = match &rule.matched.path {
                PathMatch::Exact(_) => "=",
                PathMatch::Prefix(_) | PathMatch::Segments(_) => "",
                PathMatch::Regex(_) => "~",
            };
            let path = rule.matched.path.text();
            lines.push(format!(
                "{} {kind}{path} -> {action}",
                host.domains.join(" ")
            ));
        }
    }
    lines
}

#[test]
fn rules_of_all_routes_for_a_host_are_in_one_order() {
    let store = Store::new();
    write(&store, http("web"));
    write(&store, http("other"));
    write(
        &store,
        gateway(json!([{ "Name": "one", "Port": 80, "Protocol": "http", "Hostname": "*.test" }])),
    );
    write(
        &store,
        route(
            "b",
            json!(["a.test"]),
            json!([to("/", "web"), to("/x/y", "web")]),
        ),
    );
    write(
        &store,
        route(
            "a",
            json!(["a.test", "B.test"]),
            json!([to("/", "other"), to("/x", "other")]),
        ),
    );
    write(
        &store,
        route(
            "c",
            json!(null),
            json!([{ "Services": [{ "Name": "web" }] }]),
        ),
    );
    let expected = [
        "*.test / -> 1 web",
        "a.test /x/y -> 1 web",
        "a.test /x -> 1 other",
        // The older route precedes.
        "a.test / -> 1 web",
        "a.test / -> 1 other",
        "b.test /x -> 1 other",
        "b.test / -> 1 other",
    ];
    assert_eq!(rules(&of(&store)), expected);
}

#[test]
fn requests_for_a_route_out_of_order_reach_no_other_service() {
    let store = Store::new();
    write(&store, http("web"));
    write(
        &store,
        gateway(json!([{ "Name": "one", "Port": 80, "Protocol": "http" }])),
    );
    write(&store, route("a", json!(null), json!([to("/", "web")])));
    write(
        &store,
        route("b", json!(null), json!([to("/admin", "tcp-service")])),
    );
    write(
        &store,
        route(
            "c",
            json!(null),
            json!([{ "Matches": [{ "Path": { "Match": "exact", "Value": "/none" } }] }]),
        ),
    );
    let expected = ["* /admin -> 500", "* =/none -> 500", "* / -> 1 web"];
    assert_eq!(rules(&of(&store)), expected);
    assert_eq!(*of(&store).services, ["web"]);
}

#[test]
fn services_share_requests_by_weight() {
    let store = Store::new();
    write(&store, http("web"));
    write(&store, http("canary"));
    write(
        &store,
        gateway(json!([{ "Name": "one", "Port": 80, "Protocol": "http" }])),
    );
    let services = json!([{ "Name": "web", "Weight": 99 }, { "Name": "canary" }]);
    write(
        &store,
        route("a", json!(null), json!([{ "Services": services }])),
    );
    assert_eq!(rules(&of(&store)), ["* / -> 99 web, 1 canary"]);
}

#[test]
fn a_gateway_that_refers_to_something_missing_is_closed() {
    let store = Store::new();
    write(&store, http("web"));
    let closed = json!([
        { "Name": "one", "Port": 80, "Protocol": "http" },
        { "Name": "two", "Port": 81, "Protocol": "http", "TLS": { "Certificates": [{ "Name": "gone" }] } },
    ]);
    write(&store, gateway(closed));
    write(&store, route("a", json!(null), json!([to("/", "web")])));
    assert!(of(&store).listeners.is_empty());
    let token = json!({ "JWT": { "Providers": [{ "Name": "gone" }] } });
    write(
        &store,
        gateway(json!([{ "Name": "one", "Port": 80, "Protocol": "http", "Override": token }])),
    );
    assert!(of(&store).listeners.is_empty());
}

#[test]
fn a_tcp_listener_has_one_route() {
    let store = Store::new();
    let tcp = |name: &str| json!({ "Kind": "tcp-route", "Name": name, "Parents": [{ "Name": "api" }], "Services": [{ "Name": name }] });
    write(
        &store,
        gateway(json!([{ "Name": "one", "Port": 80, "Protocol": "tcp" }])),
    );
    assert!(of(&store).listeners.is_empty());
    write(&store, tcp("db"));
    let compiled = of(&store);
    let [listener] = compiled.listeners.as_slice() else {
        panic!("{compiled:?}")
    };
    let [Content::Tcp(backends)] = &listener.contents[..] else {
        panic!("{listener:?}")
    };
    let targets: Vec<_> = backends.iter().map(|one| &one.target).collect();
    assert_eq!(targets, [&Target::Service("db".into())]);
    write(&store, tcp("cache"));
    assert!(of(&store).listeners.is_empty());
}

#[test]
fn tokens_of_a_listener_precede_or_follow_those_of_routes() {
    let store = Store::new();
    write(&store, http("web"));
    for name in ["first", "own", "last"] {
        write(
            &store,
            json!({
                "Kind": "jwt-provider", "Name": name,
                "JSONWebKeySet": { "Local": { "JWKS": KEYS } },
            }),
        );
    }
    let token = |name: &str| json!({ "JWT": { "Providers": [{ "Name": name }] } });
    let rule = json!({ "Services": [{ "Name": "web" }] });
    let mut own = rule.clone();
    own["Filters"] = token("own");
    write(&store, route("a", json!(["a.test"]), json!([rule])));
    write(&store, route("b", json!(["b.test"]), json!([own])));
    let check = |policies: Value, expected: [&str; 2]| {
        let mut listener = json!({ "Name": "one", "Port": 80, "Protocol": "http" });
        listener
            .as_object_mut()
            .unwrap()
            .extend(policies.as_object().unwrap().clone());
        write(&store, gateway(json!([listener])));
        let compiled = of(&store);
        let [Content::Http(hosts)] = &compiled.listeners[0].contents[..] else {
            panic!("no hosts")
        };
        let names = hosts.iter().map(|host| {
            let token = host.rules[0].token.as_deref();
            token
                .and_then(|token| token.provider_names().next())
                .unwrap_or_default()
                .to_owned()
        });
        assert_eq!(names.collect::<Vec<_>>(), expected);
    };
    check(json!({}), ["", "own"]);
    check(json!({ "Default": token("last") }), ["last", "own"]);
    check(
        json!({ "Override": token("first"), "Default": token("last") }),
        ["first", "first"],
    );
}

fn pair(name: &str) -> (String, String) {
    let root = Authority::generate_root(RootRequest {
        common_name: name.to_owned(),
        uri: "spiffe://example.consul".to_owned(),
        serial: 1,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        ttl: Duration::from_secs(3600),
    });
    let root = root.unwrap();
    (root.cert_pem().to_owned(), root.key_pem())
}

#[test]
fn several_certificates_are_chosen_by_server_name() {
    let store = Store::new();
    write(&store, http("web"));
    for (name, host) in [
        ("a", "a.test"),
        ("again", "A.test"),
        ("b", "*.b.test"),
        ("person", "Some Body"),
    ] {
        let (certificate, key) = pair(host);
        write(
            &store,
            json!({ "Kind": "inline-certificate", "Name": name, "Certificate": certificate, "PrivateKey": key }),
        );
    }
    write(
        &store,
        json!({ "Kind": "file-system-certificate", "Name": "f", "Certificate": "/c", "PrivateKey": "/k" }),
    );
    write(
        &store,
        route(
            "a",
            json!(null),
            json!([{ "Services": [{ "Name": "web" }] }]),
        ),
    );
    let check = |references: Value, expected: &[(Option<&str>, &[&str], &str)]| {
        write(
            &store,
            gateway(json!([{
                "Name": "one", "Port": 80, "Protocol": "http", "TLS": references,
            }])),
        );
        let compiled = of(&store);
        let chains: Vec<_> = compiled.listeners[0]
            .chains
            .iter()
            .map(|chain| {
                let secret = match &chain.tls {
                    Tls::None => "none",
                    Tls::Terminated(tls) => match tls.certificates.as_slice() {
                        [Certificate::OfGateway] => "of gateway",
                        [Certificate::Secret(name)] => name,
                        other => panic!("{other:?}"),
                    },
                    Tls::PassedThrough => panic!("{chain:?}"),
                };
                let names: Vec<_> = chain.server_names.iter().map(String::as_str).collect();
                (chain.name.as_deref(), names, secret)
            })
            .collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, hosts, secret)| (*name, hosts.to_vec(), *secret))
            .collect();
        assert_eq!(chains, expected);
    };
    check(json!({}), &[(None, &[], "none")]);
    check(
        json!({ "MinVersion": "TLSv1_2" }),
        &[(None, &[], "of gateway")],
    );
    check(
        json!({ "Certificates": [{ "Name": "person" }] }),
        &[(Some("person"), &[], "inline-certificate/person")],
    );
    check(
        json!({ "Certificates": [{ "Name": "a" }, { "Name": "again" }, { "Name": "b" }, { "Name": "person" }] }),
        &[
            (Some("b"), &["*.b.test"], "inline-certificate/b"),
            (Some("default"), &[], "of gateway"),
        ],
    );
    check(
        json!({ "Certificates": [{ "Kind": "file-system-certificate", "Name": "f" }, { "Name": "a" }] }),
        &[
            (Some("a"), &["a.test"], "inline-certificate/a"),
            (Some("default"), &[], "file-system-certificate/f"),
        ],
    );
}

#[test]
fn what_does_not_concern_a_port_leaves_it_as_it_is() {
    let store = Store::new();
    write(&store, http("web"));
    let listeners = json!([
        { "Name": "one", "Port": 80, "Protocol": "http", "Hostname": "a.test" },
        { "Name": "two", "Port": 81, "Protocol": "http", "Hostname": "b.test" },
    ]);
    write(&store, gateway(listeners));
    write(
        &store,
        route("a", json!(["a.test"]), json!([to("/", "web")])),
    );
    write(
        &store,
        route("b", json!(["b.test"]), json!([to("/", "web")])),
    );
    let before = of(&store);
    write(
        &store,
        route("b", json!(["b.test"]), json!([to("/x", "web")])),
    );
    let after = of(&store);
    assert!(Arc::ptr_eq(&before.listeners[0], &after.listeners[0]));
    assert_ne!(before.listeners[1], after.listeners[1]);
}
