//! Decisions about a resource: comparison, ownership, duplicates, conditions.

use std::time::Duration;

use legate_kubernetes::config::decision::{
    Reason, Removal, Write, oldest, removal, retry_after, write,
};
use legate_kubernetes::config::entry::{Entry, entry};
use legate_kubernetes::config::kinds::Kind;
use legate_kubernetes::config::same::differences;
use legate_kubernetes::config::status::{Condition, Outcome, Status};
use serde_json::{Value, json};

use super::resource;
use legate_kubernetes::tenancy::Tenants;

fn wanted(kind: &str, spec: Value) -> Entry {
    let kind = Kind::named(kind).unwrap();
    let name = if kind.name == "ProxyDefaults" {
        "global"
    } else {
        "web"
    };
    entry(
        kind,
        &resource(kind, "default", name, spec),
        "dc1",
        &Tenants::default(),
    )
    .unwrap()
}

fn different(kind: &str, spec: Value, found: Value) -> Vec<String> {
    differences(&wanted(kind, spec), &found, 10)
}

#[test]
fn fields_added_by_servers_are_not_a_difference() {
    let same = [
        (
            "ServiceDefaults",
            json!({ "protocol": "http", "meshGateway": {}, "maxInboundConnections": 0 }),
            json!({
                "Kind": "service-defaults", "Name": "web", "Protocol": "http", "Hash": 12,
                "TransparentProxy": {}, "MeshGateway": {}, "Expose": {}, "CreateIndex": 3,
                "ModifyIndex": 4, "Partition": "default", "Namespace": "default",
            }),
        ),
        (
            "ServiceDefaults",
            json!({ "upstreamConfig": { "defaults": { "passiveHealthCheck": {
                "interval": "10s", "maxFailures": 0, "baseEjectionTime": "30s" } } } }),
            json!({ "UpstreamConfig": { "Defaults": { "MeshGateway": {}, "PassiveHealthCheck": {
                "Interval": 10_000_000_000_i64, "MaxFailures": 0,
                "BaseEjectionTime": 30_000_000_000_i64 } } } }),
        ),
        (
            "ServiceResolver",
            json!({ "connectTimeout": "1m30s", "requestTimeout": "0s" }),
            json!({ "ConnectTimeout": "90s", "Subsets": null, "Failover": {} }),
        ),
        (
            "ServiceIntentions",
            json!({ "destination": { "name": "web" }, "sources": [
                { "name": "*", "action": "deny" },
                { "name": "a", "permissions": [{ "action": "allow", "http": { "methods": ["get"] } }] },
            ] }),
            json!({ "Name": "web", "Sources": [
                { "Name": "a", "Precedence": 9, "Type": "consul", "Namespace": "default",
                  "Permissions": [{ "Action": "allow", "HTTP": { "Methods": ["GET"] } }] },
                { "Name": "*", "Action": "deny", "Precedence": 8, "Type": "consul" },
            ] }),
        ),
        (
            "ServiceSplitter",
            json!({ "splits": [{ "weight": 33.333 }, { "weight": 66.667, "service": "b" }] }),
            json!({ "Splits": [{ "Weight": 33.33 }, { "Weight": 66.67, "Service": "b" }] }),
        ),
        (
            "JWTProvider",
            json!({ "jsonWebKeySet": { "local": { "jwks": "e30=" } } }),
            json!({ "ClockSkewSeconds": 30, "JSONWebKeySet": { "Local": { "JWKS": "e30=" } } }),
        ),
        (
            "IngressGateway",
            json!({ "listeners": [{ "port": 80, "services": [{ "name": "a" }] }] }),
            json!({ "TLS": { "Enabled": false }, "Listeners": [
                { "Port": 80, "Protocol": "tcp", "Services": [{ "Name": "a", "Hosts": null }] }] }),
        ),
    ];
    for (kind, spec, found) in same {
        assert_eq!(different(kind, spec, found), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn differences_are_named_by_their_paths() {
    let cases = [
        (
            "ServiceDefaults",
            json!({ "protocol": "http" }),
            json!({}),
            vec!["Protocol"],
        ),
        (
            "ServiceDefaults",
            json!({}),
            json!({ "Protocol": "http" }),
            vec!["Protocol"],
        ),
        (
            "ServiceRouter",
            json!({ "routes": [{ "match": { "http": { "pathExact": "/a" } } }] }),
            json!({ "Routes": [{ "Match": { "HTTP": { "PathExact": "/b" } } }] }),
            vec!["Routes[0].Match.HTTP.PathExact"],
        ),
        (
            "ServiceSplitter",
            json!({ "splits": [{ "weight": 50 }, { "weight": 50 }] }),
            json!({ "Splits": [{ "Weight": 50 }] }),
            vec!["Splits"],
        ),
        // In free maps no value counts as absent.
        (
            "ProxyDefaults",
            json!({ "config": { "a": false, "b": "", "c": 1 } }),
            json!({ "Config": { "b": "", "c": 1.0 } }),
            vec!["Config.a"],
        ),
        // Zero turns this off; absence means Envoy's default.
        (
            "ServiceDefaults",
            json!({ "upstreamConfig": { "defaults": { "passiveHealthCheck": {
                "enforcingConsecutive5xx": 0 } } } }),
            json!({ "UpstreamConfig": { "Defaults": { "PassiveHealthCheck": {} } } }),
            vec!["UpstreamConfig"],
        ),
    ];
    for (kind, spec, found, paths) in cases {
        assert_eq!(different(kind, spec, found), paths, "{kind}");
    }
}

fn found(protocol: &str, owner: Option<&str>) -> Value {
    let mut entry = json!({ "Kind": "service-defaults", "Protocol": protocol, "ModifyIndex": 7 });
    if let Some(owner) = owner {
        entry["Meta"] = json!({ "consul.hashicorp.com/source-datacenter": owner });
    }
    entry
}

#[test]
fn foreign_entries_are_left_alone() {
    let wanted = wanted("ServiceDefaults", json!({ "protocol": "http" }));
    let decide = |found: Option<&Value>, migrate| write(&wanted, found, "dc1", migrate);
    let put = |index| Write::Put { index };
    assert_eq!(decide(None, false), put(0));
    assert_eq!(
        decide(Some(&found("http", Some("dc1"))), false),
        Write::Keep
    );
    assert_eq!(decide(Some(&found("http", Some("dc1"))), true), Write::Keep);
    assert_eq!(decide(Some(&found("tcp", Some("dc1"))), false), put(7));
    assert_eq!(decide(Some(&found("tcp", Some("dc1"))), true), put(7));
    assert_eq!(decide(Some(&found("http", None)), false), Write::Keep);
    assert_eq!(decide(Some(&found("http", None)), true), put(7));
    assert_eq!(decide(Some(&found("http", Some("dc2"))), true), put(7));
    let refused = |found: Value, migrate| match decide(Some(&found), migrate) {
        Write::Refuse(reason, message) => (reason.as_str(), message),
        other => panic!("{other:?}"),
    };
    let (reason, message) = refused(found("tcp", None), false);
    assert_eq!(reason, "ExternallyManagedConfigError");
    assert!(
        message.starts_with("config entry already exists in Consul"),
        "{message}"
    );
    let (reason, message) = refused(found("tcp", Some("dc2")), false);
    assert_eq!(reason, "ExternallyManagedConfigError");
    assert_eq!(
        message,
        "config entry managed in different datacenter: \"dc2\""
    );
    let (reason, message) = refused(found("tcp", None), true);
    assert_eq!(reason, "MigrationFailedError");
    assert!(message.contains("differs in Protocol"), "{message}");
}

#[test]
fn only_own_entries_are_removed() {
    assert_eq!(removal(None, "dc1"), Removal::Leave);
    assert_eq!(removal(Some(&found("tcp", None)), "dc1"), Removal::Leave);
    assert_eq!(
        removal(Some(&found("tcp", Some("dc2"))), "dc1"),
        Removal::Leave
    );
    let ours = found("tcp", Some("dc1"));
    assert_eq!(removal(Some(&ours), "dc1"), Removal::Delete { index: 7 });
}

#[test]
fn the_oldest_of_several_resources_is_written() {
    let kind = Kind::named("ServiceDefaults").unwrap();
    let make = |namespace: &str, created: &str| {
        let mut made = resource(kind, namespace, "web", json!({}));
        let time = serde_json::from_value(json!(created)).unwrap();
        made.metadata.creation_timestamp = Some(time);
        made
    };
    let old = make("b", "2026-01-01T00:00:00Z");
    let young = make("a", "2026-01-02T00:00:00Z");
    let equal = make("c", "2026-01-01T00:00:00Z");
    let all = [young.clone(), old.clone(), equal];
    assert_eq!(
        oldest(all.iter()).unwrap().metadata.namespace,
        old.metadata.namespace
    );
    // A resource that is being deleted gives way to the next.
    let mut leaving = old;
    leaving.metadata.deletion_timestamp = leaving.metadata.creation_timestamp.clone();
    let left = [leaving, young.clone()];
    assert_eq!(
        oldest(left.iter()).unwrap().metadata.namespace,
        young.metadata.namespace
    );
    assert_eq!(oldest(left[..1].iter()), None);
}

#[test]
fn retries_start_fast_and_back_off() {
    let millis: Vec<u128> = (0..22).map(|n| retry_after(n).as_millis()).collect();
    assert_eq!(millis[..6], [200, 400, 800, 1600, 3200, 5000]);
    assert!(millis.is_sorted());
    let fast: Duration = (0..15).map(retry_after).sum();
    assert!(
        fast > Duration::from_secs(50) && fast < Duration::from_secs(70),
        "{fast:?}"
    );
    assert_eq!(millis[15..20], [5000, 10_000, 20_000, 40_000, 60_000]);
    assert_eq!(retry_after(u32::MAX), Duration::from_secs(60));
}

const T1: &str = "2026-01-01T00:00:01Z";
const T2: &str = "2026-01-01T00:00:02Z";
const T3: &str = "2026-01-01T00:00:03Z";

fn condition(status: &Status) -> &Condition {
    &status.conditions[0]
}

#[test]
fn a_status_is_written_when_it_changes() {
    let synced = |written| Outcome::Synced { written };
    let refused = || Outcome::Refused(Reason::Servers, "no".into());
    let first = Status::default().after(&synced(true), T1).unwrap();
    assert_eq!(condition(&first).status, "True");
    assert_eq!(condition(&first).reason, None);
    assert_eq!(first.last_synced_time.as_deref(), Some(T1));
    assert_eq!(first.after(&synced(false), T2), None);

    let again = first.after(&synced(true), T2).unwrap();
    assert_eq!(condition(&again).last_transition_time.as_deref(), Some(T1));
    assert_eq!(again.last_synced_time.as_deref(), Some(T2));

    let failed = again.after(&refused(), T3).unwrap();
    assert_eq!(condition(&failed).status, "False");
    assert_eq!(
        condition(&failed).reason.as_deref(),
        Some("ConsulAgentError")
    );
    assert_eq!(condition(&failed).message.as_deref(), Some("no"));
    assert_eq!(condition(&failed).last_transition_time.as_deref(), Some(T3));
    assert_eq!(failed.last_synced_time.as_deref(), Some(T2));
    assert_eq!(failed.after(&refused(), T3), None);

    let unknown = Outcome::Unknown(Reason::Servers, "away".into());
    let unknown = failed.after(&unknown, T3).unwrap();
    assert_eq!(condition(&unknown).status, "Unknown");
}

#[test]
fn conditions_of_others_stay() {
    let other = Condition {
        r#type: "Other".into(),
        status: "True".into(),
        ..Condition::default()
    };
    let status = Status {
        conditions: vec![other.clone()],
        last_synced_time: None,
    };
    let after = status
        .after(&Outcome::Synced { written: true }, T1)
        .unwrap();
    assert_eq!(after.conditions.len(), 2);
    assert!(after.conditions.contains(&other));
}
