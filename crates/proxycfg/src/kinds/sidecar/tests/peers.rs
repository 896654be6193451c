//! Upstreams that are imported from peers.

use std::collections::BTreeMap;

use legate_discovery_chain::Target;
use legate_model::{
    CheckServiceNode, Locality, MeshGatewayMode, PeerTrustBundle, Peering, PeeringRemote, Protocol,
    Tenancy,
};

use super::queries::{query, web_with};
use super::transparent::transparent;
use super::*;
use crate::{ImplicitUpstream, ResolvedChain};

const TRUST_DOMAIN: &str = "22222222-2222-3333-4444-555555555555.consul";

/// The representation of a service of `alpha` by one of its gateways.
fn sidecar_of(service: &str, gateway: u8, protocol: &str, status: CheckStatus) -> CheckServiceNode {
    let id = format!("{service}-sidecar-proxy-instance-{gateway}");
    let node = json!({"Node": format!("g{gateway}"), "Address": format!("10.9.0.{gateway}")});
    let instance = json!({
        "Kind": "connect-proxy", "ID": id, "Service": format!("{service}-sidecar-proxy"),
        "Port": 8443, "Proxy": {"DestinationServiceName": service},
        "TaggedAddresses": {
            "wan": {"Address": format!("192.0.2.{gateway}"), "Port": 443},
            "virtual": {"Address": "10.0.0.77", "Port": 80},
        },
        "Connect": {"PeerMeta": {
            "SNI": [format!("{service}.default.default.here.external.{TRUST_DOMAIN}")],
            "SpiffeID": [
                format!("spiffe://{TRUST_DOMAIN}/ns/default/dc/alpha/svc/{service}"),
                format!("spiffe://{TRUST_DOMAIN}/gateway/mesh/dc/alpha"),
            ],
            "Protocol": protocol,
        }},
    });
    CheckServiceNode {
        node: serde_json::from_value(node).unwrap(),
        service: serde_json::from_value(instance).unwrap(),
        checks: vec![Arc::new(HealthCheck {
            node: format!("g{gateway}"),
            ..check(&id, status, "")
        })],
    }
}

fn import(store: &Store, service: &str, instances: Vec<CheckServiceNode>) {
    let service = format!("{service}-sidecar-proxy");
    let of_peer = Tenancy::default().of_peer("alpha");
    let write = move |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        Ok(txn.in_tenancy(&of_peer, |txn| txn.put_imported(&service, &instances)))
    };
    let written = store.write(write).now_or_never().unwrap().unwrap();
    written.1.unwrap();
}

fn trust(store: &Store, roots: &'static [&'static str]) {
    let write = move |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        txn.put_trust_bundle(PeerTrustBundle {
            trust_domain: TRUST_DOMAIN.to_owned(),
            peer_name: "alpha".to_owned(),
            root_pems: roots.iter().map(|pem| (*pem).to_owned()).collect(),
            ..PeerTrustBundle::default()
        });
        Ok(())
    };
    store.write(write).now_or_never().unwrap().unwrap();
}

/// `web`, whose `Proxy` has these upstreams.
fn web_to(upstreams: Value) -> Command {
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": upstreams},
    });
    register("n1", service, Vec::new())
}

fn s2_of(peer: &str, mode: &str) -> Value {
    json!([{
        "DestinationName": "s2", "DestinationPeer": peer, "LocalBindPort": 9000,
        "MeshGateway": {"Mode": mode}, "Config": {"protocol": "grpc"},
    }])
}

/// A mesh that imports `s2` from `alpha` by two gateways, one of which fails.
fn peered() -> Store {
    let store = mesh();
    trust(&store, &["root"]);
    import(
        &store,
        "s2",
        vec![
            sidecar_of("s2", 1, "http", CheckStatus::Passing),
            sidecar_of("s2", 2, "http", CheckStatus::Critical),
        ],
    );
    apply(&store, web_to(s2_of("alpha", "")));
    store
}

fn resolved(store: &Store) -> Arc<ResolvedChain> {
    Arc::clone(&own(snapshot(store)).upstreams[0].resolved)
}

/// The targets of peers of the first upstream.
fn targets(store: &Store) -> Vec<Target> {
    let chain = resolved(store).chain.clone().unwrap();
    let all = chain.targets.values();
    let of_peers = all.filter(|target| !target.peer.is_empty());
    of_peers.map(|target| Target::clone(target)).collect()
}

