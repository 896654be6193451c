//! A mesh gateway's snapshot as a function of the store.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use legate_ca::LeafId;
use legate_intentions::Action;
use legate_model::CheckServiceNode;
use legate_store::{AWAY, Command, Follower, Range, Store, Unavailable};
use serde_json::json;
use tokio::time::Instant;

use super::MeshGateway;
use crate::chain::Instances;
use crate::config::ManagerConfig;
use crate::kinds::Parts;
use crate::kinds::test_store::{self, apply, entry, register, with_gateway};

/// An instance of a service in the mesh.
fn native(name: &str, id: &str, version: &str) -> Command {
    register(json!({
        "ID": id, "Service": name, "Port": 80, "Connect": {"Native": true},
        "Meta": {"version": version},
    }))
}

fn mesh() -> Store {
    with_gateway("mesh-gateway", "gateway")
}

fn computed(store: &Store, parts: &mut Parts) -> MeshGateway {
    let config = ManagerConfig::new("dc1", Action::Deny);
    let snapshot = test_store::computed(store, &config, &mut |_: &LeafId| None, parts);
    let snapshot = snapshot.expect("it has all it needs");
    MeshGateway::of(&snapshot).unwrap().clone()
}

fn services(gateway: &MeshGateway) -> Vec<(&str, usize)> {
    let services = gateway.services.0.iter();
    services
        .map(|one| (&*one.service.name, one.instances.len()))
        .collect()
}

#[test]
fn it_has_the_services_of_the_mesh_and_their_subsets() {
    let store = mesh();
    assert!(services(&computed(&store, &mut Parts::default())).is_empty());
    apply(&store, native("api", "api-1", "v1"));
    apply(&store, native("api", "api-2", "v2"));
    apply(&store, register(json!({"ID": "db", "Service": "db"})));
    let now = || computed(&store, &mut Parts::default());
    assert_eq!(services(&now()), [("api", 2)], "db is not in the mesh");
    let subsets = json!({"v1": {"Filter": "Service.Meta.version == v1"}, "all": {}});
    let resolver = |default: &str| {
        entry(json!({
            "Kind": "service-resolver", "Name": "api", "ConnectTimeout": "3s",
            "DefaultSubset": default, "Subsets": subsets,
        }))
    };
    apply(&store, resolver(""));
    let gateway = now();
    let api = &gateway.services.0[0];
    let sizes = api.subsets.iter().map(|(name, all)| (&**name, all.len()));
    assert_eq!(sizes.collect::<Vec<_>>(), [("all", 2), ("v1", 1)]);
    assert_eq!((api.instances.len(), api.connect_timeout.as_secs()), (2, 3));
    apply(&store, resolver("v1"));
    assert_eq!(services(&now()), [("api", 1)]);
}

#[test]
fn its_limits_are_those_of_its_upstream_defaults() {
    let store = mesh();
    let limits = || (*computed(&store, &mut Parts::default()).limits).clone();
    assert!(limits().is_none());
    apply(
        &store,
        entry(json!({
            "Kind": "service-defaults", "Name": "gateway",
            "UpstreamConfig": {"Defaults": {"Limits": {"MaxConnections": 5}}},
        })),
    );
    assert_eq!(limits().unwrap().max_connections, Some(5));
}

/// A changed instance changes one service of the list, and an added service none.
#[test]
fn unchanged_services_are_the_same_arc() {
    let store = mesh();
    for name in ["api", "db", "web"] {
        apply(&store, native(name, name, ""));
    }
    let follower = Follower::default();
    let mut parts = Parts::of(follower.clone());
    let before = computed(&store, &mut parts);
    let is_woken = || follower.changed().now_or_never().is_some();
    assert!(!is_woken());
    apply(&store, native("db", "db-2", ""));
    assert!(is_woken());
    let after = computed(&store, &mut parts);
    let same = std::iter::zip(&before.services.0, &after.services.0);
    let same = same.map(|(before, after)| Arc::ptr_eq(before, after));
    assert_eq!(same.collect::<Vec<_>>(), [true, false, true]);
    assert!(Arc::ptr_eq(&before.limits, &after.limits));

    apply(&store, native("cache", "cache", ""));
    let added = computed(&store, &mut parts);
    assert_eq!(services(&added)[1], ("cache", 1));
    let others = [0, 2, 3].map(|at| &added.services.0[at]);
    let same = std::iter::zip(&after.services.0, others);
    assert!(same.into_iter().all(|(a, b)| Arc::ptr_eq(a, b)));
}

