//! Mesh configuration in namespaces and partitions: entries, intentions, chains and leaves.

use http::StatusCode;
use serde_json::{Value, json};

use crate::http_client::{Client, start};

/// Creates the partition `shop` with the namespace `team`, and that namespace in the partition `default`.
async fn create(client: &Client) {
    client
        .write("/v1/partition", &json!({ "Name": "shop" }))
        .await;
    for partition in ["default", "shop"] {
        let path = format!("/v1/namespace?partition={partition}");
        client.write(&path, &json!({ "Name": "team" })).await;
    }
}

fn resolver(more: Value) -> Value {
    let mut entry = json!({ "Kind": "service-resolver", "Name": "web" });
    for (field, value) in more.as_object().unwrap() {
        entry[field] = value.clone();
    }
    entry
}

#[tokio::test]
async fn entries_of_one_name_in_two_tenancies_are_two() {
    let (_server, client) = start(|_| {}).await;
    create(&client).await;
    let path = "/v1/config/service-resolver/web";
    client
        .write("/v1/config", &resolver(json!({ "ConnectTimeout": "1s" })))
        .await;
    let team = resolver(json!({ "ConnectTimeout": "2s", "Namespace": "team" }));
    client.write("/v1/config", &team).await;
    let shop = resolver(json!({ "ConnectTimeout": "3s" }));
    client
        .write("/v1/config?ns=team&partition=shop", &shop)
        .await;

    let own = client.get(path).await.json();
    assert_eq!(own["ConnectTimeout"], "1s");
    assert_eq!((own.get("Namespace"), own.get("Partition")), (None, None));
    let team = client.get(&format!("{path}?ns=team")).await.json();
    assert_eq!(
        (&team["ConnectTimeout"], &team["Namespace"]),
        (&json!("2s"), &json!("team"))
    );
    let shop = client
        .get(&format!("{path}?ns=team&partition=shop"))
        .await
        .json();
    assert_eq!(
        (&shop["ConnectTimeout"], &shop["Partition"]),
        (&json!("3s"), &json!("shop"))
    );
    let all = client.get("/v1/config/service-resolver?ns=*").await.json();
    assert_eq!(all, json!([own, team]));

    client.delete(&format!("{path}?ns=team")).await;
    let gone = client.get(&format!("{path}?ns=team")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(client.get(path).await.json(), own);
}

#[tokio::test]
async fn a_body_and_a_query_that_disagree_are_refused() {
    let (_server, client) = start(|_| {}).await;
    create(&client).await;
    let entry = resolver(json!({ "Namespace": "team" }));
    let refused = client.put("/v1/config?ns=default", &entry).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("Namespace"), "{}", refused.text());
    let global = json!({ "Kind": "proxy-defaults", "Name": "global", "Namespace": "team" });
    let refused = client.put("/v1/config", &global).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    // A client's default namespace is ignored for objects of a partition.
    let global = json!({ "Kind": "proxy-defaults", "Name": "global" });
    client
        .write("/v1/config?ns=team&partition=shop", &global)
        .await;
    let path = "/v1/config/proxy-defaults/global";
    assert_eq!(client.get(path).await.status, StatusCode::NOT_FOUND);
    let shown = client
        .get(&format!("{path}?partition=shop&ns=team"))
        .await
        .json();
    assert_eq!(shown["Partition"], "shop");
    assert_eq!(shown.get("Namespace"), None);
}

