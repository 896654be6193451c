//! Routers, splitters and resolvers over HTTP: consistent ones are accepted, all others rejected.

use http::{Method, StatusCode};
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

/// A peer reaches a service by gateways of one partition and datacenter, so the chain of one that is exported stays
/// there, and a chain of connections leads to the services that the peer knows.
#[tokio::test]
async fn chains_of_services_that_peers_call_stay_where_they_are() {
    let (_server, client) = start(|_| {}).await;
    let exported = |name: &str, consumer: Value| {
        json!({ "Kind": "exported-services", "Name": "default", "Services": [
            { "Name": name, "Consumers": [consumer] },
        ]})
    };
    let to_peer = || json!({ "Peer": "alpha" });
    let elsewhere = redirect("web", &json!({ "Service": "api", "Datacenter": "dc2" }));
    let far = "peer exported service \"web\" contains cross-datacenter resolver redirect";
    assert_eq!(outcome(&client, true, &elsewhere).await, "");
    assert!(
        outcome(&client, true, &exported("web", to_peer()))
            .await
            .contains(far)
    );
    assert!(
        outcome(&client, true, &exported("*", to_peer()))
            .await
            .contains(far)
    );
    let partition = json!({ "Partition": "other" });
    assert_eq!(
        outcome(&client, true, &exported("web", partition)).await,
        ""
    );
    assert_eq!(
        outcome(&client, true, &exported("api", to_peer())).await,
        ""
    );
    assert_eq!(outcome(&client, false, &elsewhere).await, "");
    assert_eq!(
        outcome(&client, true, &exported("web", to_peer())).await,
        ""
    );
    let failover = |failover: Value| json!({ "Kind": "service-resolver", "Name": "web", "Failover": { "*": failover } });
    for (entry, expected) in [
        (elsewhere, far),
        (
            redirect("web", &json!({ "Service": "api", "Peer": "beta" })),
            "contains cross-peer resolver redirect",
        ),
        (
            failover(json!({ "Datacenters": ["dc2"] })),
            "contains cross-datacenter failover",
        ),
        (
            failover(json!({ "Targets": [{ "Datacenter": "dc2" }] })),
            "contains cross-datacenter failover",
        ),
        (
            redirect("web", &json!({ "Service": "api" })),
            "uses protocol=\"tcp\" and cannot introduce new discovery chain targets like \"api.default.default.dc1\"",
        ),
    ] {
        let refused = outcome(&client, true, &entry).await;
        assert!(refused.contains(expected), "{entry}: {refused}");
    }
    // Failover is ignored by the gateways, and so are targets of requests.
    assert_eq!(
        outcome(&client, true, &failover(json!({ "Service": "api" }))).await,
        ""
    );
    let http =
        json!({ "Kind": "proxy-defaults", "Name": "global", "Config": { "protocol": "http" } });
    assert_eq!(outcome(&client, true, &http).await, "");
    assert_eq!(
        outcome(
            &client,
            true,
            &redirect("web", &json!({ "Service": "api" }))
        )
        .await,
        ""
    );
}

/// Only config entries have sources of peers. Other endpoints show them, and refuse to write them.
#[tokio::test]
async fn intentions_about_peers_are_written_as_entries() {
    let (_server, client) = start(|_| {}).await;
    let entry = json!({ "Kind": "service-intentions", "Name": "api", "Sources": [
        { "Name": "web", "Peer": "alpha", "Action": "allow" }, { "Name": "web", "Action": "deny" },
    ]});
    client.write("/v1/config", &entry).await;
    let listed = client.get("/v1/connect/intentions").await.json();
    let peers: Vec<_> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["SourcePeer"])
        .collect();
    assert_eq!(peers.len(), 2);
    assert!(
        peers.contains(&&json!("alpha")) && peers.contains(&&Value::Null),
        "{listed}"
    );
    let exact = "/v1/connect/intentions/exact?destination=api&source=";
    let of = async |source: &str| client.get(&format!("{exact}{source}")).await;
    assert_eq!(of("peer:alpha/web").await.json()["Action"], "allow");
    assert_eq!(of("peer:alpha/default/web").await.json()["Action"], "allow");
    assert_eq!(of("web").await.json()["Action"], "deny");
    assert_eq!(of("peer:beta/web").await.status, StatusCode::NOT_FOUND);
    assert_eq!(of("peer:alpha").await.status, StatusCode::BAD_REQUEST);
    let check = "/v1/connect/intentions/check?source=web&destination=api";
    assert_eq!(client.get(check).await.json(), json!({ "Allowed": false }));
    let matched = "/v1/connect/intentions/match?by=source&name=web";
    let matched = client.get(matched).await.json();
    assert_eq!(matched["web"].as_array().unwrap().len(), 1, "{matched}");
    let body = json!({ "SourceName": "web", "SourcePeer": "alpha", "DestinationName": "db", "Action": "allow" });
    let refused = [
        client
            .put(
                "/v1/connect/intentions/exact?source=web&destination=db",
                &body,
            )
            .await,
        client
            .send(Method::POST, "/v1/connect/intentions", &body.to_string())
            .await,
    ];
    for reply in refused {
        let expected =
            "SourcePeer field is not supported on this endpoint. Use config entries instead";
        assert!(reply.text().contains(expected), "{}", reply.text());
    }
}
