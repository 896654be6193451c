//! A terminating gateway's snapshot as a function of the store and of the certificates that there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt;
use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_intentions::Action;
use legate_model::{CaRoots, ConfigEntry, Node, ServiceInstance, ServiceName, Tenancy};
use legate_store::{CaState, Command, Follower, Registration, Store};
use serde_json::{Value, json};

use super::TerminatingGateway;
use crate::config::ManagerConfig;
use crate::kinds::{self, Outcome, Parts};
use crate::snapshot::ProxyId;

fn apply(store: &Store, command: Command) {
    store.apply(command).now_or_never().unwrap().unwrap();
}

fn register(service: Value) -> Command {
    let service: ServiceInstance = serde_json::from_value(service).unwrap();
    Command::Register(Box::new(Registration {
        node: Node {
            node: "n1".to_owned(),
            address: "10.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        },
        service: Some(service),
        checks: Vec::new(),
        skip_node_update: false,
    }))
}

fn instance(name: &str) -> Command {
    register(json!({"ID": name, "Service": name, "Port": 80}))
}

/// A store with a gateway for all services.
fn mesh() -> Store {
    let store = Store::new();
    let ca = CaState {
        roots: Arc::new(CaRoots {
            active_root_id: "r1".to_owned(),
            trust_domain: "11111111-2222-3333-4444-555555555555.consul".to_owned(),
            roots: Vec::new(),
        }),
        signing_key: "key".into(),
        cluster_id: "11111111-2222-3333-4444-555555555555".to_owned(),
        lives: BTreeMap::new(),
    };
    apply(&store, Command::SetCa(Box::new(ca)));
    let gateway = json!({"Kind": "terminating-gateway", "ID": "egress-1", "Service": "egress"});
    apply(&store, register(gateway));
    let mut entry: ConfigEntry = serde_json::from_value(json!({
        "Kind": "terminating-gateway", "Name": "egress", "Services": [{"Name": "*"}],
    }))
    .unwrap();
    entry.validate().unwrap();
    entry.normalise();
    let entry = Box::new(entry);
    apply(&store, Command::UpsertConfigEntry { entry, cas: None });
    store
}

/// The names of the services that the gateway represents, if certificates are issued for all but
/// `missing`. `None` while it waits.
fn represented(store: &Store, parts: &mut Parts, missing: &[&str]) -> Option<Vec<String>> {
    let proxy = ProxyId {
        tenancy: Tenancy::default(),
        node: "n1".into(),
        service_id: "egress-1".into(),
    };
    let config = ManagerConfig::new("dc1", Action::Deny);
    let state = store.state();
    let mut issue = |id: &LeafId| {
        let is_missing = |name: &ServiceName| missing.contains(&&*name.name);
        let issued = !matches!(&id.holder, LeafHolder::Service(name) if is_missing(name));
        issued.then(|| Arc::new(Leaf::to_be_issued(id)))
    };
    let outcome = kinds::snapshot(&state.read(), &proxy, &config, &mut issue, parts);
    let Outcome::Ready(snapshot) = outcome.unwrap() else {
        return None;
    };
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
