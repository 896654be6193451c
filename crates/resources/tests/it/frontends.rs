//! Services of a cluster on sidecars: their part of the outbound listener, routes, clusters, and the ports of an
//! application besides the registered one.

use std::sync::Arc;

use legate_model::Protocol;
use legate_proxycfg::{BackendSnapshot, Frontends, ServiceFrontend};
use legate_resources::ResourceSet;
use legate_routes::{Backend, Endpoint, Listener};
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::golden::public_listener;
use crate::support::{Generator, Web, intentions, sidecar, web};
use crate::transparent::{captured, described, outbound, two};

fn backend(name: &str, protocol: &str) -> Value {
    json!({"Namespace": "shop", "Name": name, "Port": 80, "Protocol": protocol})
}

fn to(backends: &[(&str, u32)], protocol: &str) -> Value {
    let weighted = backends.iter().map(
        |(name, weight)| json!({"Weight": weight, "Target": {"Backend": backend(name, protocol)}}),
    );
    weighted.collect()
}

fn listener(port: u16, content: &Value) -> Arc<Listener> {
    let listener = json!({
        "Port": port, "HostPorts": "Any",
        "Chains": [{"Tls": "None", "Content": 0}],
        "Contents": [content],
    });
    Arc::new(serde_json::from_value(listener).unwrap())
}

fn requests(action: &Value) -> Value {
    let rule = json!({"Origin": {"Route": {"Name": "route"}, "Rule": 0}, "Action": action});
    json!({"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": [rule]}]})
}

fn called(name: &str, protocol: &str, endpoints: &Value) -> BackendSnapshot {
    let backend: Backend = serde_json::from_value(backend(name, protocol)).unwrap();
    let endpoints: Vec<Endpoint> = serde_json::from_value(endpoints.clone()).unwrap();
    BackendSnapshot {
        backend: Arc::new(backend),
        endpoints: Arc::new(endpoints),
    }
}

fn of(address: &str) -> Value {
    json!([{"Address": address, "Port": 20000, "Identity": {"Name": "v1"}}])
}

/// A Service with requests on one port and connections on another, at an address that the mesh's own service `api`
/// has, too.
fn frontends(v1: &Value) -> Arc<Frontends> {
    let shares = requests(&json!({"Forward": to(&[("v1", 70), ("v2", 30)], "Http1")}));
    let connections = json!({"Tcp": to(&[("v1", 1)], "Tcp")});
    let other_port = json!([
        {"Address": "10.1.0.9", "Port": 20000, "Identity": {"Name": "v1"}, "Application": 9090},
    ]);
    Arc::new(Frontends {
        services: vec![ServiceFrontend {
            name: "front.shop".to_owned(),
            addresses: vec!["10.96.0.5".parse().unwrap(), "fd00::5".parse().unwrap()],
            mesh_service: "front".to_owned(),
            mesh_ports: Vec::new(),
            listeners: vec![listener(80, &shares), listener(90, &connections)],
        }],
        backends: vec![
            called("v1", "Http1", v1),
            called(
                "v2",
                "Http1",
                &json!([{"Address": "10.1.0.2", "Port": 8080}]),
            ),
            called("v1", "Tcp", &other_port),
        ],
    })
}

fn with(frontends: Arc<Frontends>) -> Web {
    Web {
        frontends,
        ..captured(json!({}), two())
    }
}

#[test]
fn services_are_reached_by_their_addresses_and_ports() {
    insta::assert_snapshot!(described(&with(frontends(&of("10.1.0.1")))));
}

/// The names of the resources that differ.
fn changed(before: &ResourceSet, after: &ResourceSet) -> Vec<String> {
    let mut names = Vec::new();
    for type_url in type_urls() {
        let (before, after) = (before.get(&type_url), after.get(&type_url));
        for (name, resource) in after {
            if before.get(name).map(|one| &one.version) != Some(&resource.version) {
                names.push(name.to_string());
            }
        }
        names.extend(
            before
                .keys()
                .filter(|name| !after.contains_key(name))
                .map(ToString::to_string),
        );
    }
    names
}

#[test]
fn a_rollout_changes_endpoints_only() {
    let generator = Generator::new();
    let earlier = with(frontends(&of("10.1.0.1")));
    let before = generator.generate(&earlier, None);
    let later = with(frontends(&of("10.1.0.7")));
    let after = generator.generate(&later, Some((&earlier, &before)));
    let changed = changed(&before, &after);
    assert!(
        matches!(&changed[..], [one] if one.starts_with("http.80.v1.shop.kubernetes.mesh-")),
        "{changed:?}"
    );
}

#[test]
fn ports_of_a_service_of_the_mesh_are_left_to_its_chain() {
    let matches = |name: &str| {
        let mut all = Frontends::clone(&frontends(&of("10.1.0.1")));
        all.services[0].mesh_service = name.to_owned();
        all.services[0].mesh_ports = vec![80];
        let set = Generator::new().generate(&with(Arc::new(all)), None);
        // The addresses, and the port if there is one, of each chain.
        let listener = outbound(&set).unwrap();
        let chains = listener.split("filter_chain_match").skip(1).map(|chain| {
            let value = |line: &str, name: &str| {
                let value = line.trim().strip_prefix(name)?;
                Some(value.trim().trim_matches('"').to_owned())
            };
            let port = chain.split_once("destination_port");
            let port =
                port.and_then(|(_, rest)| rest.lines().find_map(|line| value(line, "value:")));
            let addresses = chain.lines();
            let addresses = addresses.filter_map(|line| value(line, "address_prefix:"));
            let addresses: Vec<_> = addresses.collect();
            (port.unwrap_or_default(), addresses.join(" "))
        });
        chains.collect::<Vec<_>>()
    };
    let has = |all: &[(String, String)], port: &str, addresses: &str| {
        all.contains(&(port.to_owned(), addresses.to_owned()))
    };
    let other = matches("other");
    assert!(has(&other, "80", "10.96.0.6 240.0.0.1"), "{other:?}");
    assert!(has(&other, "80", "10.96.0.5 fd00::5"), "{other:?}");
    let own = matches("api");
    assert!(has(&own, "80", "10.96.0.5 10.96.0.6 240.0.0.1"), "{own:?}");
    assert!(has(&own, "80", "fd00::5"), "it has no chain there: {own:?}");
    assert!(has(&own, "90", "10.96.0.5 fd00::5"), "{own:?}");
}

#[test]
fn an_address_of_two_services_belongs_to_one() {
    let mut all = Frontends::clone(&frontends(&of("10.1.0.1")));
    let mut again = all.services[0].clone();
    again.name = "again.shop".to_owned();
    all.services.push(again);
    let set = Generator::new().generate(&with(Arc::new(all)), None);
    let listener = outbound(&set).unwrap();
    assert!(!listener.contains("again.shop"), "{listener}");
    let warning = "the Services front.shop and again.shop both have the address 10.96.0.5: it is that of front.shop";
    assert!(
        set.warnings().iter().any(|one| one.contains(warning)),
        "{:?}",
        set.warnings()
    );
}

#[test]
fn other_ports_of_the_application_have_rules_for_connections() {
    let permissions = json!([{"Action": "allow", "HTTP": {"PathPrefix": "/"}}]);
    let snapshot = Web {
        protocol: Protocol::Http,
        instance: sidecar(json!({"Config": {"legate_ports": [9090, 7070]}})),
        intentions: intentions(&[("shop", json!("allow")), ("api", permissions)]),
        ..web()
    };
    insta::assert_snapshot!(public_listener(&snapshot));
}
