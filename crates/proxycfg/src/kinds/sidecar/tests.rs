//! A sidecar's snapshot as a function of the store, for whole states and for any order of changes.

mod destinations;
mod elsewhere;
mod gateways;
mod peers;
mod queries;
mod size;
mod tenants;
mod tokens;
mod transparent;

use std::sync::Arc;
use std::time::SystemTime;

use futures_util::FutureExt;
use legate_ca::{Leaf, LeafId};
use legate_intentions::Action;
use legate_model::{
    CaRoots, CheckDefinition, CheckStatus, ConfigEntry, HealthCheck, Intention, IntentionAction,
    Node, ServiceInstance,
};
use legate_store::{
    CaState, Command, Deregistration, Follower, Reads, Registration, Store, Unavailable, Watch,
    WriteTxn,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::chain::Instances;
use crate::config::ManagerConfig;
use crate::error::WatchError;
use crate::kinds::leaves::Leaves;
use crate::kinds::{self, Outcome, Parts, Sidecar};
use crate::same::Compare;
use crate::snapshot::{ProxyId, Snapshot};
use crate::value::Value as _;

/// Issues a certificate for every service, or for none.
struct Issued(bool);

impl Leaves for Issued {
    fn current(&mut self, id: &LeafId) -> Option<Arc<Leaf>> {
        self.0.then(|| {
            Arc::new(Leaf {
                index: 1,
                id: id.clone(),
                uri: String::new(),
                cert_pem: format!("certificate of {id}"),
                key_pem: "key".into(),
                serial: "01".to_owned(),
                valid_after: SystemTime::UNIX_EPOCH,
                valid_before: SystemTime::UNIX_EPOCH,
                authority_key_id: String::new(),
            })
        })
    }
}

fn proxy() -> ProxyId {
    ProxyId {
        tenancy: legate_model::Tenancy::default(),
        node: "n1".into(),
        service_id: "web-proxy".into(),
    }
}

fn apply(store: &Store, command: Command) {
    // A generated change may be refused; then nothing changes.
    drop(store.apply(command).now_or_never().unwrap());
}

fn register(node: &str, service: Value, checks: Vec<HealthCheck>) -> Command {
    let service: ServiceInstance = serde_json::from_value(service).unwrap();
    Command::Register(Box::new(Registration {
        node: Node {
            node: node.to_owned(),
            address: "10.0.0.1".to_owned(),
            datacenter: "dc1".to_owned(),
            ..Node::default()
        },
        service: Some(service),
        checks,
        skip_node_update: false,
    }))
}

fn deregister(node: &str, id: &str) -> Command {
    Command::Deregister(Deregistration {
        node: node.to_owned(),
        service_id: Some(id.to_owned()),
        check_id: None,
    })
}

fn web(destination: &str, upstreams: &[&str]) -> Command {
    let upstream = |(place, name): (usize, &&str)| json!({"DestinationName": name, "LocalBindPort": 9000 + place});
    let upstreams: Vec<Value> = upstreams.iter().enumerate().map(upstream).collect();
    let proxy = json!({"DestinationServiceName": destination, "Upstreams": upstreams});
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy",
        "Port": 20000, "Proxy": proxy,
    });
    register("n1", service, Vec::new())
}

fn instance(of: &str, id: &str, port: u16) -> Value {
    json!({
        "Kind": "connect-proxy", "ID": id, "Service": format!("{of}-proxy"), "Port": port,
        "Proxy": {"DestinationServiceName": of},
    })
}

fn check(service_id: &str, status: CheckStatus, output: &str) -> HealthCheck {
    HealthCheck {
        check_id: format!("check of {service_id}"),
        name: "check".to_owned(),
        service_id: service_id.to_owned(),
        output: output.to_owned(),
        status,
        ..HealthCheck::default()
    }
}

fn entry(entry: Value) -> Command {
    let entry: ConfigEntry = serde_json::from_value(entry).unwrap();
    Command::UpsertConfigEntry {
        entry: Box::new(entry),
        cas: None,
    }
}

fn intention(source: &str, destination: &str, action: IntentionAction) -> Command {
    let mut intention = Intention {
        source_name: source.to_owned(),
        destination_name: destination.to_owned(),
        action: Some(action),
        ..Intention::default()
    };
    intention.normalise(&legate_model::Tenancy::default());
    Command::UpsertIntention(Box::new(intention))
}

fn ca(root: &str) -> Command {
    Command::SetCa(Box::new(CaState {
        roots: Arc::new(CaRoots {
            active_root_id: root.to_owned(),
            trust_domain: "11111111-2222-3333-4444-555555555555.consul".to_owned(),
            roots: Vec::new(),
        }),
        signing_key: "key".into(),
        cluster_id: "11111111-2222-3333-4444-555555555555".to_owned(),
        lives: std::collections::BTreeMap::new(),
        secondary: None,
    }))
}

