//! Upstreams in other datacenters.

use legate_model::{CheckServiceNode, ServiceName, Tenancy};
use legate_store::{AWAY, Mirror, Range};

use super::*;

/// The mirror of a server that knows dc2.
fn joined(store: &Store) -> Mirror {
    let mirror = store.mirror();
    mirror.set_datacenters(vec!["dc2".into()]);
    mirror.set_joined();
    mirror
}

/// Reads what another datacenter has, as if its server had answered.
fn arrives(mirror: &Mirror, service: &str, instances: Vec<CheckServiceNode>) {
    let service = ServiceName::new(&Tenancy::default(), service);
    mirror.set(&Range::instances("dc2", &service), instances);
}

/// A proxy of `api` or a gateway in dc2, with a check of this status.
fn there(service: &Value, status: CheckStatus) -> CheckServiceNode {
    let service: ServiceInstance = serde_json::from_value(service.clone()).unwrap();
    let node = json!({
        "Node": "far", "Address": "10.2.0.1", "Datacenter": "dc2",
        "TaggedAddresses": {"wan": "192.0.2.1"},
    });
    CheckServiceNode {
        node: serde_json::from_value(node).unwrap(),
        checks: vec![Arc::new(check(&service.id, status, ""))],
        service: service.into(),
    }
}

fn api(id: &str, version: &str, status: CheckStatus) -> CheckServiceNode {
    let mut service = instance("api", id, 20_001);
    service["Meta"] = json!({ "version": version });
    there(&service, status)
}

fn gateway(id: &str, wan: &str, status: CheckStatus) -> CheckServiceNode {
    let service = json!({
        "Kind": "mesh-gateway", "ID": id, "Service": "gateway", "Port": 8443,
        "TaggedAddresses": {"wan": {"Address": wan, "Port": 443}},
    });
    there(&service, status)
}

/// Two gateways of dc2, of which one has failed.
fn gateways_arrive(mirror: &Mirror) {
    let gateways = vec![
        gateway("g-1", "203.0.113.1", CheckStatus::Passing),
        gateway("g-2", "203.0.113.2", CheckStatus::Critical),
    ];
    mirror.set(&Range::mesh_gateways("dc2", "default"), gateways);
}

/// The sidecar of `web` with the upstream `api` in a datacenter, and with a gateway mode.
fn web_to(datacenter: &str, mode: &str) -> Command {
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": [{
            "DestinationName": "api", "LocalBindPort": 9000, "Datacenter": datacenter,
            "MeshGateway": {"Mode": mode},
        }]},
    });
    register("n1", service, Vec::new())
}

/// Addresses of the endpoints, with whether they get traffic.
fn endpoints(store: &Store) -> Vec<(String, u16, bool)> {
    let snapshot = snapshot(store).unwrap();
    let of = |one: &CheckServiceNode| {
        let (host, port) = one.address();
        (host.to_owned(), port, one.health() == CheckStatus::Passing)
    };
    instances(&snapshot).iter().map(of).collect()
}

fn is_pending(store: &Store) -> bool {
    let state = store.state();
    let txn = state.read();
    let config = ManagerConfig::new("dc1", Action::Deny);
    let mut parts = Parts::default();
    drop(kinds::snapshot(
        &txn,
        &proxy(),
        &config,
        &mut Issued(true),
        &mut parts,
    ));
    txn.is_pending()
}

#[test]
fn instances_of_another_datacenter_are_called_at_their_wan_addresses() {
    let store = mesh();
    let mirror = joined(&store);
    apply(&store, web_to("DC2", "none"));
    assert!(is_pending(&store));
    arrives(
        &mirror,
        "api",
        vec![
            api("api-1", "v1", CheckStatus::Passing),
            api("api-2", "v2", CheckStatus::Critical),
        ],
    );
    assert!(!is_pending(&store));
    let at = |healthy| ("192.0.2.1".to_owned(), 20_001, healthy);
    assert_eq!(endpoints(&store), [at(true), at(false)]);
    let snapshot = snapshot(&store).unwrap();
    let chain = sidecar(&snapshot).upstreams[0].resolved.chain.clone();
    let sni = &chain.unwrap().targets.values().next().unwrap().sni.clone();
    assert!(sni.starts_with("api.default.dc2.internal."), "{sni}");
}