/// Addresses of the endpoints of the first target of a peer, with whether they get traffic.
fn endpoints(store: &Store) -> Vec<(String, u16, bool)> {
    let found = resolved(store);
    let instances = found.instances(&targets(store)[0].id).unwrap();
    let of = |one: &CheckServiceNode| {
        let (host, port) = one.address();
        (host.to_owned(), port, one.health() == CheckStatus::Passing)
    };
    instances.iter().map(of).collect()
}

fn at(host: &str, port: u16, healthy: bool) -> (String, u16, bool) {
    (host.to_owned(), port, healthy)
}

/// What holds while it is not known how `s2` is reached.
fn assert_closed(store: &Store) {
    let resolved = resolved(store);
    for target in targets(store) {
        assert!(target.peer_identities.is_empty() && target.sni.is_empty());
        assert!(resolved.instances(&target.id).unwrap().is_empty());
    }
    assert!(resolved.trust_bundles().is_empty());
}

#[test]
fn an_upstream_of_a_peer_is_what_the_peer_says() {
    let store = peered();
    let found = resolved(&store);
    let [target] = &targets(&store)[..] else {
        panic!("one target");
    };
    assert_eq!(
        target.name,
        format!("s2.default.alpha.external.{TRUST_DOMAIN}")
    );
    assert!(target.sni.starts_with("s2.default.default.here.external."));
    assert_eq!(target.peer_identities.len(), 2);
    // Not the one in the caller's own settings.
    assert_eq!(found.protocol(), Protocol::Http);
    assert_eq!(found.trust_bundles()[0].root_pems, ["root"]);
    assert_eq!(
        endpoints(&store),
        [at("192.0.2.1", 443, true), at("192.0.2.2", 443, false)]
    );
    // Names of peers are in lower case.
    apply(&store, web_to(s2_of("Alpha", "none")));
    assert_eq!(endpoints(&store).len(), 2);
}

#[test]
fn nothing_is_trusted_before_everything_is_known() {
    let store = mesh();
    apply(&store, web_to(s2_of("alpha", "local")));
    let gateway = json!({"Kind": "mesh-gateway", "ID": "g", "Service": "g", "Port": 8443});
    apply(&store, register("n4", gateway, Vec::new()));
    assert_closed(&store);
    // The roots alone, without an instance.
    trust(&store, &["root"]);
    assert_closed(&store);
    // An instance that does not say who answers.
    let mut without = sidecar_of("s2", 1, "", CheckStatus::Passing);
    let instance = Arc::make_mut(&mut without.service);
    instance.connect.peer_meta.as_mut().unwrap().spiffe_ids = Vec::new();
    import(&store, "s2", vec![without]);
    assert_closed(&store);
    let watch = &mut store.watch(&compute(&store, true).1);
    import(
        &store,
        "s2",
        vec![sidecar_of("s2", 1, "", CheckStatus::Passing)],
    );
    assert!(woken(watch));
    assert_eq!(targets(&store)[0].peer_identities.len(), 2);
    // Roots that prove nothing.
    trust(&store, &[" "]);
    assert_closed(&store);
    trust(&store, &["root"]);
    let watch = &mut store.watch(&compute(&store, true).1);
    import(&store, "s2", Vec::new());
    assert!(woken(watch));
    assert_closed(&store);
}

#[test]
fn a_rotation_changes_no_chain() {
    let store = peered();
    // Held, as by a connected proxy.
    let before = resolved(&store);
    trust(&store, &["root", "next"]);
    let after = resolved(&store);
    let (chain, next) = (
        before.chain.as_ref().unwrap(),
        after.chain.as_ref().unwrap(),
    );
    assert!(Arc::ptr_eq(chain, next));
    assert_eq!(after.trust_bundles()[0].root_pems, ["root", "next"]);
    // And a changed health changes the instances only.
    import(
        &store,
        "s2",
        vec![sidecar_of("s2", 1, "http", CheckStatus::Critical)],
    );
    let last = resolved(&store);
    assert!(Arc::ptr_eq(next, last.chain.as_ref().unwrap()));
    assert_eq!(endpoints(&store), [at("192.0.2.1", 443, false)]);
}

