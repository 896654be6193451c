//! The resources of an ingress gateway: the cost of a change, and what happens to what cannot be
//! made.

use std::sync::Arc;
use std::time::Duration;

use legate_discovery_chain::{ChainError, NodeKind};
use legate_model::GatewaySds;
use legate_proxycfg::{ExposedPort, IngressGateway, Kind, ResolvedChain, Snapshot};
use legate_resources::{GenerateError, Generator, ResourceSet};
use serde_json::{Value, json};

use crate::describe::type_urls;
use crate::golden_cases::documents::Documents;
use crate::golden_cases::written;
use crate::support::{connect_within, edit_chain, leaf, set_instances};

const HTTP: &str = "http:10.0.0.1:8080";
const TCP: &str = "backup:10.0.0.1:8081";

/// A gateway with two services behind a port for requests, and one behind a port for connections.
fn gateway() -> Snapshot {
    let documents: Documents = serde_json::from_value(json!({
        "Gateway": {"Kind": "ingress-gateway", "Service": "edge"},
        "Entries": [
            {"Kind": "service-defaults", "Name": "api", "Protocol": "http"},
            {"Kind": "service-defaults", "Name": "admin", "Protocol": "http"},
            {"Kind": "ingress-gateway", "Name": "edge", "TLS": {"Enabled": true}, "Listeners": [
                {"Port": 8080, "Protocol": "http", "Services": [
                    {"Name": "api", "Hosts": ["api.example"]},
                    {"Name": "admin", "Hosts": ["admin.example"]},
                ]},
                {"Port": 8081, "Services": [{"Name": "backup"}]},
            ]},
        ],
    }))
    .unwrap();
    documents.snapshot().unwrap()
}

fn own(snapshot: &mut Snapshot) -> &mut IngressGateway {
    match &mut snapshot.kind {
        Kind::IngressGateway(own) => own,
        other => panic!("{other:?}"),
    }
}

fn port(snapshot: &mut Snapshot, at: usize, change: impl FnOnce(&mut ExposedPort)) {
    change(&mut Arc::make_mut(&mut own(snapshot).exposed).listeners[at]);
}

/// The index of a service.
fn at(snapshot: &mut Snapshot, name: &str) -> usize {
    let mut upstreams = own(snapshot).upstreams.iter();
    let is = |one: &str| one == name;
    upstreams
        .position(|one| is(&one.upstream.destination_name))
        .unwrap()
}

/// What differs after a change: the number of parts that were computed, and the resources.
fn cost(change: impl FnOnce(&mut Snapshot)) -> (u64, Vec<String>) {
    let generator = Generator::new();
    let before = gateway();
    let first = generator.generate(&before, None);
    let computed = generator.work().computed;
    let mut after = before.clone();
    change(&mut after);
    let second = generator.generate(&after, Some((&before, &first)));
    let alone = Generator::new().generate(&after, None);
    assert_eq!(written::document(&second), written::document(&alone));
    (
        generator.work().computed - computed,
        changed(&first, &second),
    )
}

fn changed(first: &ResourceSet, second: &ResourceSet) -> Vec<String> {
    let mut names = Vec::new();
    for url in type_urls() {
        let (first, second) = (first.get(&url), second.get(&url));
        assert_eq!(first.len(), second.len(), "{url}");
        let kind = url.rsplit('.').next().unwrap();
        for (name, now) in second {
            if first
                .get(name)
                .is_none_or(|before| before.version != now.version)
            {
                names.push(format!("{kind} {}", name.split('.').next().unwrap()));
            }
        }
    }
    names
}

#[test]
fn a_change_costs_what_it_changes() {
    assert_eq!(cost(|_| ()), (0, Vec::new()));
    let instance = |gateway: &mut Snapshot| {
        let at = at(gateway, "api");
        set_instances(&mut own(gateway).upstreams[at], &Arc::default());
    };
    assert_eq!(
        cost(instance),
        (1, vec!["ClusterLoadAssignment api".to_owned()])
    );
    let chain = |name: &'static str| {
        move |gateway: &mut Snapshot| {
            let at = at(gateway, name);
            connect_within(&mut own(gateway).upstreams[at], Duration::from_secs(7));
        }
    };
    // The cluster with its endpoints, the report on the chain, and the routes of the port.
    assert_eq!(cost(chain("api")), (4, vec!["Cluster api".to_owned()]));
    // The listener instead of the routes.
    assert_eq!(
        cost(chain("backup")),
        (4, vec!["Cluster backup".to_owned()])
    );
    let renewed = |gateway: &mut Snapshot| own(gateway).leaf = leaf("edge", "second");
    assert_eq!(cost(renewed), (1, vec!["Secret leaf".to_owned()]));
    let host = |gateway: &mut Snapshot| {
        port(gateway, 0, |port| {
            port.services[0].hosts = vec!["new.example".to_owned()]
        });
    };
    assert_eq!(cost(host).1, ["RouteConfiguration 8080"]);
}

fn listeners(set: &ResourceSet) -> Vec<&str> {
    let [.., listeners, _, _] = type_urls();
    set.get(&listeners).keys().map(|name| &**name).collect()
}