#[test]
fn subsets_are_filtered_here() {
    let store = mesh();
    let mirror = joined(&store);
    apply(
        &store,
        entry(json!({
            "Kind": "service-resolver", "Name": "api",
            "Subsets": {"v2": {"Filter": "Service.Meta.version == v2"}},
            "Redirect": {"ServiceSubset": "v2", "Datacenter": "DC2"},
        })),
    );
    assert!(is_pending(&store));
    let terminating = json!({
        "Kind": "terminating-gateway", "ID": "t", "Service": "t", "Address": "192.0.2.9",
        "Port": 9,
    });
    arrives(
        &mirror,
        "api",
        vec![
            api("api-1", "v1", CheckStatus::Passing),
            api("api-2", "v2", CheckStatus::Passing),
            there(&terminating, CheckStatus::Passing),
        ],
    );
    let ports: Vec<u16> = endpoints(&store).iter().map(|one| one.1).collect();
    assert_eq!(ports, [20_001, 9], "gateways route subsets themselves");
}

#[test]
fn gateways_of_the_mode_take_the_place_of_the_instances() {
    let store = mesh();
    let mirror = joined(&store);
    let local = json!({
        "Kind": "mesh-gateway", "ID": "g", "Service": "gateway", "Address": "10.1.0.7",
        "Port": 8443, "TaggedAddresses": {"wan": {"Address": "198.51.100.7", "Port": 443}},
    });
    apply(&store, register("n3", local, Vec::new()));
    gateways_arrive(&mirror);
    apply(&store, web_to("dc2", "local"));
    assert!(is_pending(&store));
    arrives(
        &mirror,
        "api",
        vec![api("api-1", "v1", CheckStatus::Passing)],
    );
    assert_eq!(endpoints(&store), [("10.1.0.7".to_owned(), 8443, true)]);
    // Without an instance that gets traffic, callers fail over.
    arrives(
        &mirror,
        "api",
        vec![api("api-1", "v1", CheckStatus::Critical)],
    );
    assert_eq!(endpoints(&store), [("10.1.0.7".to_owned(), 8443, false)]);

    apply(&store, web_to("dc2", "remote"));
    assert!(is_pending(&store), "its gateways");
    gateways_arrive(&mirror);
    assert_eq!(endpoints(&store), [("203.0.113.1".to_owned(), 443, false)]);
    arrives(
        &mirror,
        "api",
        vec![api("api-1", "v1", CheckStatus::Warning)],
    );
    assert_eq!(endpoints(&store), [("203.0.113.1".to_owned(), 443, true)]);

    apply(&store, web_to("dc1", "remote"));
    assert_eq!(
        endpoints(&store),
        [("10.0.0.1".to_owned(), 1, true)],
        "not here"
    );
}

#[test]
fn a_datacenter_that_is_away_leaves_a_target_empty() {
    let store = mesh();
    let mirror = joined(&store);
    apply(
        &store,
        entry(json!({
            "Kind": "service-resolver", "Name": "api",
            "Failover": {"*": {"Datacenters": ["dc2"]}},
        })),
    );
    assert!(is_pending(&store));
    let range = Range::instances("dc2", &"api".into());
    mirror.fail(&range, "away", tokio::time::Instant::now());
    assert!(!is_pending(&store));
    let resolved = sidecar(&snapshot(&store).unwrap()).upstreams[0]
        .resolved
        .clone();
    let of = |id: &str| resolved.instances(id).unwrap().len();
    assert_eq!(of("api.default.default.dc1"), 1);
    assert_eq!(of("api.default.default.dc2"), 0);
}

#[test]
fn a_prepared_query_fails_over_to_another_datacenter() {
    let store = mesh();
    let mirror = joined(&store);
    mirror.set_datacenters(vec!["dc2".into()]);
    apply(&store, queries::web_with("q", json!({})));
    apply(
        &store,
        queries::query(
            "1",
            json!({
                "Name": "q", "Service": {"Service": "db", "Failover": {"NearestN": 1}},
            }),
        ),
    );
    assert!(is_pending(&store));
    arrives(
        &mirror,
        "db",
        vec![there(&instance("db", "db-1", 20_001), CheckStatus::Passing)],
    );
    assert_eq!(endpoints(&store), [("192.0.2.1".to_owned(), 20_001, true)]);
    let snapshot = snapshot(&store).unwrap();
    let chain = sidecar(&snapshot).upstreams[0]
        .resolved
        .chain
        .clone()
        .unwrap();
    let target = chain.targets.values().next().unwrap();
    assert_eq!((&*target.service, &*target.datacenter), ("db", "dc2"));
}

/// Cuts off a datacenter that was asked for the instances of `db`.
fn is_cut_off(mirror: &Mirror, datacenter: &str) {
    let range = Range::instances(datacenter, &"db".into());
    let now = tokio::time::Instant::now();
    mirror.fail(&range, "cut", now);
    mirror.fail(&range, "cut", now + AWAY);
}