#[test]
fn local_gateways_lead_to_a_peer_while_it_has_healthy_ones() {
    let store = peered();
    let gateway = |id: &str, port: u16, status| {
        let service = json!({
            "Kind": "mesh-gateway", "ID": id, "Service": "gateway", "Port": port,
            "TaggedAddresses": {"wan": {"Address": "203.0.113.1", "Port": 443}},
        });
        register("n4", service, vec![check(id, status, "")])
    };
    apply(&store, gateway("a", 8443, CheckStatus::Passing));
    apply(&store, gateway("b", 8444, CheckStatus::Critical));
    apply(&store, web_to(s2_of("alpha", "local")));
    assert_eq!(endpoints(&store), [at("10.0.0.1", 8443, true)]);
    import(
        &store,
        "s2",
        vec![sidecar_of("s2", 1, "http", CheckStatus::Critical)],
    );
    assert_eq!(endpoints(&store), [at("10.0.0.1", 8443, false)]);
    // The mode may be in the defaults of all proxies.
    apply(&store, web_to(s2_of("alpha", "")));
    assert_eq!(endpoints(&store), [at("192.0.2.1", 443, false)]);
    apply(
        &store,
        entry(
            json!({"Kind": "proxy-defaults", "Name": "global", "MeshGateway": {"Mode": "local"}}),
        ),
    );
    assert_eq!(endpoints(&store), [at("10.0.0.1", 8443, false)]);
}

#[test]
fn settings_for_a_peer_are_of_that_peer() {
    let store = peered();
    let timeouts = || targets(&store)[0].connect_timeout.as_millis();
    apply(
        &store,
        entry(
            json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": {"Overrides": [
                {"Name": "s2", "ConnectTimeoutMs": 1000},
                {"Name": "s2", "Peer": "beta", "ConnectTimeoutMs": 2000},
            ]}}),
        ),
    );
    assert_eq!(timeouts(), 5000);
    apply(
        &store,
        entry(
            json!({"Kind": "service-defaults", "Name": "web", "UpstreamConfig": {"Overrides": [
                {"Name": "s2", "Peer": "Alpha", "ConnectTimeoutMs": 3000, "Protocol": "tcp"},
            ]}}),
        ),
    );
    assert_eq!(timeouts(), 3000);
    assert_eq!(resolved(&store).protocol(), Protocol::Http);
}

#[test]
fn config_entries_lead_to_peers() {
    let store = peered();
    apply(
        &store,
        web_to(json!([{"DestinationName": "api", "LocalBindPort": 9000}])),
    );
    for more in [
        json!({"Redirect": {"Service": "s2", "Peer": "ALPHA"}}),
        json!({"Failover": {"*": {"Targets": [{"Service": "s2", "Peer": "alpha"}]}}}),
    ] {
        let mut resolver = json!({"Kind": "service-resolver", "Name": "api"});
        let more = more.as_object().unwrap().clone();
        resolver.as_object_mut().unwrap().extend(more);
        apply(&store, entry(resolver));
        assert_eq!(endpoints(&store).len(), 2);
        assert_eq!(targets(&store)[0].peer_identities.len(), 2);
        // The protocol of the chain is that of this cluster.
        assert_eq!(resolved(&store).protocol(), Protocol::Tcp);
        assert_eq!(resolved(&store).trust_bundles().len(), 1);
        let before = resolved(&store).chain.clone().unwrap();
        import(&store, "s2", Vec::new());
        assert_closed(&store);
        import(
            &store,
            "s2",
            vec![
                sidecar_of("s2", 1, "http", CheckStatus::Passing),
                sidecar_of("s2", 2, "http", CheckStatus::Critical),
            ],
        );
        assert_eq!(*resolved(&store).chain.clone().unwrap(), *before);
    }
}

#[test]
fn a_peer_is_where_its_peering_says() {
    let store = peered();
    let locality = Locality {
        region: "r1".to_owned(),
        zone: "z1".to_owned(),
    };
    let remote = PeeringRemote {
        locality: Some(locality.clone()),
        ..PeeringRemote::default()
    };
    let write = move |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        txn.put_peering(Peering {
            id: "1".to_owned(),
            name: "alpha".to_owned(),
            remote: remote.clone(),
            ..Peering::default()
        });
        Ok(())
    };
    store.write(write).now_or_never().unwrap().unwrap();
    let found = resolved(&store);
    let instances = found.instances(&targets(&store)[0].id).unwrap();
    assert!(
        instances
            .iter()
            .all(|one| one.locality() == Some(&locality))
    );
}