#[tokio::test]
async fn a_chain_crosses_tenancies() {
    let (_server, client) = start(|_| {}).await;
    create(&client).await;
    let to = json!({ "Service": "web", "Partition": "shop", "Namespace": "team" });
    client
        .write("/v1/config", &resolver(json!({ "Redirect": to })))
        .await;
    let chain = client.get("/v1/discovery-chain/web").await.json();
    assert_eq!(chain["Chain"]["StartNode"], "resolver:web.team.shop.dc1");
    // The service there is validated together with those that refer to it.
    let there = json!({ "DefaultSubset": "v1", "Subsets": { "v1": {} } });
    client
        .write("/v1/config?ns=team&partition=shop", &resolver(there))
        .await;
    let back = json!({ "Redirect": {
        "Service": "web", "Partition": "default", "Namespace": "default",
    } });
    let refused = client
        .put("/v1/config?ns=team&partition=shop", &resolver(back))
        .await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("circular"), "{}", refused.text());
    let own = client.get("/v1/discovery-chain/web?ns=team").await.json();
    assert_eq!(own["Chain"]["Namespace"], "team");
}

#[tokio::test]
async fn intentions_name_callers_of_other_tenancies() {
    let (_server, client) = start(|config| {
        config.default_intention_policy = Some(legate_server::IntentionAction::Deny);
    })
    .await;
    create(&client).await;
    let exact = "/v1/connect/intentions/exact?source=shop/team/web&destination=team/api";
    client.write(exact, &json!({ "Action": "allow" })).await;
    let shown = client.get(exact).await.json();
    assert_eq!(shown["SourceNS"], "team");
    assert_eq!(shown["SourcePartition"], "shop");
    assert_eq!(shown["DestinationNS"], "team");
    assert_eq!(shown.get("DestinationPartition"), None);
    let entry = client
        .get("/v1/config/service-intentions/api?ns=team")
        .await
        .json();
    assert_eq!(entry["Namespace"], "team");
    assert_eq!(entry["Sources"][0]["Partition"], "shop");
    assert_eq!(client.get("/v1/connect/intentions").await.json(), json!([]));
    let everywhere = client.get("/v1/connect/intentions?ns=*").await.json();
    assert_eq!(everywhere, json!([shown]));

    let allowed =
        |source: &str| format!("/v1/connect/intentions/check?source={source}&destination=team/api");
    for (source, expected) in [("shop/team/web", true), ("team/web", false), ("web", false)] {
        let answer = client.get(&allowed(source)).await.json();
        assert_eq!(answer["Allowed"], expected, "{source}");
    }
    let found = client
        .get("/v1/connect/intentions/match?by=source&name=shop/team/web")
        .await;
    assert_eq!(found.json()["shop/team/web"][0]["DestinationName"], "api");

    let across = "source=default/default/web&destination=shop/team/api";
    let path = format!("/v1/connect/intentions/exact?{across}");
    client.write(&path, &json!({ "Action": "allow" })).await;
    let check = format!("/v1/connect/intentions/check?{across}");
    assert_eq!(client.get(&check).await.json()["Allowed"], true);

    let every = format!("{exact}&ns=*");
    let refused = client.put(&every, &json!({ "Action": "deny" })).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("ns=*"), "{}", refused.text());
    let one = json!({ "SourceName": "a", "DestinationName": "b", "Action": "allow" });
    let path = "/v1/connect/intentions?ns=*";
    let one = one.to_string();
    let refused = client.send(http::Method::POST, path, &one).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);

    // For all services of the partition.
    let every = json!({
        "Kind": "service-intentions", "Name": "*", "Namespace": "*",
        "Sources": [{ "Name": "*", "Namespace": "*", "Action": "allow" }],
    });
    client.write("/v1/config", &every).await;
    for (source, expected) in [
        ("team/web", true),
        ("web", true),
        ("shop/team/other", false),
    ] {
        let answer = client.get(&allowed(source)).await.json();
        assert_eq!(answer["Allowed"], expected, "{source}");
    }
    let shown = client
        .get("/v1/config/service-intentions/*?ns=*")
        .await
        .json();
    assert_eq!(shown["Namespace"], "*");
    assert_eq!(shown["Sources"][0]["Precedence"], 1);
    assert_eq!(client.delete(exact).await.json(), true);
    assert_eq!(client.get(exact).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn leaves_and_authorization_checks_support_tenancies() {
    let (_server, client) = start(|config| {
        config.default_intention_policy = Some(legate_server::IntentionAction::Deny);
    })
    .await;
    create(&client).await;
    let leaf = client
        .get("/v1/agent/connect/ca/leaf/web?ns=team&partition=shop")
        .await
        .json();
    let uri = leaf["ServiceURI"].as_str().unwrap();
    assert!(uri.ends_with("/ap/shop/ns/team/dc/dc1/svc/web"), "{uri}");
    assert_eq!(
        (&leaf["Namespace"], &leaf["Partition"]),
        (&json!("team"), &json!("shop"))
    );
    let own = client.get("/v1/agent/connect/ca/leaf/web").await.json();
    assert_ne!(own["SerialNumber"], leaf["SerialNumber"]);
    assert_eq!(own.get("Namespace"), None);

    let exact = "/v1/connect/intentions/exact?source=shop/team/web&destination=team/api";
    client.write(exact, &json!({ "Action": "allow" })).await;
    for (namespace, expected) in [("team", true), ("default", false)] {
        let asked = json!({ "Target": "api", "Namespace": namespace, "ClientCertURI": uri });
        let path = "/v1/agent/connect/authorize";
        let answer = client
            .send(http::Method::POST, path, &asked.to_string())
            .await
            .json();
        assert_eq!(answer["Authorized"], expected, "{answer}");
    }
}

#[tokio::test]
async fn references_to_a_deleted_namespace_block_no_writes() {
    let (_server, client) = start(|_| {}).await;
    create(&client).await;
    let defaults = |name: &str, protocol: &str| json!({ "Kind": "service-defaults", "Name": name, "Protocol": protocol });
    client
        .write("/v1/config?ns=team", &defaults("web", "http"))
        .await;
    let services = json!([{ "Name": "web", "Namespace": "team" }, { "Name": "api" }]);
    let listener = json!({ "Port": 8443, "Protocol": "http", "Services": services });
    client.write("/v1/config", &defaults("api", "http")).await;
    let gateway = json!({ "Kind": "ingress-gateway", "Name": "in", "Listeners": [listener] });
    client.write("/v1/config", &gateway).await;
    let tcp = client
        .put("/v1/config?ns=team", &defaults("web", "tcp"))
        .await;
    assert_eq!(tcp.status, StatusCode::BAD_REQUEST);

    client.delete("/v1/namespace/team").await;
    // The gateway's service in the namespace now has protocol TCP, as far as is known.
    client.write("/v1/config", &defaults("other", "http")).await;
    let everywhere = json!({ "Kind": "proxy-defaults", "Name": "global" });
    client.write("/v1/config", &everywhere).await;
    let tcp = client.put("/v1/config", &defaults("API", "tcp")).await;
    assert_eq!(tcp.status, StatusCode::BAD_REQUEST, "{}", tcp.text());
}

#[tokio::test]
async fn a_partition_lists_its_exported_services() {
    let (_server, client) = start(|_| {}).await;
    create(&client).await;
    let entry = json!({
        "Kind": "exported-services", "Name": "shop", "Partition": "shop",
        "Services": [{ "Name": "cart", "Namespace": "team", "Consumers": [{ "Partition": "default" }] }],
    });
    client.write("/v1/config", &entry).await;
    let shown = client
        .get("/v1/exported-services?partition=shop")
        .await
        .json();
    let cart = json!({
        "Service": "cart", "Namespace": "team", "Partition": "shop",
        "Consumers": { "Partitions": ["default"] },
    });
    assert_eq!(shown, json!([cart]));
    assert_eq!(client.get("/v1/exported-services").await.json(), json!([]));
    let refused = json!({ "Kind": "exported-services", "Name": "default", "Partition": "shop" });
    let refused = client.put("/v1/config", &refused).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(
        refused.text().contains("exported-services Name must be"),
        "{}",
        refused.text()
    );
}