/// A mesh in which `web` calls `api`.
fn mesh() -> Store {
    let store = Store::new();
    for command in [
        ca("r1"),
        web("web", &["api"]),
        register("n2", instance("api", "api-proxy", 1), Vec::new()),
    ] {
        apply(&store, command);
    }
    store
}

fn compute(store: &Store, issued: bool) -> (Result<Outcome, WatchError>, Reads) {
    compute_with(store, issued, &mut Parts::default())
}

fn compute_with(
    store: &Store,
    issued: bool,
    parts: &mut Parts,
) -> (Result<Outcome, WatchError>, Reads) {
    let state = store.state();
    let txn = state.read();
    let config = ManagerConfig::new("dc1", Action::Deny);
    let outcome = kinds::snapshot(&txn, &proxy(), &config, &mut Issued(issued), parts);
    (outcome, txn.into_reads())
}

/// Without shared results: a write transaction computes everything itself.
fn anew(store: &Store) -> Result<Outcome, WatchError> {
    let read = |txn: &mut WriteTxn| -> Result<_, Unavailable> {
        let config = ManagerConfig::new("dc1", Action::Deny);
        let txn = txn.read();
        let (mut issued, mut parts) = (Issued(true), Parts::default());
        Ok(kinds::snapshot(
            &txn,
            &proxy(),
            &config,
            &mut issued,
            &mut parts,
        ))
    };
    store.write(read).now_or_never().unwrap().unwrap().1
}

fn snapshot(store: &Store) -> Option<Snapshot> {
    match compute(store, true).0 {
        Ok(Outcome::Ready(snapshot)) => Some(*snapshot),
        Ok(Outcome::Pending) => None,
        Err(error) => panic!("{error}"),
    }
}

fn sidecar(snapshot: &Snapshot) -> &Sidecar {
    Sidecar::of(snapshot).unwrap()
}

/// The values of a complete snapshot of a sidecar.
fn own(snapshot: Option<Snapshot>) -> Sidecar {
    sidecar(&snapshot.unwrap()).clone()
}

/// The instances of the first target of the first upstream.
fn instances(snapshot: &Snapshot) -> Arc<Instances> {
    let resolved = &sidecar(snapshot).upstreams[0].resolved;
    let chain = resolved.chain.as_ref().unwrap();
    let target = chain.targets.keys().next().unwrap();
    Arc::clone(resolved.instances(target).unwrap())
}

fn woken(watch: &mut Watch) -> bool {
    watch.changed().now_or_never().is_some()
}

#[test]
fn a_snapshot_needs_roots_and_a_certificate() {
    let store = Store::new();
    assert!(snapshot(&store).is_none());
    apply(&store, web("web", &["api"]));
    assert!(snapshot(&store).is_none(), "no roots");
    apply(&store, ca("r1"));
    assert!(matches!(compute(&store, false).0, Ok(Outcome::Pending)));
    let snapshot = snapshot(&store).unwrap();
    assert_eq!(sidecar(&snapshot).leaf.id, "web".into());
    assert!(instances(&snapshot).is_empty());
}

#[test]
fn paths_of_checks_are_exposed_where_the_checks_have_a_port() {
    let store = mesh();
    let proxy = |checks: bool| {
        let proxy = json!({
            "DestinationServiceName": "web", "DestinationServiceID": "web-1",
            "Expose": {"Checks": checks},
        });
        let service = json!({
            "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy",
            "Port": 20000, "Proxy": proxy,
        });
        register("n1", service, Vec::new())
    };
    let http = |id: &str, url: &str, exposed_port: u16| HealthCheck {
        check_id: id.to_owned(),
        definition: CheckDefinition {
            http: url.to_owned(),
            ..CheckDefinition::default()
        },
        exposed_port,
        ..check("web-1", CheckStatus::Passing, "")
    };
    let checks = vec![
        http("a", "http://127.0.0.1:8080/health", 21500),
        http("b", "http://127.0.0.1:8080/other", 0),
        check("web-1", CheckStatus::Passing, ""),
    ];
    let application = json!({"ID": "web-1", "Service": "web", "Port": 8080});
    apply(&store, register("n1", application, checks));
    let exposed = || {
        snapshot(&store)
            .unwrap()
            .proxy
            .instance
            .proxy
            .expose
            .paths
            .clone()
    };
    assert_eq!(exposed(), []);
    apply(&store, proxy(true));
    let [path] = &exposed()[..] else {
        panic!("{:?}", exposed());
    };
    assert_eq!((path.listener_port, path.local_path_port), (21500, 8080));
    assert_eq!(path.path, "/health");
    assert!(path.parsed_from_check);
    apply(&store, proxy(false));
    assert_eq!(exposed(), []);
}

