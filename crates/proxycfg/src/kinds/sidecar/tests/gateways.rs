//! Upstreams behind terminating gateways, explicit and implicit ones.

use super::destinations::{gateway, links};
use super::transparent::transparent;
use super::*;

/// `web` calls `db`, which has one instance without a proxy, by a registered upstream.
fn outside() -> Store {
    let store = mesh();
    apply(&store, web("web", &["db"]));
    let db = json!({"ID": "db", "Service": "db", "Address": "10.0.0.9", "Port": 5432});
    apply(&store, register("n7", db, Vec::new()));
    apply(&store, gateway("n3", "one", CheckStatus::Passing));
    apply(&store, gateway("n4", "two", CheckStatus::Passing));
    store
}

fn endpoints(store: &Store, target: &str) -> Vec<String> {
    let snapshot = snapshot(store).unwrap();
    let resolved = &sidecar(&snapshot).upstreams[0].resolved;
    let mut ids = resolved.chain.as_ref().unwrap().targets.keys();
    let id = ids.find(|id| id.starts_with(target)).unwrap();
    let instances = resolved.instances(id).unwrap();
    instances.iter().map(|one| one.service.id.clone()).collect()
}

#[test]
fn an_explicit_upstream_has_the_instances_of_its_gateways() {
    let store = outside();
    assert_eq!(endpoints(&store, "db."), [""; 0]);
    let (_, reads) = compute(&store, true);
    let mut watch = store.watch(&reads);
    apply(&store, links("one", &["DB"]));
    assert!(woken(&mut watch));
    assert_eq!(endpoints(&store, "db."), ["one"]);
    apply(&store, links("two", &["*"]));
    assert_eq!(endpoints(&store, "db."), ["one", "two"]);
    // As in Consul, a service may have proxies and a gateway, while it moves into the mesh.
    apply(
        &store,
        register("n8", instance("db", "db-proxy", 21000), Vec::new()),
    );
    assert_eq!(endpoints(&store, "db."), ["db-proxy", "one", "two"]);
    apply(&store, links("one", &["other"]));
    apply(&store, links("two", &["other"]));
    assert_eq!(endpoints(&store, "db."), ["db-proxy"]);
}

#[test]
fn a_service_without_instances_is_not_behind_every_gateway() {
    let store = outside();
    apply(&store, links("one", &["*"]));
    assert_eq!(endpoints(&store, "db."), ["one"]);
    apply(&store, deregister("n7", "db"));
    assert_eq!(endpoints(&store, "db."), [""; 0]);
}

#[test]
fn a_gateway_serves_every_subset() {
    let store = outside();
    apply(&store, links("one", &["db"]));
    let subsets = json!({"v1": {"Filter": "Service.Meta.version == v1"}});
    let resolver = json!({"Kind": "service-resolver", "Name": "db",
        "DefaultSubset": "v1", "Subsets": subsets});
    apply(&store, entry(resolver));
    assert_eq!(endpoints(&store, "v1.db."), ["one"]);
}

#[test]
fn addresses_of_a_gateway_are_not_those_of_its_services() {
    let store = outside();
    apply(&store, links("one", &["db"]));
    apply(&store, transparent(json!({})));
    apply(&store, intention("web", "db", IntentionAction::Allow));
    let directly = json!({"Kind": "service-defaults", "Name": "db",
        "TransparentProxy": {"DialedDirectly": true}});
    apply(&store, entry(directly));
    let implicit = own(snapshot(&store)).implicit.unwrap();
    let db = &implicit.0[0];
    assert_eq!(db.upstream.upstream.destination_name, "db");
    let resolved = &db.upstream.resolved;
    let target = resolved
        .chain
        .as_ref()
        .unwrap()
        .targets
        .keys()
        .next()
        .unwrap();
    let instances = resolved.instances(target).unwrap();
    assert_eq!(instances[0].service.id, "one");
    let kinds: Vec<_> = db.addresses.iter().map(|one| one.kind).collect();
    assert_eq!(kinds, [crate::DialledKind::Service]);
}
