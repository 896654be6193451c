//! Routers, splitters and resolvers over HTTP: consistent ones are accepted, all others rejected.

use http::StatusCode;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

const WEB: &str = "/v1/discovery-chain/web";

/// Writes or removes an entry. Returns the error text, or an empty one.
async fn outcome(client: &Client, write: bool, entry: &Value) -> String {
    let text = |field: &str| entry[field].as_str().unwrap();
    let path = format!("/v1/config/{}/{}", text("Kind"), text("Name"));
    let reply = match write {
        true => client.put("/v1/config", entry).await,
        false => client.delete(&path).await,
    };
    match reply.status {
        StatusCode::OK => String::new(),
        StatusCode::BAD_REQUEST => reply.text().to_owned(),
        other => panic!("{other}: {}", reply.text()),
    }
}

fn protocol(service: &str, protocol: &str) -> Value {
    json!({ "Kind": "service-defaults", "Name": service, "Protocol": protocol })
}

fn router(service: &str, to: &Value) -> Value {
    json!({ "Kind": "service-router", "Name": service, "Routes": [
        { "Match": { "HTTP": { "PathPrefix": "/x" } }, "Destination": to },
    ]})
}

fn splitter(service: &str, to: &str) -> Value {
    json!({ "Kind": "service-splitter", "Name": service, "Splits": [
        { "Weight": 50 }, { "Weight": 50, "Service": to },
    ]})
}

fn redirect(service: &str, to: &Value) -> Value {
    json!({ "Kind": "service-resolver", "Name": service, "Redirect": to })
}

#[tokio::test]
async fn routers_splitters_and_resolvers_are_written_read_and_removed() {
    let (_server, client) = start(|_| {}).await;
    client.write("/v1/config", &protocol("web", "http")).await;
    for entry in [
        router("web", &json!({ "PrefixRewrite": "/" })),
        json!({ "Kind": "service-splitter", "Name": "web", "Splits": [{ "Weight": 100.0 }] }),
        json!({ "Kind": "service-resolver", "Name": "web", "ConnectTimeout": "2s",
            "DefaultSubset": "v1", "Subsets": { "v1": { "Filter": "Service.Meta.v == 1" } } }),
    ] {
        let kind = entry["Kind"].as_str().unwrap();
        let path = format!("/v1/config/{kind}/web");
        assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND);
        assert_eq!(client.write("/v1/config", &entry).await, json!(true));
        let read = client.get(&path).await.json();
        for (field, value) in entry.as_object().unwrap() {
            if field != "Routes" {
                assert_eq!(read[field], *value, "{kind}");
            }
        }
        let list = client.get(&format!("/v1/config/{kind}")).await.json();
        assert_eq!(list, json!([read]));
        let index = &read["ModifyIndex"];
        // Writing an identical entry is a no-op, whatever the index.
        assert_eq!(client.write("/v1/config?cas=1", &entry).await, json!(true));
        let mut other = entry.clone();
        other["Meta"] = json!({ "changed": "yes" });
        assert_eq!(client.write("/v1/config?cas=1", &other).await, json!(false));
        let cas = format!("/v1/config?cas={index}");
        assert_eq!(client.write(&cas, &entry).await, json!(true));
    }
    let chain = client.get(WEB).await.json();
    assert_eq!(chain["Chain"]["StartNode"], "router:web.default.default");
    assert_eq!(
        chain["Chain"]["Targets"]["v1.web.default.default.dc1"]["ConnectTimeout"],
        "2s"
    );
    for kind in ["service-router", "service-splitter", "service-resolver"] {
        let path = format!("/v1/config/{kind}/web");
        assert_eq!(client.delete(&path).await.json(), json!({}));
        assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND);
    }
    assert_eq!(client.get(WEB).await.json()["Chain"]["Default"], true);
}

