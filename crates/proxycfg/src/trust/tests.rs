//! Which peers' roots are accepted, as a function of the store.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use legate_identity::{Authority, RootRequest, split_certificates};
use legate_model::{PeerTrustBundle, Peering, ServiceName, TrustDomain};
use legate_store::{Store, WriteError};
use serde_json::json;

use super::{PeerCallers, callers};
use crate::kinds::test_store::{apply, entry, register, with_gateway};

fn own() -> TrustDomain {
    TrustDomain::of_cluster("c1")
}

/// The certificate of a CA.
fn root() -> String {
    let request = RootRequest {
        common_name: "a root".to_owned(),
        uri: "spiffe://c2.consul".to_owned(),
        serial: 1,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        ttl: Duration::from_secs(3600),
    };
    let root = Authority::generate_root(request).unwrap();
    split_certificates(root.cert_pem()).unwrap().concat()
}

/// A peering with a trust bundle.
fn peer(store: &Store, name: &str, trust_domain: &str, roots: Vec<String>) {
    let peering = Peering {
        id: format!("id-of-{name}"),
        name: name.to_owned(),
        ..Peering::default()
    };
    let bundle = PeerTrustBundle {
        peer_name: name.to_owned(),
        trust_domain: trust_domain.to_owned(),
        root_pems: roots,
        ..PeerTrustBundle::default()
    };
    let written = store.write(move |txn| {
        txn.put_peering(peering.clone());
        txn.put_trust_bundle(bundle.clone());
        Ok::<_, WriteError>(())
    });
    written.now_or_never().unwrap().unwrap();
}

/// A store in which `api` is exported to these peers.
fn exporting(peers: &[&str]) -> Store {
    let store = with_gateway("mesh-gateway", "gateway");
    apply(
        &store,
        register(json!({"ID": "api", "Service": "api", "Port": 80, "Connect": {"Native": true}})),
    );
    let consumers: Vec<_> = peers.iter().map(|peer| json!({"Peer": peer})).collect();
    let services = json!([{"Name": "api", "Consumers": consumers}]);
    apply(
        &store,
        entry(json!({"Kind": "exported-services", "Name": "default", "Services": services})),
    );
    store
}

fn of(store: &Store, service: &str) -> Arc<PeerCallers> {
    callers(
        &store.state().read(),
        &ServiceName::from(service),
        "dc1",
        &own(),
    )
}

fn names(store: &Store, service: &str) -> Vec<String> {
    let callers = of(store, service);
    assert!(
        callers
            .connecting
            .keys()
            .all(|peer| callers.all.contains_key(peer))
    );
    callers.all.keys().map(|peer| peer.to_string()).collect()
}

#[test]
fn services_that_no_peer_calls_share_one_value() {
    let store = exporting(&["alpha"]);
    let none = of(&store, "api");
    assert!(none.all.is_empty());
    peer(&store, "alpha", "c2.consul", vec![root()]);
    assert_eq!(names(&store, "api"), ["alpha"]);
    assert!(Arc::ptr_eq(&none, &of(&store, "web")));
}

/// No peer replaces the own roots, or those of a peer that was known before.
#[test]
fn a_trust_domain_belongs_to_the_first() {
    let store = exporting(&["alpha", "beta", "gamma"]);
    peer(&store, "alpha", "C1.consul", vec![root()]);
    assert!(names(&store, "api").is_empty(), "it is that of this mesh");
    let first = root();
    peer(&store, "gamma", "c2.consul", vec![first.clone()]);
    peer(&store, "beta", "C2.consul", vec![root()]);
    assert_eq!(names(&store, "api"), ["gamma"]);
    let trust = Arc::clone(&of(&store, "api").all["gamma"]);
    assert_eq!(*trust.roots, first);
}

/// Envoy would refuse all roots together with one that it cannot parse.
#[test]
fn unusable_roots_are_left_out() {
    let store = exporting(&["alpha"]);
    let wrong = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for roots in [
        vec![],
        vec![String::new()],
        vec![wrong.to_owned()],
        vec![root(); 65],
    ] {
        peer(&store, "alpha", "c2.consul", roots);
        assert!(names(&store, "api").is_empty());
    }
    peer(&store, "alpha", "no trust domain", vec![root()]);
    assert!(names(&store, "api").is_empty());
    peer(&store, "alpha", "c2.consul", vec![root()]);
    assert_eq!(names(&store, "api"), ["alpha"]);
}

#[test]
fn behind_a_chain_for_requests_only_gateways_connect() {
    let store = exporting(&["alpha"]);
    peer(&store, "alpha", "c2.consul", vec![root()]);
    assert!(of(&store, "api").connecting.contains_key("alpha"));
    apply(
        &store,
        entry(json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"})),
    );
    let callers = of(&store, "api");
    assert!(callers.connecting.is_empty() && callers.all.contains_key("alpha"));
}
