//! Routers, splitters and resolvers: accepted entries, and refused ones with the named field.

use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::entry::Entry;
use super::{ServiceResolver, ServiceRouter, ServiceSplitter};

/// The validation error of an entry; empty if it is accepted.
fn refusal<T: Entry + DeserializeOwned>(mut entry: Value) -> String {
    entry["Name"] = "web".into();
    match serde_json::from_value::<T>(entry) {
        Ok(entry) => entry
            .validate()
            .err()
            .map_or_else(String::new, |error| error.to_string()),
        Err(error) => error.to_string(),
    }
}

#[track_caller]
fn assert_refused<T: Entry + DeserializeOwned>(entry: Value, text: &str) {
    let what = refusal::<T>(entry.clone());
    assert!(!what.is_empty() && what.contains(text), "{entry}: {what}");
}

fn route(route: Value) -> Value {
    json!({"Routes": [{}, route]})
}

fn http(http: Value) -> Value {
    route(json!({"Match": {"HTTP": http}}))
}

fn destination(destination: Value) -> Value {
    route(json!({"Destination": destination}))
}

#[test]
fn invalid_routes_are_refused() {
    let cases = [
        (
            http(json!({"PathExact": "a"})),
            "Routes[1].Match.HTTP.PathExact",
        ),
        (http(json!({"PathPrefix": "a"})), "must begin with a slash"),
        (
            http(json!({"PathPrefix": "/a", "PathRegex": "b"})),
            "at most one of",
        ),
        (http(json!({"PathRegex": "("})), "PathRegex"),
        (
            http(json!({"Header": [{"Present": true}]})),
            "Header[0].Name",
        ),
        (
            http(json!({"Header": [{"Name": "x"}]})),
            "exactly one of Present, Exact, Prefix",
        ),
        (
            http(json!({"Header": [{"Name": "x", "Exact": "a", "Regex": "b"}]})),
            "exactly one",
        ),
        (
            http(json!({"QueryParam": [{"Name": "x"}]})),
            "exactly one of Present, Exact and Regex",
        ),
        (
            http(json!({"QueryParam": [{"Name": "x", "Regex": "["}]})),
            "QueryParam[0].Regex",
        ),
        (
            http(json!({"Methods": ["GET", "FETCH"]})),
            "\"FETCH\" is not one of GET",
        ),
        (http(json!({"Methods": ["GET", "get"]})), "given twice"),
        (
            destination(json!({"PrefixRewrite": "/"})),
            "needs Match.HTTP.PathExact",
        ),
        (
            destination(json!({"RetryOn": ["sometimes"]})),
            "\"sometimes\" is not one of 5xx",
        ),
        (
            destination(json!({"RetryOnStatusCodes": [99]})),
            "99 is not a status",
        ),
        (destination(json!({"RequestTimeout": "soon"})), "soon"),
        (
            destination(json!({"Service": "a/b"})),
            "Destination.Service",
        ),
        (
            destination(json!({"Namespace": "*"})),
            "is not allowed here",
        ),
        (
            destination(json!({"RequestHeaders": {"Set": {"a b": "c"}}})),
            "not the name of a header",
        ),
        (
            destination(json!({"ResponseHeaders": {"Add": {"a": "b\n"}}})),
            "line breaks",
        ),
        (
            destination(json!({"RequestHeaders": {"Remove": ["Host"]}})),
            "cannot be changed",
        ),
    ];
    for (entry, text) in cases {
        assert_refused::<ServiceRouter>(entry, text);
    }
}

#[test]
fn valid_routes_are_accepted() {
    let good = json!({"Routes": [{
        "Match": {"HTTP": {
            "PathPrefix": "/a", "Methods": ["get"],
            "Header": [{"Name": "x", "Present": true, "Invert": true}],
        }},
        "Destination": {"PrefixRewrite": "/", "RetryOn": ["5xx"], "RetryOnStatusCodes": [503]},
    }]});
    assert_eq!(refusal::<ServiceRouter>(good), "");
}

#[test]
fn invalid_splits_are_refused() {
    let of = |splits: Value| json!({"Splits": splits});
    let cases = [
        (json!({}), "1 to 100 splits"),
        (of(json!([{"Weight": 99.99}])), "must be 100, not 99.99"),
        (
            of(json!([{"Weight": -1}, {"Weight": 101}])),
            "Splits[0].Weight",
        ),
        (
            of(json!([{"Weight": 50}, {"Weight": 50, "Service": "web"}])),
            "occurs more than once: service=\"web\", subset=\"\"",
        ),
    ];
    for (entry, text) in cases {
        assert_refused::<ServiceSplitter>(entry, text);
    }
    let thirds = of(json!([
        {"Weight": 33.33}, {"Weight": 33.33, "Service": "a"}, {"Weight": 33.34, "Service": "b"},
    ]));
    assert_eq!(refusal::<ServiceSplitter>(thirds), "");
}

