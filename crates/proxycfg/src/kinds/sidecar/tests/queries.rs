//! Upstreams by prepared query.

use legate_model::{PreparedQuery, Protocol};

use super::*;

pub(super) fn query(id: &str, body: Value) -> Command {
    let mut query: PreparedQuery =
        legate_model::json::from_value(body, legate_model::json::UnknownFields::Refuse).unwrap();
    query.validate().unwrap();
    query.id = id.to_owned();
    Command::UpsertPreparedQuery(Box::new(query))
}

fn no_query(id: &str) -> Command {
    Command::DeletePreparedQuery { id: id.to_owned() }
}

/// The sidecar of `web`, with one upstream by prepared query.
pub(super) fn web_with(name: &str, config: Value) -> Command {
    let service = json!({
        "Kind": "connect-proxy", "ID": "web-proxy", "Service": "web-proxy", "Port": 20000,
        "Proxy": {"DestinationServiceName": "web", "Upstreams": [{
            "DestinationType": "prepared_query", "DestinationName": name,
            "LocalBindPort": 9000, "Config": config,
        }]},
    });
    register("n1", service, Vec::new())
}

fn api(node: &str, tags: &[&str], checks: Vec<HealthCheck>) -> Command {
    let mut service = instance("api", &format!("api-{node}"), 1);
    service["Tags"] = json!(tags);
    register(node, service, checks)
}

/// The nodes of the instances, and the service in their identity.
fn found(store: &Store) -> (Vec<String>, String) {
    let snapshot = snapshot(store).unwrap();
    let nodes = instances(&snapshot);
    let nodes = nodes.iter().map(|one| one.node.node.clone());
    let chain = sidecar(&snapshot).upstreams[0]
        .resolved
        .chain
        .as_ref()
        .unwrap();
    let target = chain.targets.values().next().unwrap();
    (nodes.collect(), target.service.clone())
}

pub(super) fn any_change() -> impl Strategy<Value = Command> {
    let name = || prop::sample::select(vec!["web", "api", "db"]);
    let id = || prop::sample::select(vec!["1", "2"]);
    let template = |id, name: &str| {
        query(
            id,
            json!({
                "Name": name, "Template": {"Type": "name_prefix_match"},
                "Service": {"Service": "${name.full}"},
            }),
        )
    };
    prop_oneof![
        3 => name().prop_map(|name| web_with(name, json!({}))),
        3 => (id(), name(), name(), any::<bool>()).prop_map(|(id, name, service, passing)| {
            let service = json!({"Service": service, "OnlyPassing": passing});
            query(id, json!({"Name": name, "Service": service}))
        }),
        1 => (id(), prop::sample::select(vec!["", "a", "w"]))
            .prop_map(move |(id, name)| template(id, name)),
        1 => id().prop_map(no_query),
    ]
}

#[test]
fn an_upstream_follows_the_results_of_its_query() {
    let store = mesh();
    for command in [
        api("n2", &["blue"], Vec::new()),
        api("n3", &["green"], Vec::new()),
        register("n4", instance("db", "db", 1), Vec::new()),
        web_with("near", json!({})),
    ] {
        apply(&store, command);
    }
    apply(&store, deregister("n2", "api-proxy"));
    assert_eq!(found(&store), (vec![], String::new()));
    let by_tag = |tag: &str| json!({"Name": "near", "Service": {"Service": "api", "Tags": [tag]}});
    let n = |nodes: &[&str]| {
        nodes
            .iter()
            .map(|one| (*one).to_owned())
            .collect::<Vec<_>>()
    };
    let api_on = |nodes: &[&str]| (n(nodes), "api".to_owned());
    for (change, expected) in [
        (query("1", by_tag("blue")), api_on(&["n2"])),
        (query("1", by_tag("green")), api_on(&["n3"])),
        (api("n2", &["green"], Vec::new()), api_on(&["n2", "n3"])),
        (deregister("n3", "api-n3"), api_on(&["n2"])),
        (
            query("1", json!({"Name": "near", "Service": {"Service": "db"}})),
            (n(&["n4"]), "db".to_owned()),
        ),
        (
            query("1", json!({"Name": "near", "Service": {"Service": "API"}})),
            // The name in the instances' registrations: their certificates have it.
            api_on(&["n2"]),
        ),
        (no_query("1"), (vec![], String::new())),
        (
            query(
                "2",
                json!({
                    "Name": "ne", "Template": {"Type": "name_prefix_match", "Regexp": "^(ne).*$"},
                    "Service": {"Service": "db", "Tags": ["!${match(1)}"]},
                }),
            ),
            (n(&["n4"]), "db".to_owned()),
        ),
    ] {
        let mut watch = store.watch(&compute(&store, true).1);
        apply(&store, change);
        assert!(woken(&mut watch));
        assert_eq!(found(&store), expected);
    }
}

