//! What a mesh gateway forwards between peers, and the cost of changes.

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use legate_ca::{Leaf, LeafHolder, LeafId};
use legate_intentions::Action;
use legate_model::{PeerTrustBundle, Peering, PeeringState};
use legate_store::{Follower, Store, WriteError};
use serde_json::{Value, json};

use super::{computed, mesh, native};
use crate::config::ManagerConfig;
use crate::kinds::Parts;
use crate::kinds::mesh_gateway::MeshGateway;
use crate::kinds::test_store::{self, apply, entry};

fn peer(store: &Store, name: &str, trust_domain: &str, state: PeeringState) {
    let peering = Peering {
        id: format!("id-of-{name}"),
        name: name.to_owned(),
        state,
        ..Peering::default()
    };
    let bundle = PeerTrustBundle {
        peer_name: name.to_owned(),
        trust_domain: trust_domain.to_owned(),
        root_pems: vec![crate::trust::tests::root()],
        ..PeerTrustBundle::default()
    };
    let written = store.write(move |txn| {
        txn.put_peering(peering.clone());
        txn.put_trust_bundle(bundle.clone());
        Ok::<_, WriteError>(())
    });
    written.now_or_never().unwrap().unwrap();
}

fn export(store: &Store, names: &[&str]) {
    let line = |name: &&str| json!({"Name": name, "Consumers": [{"Peer": "alpha"}]});
    let services: Vec<Value> = names.iter().map(line).collect();
    apply(
        store,
        entry(json!({"Kind": "exported-services", "Name": "default", "Services": services})),
    );
}

fn http(name: &str) -> legate_store::Command {
    entry(json!({"Kind": "service-defaults", "Name": name, "Protocol": "http"}))
}

/// The services that peers reach, with the clusters of their chains.
fn exports(gateway: &MeshGateway) -> Vec<(String, Vec<String>)> {
    let exports = gateway.exports.0.iter().map(|one| {
        let chain = one.upstream.resolved.chain.as_ref().unwrap();
        let clusters = chain.targets.values().map(|target| target.name.clone());
        (one.server_names.join(","), clusters.collect())
    });
    exports.collect()
}

#[test]
fn a_changed_instance_changes_one_export() {
    let store = mesh();
    peer(&store, "alpha", "c2.consul", PeeringState::Pending);
    for name in ["api", "db"] {
        apply(&store, native(name, name, ""));
    }
    export(&store, &["api", "db"]);
    let follower = Follower::default();
    let mut parts = Parts::of(follower.clone());
    let before = computed(&store, &mut parts);
    assert_eq!(before.exports.0.len(), 2);
    apply(&store, native("db", "db-2", ""));
    let after = computed(&store, &mut parts);
    let same = std::iter::zip(&before.exports.0, &after.exports.0);
    let same: Vec<_> = same.map(|(a, b)| Arc::ptr_eq(a, b)).collect();
    assert_eq!(same, [true, false]);
    assert!(Arc::ptr_eq(&before.peers, &after.peers));
    peer(&store, "alpha", "c2.consul", PeeringState::Terminated);
    assert!(computed(&store, &mut parts).exports.0.is_empty());
}

#[test]
fn gateways_ignore_failover() {
    let store = mesh();
    peer(&store, "alpha", "c2.consul", PeeringState::Pending);
    for name in ["api", "db"] {
        apply(&store, native(name, name, ""));
    }
    apply(
        &store,
        entry(json!({
            "Kind": "service-resolver", "Name": "api", "Failover": {"*": {"Service": "db"}},
        })),
    );
    export(&store, &["api"]);
    let domain = "11111111-2222-3333-4444-555555555555.consul";
    let gateway = computed(&store, &mut Parts::default());
    let expected = (
        format!("api.default.default.alpha.external.{domain}"),
        vec![format!("exported~api.default.dc1.internal.{domain}")],
    );
    assert_eq!(exports(&gateway), [expected]);
    assert_eq!(
        gateway.exports.0[0]
            .upstream
            .resolved
            .instances("api.default.default.dc1")
            .unwrap()
            .len(),
        1
    );
}

/// The certificate is only asked for when requests of peers come in.
#[test]
fn requests_need_a_certificate_and_the_roots_of_the_peer() {
    let store = mesh();
    apply(&store, native("api", "api", ""));
    export(&store, &["api"]);
    let config = ManagerConfig::new("dc1", Action::Deny);
    let now = || {
        let mut leaves = |id: &LeafId| {
            assert_eq!(id.holder, LeafHolder::MeshGateway("default".into()));
            Some(Arc::new(Leaf {
                index: 1,
                id: id.clone(),
                uri: String::new(),
                cert_pem: "certificate".to_owned(),
                key_pem: "key".into(),
                serial: "01".to_owned(),
                valid_after: SystemTime::UNIX_EPOCH,
                valid_before: SystemTime::UNIX_EPOCH,
                authority_key_id: String::new(),
            }))
        };
        let snapshot = test_store::computed(&store, &config, &mut leaves, &mut Parts::default());
        MeshGateway::of(&snapshot.unwrap()).unwrap().clone()
    };
    peer(&store, "alpha", "c2.consul", PeeringState::Pending);
    assert!(now().leaf.is_none(), "connections are passed on");
    apply(&store, http("api"));
    let gateway = now();
    assert!(gateway.leaf.is_some());
    assert!(gateway.exports.0[0].peers.contains_key("alpha"));
    peer(&store, "alpha", "no trust domain", PeeringState::Pending);
    assert!(now().exports.0.is_empty(), "it would accept nobody");
}