fn hosts(set: &ResourceSet) -> Vec<(String, Value)> {
    let document = written::document(set);
    let hosts = document["Routes"]["8080"]["virtualHosts"]
        .as_array()
        .unwrap();
    let host = |host: &Value| {
        let route = &host["routes"][0];
        let answer = match route.get("directResponse") {
            Some(direct) => direct["status"].clone(),
            None => route["route"]["cluster"].clone(),
        };
        (host["domains"][0].as_str().unwrap().to_owned(), answer)
    };
    hosts.iter().map(host).collect()
}

#[test]
fn a_service_without_a_chain_is_unavailable_and_the_others_are_not() {
    let before = gateway();
    let generator = Generator::new();
    let first = generator.generate(&before, None);
    let mut after = before.clone();
    let place = at(&mut after, "api");
    let resolved = &mut own(&mut after).upstreams[place].resolved;
    let mut failed = ResolvedChain::clone(resolved);
    failed.chain = Err(ChainError::Circle(vec!["api".to_owned()]));
    *resolved = Arc::new(failed);
    let second = generator.generate(&after, Some((&before, &first)));
    for set in [second, Generator::new().generate(&after, None)] {
        let found = hosts(&set);
        assert_eq!(found[1], ("api.example".to_owned(), json!(503)));
        let (host, cluster) = &found[0];
        assert_eq!(host, "admin.example");
        assert!(cluster.as_str().unwrap().starts_with("admin."), "{cluster}");
        let [failure] = set.failures() else {
            panic!("{:?}", set.failures())
        };
        assert!(matches!(failure.reason, GenerateError::Chain(_)));
        assert_eq!(listeners(&set), [TCP, HTTP]);
    }
}

#[test]
fn a_listener_without_tls_settings_stays_closed() {
    let mut gateway = gateway();
    port(&mut gateway, 0, |port| {
        port.tls.tls_min_version = "TLSv9".to_owned()
    });
    port(&mut gateway, 1, |port| {
        port.tls.sds = Some(GatewaySds {
            cluster_name: "sds".to_owned(),
            cert_resource: String::new(),
        });
    });
    let set = Generator::new().generate(&gateway, None);
    assert_eq!(listeners(&set), [""; 0]);
    let reasons: Vec<_> = set
        .failures()
        .iter()
        .map(|one| one.reason.to_string())
        .collect();
    assert!(reasons[0].starts_with("TLS.TLSMinVersion for port 8080 of the ingress-gateway"));
    assert!(reasons[1].contains("port 8081"), "{reasons:?}");
    assert!(matches!(
        set.unusable(),
        Some(GenerateError::TlsVersion { .. })
    ));
}

#[test]
fn a_listener_that_gets_tls_does_not_stay_open_without_it() {
    let mut before = gateway();
    port(&mut before, 0, |port| port.tls.enabled = false);
    let generator = Generator::new();
    let first = generator.generate(&before, None);
    assert_eq!(listeners(&first), [TCP, HTTP]);
    let mut after = before.clone();
    port(&mut after, 0, |port| {
        port.tls.enabled = true;
        port.tls.tls_min_version = "TLSv9".to_owned();
    });
    let second = generator.generate(&after, Some((&before, &first)));
    assert_eq!(listeners(&second), [TCP]);
    assert!(!second.failures()[0].kept);
    let third = generator.generate(&after.clone(), Some((&after, &second)));
    assert_eq!(listeners(&third), [TCP]);
}

#[test]
fn a_port_for_connections_does_not_route_requests() {
    let before = gateway();
    let generator = Generator::new();
    let first = generator.generate(&before, None);
    let mut after = before.clone();
    let place = at(&mut after, "backup");
    edit_chain(&mut own(&mut after).upstreams[place], |chain| {
        let start = chain.start_node.clone();
        let node = chain.nodes.get_mut(&start).unwrap();
        node.kind = NodeKind::Splitter(Vec::new());
    });
    let second = generator.generate(&after, Some((&before, &first)));
    let failure = second.failures().first().unwrap();
    assert!(matches!(
        failure.reason,
        GenerateError::RoutedRequests { port: 8081, .. }
    ));
    // The last good version remains.
    assert!(failure.kept);
    assert_eq!(listeners(&second), [TCP, HTTP]);
}

#[test]
fn two_services_cannot_have_one_host() {
    let mut gateway = gateway();
    port(&mut gateway, 0, |port| {
        port.services[0].hosts = vec!["Same.example".to_owned(), "a.example".to_owned()];
        port.services[1].hosts = vec!["same.EXAMPLE".to_owned(), "a.example:8080".to_owned()];
    });
    let set = Generator::new().generate(&gateway, None);
    let document = written::document(&set);
    let hosts = &document["Routes"]["8080"]["virtualHosts"];
    // A name that a user wrote precedes one with an added port.
    assert_eq!(
        hosts[0]["domains"],
        json!(["Same.example", "a.example", "Same.example:8080"])
    );
    assert_eq!(hosts[1]["domains"], json!(["a.example:8080"]));
    let warnings = set.warnings();
    assert!(
        warnings.iter().any(|one| one.contains("same.EXAMPLE")),
        "{warnings:?}"
    );
}