#[test]
fn a_removed_registration_is_pending() {
    let store = mesh();
    let before = snapshot(&store).unwrap();
    let mut watch = store.watch(&compute(&store, true).1);
    apply(&store, deregister("n1", "web-proxy"));
    assert!(woken(&mut watch));
    assert!(snapshot(&store).is_none());
    let mut watch = store.watch(&compute(&store, true).1);
    apply(&store, web("web", &["api"]));
    assert!(woken(&mut watch));
    assert!(is_same(&before, &snapshot(&store).unwrap()));
}

#[test]
fn equal_parts_of_two_states_are_adopted() {
    let (before, mut after) = (snapshot(&mesh()).unwrap(), snapshot(&mesh()).unwrap());
    assert!(!is_same(&before, &after));
    after.adopt(&before, Compare::Values);
    assert!(is_same(&before, &after));
}

#[test]
fn an_upstream_elsewhere_has_no_instances_and_is_not_watched() {
    let store = mesh();
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": [
            {"DestinationName": "api", "LocalBindPort": 9000, "Datacenter": "dc2"},
        ]},
    });
    apply(&store, register("n1", service, Vec::new()));
    let (_, reads) = compute(&store, true);
    assert!(instances(&snapshot(&store).unwrap()).is_empty());
    let mut watch = store.watch(&reads);
    apply(&store, deregister("n2", "api-proxy"));
    assert!(!woken(&mut watch));
}

#[test]
fn only_changes_visible_to_callers_make_a_new_snapshot() {
    let store = mesh();
    let with = |checks| register("n2", instance("api", "api-proxy", 1), checks);
    apply(
        &store,
        with(vec![check("api-proxy", CheckStatus::Passing, "")]),
    );
    let before = snapshot(&store).unwrap();
    apply(
        &store,
        with(vec![check("api-proxy", CheckStatus::Passing, "x")]),
    );
    let after = snapshot(&store).unwrap();
    assert!(is_same(&before, &after));
    assert!(Arc::ptr_eq(&instances(&before), &instances(&after)));

    apply(
        &store,
        with(vec![check("api-proxy", CheckStatus::Critical, "x")]),
    );
    assert!(!is_same(&before, &snapshot(&store).unwrap()));
}

#[test]
fn a_subset_follows_fields_that_callers_do_not_see() {
    let store = mesh();
    let resolver = json!({
        "Kind": "service-resolver", "Name": "api", "DefaultSubset": "new",
        "Subsets": {"new": {"Filter": "\"new\" in Service.Tags"}},
    });
    apply(&store, entry(resolver));
    let tagged = |tag: &str| {
        let mut service = instance("api", "api-proxy", 1);
        service["Tags"] = json!([tag]);
        register("n2", service, Vec::new())
    };
    apply(&store, tagged("new"));
    let before = snapshot(&store).unwrap();
    assert_eq!(instances(&before).len(), 1);
    apply(&store, tagged("old"));
    assert_eq!(instances(&snapshot(&store).unwrap()).len(), 0);
    drop(before);
}

#[test]
fn an_incomplete_registration_is_refused() {
    let store = mesh();
    apply(&store, web("", &[]));
    let refused = compute(&store, true).0.unwrap_err();
    assert_eq!(refused, WatchError::NoDestination(proxy()));
    let service = json!({"ID": "web-proxy", "Service": "web"});
    apply(&store, register("n1", service, Vec::new()));
    let refused = compute(&store, true).0.unwrap_err();
    assert!(matches!(refused, WatchError::NotAProxy { .. }));
}

/// Entries that route `api` to itself and to others, and entries that have no effect.
fn chain_entries() -> Vec<Value> {
    let resolver = |more: Value| {
        let mut entry = json!({"Kind": "service-resolver", "Name": "api"});
        entry
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        entry
    };
    vec![
        resolver(json!({})),
        resolver(json!({"Redirect": {"Service": "db"}})),
        resolver(json!({"Failover": {"*": {"Service": "db"}}, "ConnectTimeout": "3s"})),
        resolver(json!({
            "DefaultSubset": "odd",
            "Subsets": {"odd": {"Filter": "Service.Port == 1"}, "even": {"OnlyPassing": true}},
        })),
        json!({"Kind": "service-splitter", "Name": "api", "Splits": [
            {"Weight": 50}, {"Weight": 50, "Service": "db"},
        ]}),
        json!({"Kind": "service-router", "Name": "api", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/db"}}, "Destination": {"Service": "db"}},
        ]}),
    ]
}

