//! What is exported to peers, as a function of the store.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::FutureExt;
use legate_model::{Peering, PeeringState, Protocol, ServiceName, Tenancy, TrustDomain};
use legate_store::{Command, Store, WriteError};
use serde_json::{Value, json};

use super::{PeerExports, exports_to_peer, peers_connecting_to, peers_of};
use crate::kinds::test_store::{apply, entry, register, with_gateway};

fn store() -> Store {
    with_gateway("mesh-gateway", "gateway")
}

fn own() -> TrustDomain {
    TrustDomain::of_cluster("c1")
}

fn peer(store: &Store, name: &str, state: PeeringState) {
    let peering = Peering {
        id: format!("id-of-{name}"),
        name: name.to_owned(),
        state,
        ..Peering::default()
    };
    let written = store.write(move |txn| {
        txn.put_peering(peering.clone());
        Ok::<_, WriteError>(())
    });
    written.now_or_never().unwrap().unwrap();
}

/// An instance of an application, and its sidecar.
fn in_mesh(store: &Store, name: &str) {
    apply(
        store,
        register(json!({"ID": name, "Service": name, "Port": 80})),
    );
    apply(
        store,
        register(json!({
            "Kind": "connect-proxy", "ID": format!("{name}-proxy"), "Service": format!("{name}-proxy"),
            "Port": 20000, "Proxy": {"DestinationServiceName": name},
        })),
    );
}

fn exported(services: Value) -> Command {
    entry(json!({"Kind": "exported-services", "Name": "default", "Services": services}))
}

fn to_peer(name: &str, peer: &str) -> Value {
    json!({"Name": name, "Consumers": [{"Peer": peer}]})
}

fn exports(store: &Store, peer: &str) -> Arc<PeerExports> {
    exports_to_peer(&store.state().read(), peer, "dc1", &own())
}

/// The exported names, and those in the mesh with their protocols and targets.
fn shown(store: &Store, peer: &str) -> (Vec<String>, Vec<String>) {
    let exports = exports(store, peer);
    let services = exports.services.iter().map(ServiceName::to_string);
    let in_mesh = exports.in_mesh.iter().map(|(service, export)| {
        let targets = export.targets.iter().map(|one| one.service.to_string());
        let targets: Vec<_> = targets.collect();
        format!(
            "{service} {} {}",
            export.protocol.as_str(),
            targets.join("+")
        )
    });
    (services.collect(), in_mesh.collect())
}

fn callers(store: &Store, service: &str) -> [Vec<String>; 2] {
    let state = store.state();
    [peers_of, peers_connecting_to].map(|query| {
        let found = query(&state.read(), &service.into(), "dc1", &own());
        found.iter().map(|peer| peer.to_string()).collect()
    })
}

#[test]
fn named_services_are_exported_whether_or_not_they_exist() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    in_mesh(&store, "api");
    apply(&store, register(json!({"ID": "db", "Service": "db"})));
    let lines = json!([
        to_peer("api", "alpha"),
        to_peer("db", "alpha"),
        to_peer("absent", "alpha"),
        to_peer("consul", "alpha"),
        to_peer("API", "alpha"),
        to_peer("web", "other"),
    ]);
    apply(&store, exported(lines));
    let (services, in_mesh) = shown(&store, "alpha");
    assert_eq!(services, ["absent", "api", "db"]);
    assert_eq!(in_mesh, ["api tcp api"]);
    let none = (Vec::new(), Vec::new());
    assert_eq!(shown(&store, "other"), none, "there is no such peering");
    peer(&store, "alpha", PeeringState::Terminated);
    assert_eq!(shown(&store, "alpha"), none);
}

#[test]
fn a_wildcard_includes_applications_and_chains() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    in_mesh(&store, "api");
    apply(
        &store,
        register(json!({"ID": "consul", "Service": "consul"})),
    );
    apply(&store, register(json!({"ID": "db", "Service": "db"})));
    let resolver = json!({
        "Kind": "service-resolver", "Name": "virtual", "Redirect": {"Service": "api"},
    });
    apply(&store, entry(resolver));
    apply(&store, exported(json!([to_peer("*", "alpha")])));
    let (services, in_mesh) = shown(&store, "alpha");
    assert_eq!(
        services,
        ["api", "db"],
        "neither proxies, gateways nor servers"
    );
    assert_eq!(in_mesh, ["api tcp api", "virtual tcp api"]);
    let gateway = json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "db"}],
    });
    apply(&store, entry(gateway));
    assert_eq!(
        shown(&store, "alpha").1,
        ["api tcp api", "db tcp db", "virtual tcp api"]
    );
    let to_servers = json!({
        "Kind": "service-resolver", "Name": "virtual", "Redirect": {"Service": "consul"},
    });
    apply(&store, entry(to_servers));
    assert_eq!(shown(&store, "alpha").1, ["api tcp api", "db tcp db"]);
}