#[test]
fn checks_that_the_query_ignores_are_ignored_by_the_proxy() {
    let store = mesh();
    apply(&store, deregister("n2", "api-proxy"));
    let down = vec![check("api-n2", CheckStatus::Critical, "")];
    apply(&store, api("n2", &[], down));
    apply(&store, web_with("q", json!({})));
    apply(
        &store,
        query("1", json!({"Name": "q", "Service": {"Service": "api"}})),
    );
    assert_eq!(found(&store).0, [""; 0]);
    let ignoring = json!({"Service": "api", "IgnoreCheckIDs": ["check of api-n2"]});
    apply(
        &store,
        query("1", json!({"Name": "q", "Service": ignoring})),
    );
    let instances = instances(&snapshot(&store).unwrap());
    assert_eq!(instances.len(), 1);
    assert_eq!(instances[0].checks, []);
}

#[test]
fn only_the_registration_configures_connections_to_a_query() {
    let store = mesh();
    for command in [
        query("1", json!({"Name": "api", "Service": {"Service": "api"}})),
        entry(json!({
            "Kind": "service-defaults", "Name": "web",
            "UpstreamConfig": {"Defaults": {"ConnectTimeoutMs": 1000, "Protocol": "grpc"}},
        })),
        entry(json!({"Kind": "service-defaults", "Name": "api", "Protocol": "http"})),
        web_with("api", json!({"connect_timeout_ms": 3000})),
    ] {
        apply(&store, command);
    }
    let resolved = Arc::clone(&own(snapshot(&store)).upstreams[0].resolved);
    assert_eq!(resolved.protocol(), Protocol::Tcp);
    let chain = resolved.chain.as_ref().unwrap();
    let target = chain.targets.values().next().unwrap();
    assert_eq!(target.connect_timeout.as_secs(), 3);
    assert!(chain.default);
    let before = snapshot(&store).unwrap();
    apply(&store, api("n9", &[], Vec::new()));
    let after = snapshot(&store).unwrap();
    // Another instance changes no cluster.
    let chain = |of: &Snapshot| sidecar(of).upstreams[0].resolved.chain.clone().unwrap();
    assert!(Arc::ptr_eq(&chain(&before), &chain(&after)));
    apply(
        &store,
        query("2", json!({"Name": "other", "Service": {"Service": "api"}})),
    );
    assert!(Arc::ptr_eq(
        &sidecar(&after).upstreams[0].resolved,
        &own(snapshot(&store)).upstreams[0].resolved
    ));
}

#[test]
fn query_names_are_case_sensitive() {
    let store = mesh();
    apply(
        &store,
        query(
            "1",
            json!({
                "Template": {"Type": "name_prefix_match", "Regexp": "^[a-z]+$"},
                "Service": {"Service": "api", "Tags": ["!${match(0)}x"]},
            }),
        ),
    );
    apply(
        &store,
        query(
            "2",
            json!({
                "Name": "t", "Template": {"Type": "name_prefix_match"},
                "Service": {"Service": "${name.suffix}"},
            }),
        ),
    );
    apply(&store, web_with("tapi", json!({})));
    let lower = snapshot(&store).unwrap();
    apply(&store, web_with("Tapi", json!({})));
    let upper = snapshot(&store).unwrap();
    assert_eq!((instances(&lower).len(), instances(&upper).len()), (1, 0));
}