#[test]
fn inconsistent_resolvers_are_refused() {
    let failover = |section: Value| json!({"Failover": {"*": section}});
    let cases = [
        (json!({"Subsets": {"V1": {}}}), "lower case letters"),
        (json!({"Subsets": {"-a": {}}}), "inner hyphens"),
        (
            json!({"DefaultSubset": "v1"}),
            "\"v1\" is not a valid subset",
        ),
        (json!({"Redirect": {}}), "it is empty"),
        (
            json!({"Redirect": {"ServiceSubset": "v1"}}),
            "without Redirect.Service",
        ),
        (
            json!({"Redirect": {"Service": "web", "ServiceSubset": "v1"}}),
            "not a valid subset of",
        ),
        (
            json!({"Redirect": {"Service": "a", "Peer": "p", "Datacenter": "d"}}),
            "Redirect.Peer",
        ),
        (
            json!({"Redirect": {"Service": "a"}, "Failover": {"*": {"Service": "b"}}}),
            "cannot both be set",
        ),
        (failover(json!({})), "one of Service, ServiceSubset"),
        (
            json!({"Failover": {"v1": {"Service": "a"}}}),
            "Failover[\"v1\"]",
        ),
        (
            failover(json!({"Service": "a", "Targets": [{"Service": "b"}]})),
            "Targets",
        ),
        (
            failover(json!({"Datacenters": ["dc2", ""]})),
            "found empty datacenter",
        ),
        (
            failover(json!({"Targets": [{"ServiceSubset": "v1"}]})),
            "Targets[0].ServiceSubset",
        ),
        (
            failover(json!({"Service": "a", "Policy": {"Mode": "best"}})),
            "best",
        ),
        (
            failover(json!({"Service": "a", "SamenessGroup": "g"})),
            "not served",
        ),
    ];
    for (entry, text) in cases {
        assert_refused::<ServiceResolver>(entry, text);
    }
    let good = json!({
        "DefaultSubset": "v1", "Subsets": {"v1": {"OnlyPassing": true}},
        "Failover": {"v1": {"Targets": [{"Service": "web", "Datacenter": "dc2"}]}},
        "ConnectTimeout": "3s", "LoadBalancer": {"Policy": "ring_hash", "RingHashConfig": {}},
    });
    assert_eq!(refusal::<ServiceResolver>(good), "");
}

#[test]
fn header_values_are_envoy_format_strings() {
    let set = |value: &str| json!({"Set": {"x-a": value}});
    let router = |value| {
        let destination = json!({"RequestHeaders": set(value)});
        refusal::<ServiceRouter>(json!({"Routes": [{"Destination": destination}]}))
    };
    assert_eq!(router("100%% of %PROTOCOL%"), "");
    let error = router("100%");
    assert!(error.contains("no Envoy command starts"), "{error}");
}

#[test]
fn load_balancer_settings_must_match_the_policy() {
    let balancer = |balancer: Value| json!({"LoadBalancer": balancer});
    let hashing = |policy: Value| balancer(json!({"Policy": "maglev", "HashPolicies": [policy]}));
    let cases = [
        (balancer(json!({"Policy": "best"})), "best"),
        (balancer(json!({"RingHashConfig": {}})), "needs ring_hash"),
        (
            balancer(json!({"LeastRequestConfig": {}})),
            "needs least_request",
        ),
        // Envoy would refuse the cluster.
        (
            balancer(json!({"Policy": "least_request", "LeastRequestConfig": {"ChoiceCount": 1}})),
            "at least 2",
        ),
        (
            balancer(json!({"Policy": "ring_hash", "RingHashConfig": {"MaximumRingSize": 1000}})),
            "below MinimumRingSize, 1024",
        ),
        (
            balancer(
                json!({"Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 8_388_609}}),
            ),
            "largest ring",
        ),
        (
            balancer(json!({"HashPolicies": [{"SourceIP": true}]})),
            "ring_hash or maglev",
        ),
        (hashing(json!({"Field": "header"})), "without a FieldValue"),
        (hashing(json!({"FieldValue": "x"})), "requires a Field"),
        (
            hashing(json!({"SourceIP": true, "Field": "header"})),
            "cannot hash both",
        ),
        (
            hashing(json!({"Field": "header", "FieldValue": "x", "CookieConfig": {}})),
            "needs Field to be cookie",
        ),
        (
            hashing(json!({
                "Field": "cookie", "FieldValue": "x", "CookieConfig": {"Session": true, "TTL": "1s"},
            })),
            "session cookie",
        ),
    ];
    for (entry, text) in cases {
        assert_refused::<ServiceResolver>(entry, text);
    }
}