/// A step: `+` writes, `-` removes, with the expected error text, or an empty one.
type Step = (char, Value, &'static str);

fn to_api() -> Value {
    json!({ "Service": "api" })
}

/// Protocol requirements of a chain's service and its targets.
fn protocols() -> Vec<Step> {
    let advanced = "that does not permit advanced routing";
    let inconsistent = "discovery chain \"web\" uses inconsistent protocols";
    let of_api = "service \"api\" has \"grpc\" which is not \"http\"";
    vec![
        ('+', router("web", &to_api()), advanced),
        ('+', protocol("web", "http"), ""),
        ('+', router("web", &to_api()), inconsistent),
        ('+', protocol("api", "http"), ""),
        ('+', router("web", &to_api()), ""),
        ('-', protocol("web", "http"), inconsistent),
        ('+', protocol("api", "grpc"), of_api),
        ('-', protocol("api", "http"), inconsistent),
    ]
}

/// Splits behind routes, and subsets behind splits.
fn splits() -> Vec<Step> {
    let mismatch = "uses inconsistent protocols";
    let filter = json!({ "Kind": "service-resolver", "Name": "web",
        "Subsets": { "v1": { "Filter": "Service.Mta.x == 1" } } });
    let subsets = json!({ "Kind": "service-resolver", "Name": "api",
        "Subsets": { "v1": { "OnlyPassing": true } } });
    let no_subsets = json!({ "Kind": "service-resolver", "Name": "api" });
    let lacks = "service \"api\" does not have a subset named \"v1\"";
    let old = redirect("old", &json!({ "Service": "api", "ServiceSubset": "v1" }));
    vec![
        (
            '+',
            filter,
            "Filter for subset \"v1\" is not a valid expression: Selector \"Service.Mta\"",
        ),
        ('+', subsets, ""),
        ('+', splitter("api", "canary"), mismatch),
        ('+', protocol("canary", "http"), ""),
        ('+', splitter("api", "canary"), ""),
        (
            '+',
            splitter("canary", "api"),
            "detected circular reference",
        ),
        // The chain of `web` reaches it in two steps.
        ('+', protocol("canary", "tcp"), mismatch),
        ('+', old.clone(), mismatch),
        ('+', protocol("old", "http"), ""),
        ('+', old, ""),
        ('+', no_subsets.clone(), lacks),
        ('-', no_subsets, lacks),
    ]
}

/// Redirects, also to missing services, and the protocol of `proxy-defaults`.
fn redirects_and_defaults() -> Vec<Step> {
    let defaults =
        json!({ "Kind": "proxy-defaults", "Name": "global", "Config": { "protocol": "http" } });
    let peer = json!({ "Service": "x", "Peer": "p" });
    vec![
        ('+', redirect("a", &json!({ "Service": "b" })), ""),
        (
            '+',
            redirect("b", &json!({ "Service": "a" })),
            "detected circular resolver redirect",
        ),
        ('+', redirect("c", &json!({ "Datacenter": "dc2" })), ""),
        ('+', redirect("c", &peer), ""),
        ('+', defaults.clone(), ""),
        ('-', protocol("web", "http"), ""),
        ('-', defaults.clone(), "uses inconsistent protocols"),
        ('-', router("web", &to_api()), ""),
        ('-', defaults, ""),
    ]
}

#[tokio::test]
async fn entries_that_break_a_chain_are_refused_when_they_are_written_or_removed() {
    let (_server, client) = start(|_| {}).await;
    let steps = [protocols(), splits(), redirects_and_defaults()].concat();
    for (change, entry, refusal) in steps {
        let said = outcome(&client, change == '+', &entry).await;
        assert!(said.contains(refusal), "{change} {entry}: {said:?}");
        assert_eq!(
            said.is_empty(),
            refusal.is_empty(),
            "{change} {entry}: {said:?}"
        );
    }
}

#[tokio::test]
async fn routing_to_a_service_requires_service_read() {
    let (_server, client) = start(deny_by_default).await;
    let management = client.with_token(MANAGEMENT);
    for service in ["web", "api"] {
        management
            .write("/v1/config", &protocol(service, "http"))
            .await;
    }
    let token = async |rules: &str| {
        let name = rules.len().to_string();
        let policy = json!({ "Name": format!("p{name}"), "Rules": rules });
        let policy = management.write("/v1/acl/policy", &policy).await;
        let token = json!({ "Policies": [{ "ID": policy["ID"] }] });
        let token = management.write("/v1/acl/token", &token).await;
        client.with_token(token["SecretID"].as_str().unwrap())
    };
    let own = token("service \"web\" { policy = \"write\" }").await;
    let route = router("web", &json!({ "Service": "api" }));
    let refused = own.put("/v1/config", &route).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN);
    assert!(
        refused.text().contains("'service:read' on \"api\""),
        "{}",
        refused.text()
    );
    let both = "service \"web\" { policy = \"write\" } service \"api\" { policy = \"read\" }";
    let both = token(both).await;
    assert_eq!(both.write("/v1/config", &route).await, json!(true));
    let path = "/v1/config/service-router/web";
    assert_eq!(client.get(path).await.status, StatusCode::FORBIDDEN);
    assert_eq!(client.delete(path).await.status, StatusCode::FORBIDDEN);
    assert_eq!(own.delete(path).await.json(), json!({}));
}

#[tokio::test]
async fn dry_runs_of_other_endpoints_write_nothing() {
    let (_server, client) = start(|_| {}).await;
    let service = json!({"Name": "web", "Port": 80});
    let reply = client
        .put("/v1/agent/service/register?dry-run", &service)
        .await;
    assert_eq!(reply.status, 400);
    assert_eq!(client.get("/v1/agent/services").await.json(), json!({}));
}

#[tokio::test]
async fn a_dry_run_is_answered_like_the_write_and_writes_nothing() {
    let (_server, client) = start(|_| {}).await;
    let path = "/v1/config/service-defaults/web";
    let shown = client
        .put("/v1/config?dry-run", &protocol("web", "http"))
        .await;
    let shown = shown.json();
    assert_eq!(shown["Written"], true);
    assert_eq!(shown["Chains"][0]["Service"], "web");
    let fields = json!([{ "Path": "Protocol", "Before": "tcp", "After": "http" }]);
    assert_eq!(shown["Chains"][0]["Fields"], fields);
    assert_eq!(shown["Proxies"]["Connected"], 0);
    assert_eq!(client.get(path).await.status, StatusCode::NOT_FOUND);

    let route = router("web", &to_api());
    for path in ["/v1/config?dry-run", "/v1/config"] {
        let refused = client.put(path, &route).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        assert!(refused.text().contains("does not permit advanced routing"));
    }
    let stale = "/v1/config?dry-run&cas=7";
    let stale = client.put(stale, &protocol("web", "http")).await.json();
    assert_eq!(stale["Written"], false);

    client.write("/v1/config", &protocol("web", "http")).await;
    let shown = client.delete(&format!("{path}?dry-run")).await.json();
    assert_eq!(shown["Chains"][0]["Fields"][0]["After"], "tcp");
    assert_eq!(client.get(path).await.json()["Protocol"], "http");
}