#[test]
fn it_has_the_gateways_of_other_datacenters() {
    let store = mesh();
    let mirror = store.mirror();
    let now = || computed(&store, &mut Parts::default());
    assert!(now().elsewhere.0.is_empty());
    mirror.set_datacenters(vec!["dc3".into(), "dc2".into()]);
    assert!(now().elsewhere.0.is_empty(), "none is known");
    let gateway = json!({
        "Kind": "mesh-gateway", "ID": "g", "Service": "gateway", "Port": 8443,
        "TaggedAddresses": {"wan": {"Address": "203.0.113.1", "Port": 443}},
    });
    let there = CheckServiceNode {
        node: Arc::default(),
        service: serde_json::from_value(gateway).unwrap(),
        checks: Vec::new(),
    };
    mirror.set(&Range::mesh_gateways("dc3", "default"), Vec::new());
    mirror.set(&Range::mesh_gateways("dc2", "default"), vec![there]);
    let found = now().elsewhere;
    let [dc2] = &found.0[..] else {
        panic!("{found:?}");
    };
    assert_eq!(dc2.datacenter, "dc2");
    assert_eq!(dc2.instances[0].address(), ("203.0.113.1", 443));
    mirror.set_datacenters(vec!["dc2".into(), "dc3".into()]);
    assert!(Arc::ptr_eq(
        &found.0[0].instances,
        &now().elsewhere.0[0].instances
    ));
}

/// A mesh gateway of dc2 that leads to its servers, at this address, changed at an index.
fn there(host: &str, index: u64) -> CheckServiceNode {
    let gateway = json!({
        "Kind": "mesh-gateway", "ID": host, "Service": "gateway", "Address": host, "Port": 8443,
        "Meta": {"consul-wan-federation": "1"}, "ModifyIndex": index,
    });
    CheckServiceNode {
        node: Arc::default(),
        service: serde_json::from_value(gateway).unwrap(),
        checks: Vec::new(),
    }
}

/// Stores what dc2 says its gateways are.
fn say(store: &Store, gateways: Vec<CheckServiceNode>) {
    let written = store.write(move |txn| {
        txn.put_mesh_gateways("dc2", &gateways, SystemTime::UNIX_EPOCH);
        Ok::<_, Unavailable>(())
    });
    written.now_or_never().unwrap().unwrap();
}

#[test]
fn it_leads_to_gateways_of_another_datacenter_before_that_one_is_asked() {
    let store = mesh();
    let mirror = store.mirror();
    mirror.set_datacenters(vec!["dc2".into()]);
    let range = Range::mesh_gateways("dc2", "default");
    let follower = Follower::default();
    let mut parts = Parts::of(follower.clone());
    let mut now = || {
        let _ = follower.changed().now_or_never();
        let own = computed(&store, &mut parts);
        let of = &own.elsewhere.0[0];
        let hosts = |all: &Instances| {
            let hosts = all.iter().map(|one| one.address().0.to_owned());
            hosts.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(hosts(&of.instances), hosts(&of.to_servers));
        hosts(&of.to_servers)
    };
    say(&store, vec![there("10.0.0.1", 7)]);
    assert_eq!(now(), "10.0.0.1");
    // What the datacenter itself answers counts while it is asked for changes.
    mirror.set(&range, vec![there("10.0.0.2", 5)]);
    assert_eq!(now(), "10.0.0.2");
    mirror.set(&range, vec![there("10.0.0.3", 9)]);
    assert_eq!(now(), "10.0.0.3");
    say(&store, vec![there("10.0.0.1", 8)]);
    mirror.fail(&range, "cut", Instant::now());
    mirror.fail(&range, "cut", Instant::now() + AWAY);
    assert_eq!(now(), "10.0.0.3", "it is newer");
    say(&store, vec![there("10.0.0.4", 10)]);
    assert_eq!(
        now(),
        "10.0.0.4",
        "all gateways were replaced during the cut"
    );
}

#[test]
fn it_leads_to_the_servers_in_the_catalog() {
    let store = mesh();
    let exposing = json!({
        "Kind": "mesh-gateway", "ID": "gateway-1", "Service": "gateway",
        "Meta": {"consul-wan-federation": "1"},
    });
    let now = || computed(&store, &mut Parts::default());
    let before = (now(), now());
    assert!(before.0.servers.is_none());
    assert!(
        Arc::ptr_eq(&before.0.servers, &before.1.servers),
        "one that exposes no servers is not published again"
    );
    apply(&store, register(exposing));
    assert!((*now().servers).as_ref().unwrap().all.is_empty());
    apply(
        &store,
        register(json!({"ID": "consul", "Service": "consul", "Port": 8300})),
    );
    // Not what others register with the name.
    apply(
        &store,
        register(json!({"ID": "x", "Service": "consul", "Port": 1})),
    );
    let own = now();
    let servers = (*own.servers).as_ref().unwrap();
    assert_eq!(&*servers.domain, "consul");
    let [(node, server)] = &servers.by_node[..] else {
        panic!("{servers:?}");
    };
    assert_eq!((node.as_str(), server[0].address().1), ("n1", 8300));
}
