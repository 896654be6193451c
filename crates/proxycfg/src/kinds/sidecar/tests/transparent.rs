//! The services that a proxy in transparent mode may call, and their addresses.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Duration;

use super::*;
use crate::{DialledKind, ImplicitUpstream, ResolvedChain};

/// The sidecar of `web` in transparent mode, with these fields of `Proxy`.
pub(super) fn transparent(mut proxy: Value) -> Command {
    proxy["DestinationServiceName"] = json!("web");
    proxy["Mode"] = json!("transparent");
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": proxy,
    });
    register("n1", service, Vec::new())
}

/// `web` in transparent mode, `api` and `db`.
pub(super) fn captured() -> Store {
    let store = mesh();
    apply(
        &store,
        register("n3", instance("db", "db-proxy", 2), Vec::new()),
    );
    apply(&store, transparent(json!({})));
    store
}

fn implicit(store: &Store) -> Vec<Arc<ImplicitUpstream>> {
    own(snapshot(store)).implicit.unwrap().0.clone()
}

pub(super) fn names(store: &Store) -> Vec<String> {
    let all = implicit(store);
    let names = all
        .iter()
        .map(|one| one.upstream.upstream.destination_name.clone());
    names.collect()
}

/// The addresses of a service with their kinds.
pub(super) fn dialled(store: &Store, service: &str) -> Vec<(DialledKind, String)> {
    let all = implicit(store);
    let is = |one: &&Arc<ImplicitUpstream>| one.upstream.upstream.destination_name == service;
    let addresses = &all.iter().find(is).unwrap().addresses;
    let pair = |one: &crate::Dialled| (one.kind, one.ip.to_string());
    addresses.iter().map(pair).collect()
}

pub(super) fn service(ip: &str) -> (DialledKind, String) {
    (DialledKind::Service, ip.to_owned())
}

#[test]
fn intentions_select_the_implicit_upstreams() {
    use IntentionAction::{Allow, Deny};
    let store = captured();
    assert_eq!(names(&store), [""; 0], "the default is to deny");
    apply(&store, intention("web", "api", Allow));
    assert_eq!(names(&store), ["api"]);
    // Neither itself nor services without a virtual IP.
    apply(
        &store,
        register("n1", json!({"ID": "plain", "Service": "plain"}), Vec::new()),
    );
    apply(&store, intention("*", "*", Allow));
    assert_eq!(names(&store), ["api", "db"]);
    // A service that has only a config entry has a virtual IP.
    apply(
        &store,
        entry(json!({"Kind": "service-defaults", "Name": "later"})),
    );
    assert_eq!(names(&store), ["api", "db", "later"]);
    apply(&store, intention("web", "db", Deny));
    apply(&store, intention("other", "api", Deny));
    assert_eq!(names(&store), ["api", "later"]);
    apply(&store, intention("web", "*", Deny));
    assert_eq!(names(&store), ["api"]);
    apply(&store, web("web", &["db"]));
    assert!(own(snapshot(&store)).implicit.is_none(), "another mode");
}

#[test]
fn a_service_is_dialled_by_all_its_virtual_ips() {
    let store = captured();
    apply(&store, intention("web", "*", IntentionAction::Allow));
    assert_eq!(dialled(&store, "db"), [service("240.0.0.3")]);
    let (_, reads) = compute(&store, true);
    let mut watch = store.watch(&reads);
    let assign = store.write(|txn| {
        let ips = BTreeSet::from([Ipv4Addr::new(10, 96, 0, 5)]);
        Ok::<_, Unavailable>(txn.assign_virtual_ips("db", &ips))
    });
    assign.now_or_never().unwrap().unwrap();
    assert!(woken(&mut watch));
    let mut tagged = instance("db", "db-proxy", 2);
    tagged["TaggedAddresses"] = json!({
        "virtual": {"Address": "10.96.0.6", "Port": 80}, "lan": {"Address": "10.0.0.7"},
    });
    apply(&store, register("n3", tagged, Vec::new()));
    let tagged = (DialledKind::Tagged, "10.96.0.6".to_owned());
    assert_eq!(
        dialled(&store, "db"),
        [service("10.96.0.5"), service("240.0.0.3"), tagged]
    );
}