fn any_change() -> impl Strategy<Value = Command> {
    let name = || prop::sample::select(vec!["web", "api", "db"]);
    let upstreams = prop::collection::vec(name(), 0..3);
    let protocol = || prop::sample::select(vec!["", "http", "grpc"]);
    let status = prop::sample::select(vec![CheckStatus::Passing, CheckStatus::Critical]);
    let action = prop::sample::select(vec![IntentionAction::Allow, IntentionAction::Deny]);
    let node = || prop::sample::select(vec!["n1", "n2"]);
    prop_oneof![
        3 => (name(), upstreams).prop_map(|(of, upstreams)| web(of, &upstreams)),
        3 => prop::sample::select(vec![
            json!({}),
            json!({"Upstreams": [{"DestinationName": "api", "LocalBindPort": 9000}]}),
        ]).prop_map(transparent::transparent),
        2 => (name(), any::<bool>()).prop_map(|(name, directly)| entry(json!({
            "Kind": "service-defaults", "Name": name,
            "TransparentProxy": {"DialedDirectly": directly},
            "UpstreamConfig": {"Defaults": {"ConnectTimeoutMs": u16::from(directly)}},
        }))),
        4 => (node(), name(), 1..3u16, status.clone()).prop_map(|(node, of, port, status)| {
            let id = format!("{of}-{node}");
            let checks = vec![check(&id, status, "")];
            register(node, instance(of, &id, port), checks)
        }),
        2 => (node(), name()).prop_map(|(node, of)| deregister(node, &format!("{of}-{node}"))),
        1 => Just(deregister("n1", "web-proxy")),
        2 => queries::any_change(),
        2 => (name(), protocol()).prop_map(|(name, protocol)| entry(
            json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol}),
        )),
        1 => protocol().prop_map(|protocol| entry(
            json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": protocol}}),
        )),
        2 => (name(), 1..3u16).prop_map(|(name, port)| destinations::outside(name, port)),
        1 => (node(), status.clone()).prop_map(|(node, status)| {
            destinations::gateway(node, "egress", status)
        }),
        1 => (name(), any::<bool>()).prop_map(|(name, every)| {
            destinations::links("egress", &[if every { "*" } else { name }])
        }),
        1 => Just(register("n2", json!({"ID": "db", "Service": "db"}), Vec::new())),
        1 => Just(deregister("n2", "db")),
        4 => prop::sample::select(chain_entries()).prop_map(entry),
        1 => Just(entry(json!({"Kind": "mesh", "TLS": {"Incoming": {"TLSMinVersion": "TLSv1_3"}}}))),
        2 => (
            prop::sample::select(vec!["web", "db", "*"]),
            prop::sample::select(vec!["web", "api", "*"]), action,
        )
            .prop_map(|(source, destination, action)| intention(source, destination, action)),
        1 => prop::sample::select(vec!["r1", "r2"]).prop_map(ca),
    ]
}

/// For snapshots of one store, where unchanged values are the same `Arc`.
fn is_same(a: &Snapshot, b: &Snapshot) -> bool {
    a.is_same(b, Compare::Addresses)
}

proptest! {
    /// A proxy that recomputes its snapshot only when woken always has the snapshot of the current
    /// state.
    #[test]
    fn a_snapshot_is_recomputed_exactly_when_it_may_have_changed(
        changes in prop::collection::vec(any_change(), 1..40),
    ) {
        let store = mesh();
        let follower = Follower::default();
        let mut parts = Parts::of(follower.clone());
        let (mut held, _) = compute_with(&store, true, &mut parts);
        for change in changes {
            apply(&store, change);
            if follower.changed().now_or_never().is_some() {
                held = compute_with(&store, true, &mut parts).0;
            }
            let now = anew(&store);
            prop_assert!(same_outcome(&held, &now), "{held:?} is not {now:?}");
            let (all_read, _) = compute(&store, true);
            prop_assert!(same_outcome(&held, &all_read), "{held:?} is not {all_read:?}");
        }
    }
}

fn same_outcome(a: &Result<Outcome, WatchError>, b: &Result<Outcome, WatchError>) -> bool {
    match (a, b) {
        (Ok(Outcome::Ready(a)), Ok(Outcome::Ready(b))) => a.is_same(b, Compare::Values),
        (Ok(Outcome::Pending), Ok(Outcome::Pending)) => true,
        (Err(a), Err(b)) => a == b,
        _ => false,
    }
}