#[test]
fn members_of_sameness_groups_are_consumers() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    peer(&store, "beta", PeeringState::Pending);
    let group = json!({"Kind": "sameness-group", "Name": "both", "Members": [{"Peer": "alpha"}]});
    apply(&store, entry(group));
    apply(
        &store,
        exported(json!([{"Name": "api", "Consumers": [{"SamenessGroup": "both"}]}])),
    );
    assert_eq!(shown(&store, "alpha").0, ["api"]);
    assert!(shown(&store, "beta").0.is_empty());
}

/// Every line that names a service counts, and the lines of services whose chains lead to it.
#[test]
fn all_lines_tell_who_may_call() {
    let store = store();
    for name in ["alpha", "beta", "gamma"] {
        peer(&store, name, PeeringState::Pending);
    }
    for name in ["api", "db", "web"] {
        in_mesh(&store, name);
    }
    let lines = json!([
        to_peer("api", "alpha"),
        to_peer("*", "beta"),
        to_peer("front", "gamma")
    ]);
    apply(&store, exported(lines));
    let redirect = json!({
        "Kind": "service-resolver", "Name": "front", "Redirect": {"Service": "db"},
    });
    apply(&store, entry(redirect));
    let both = |names: &[&str]| {
        [names, names].map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(callers(&store, "api"), both(&["alpha", "beta"]));
    assert_eq!(callers(&store, "DB"), both(&["beta", "gamma"]));
    assert_eq!(callers(&store, "web"), both(&["beta"]));
    let http = |name| entry(json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"}));
    apply(&store, http("api"));
    assert_eq!(
        callers(&store, "api"),
        [vec!["alpha".to_owned(), "beta".to_owned()], Vec::new()],
        "mesh gateways apply the chain"
    );
}

/// A changed instance computes nothing for other services, and nothing at all if no answer changes.
#[test]
fn instances_change_nothing() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    in_mesh(&store, "api");
    apply(&store, exported(json!([to_peer("*", "alpha")])));
    let before = exports(&store, "alpha");
    apply(
        &store,
        register(json!({"ID": "api-2", "Service": "api", "Port": 81})),
    );
    let after = exports(&store, "alpha");
    assert!(Arc::ptr_eq(&before, &after));
    in_mesh(&store, "db");
    let added = exports(&store, "alpha");
    let api = ServiceName::from("api");
    assert!(Arc::ptr_eq(&after.in_mesh[&api], &added.in_mesh[&api]));
    assert_eq!(added.services.len(), 2);
}

#[test]
fn identities_are_those_that_answer() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    in_mesh(&store, "db");
    let redirect = json!({
        "Kind": "service-resolver", "Name": "front", "Redirect": {"Service": "db"},
    });
    apply(&store, entry(redirect));
    apply(&store, exported(json!([to_peer("front", "alpha")])));
    let ids = || {
        let exports = exports(&store, "alpha");
        let front = ServiceName::new(&Tenancy::default(), "front");
        let ids = exports.in_mesh[&front].spiffe_ids(&front, "dc1", &own());
        ids.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let [front, gateway, db] = [
        "ns/default/dc/dc1/svc/front",
        "gateway/mesh/dc/dc1",
        "ns/default/dc/dc1/svc/db",
    ]
    .map(|path| format!("spiffe://c1.consul/{path}"));
    assert_eq!(ids(), [front.clone(), gateway.clone(), db]);
    for name in ["front", "db"] {
        let http = json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"});
        apply(&store, entry(http));
    }
    assert_eq!(ids(), [front, gateway]);
}

#[test]
fn protocols_are_those_of_chains() {
    let store = store();
    peer(&store, "alpha", PeeringState::Pending);
    in_mesh(&store, "api");
    apply(&store, exported(json!([to_peer("api", "alpha")])));
    let http = json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "grpc"}});
    apply(&store, entry(http));
    let exports = exports(&store, "alpha");
    let protocols: BTreeSet<_> = exports.in_mesh.values().map(|one| one.protocol).collect();
    assert_eq!(protocols, BTreeSet::from([Protocol::Grpc]));
}