#[test]
fn a_prepared_query_leaves_a_datacenter_that_is_cut_off_if_another_one_has_instances() {
    let store = mesh();
    let mirror = joined(&store);
    mirror.set_datacenters(vec!["dc2".into(), "dc3".into()]);
    apply(&store, queries::web_with("q", json!({})));
    let failover = json!({"Datacenters": ["dc2", "dc3"]});
    let query = json!({"Name": "q", "Service": {"Service": "db", "Failover": failover}});
    apply(&store, queries::query("1", query));
    let set = |datacenter, port| {
        let instance = there(&instance("db", "db-1", port), CheckStatus::Passing);
        let range = Range::instances(datacenter, &"db".into());
        mirror.set(&range, vec![instance]);
    };
    let port = || endpoints(&store)[0].1;
    assert!(is_pending(&store));
    set("dc2", 2);
    assert_eq!(port(), 2);
    is_cut_off(&mirror, "dc2");
    assert!(is_pending(&store), "another one is asked");
    set("dc3", 3);
    assert_eq!(port(), 3);
    is_cut_off(&mirror, "dc3");
    assert_eq!(port(), 2, "the first one that was known");
    set("dc2", 2);
    assert_eq!(port(), 2);
}

#[test]
fn gateways_decide_for_a_datacenter_that_could_not_be_asked_yet() {
    let store = mesh();
    let mirror = joined(&store);
    apply(&store, web_to("dc2", "remote"));
    let range = Range::instances("dc2", &"api".into());
    let away = || mirror.fail(&range, "away", tokio::time::Instant::now());
    assert!(is_pending(&store));
    away();
    let written = store.write(|txn| {
        let gateways = [gateway("g-1", "203.0.113.1", CheckStatus::Passing)];
        txn.put_mesh_gateways("dc2", &gateways, SystemTime::UNIX_EPOCH);
        Ok::<_, Unavailable>(())
    });
    written.now_or_never().unwrap().unwrap();
    let at = |healthy| [("203.0.113.1".to_owned(), 443, healthy)];
    assert_eq!(endpoints(&store), at(true));
    arrives(&mirror, "api", Vec::new());
    assert_eq!(
        endpoints(&store),
        at(false),
        "it has said that there is none"
    );
    away();
    assert_eq!(endpoints(&store), at(false), "what it said last counts");
}

#[test]
fn a_prepared_query_of_another_datacenter_is_executed_there() {
    let store = mesh();
    let mirror = joined(&store);
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": [{
            "DestinationType": "prepared_query", "DestinationName": "Q", "LocalBindPort": 9000,
            "Datacenter": "DC2",
        }]},
    });
    apply(&store, register("n1", service, Vec::new()));
    // One of this datacenter has nothing to do with it.
    let own = json!({"Name": "Q", "Service": {"Service": "api"}});
    apply(&store, queries::query("1", own));
    assert!(is_pending(&store));
    let range = Range::query("dc2", "default", "Q");
    assert_ne!(range, Range::query("dc2", "default", "q"));
    let target = || {
        let snapshot = snapshot(&store).unwrap();
        let chain = sidecar(&snapshot).upstreams[0].resolved.chain.clone();
        let chain = chain.unwrap();
        let target = chain.targets.values().next().unwrap();
        (target.service.clone(), target.datacenter.clone())
    };
    let is = |service: &str, datacenter: &str| (service.to_owned(), datacenter.to_owned());
    mirror.set(&range, Vec::new());
    assert!(!is_pending(&store));
    assert_eq!(endpoints(&store), []);
    assert_eq!(target(), is("", "dc2"));
    let db = |datacenter: &str| {
        let mut one = there(&instance("db", "db-1", 20_001), CheckStatus::Passing);
        let node = Arc::make_mut(&mut one.node);
        datacenter.clone_into(&mut node.datacenter);
        vec![one]
    };
    mirror.set(&range, db("dc2"));
    assert_eq!(endpoints(&store), [("192.0.2.1".to_owned(), 20_001, true)]);
    assert_eq!(target(), is("db", "dc2"));
    // It may fail over, also to this datacenter.
    mirror.set(&range, db("dc3"));
    assert_eq!(endpoints(&store), [("192.0.2.1".to_owned(), 20_001, true)]);
    assert_eq!(target(), is("db", "dc3"));
    mirror.set(&range, db("dc1"));
    assert_eq!(endpoints(&store), [("10.2.0.1".to_owned(), 20_001, true)]);
    assert_eq!(target(), is("db", "dc1"));
}
