//! The services outside the mesh of a proxy in transparent mode, and the changes that make a new
//! snapshot.

use super::transparent::transparent;
use super::*;
use crate::{Destination, Destinations};

/// `web` in transparent mode, and `api`.
fn captured() -> Store {
    let store = mesh();
    apply(&store, transparent(json!({})));
    store
}

pub(super) fn outside(name: &str, port: u16) -> Command {
    let destination = json!({"Addresses": ["db.example"], "Port": port});
    entry(json!({"Kind": "service-defaults", "Name": name, "Destination": destination}))
}

pub(super) fn gateway(node: &str, name: &str, status: CheckStatus) -> Command {
    let service = json!({
        "Kind": "terminating-gateway", "ID": name, "Service": name, "Port": 8443,
    });
    register(node, service, vec![check(name, status, "")])
}

pub(super) fn links(name: &str, services: &[&str]) -> Command {
    let services: Vec<Value> = services.iter().map(|name| json!({"Name": name})).collect();
    entry(json!({"Kind": "terminating-gateway", "Name": name, "Services": services}))
}

fn destinations(store: &Store) -> Arc<Destinations> {
    own(snapshot(store)).destinations
}

fn names(store: &Store) -> Vec<String> {
    let all = destinations(store);
    all.iter().map(|one| one.name.clone()).collect()
}

/// The services in the mesh that it may call.
fn implicit(store: &Store) -> Vec<String> {
    let all = own(snapshot(store)).implicit.unwrap();
    let names = all.0.iter();
    let names = names.map(|one| one.upstream.upstream.destination_name.clone());
    names.collect()
}

fn gateways(destination: &Destination) -> Vec<&str> {
    let instances = destination.gateways.iter();
    instances.map(|one| one.service.id.as_str()).collect()
}

#[test]
fn intentions_select_the_destinations() {
    use IntentionAction::{Allow, Deny};
    let store = captured();
    apply(&store, outside("db", 443));
    apply(&store, outside("other", 443));
    apply(
        &store,
        entry(json!({"Kind": "service-defaults", "Name": "inside"})),
    );
    assert_eq!(names(&store), [""; 0], "the default is to deny");
    apply(&store, intention("web", "db", Allow));
    assert_eq!(names(&store), ["db"]);
    assert_eq!(implicit(&store), [""; 0], "it is no service in the mesh");
    // Every destination also has a virtual IP, as every name with service-defaults has.
    apply(&store, intention("web", "*", Allow));
    assert_eq!(names(&store), ["db", "other"]);
    assert_eq!(implicit(&store), ["api", "db", "inside", "other"]);
    apply(&store, intention("web", "db", Deny));
    assert_eq!(names(&store), ["other"]);
    assert_eq!(implicit(&store), ["api", "db", "inside", "other"]);
    // With an instance in the catalog, the intention applies to the instance.
    apply(
        &store,
        register("n1", json!({"ID": "db", "Service": "db"}), Vec::new()),
    );
    assert_eq!(names(&store), ["db", "other"]);
    assert_eq!(implicit(&store), ["api", "inside", "other"]);
    apply(&store, web("web", &[]));
    assert_eq!(names(&store), [""; 0], "another mode");
}

#[test]
fn gateways_of_a_destination_are_linked_to_it() {
    let store = captured();
    apply(&store, outside("db", 443));
    apply(&store, intention("web", "db", IntentionAction::Allow));
    apply(&store, gateway("n3", "one", CheckStatus::Passing));
    apply(&store, gateway("n4", "two", CheckStatus::Passing));
    // A service of another kind with the name of a gateway.
    apply(
        &store,
        register("n5", json!({"ID": "fake", "Service": "one"}), Vec::new()),
    );
    assert_eq!(gateways(&destinations(&store)[0]), [""; 0]);
    apply(&store, links("one", &["other", "DB"]));
    assert_eq!(gateways(&destinations(&store)[0]), ["one"]);
    apply(&store, links("two", &["*"]));
    assert_eq!(gateways(&destinations(&store)[0]), ["one", "two"]);
    apply(&store, links("one", &["other"]));
    assert_eq!(gateways(&destinations(&store)[0]), ["two"]);
}

#[test]
fn only_changes_of_its_destinations_make_a_new_snapshot() {
    let store = captured();
    apply(&store, outside("db", 443));
    apply(&store, intention("web", "db", IntentionAction::Allow));
    apply(&store, gateway("n3", "one", CheckStatus::Passing));
    apply(&store, links("one", &["*"]));
    let before = destinations(&store);
    let (_, reads) = compute(&store, true);
    let mut watch = store.watch(&reads);
    apply(&store, outside("other", 443));
    apply(&store, gateway("n4", "unlinked", CheckStatus::Passing));
    let after = destinations(&store);
    assert!(Arc::ptr_eq(&before, &after), "nothing has changed for it");
    apply(&store, gateway("n3", "one", CheckStatus::Critical));
    assert!(woken(&mut watch));
    assert_ne!(before, destinations(&store));
}

#[test]
fn the_control_plane_is_not_a_destination() {
    let store = captured();
    apply(&store, outside("consul", 443));
    apply(&store, outside("db", 443));
    apply(&store, intention("web", "*", IntentionAction::Allow));
    assert_eq!(names(&store), ["db"]);
}