#[test]
fn a_query_finds_what_is_imported() {
    let store = peered();
    apply(&store, web_with("near", json!({})));
    apply(
        &store,
        query(
            "1",
            json!({"Name": "near", "Service": {
                "Service": "s2", "Failover": {"Targets": [{"Peer": "beta"}, {"Peer": "Alpha"}]},
            }}),
        ),
    );
    // Not the gateway that fails.
    assert_eq!(endpoints(&store), [at("192.0.2.1", 443, true)]);
    let [target] = &targets(&store)[..] else {
        panic!("one target");
    };
    assert!(target.name.starts_with("near.default.dc1.query."));
    assert!(target.sni.starts_with("s2.default.default.here.external."));
    assert_eq!(target.peer_identities.len(), 2);
    assert_eq!(resolved(&store).trust_bundles().len(), 1);
    // A service of this cluster comes first.
    apply(
        &store,
        register("n5", instance("s2", "s2-proxy", 7), Vec::new()),
    );
    assert!(targets(&store).is_empty());
    assert!(resolved(&store).trust_bundles().is_empty());
    apply(
        &store,
        query(
            "1",
            json!({"Name": "near", "Service": {"Service": "s2", "Peer": "alpha"}}),
        ),
    );
    assert_eq!(endpoints(&store), [at("192.0.2.1", 443, true)]);
    // Without roots the query does not find it.
    trust(&store, &[" "]);
    assert!(targets(&store).is_empty());
}

#[test]
fn captured_traffic_reaches_every_imported_service_by_its_own_virtual_ip() {
    let store = peered();
    apply(
        &store,
        register("n5", instance("s2", "s2-proxy", 7), Vec::new()),
    );
    apply(&store, transparent(json!({})));
    let implicit = || own(snapshot(&store)).implicit.unwrap().0.clone();
    let shown = |all: &[Arc<ImplicitUpstream>]| -> BTreeMap<String, Vec<String>> {
        let of = |one: &Arc<ImplicitUpstream>| {
            let ips = one.addresses.iter().map(|one| one.ip.to_string());
            (one.upstream.upstream.id().to_string(), ips.collect())
        };
        all.iter().map(of).collect()
    };
    // Whatever the intentions for services of this cluster are. Addresses that the peer names are not dialled.
    let ip = |tenancy: Tenancy| {
        let state = store.state();
        let ip = state.read().within(tenancy).virtual_ip("s2");
        ip.unwrap().address().to_string()
    };
    let of_peer = ip(Tenancy::default().of_peer("alpha"));
    let expected = BTreeMap::from([("s2?peer=alpha".to_owned(), vec![of_peer.clone()])]);
    assert_eq!(shown(&implicit()), expected);
    apply(&store, intention("web", "s2", IntentionAction::Allow));
    let both = shown(&implicit());
    assert_eq!(both.len(), 2);
    assert_eq!(both["s2"], [ip(Tenancy::default())]);
    assert_eq!(both["s2?peer=alpha"], [of_peer]);
    // The caller's own settings say how it reaches peers.
    let mode = || {
        let all = implicit();
        let is = |one: &&Arc<ImplicitUpstream>| !one.upstream.upstream.destination_peer.is_empty();
        let one = all.iter().find(is).unwrap();
        one.upstream.upstream.mesh_gateway.mode
    };
    assert_eq!(mode(), MeshGatewayMode::Default);
    apply(
        &store,
        entry(json!({"Kind": "service-defaults", "Name": "web", "MeshGateway": {"Mode": "local"}})),
    );
    assert_eq!(mode(), MeshGatewayMode::Local);
    import(&store, "s2", Vec::new());
    assert_eq!(shown(&implicit()).len(), 1);
}

/// A change of what a peer exports, or of what leads there.
#[derive(Clone, Debug)]
enum Change {
    /// The gateways with their health, and the protocol.
    Import(Vec<bool>, &'static str),
    Trust(&'static [&'static str]),
    Entry(Command),
}