#[test]
fn instances_are_dialled_directly_if_configured() {
    let store = captured();
    apply(&store, intention("web", "*", IntentionAction::Allow));
    let own = [(DialledKind::Instance, "10.0.0.1".to_owned())];
    let directly = json!({"DialedDirectly": true});
    let mut registered = instance("db", "db-proxy", 2);
    registered["Proxy"]["TransparentProxy"] = directly.clone();
    apply(&store, register("n3", registered, Vec::new()));
    assert_eq!(dialled(&store, "db")[1..], own);
    assert_eq!(dialled(&store, "api")[1..], []);
    for (kind, name) in [("service-defaults", "api"), ("proxy-defaults", "global")] {
        apply(
            &store,
            entry(json!({"Kind": kind, "Name": name, "TransparentProxy": directly})),
        );
        assert_eq!(dialled(&store, "api")[1..], own, "{kind}");
        let none = json!({"Kind": kind, "Name": name});
        apply(&store, entry(none));
        assert_eq!(dialled(&store, "api")[1..], [], "{kind}");
    }
}

#[test]
fn callers_without_settings_share_implicit_upstreams() {
    let store = captured();
    apply(&store, intention("*", "*", IntentionAction::Allow));
    let before = snapshot(&store).unwrap();
    let status = |status| {
        let checks = vec![check("api-proxy", status, "")];
        register("n2", instance("api", "api-proxy", 1), checks)
    };
    apply(&store, status(CheckStatus::Critical));
    let after = snapshot(&store).unwrap();
    let same: Vec<bool> = std::iter::zip(
        &sidecar(&before).implicit.as_ref().unwrap().0,
        &sidecar(&after).implicit.as_ref().unwrap().0,
    )
    .map(|(a, b)| Arc::ptr_eq(a, b))
    .collect();
    assert_eq!(same, [false, true]);
    apply(&store, status(CheckStatus::Critical));
    let again = snapshot(&store).unwrap();
    let lists = [&after, &again].map(|one| sidecar(one).implicit.clone().unwrap());
    assert!(
        Arc::ptr_eq(&lists[0], &lists[1]),
        "one list for every proxy of the service"
    );
}

/// The connect timeout of the first target.
fn connect_timeout(resolved: &ResolvedChain) -> Duration {
    let chain = resolved.chain.as_ref().unwrap();
    chain.targets.values().next().unwrap().connect_timeout
}

#[test]
fn upstream_settings_apply_to_implicit_upstreams() {
    let store = captured();
    apply(&store, intention("*", "*", IntentionAction::Allow));
    let settings = json!({
        "Defaults": {"Limits": {"MaxConnections": 7}},
        "Overrides": [{"Name": "db", "ConnectTimeoutMs": 900}],
    });
    apply(
        &store,
        entry(json!({
            "Kind": "service-defaults", "Name": "web", "UpstreamConfig": settings,
        })),
    );
    let configs = || -> Vec<(u128, Value)> {
        let all = implicit(&store);
        let pair = |one: &Arc<ImplicitUpstream>| {
            let config = one.upstream.upstream.config.clone();
            let limits = config.get("limits").cloned().unwrap_or_default();
            (
                connect_timeout(&one.upstream.resolved).as_millis(),
                limits["MaxConnections"].clone(),
            )
        };
        all.iter().map(pair).collect()
    };
    assert_eq!(configs(), [(5000, json!(7)), (900, json!(7))]);

    let before = implicit(&store);
    apply(
        &store,
        register("n4", instance("api", "api-2", 3), Vec::new()),
    );
    let after = implicit(&store);
    assert!(!Arc::ptr_eq(&before[0], &after[0]));
    assert!(Arc::ptr_eq(&before[1], &after[1]), "db has not changed");
}
