//! A terminating gateway's snapshot as a function of the store and of the certificates that there are.

use std::sync::Arc;

use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_intentions::Action;
use legate_model::ServiceName;
use legate_store::{Command, Follower, Store};
use serde_json::json;

use super::TerminatingGateway;
use crate::config::ManagerConfig;
use crate::kinds::Parts;
use crate::kinds::test_store::{self, apply, entry, register, with_gateway};

fn instance(name: &str) -> Command {
    register(json!({"ID": name, "Service": name, "Port": 80}))
}

/// A store with a gateway for all services.
fn mesh() -> Store {
    let store = with_gateway("terminating-gateway", "egress");
    let all = json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "*"}],
    });
    apply(&store, entry(all));
    store
}

/// The names of the services that the gateway represents, if certificates are issued for all but
/// `missing`. `None` while it waits.
fn represented(store: &Store, parts: &mut Parts, missing: &[&str]) -> Option<Vec<String>> {
    let config = ManagerConfig::new("dc1", Action::Deny);
    let mut issue = |id: &LeafId| {
        let is_missing = |name: &ServiceName| missing.contains(&&*name.name);
        let issued = !matches!(&id.holder, LeafHolder::Service(name) if is_missing(name));
        issued.then(|| Arc::new(Leaf::to_be_issued(id)))
    };
    let snapshot = test_store::computed(store, &config, &mut issue, parts)?;
    let services = &TerminatingGateway::of(&snapshot).unwrap().services;
    let names = services.iter().map(|one| one.service.name.name.to_string());
    Some(names.collect())
}

#[test]
fn at_first_it_waits_for_all_certificates() {
    let (store, mut parts) = (mesh(), Parts::of(Follower::default()));
    for name in ["db", "mail"] {
        apply(&store, instance(name));
    }
    assert_eq!(represented(&store, &mut parts, &["mail"]), None);
    let all = represented(&store, &mut parts, &[]).unwrap();
    assert_eq!(all, ["db", "mail"]);
}

#[test]
fn an_added_service_without_a_certificate_does_not_hold_up_the_others() {
    let (store, mut parts) = (mesh(), Parts::of(Follower::default()));
    apply(&store, instance("db"));
    assert_eq!(represented(&store, &mut parts, &[]).unwrap(), ["db"]);
    for name in ["mail", "maps"] {
        apply(&store, instance(name));
    }
    let without = represented(&store, &mut parts, &["mail"]).unwrap();
    assert_eq!(without, ["db", "maps"]);
    let all = represented(&store, &mut parts, &[]).unwrap();
    assert_eq!(all, ["db", "mail", "maps"]);
}