fn any_peer_change() -> impl Strategy<Value = Change> {
    let mode = || prop::sample::select(vec!["", "local", "remote"]);
    let resolver = |more: Value| {
        let mut entry = json!({"Kind": "service-resolver", "Name": "api"});
        let more = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(more);
        entry
    };
    let gateway = json!({"Kind": "mesh-gateway", "ID": "g", "Service": "g", "Port": 8443});
    let commands = prop_oneof![
        mode().prop_map(|mode| web_to(s2_of("alpha", mode))),
        Just(web_to(
            json!([{"DestinationName": "api", "LocalBindPort": 9000}])
        )),
        Just(transparent(json!({}))),
        Just(web_with("near", json!({}))),
        prop::sample::select(vec![
            resolver(json!({})),
            resolver(json!({"Redirect": {"Service": "s2", "Peer": "alpha"}})),
            resolver(json!({"Failover": {"*": {"Targets": [{"Service": "s2", "Peer": "alpha"}]}}})),
        ])
        .prop_map(entry),
        mode().prop_map(|mode| entry(json!({
            "Kind": "proxy-defaults", "Name": "global", "MeshGateway": {"Mode": mode},
        }))),
        (mode(), 0..2u16).prop_map(|(mode, timeout)| entry(json!({
            "Kind": "service-defaults", "Name": "web", "MeshGateway": {"Mode": mode},
            "UpstreamConfig": {"Overrides": [
                {"Name": "s2", "Peer": "alpha", "ConnectTimeoutMs": timeout},
            ]},
        }))),
        Just(register("n4", gateway, Vec::new())),
        Just(deregister("n4", "g")),
        prop::sample::select(vec!["", "alpha", "beta"]).prop_map(|peer| query(
            "1",
            json!({"Name": "near", "Service": {"Service": "s2", "Failover": {
                "Targets": [{"Peer": peer, "Namespace": "default"}],
            }}}),
        )),
    ];
    prop_oneof![
        3 => (
            prop::collection::vec(any::<bool>(), 0..3),
            prop::sample::select(vec!["", "http", "HTTP2"]),
        )
            .prop_map(|(gateways, protocol)| Change::Import(gateways, protocol)),
        2 => prop::sample::select(vec![&["root"][..], &["root", "next"], &[]]).prop_map(Change::Trust),
        6 => commands.prop_map(Change::Entry),
    ]
}

fn change(store: &Store, change: Change) {
    match change {
        Change::Entry(command) => apply(store, command),
        Change::Trust(roots) => trust(store, roots),
        Change::Import(gateways, protocol) => {
            let status = |passes| match passes {
                true => CheckStatus::Passing,
                false => CheckStatus::Critical,
            };
            let of = |(number, passes)| sidecar_of("s2", number, protocol, status(passes));
            import(store, "s2", (1..).zip(gateways).map(of).collect());
        }
    }
}

proptest! {
    /// Whatever changes, a proxy that recomputes its snapshot only when woken has the snapshot of the current state. And
    /// no target of a peer has endpoints of which it is not known who may answer.
    #[test]
    fn a_snapshot_follows_peers_exactly(changes in prop::collection::vec(any_peer_change(), 1..30)) {
        let store = peered();
        let follower = Follower::default();
        let mut parts = Parts::of(follower.clone());
        let (mut held, _) = compute_with(&store, true, &mut parts);
        for one in changes {
            change(&store, one);
            if follower.changed().now_or_never().is_some() {
                held = compute_with(&store, true, &mut parts).0;
            }
            let now = anew(&store);
            prop_assert!(same_outcome(&held, &now), "{held:?} is not {now:?}");
            let Ok(Outcome::Ready(snapshot)) = &held else {
                panic!("{held:?}");
            };
            let own = sidecar(snapshot);
            let implicit = own.implicit.iter().flat_map(|all| &all.0).map(|one| &one.upstream);
            for upstream in own.upstreams.iter().chain(implicit) {
                let resolved = &upstream.resolved;
                let chain = resolved.chain.as_ref().unwrap();
                for target in chain.targets.values().filter(|target| !target.peer.is_empty()) {
                    let peer = &target.peer;
                    let is_known = !target.peer_identities.is_empty();
                    let instances = resolved.instances(&target.id).unwrap();
                    prop_assert!(is_known || instances.is_empty());
                    prop_assert_eq!(is_known, !target.sni.is_empty());
                    let has_roots = resolved.trust_bundles().iter().any(|one| one.peer_name == *peer);
                    prop_assert_eq!(is_known, has_roots);
                    prop_assert!(!target.name.is_empty());
                }
            }
        }
    }
}
