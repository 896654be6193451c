//! Config entries of gateways and of other clusters over HTTP: writes, reads, lists and deletes, warnings about
//! fields without effect, and conflicts with other entries.

use std::time::{Duration, SystemTime};

use http::StatusCode;
use legate_identity::{Authority, RootRequest};
use serde_json::{Value, json};

use crate::http_client::{Client, start};

fn pair() -> (String, String) {
    let root = Authority::generate_root(RootRequest {
        common_name: "host.example".to_owned(),
        uri: "spiffe://example.consul".to_owned(),
        serial: 1,
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000),
        ttl: Duration::from_secs(3600),
    });
    let root = root.unwrap();
    (root.cert_pem().to_owned(), root.key_pem())
}

fn entries() -> Vec<Value> {
    let (certificate, key) = pair();
    vec![
        json!({ "Kind": "ingress-gateway", "Name": "in" }),
        json!({ "Kind": "api-gateway", "Name": "api", "Listeners": [
            { "Name": "one", "Port": 8443, "Protocol": "http" },
        ] }),
        json!({ "Kind": "http-route", "Name": "r", "Parents": [{ "Name": "api" }] }),
        json!({ "Kind": "tcp-route", "Name": "r" }),
        json!({ "Kind": "inline-certificate", "Name": "c", "Certificate": certificate, "PrivateKey": key }),
        json!({ "Kind": "file-system-certificate", "Name": "c", "Certificate": "/c", "PrivateKey": "/k" }),
        json!({ "Kind": "exported-services", "Name": "default" }),
        json!({ "Kind": "sameness-group", "Name": "g", "Members": [{ "Peer": "east" }] }),
        json!({ "Kind": "control-plane-request-limit", "Name": "l" }),
    ]
}

#[tokio::test]
async fn every_kind_is_written_read_and_removed() {
    let (_server, client) = start(|_| {}).await;
    for mut entry in entries() {
        let (kind, name) = (entry["Kind"].clone(), entry["Name"].clone());
        let (kind, name) = (kind.as_str().unwrap(), name.as_str().unwrap());
        let list = format!("/v1/config/{kind}");
        let path = format!("{list}/{name}");
        assert_eq!(client.get(&list).await.json(), json!([]), "{kind}");
        let written = client.put("/v1/config", &entry).await;
        assert_eq!(written.json(), true, "{kind}");
        let unserved = match kind {
            "control-plane-request-limit" => "Kind",
            _ => "",
        };
        assert_eq!(written.header("x-legate-not-served"), unserved, "{kind}");

        let read = client.get(&path).await;
        let shown = read.json();
        assert_eq!(
            (&shown["Kind"], &shown["Name"]),
            (&entry["Kind"], &entry["Name"])
        );
        assert_eq!(client.get(&list).await.json(), json!([shown]), "{kind}");
        // Writing an entry back as read is a no-op.
        client.write("/v1/config", &shown).await;
        assert_eq!(client.get(&path).await.json(), shown, "{kind}");

        let index = shown["ModifyIndex"].as_u64().unwrap();
        entry["Meta"] = json!({ "a": "b" });
        assert_eq!(client.write("/v1/config?cas=0", &entry).await, false);
        let cas = format!("/v1/config?cas={index}");
        assert_eq!(client.write(&cas, &entry).await, true, "{kind}");
        assert_eq!(client.get(&path).await.json()["Meta"], json!({ "a": "b" }));

        assert_eq!(client.delete(&path).await.json(), json!({}), "{kind}");
        assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn all_kinds_are_listed_together() {
    let (_server, client) = start(|_| {}).await;
    assert_eq!(client.get("/v1/config/").await.json(), json!([]));
    for entry in entries() {
        client.write("/v1/config", &entry).await;
    }
    let all = client.get("/v1/config/").await;
    assert!(all.index() > 0);
    let all = all.json();
    let kinds = all.as_array().unwrap().iter();
    let kinds: Vec<_> = kinds.map(|entry| entry["Kind"].as_str().unwrap()).collect();
    // What is bound to the API gateway is computed.
    assert_eq!(kinds.len(), entries().len() + 1);
    assert!(kinds.contains(&"bound-api-gateway"));
    assert!(kinds.is_sorted(), "{kinds:?}");
}

#[tokio::test]
async fn entries_bound_to_a_gateway_are_read_only() {
    let (_server, client) = start(|_| {}).await;
    let path = "/v1/config/bound-api-gateway";
    assert_eq!(client.get(path).await.json(), json!([]));
    let entry = json!({ "Kind": "bound-api-gateway", "Name": "api" });
    for reply in [
        client.put("/v1/config", &entry).await,
        client.delete(&format!("{path}/api")).await,
    ] {
        assert_eq!(reply.status, StatusCode::FORBIDDEN);
        let says = "Permission denied: only writeable by controller";
        assert_eq!(reply.text(), says);
    }
}

#[track_caller]
fn assert_refused(reply: &crate::http_client::Reply, says: &str) {
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.text());
    assert!(reply.text().contains(says), "{}", reply.text());
}

async fn refused(client: &Client, entry: &Value, says: &str) {
    assert_refused(&client.put("/v1/config", entry).await, says);
}

#[tokio::test]
async fn a_certificate_is_taken_with_its_own_key_only() {
    let (_server, client) = start(|_| {}).await;
    let ((certificate, key), (_, other)) = (pair(), pair());
    let entry = |certificate: &str, key: &str| {
        json!({
            "Kind": "inline-certificate", "Name": "c", "Certificate": certificate, "PrivateKey": key,
        })
    };
    let cases = [
        (
            entry(&certificate, "x"),
            "PrivateKey: failed to parse private key PEM",
        ),
        (
            entry("x", &key),
            "Certificate: failed to parse certificate PEM",
        ),
        (
            entry(&certificate, &other),
            "tls: private key does not match public key",
        ),
    ];
    for (entry, says) in cases {
        refused(&client, &entry, says).await;
    }
    client.write("/v1/config", &entry(&certificate, &key)).await;
}

#[tokio::test]
async fn gateways_must_match_the_protocols_of_their_services() {
    let (_server, client) = start(|_| {}).await;
    let gateway = |protocol: &str| {
        json!({ "Kind": "ingress-gateway", "Name": "in", "Listeners": [
            { "Port": 80, "Protocol": protocol, "Services": [{ "Name": "web" }] },
        ] })
    };
    let says = "service \"web\" has protocol \"tcp\", which does not match defined listener protocol \
                \"http\"";
    refused(&client, &gateway("http"), says).await;
    let http = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "http" });
    client.write("/v1/config", &http).await;
    client.write("/v1/config", &gateway("http")).await;
    let tcp = json!({ "Kind": "service-defaults", "Name": "web", "Protocol": "tcp" });
    refused(&client, &tcp, says).await;
    let removed = client.delete("/v1/config/service-defaults/web").await;
    assert_refused(&removed, says);

    let clash = json!({ "Kind": "terminating-gateway", "Name": "in" });
    let says = "cannot create a \"terminating-gateway\" config entry with name \"in\"";
    refused(&client, &clash, says).await;
    client.delete("/v1/config/ingress-gateway/in").await;
    client.write("/v1/config", &tcp).await;
    client.write("/v1/config", &clash).await;
}

/// As in Consul: targets in missing datacenters and clusters are accepted and have no instances.
#[tokio::test]
async fn missing_targets_are_accepted_and_reported() {
    let (_server, client) = start(|_| {}).await;
    let resolver = |more: Value| {
        let mut entry = json!({ "Kind": "service-resolver", "Name": "web" });
        let more = more.as_object().unwrap().clone();
        entry.as_object_mut().unwrap().extend(more);
        entry
    };
    let entry = resolver(json!({ "Failover": { "*": { "Targets": [
        { "Peer": "east" }, { "Datacenter": "dc9" }, { "Datacenter": "dc1", "Service": "other" },
    ] } } }));
    let written = client.put("/v1/config", &entry).await;
    assert_eq!(written.json(), true);
    assert_eq!(
        written.header("x-legate-not-served"),
        "Failover.*.Targets[1].Datacenter"
    );
    let chain = client.get("/v1/discovery-chain/web").await.json();
    let targets = chain["Chain"]["Targets"].as_object().unwrap();
    for id in [
        "web.default.default.external.east",
        "web.default.default.dc9",
    ] {
        assert!(targets.contains_key(id), "{chain}");
    }
    for (to, field, id) in [
        (
            json!({ "Datacenter": "dc9" }),
            "Redirect.Datacenter",
            "web.default.default.dc9",
        ),
        (
            json!({ "Service": "web", "Peer": "east" }),
            "",
            "web.default.default.external.east",
        ),
    ] {
        let entry = resolver(json!({ "Redirect": to }));
        let written = client.put("/v1/config", &entry).await;
        assert_eq!(written.header("x-legate-not-served"), field);
        let chain = client.get("/v1/discovery-chain/web").await.json();
        let targets = chain["Chain"]["Targets"].as_object().expect("targets");
        assert_eq!(targets.keys().collect::<Vec<_>>(), [id]);
    }
}

#[tokio::test]
async fn a_cluster_is_in_one_group() {
    let (_server, client) = start(|_| {}).await;
    let group = |name: &str| json!({ "Kind": "sameness-group", "Name": name, "Members": [{ "Peer": "east" }] });
    client.write("/v1/config", &group("a")).await;
    client.write("/v1/config", &group("a")).await;
    let says = "cluster peer \"east\" is shared between groups \"a\" and \"b\"";
    refused(&client, &group("b"), says).await;
}

#[tokio::test]
async fn services_without_a_resolver_fail_over_to_the_default_group() {
    let (_server, client) = start(|_| {}).await;
    let group = |name: &str, peer: &str| {
        json!({
            "Kind": "sameness-group", "Name": name, "DefaultForFailover": true, "IncludeLocal": true,
            "Members": [{ "Partition": "default" }, { "Peer": peer }],
        })
    };
    let targets = async || {
        let chain = client.get("/v1/discovery-chain/web").await.json();
        let targets = chain["Chain"]["Targets"].as_object().expect("targets");
        targets.keys().cloned().collect::<Vec<_>>()
    };
    let own = "web.default.default.dc1";
    assert_eq!(targets().await, [own]);
    client.write("/v1/config", &group("a", "east")).await;
    assert_eq!(targets().await, [own, "web.default.default.external.east"]);
    let says = "the group \"a\" is the default for failover already";
    let mut second = group("b", "west");
    second["Members"] = json!([{ "Peer": "west" }]);
    refused(&client, &second, says).await;
    client.delete("/v1/config/sameness-group/a").await;
    assert_eq!(targets().await, [own]);
}

#[tokio::test]
async fn required_permissions_are_consuls() {
    let (_server, client) = start(|config| {
        config.acl.enabled = true;
        config.acl.default_policy = legate_server::DefaultPolicy::Deny;
    })
    .await;
    let root = client.put("/v1/acl/bootstrap", &json!({})).await.json();
    let root = client.with_token(root["SecretID"].as_str().unwrap());
    let token = async |rules: &str| {
        let name = format!("p{}", rules.len());
        let policy = json!({ "Name": name, "Rules": rules });
        root.write("/v1/acl/policy", &policy).await;
        let token = json!({ "Policies": [{ "Name": name }] });
        let made = root.write("/v1/acl/token", &token).await;
        root.with_token(made["SecretID"].as_str().unwrap())
    };
    let service = token("service \"api\" { policy = \"write\" }").await;
    let mesh = token("mesh = \"write\"").await;
    let operator = token("operator = \"write\" mesh = \"deny\"").await;
    let writes = async |client: &Client, entry: &Value| {
        client.put("/v1/config", entry).await.status == StatusCode::OK
    };
    let reads = async |client: &Client, path: &str| client.get(path).await.status == StatusCode::OK;
    let route = json!({ "Kind": "http-route", "Name": "r" });
    let gateway = json!({ "Kind": "api-gateway", "Name": "api", "Listeners": [
        { "Name": "one", "Port": 1, "Protocol": "tcp" },
    ] });
    let limit = json!({ "Kind": "control-plane-request-limit", "Name": "l" });
    assert!(!writes(&service, &route).await && writes(&mesh, &route).await);
    assert!(!writes(&service, &gateway).await && writes(&mesh, &gateway).await);
    assert!(!writes(&mesh, &limit).await && writes(&operator, &limit).await);
    let (route, gateway) = ("/v1/config/http-route/r", "/v1/config/api-gateway/api");
    assert!(!reads(&service, route).await && reads(&mesh, route).await);
    assert!(reads(&service, gateway).await && !reads(&mesh, gateway).await);
    // Entries that the caller may not read do not appear in lists either.
    let hidden = mesh.get("/v1/config/api-gateway").await;
    assert_eq!(hidden.json(), json!([]));
    assert_eq!(hidden.header("x-consul-results-filtered-by-acls"), "true");
}

#[tokio::test]
async fn exported_services_resolve_wildcards_and_groups() {
    let (_server, client) = start(|_| {}).await;
    assert_eq!(client.get("/v1/exported-services").await.json(), json!([]));
    for service in ["api", "web"] {
        let register = json!({
            "Node": "n", "Address": "10.0.0.1", "Service": { "Service": service },
        });
        client.write("/v1/catalog/register", &register).await;
    }
    let proxy = json!({ "Node": "n", "Address": "10.0.0.1", "Service": {
        "Kind": "connect-proxy", "Service": "web-proxy", "Port": 1,
        "Proxy": { "DestinationServiceName": "web" },
    } });
    client.write("/v1/catalog/register", &proxy).await;
    let group = json!({ "Kind": "sameness-group", "Name": "g", "Members": [
        { "Partition": "default" }, { "Peer": "west" }, { "Partition": "other" },
    ] });
    client.write("/v1/config", &group).await;
    let entry = json!({ "Kind": "exported-services", "Name": "default", "Services": [
        { "Name": "*", "Consumers": [{ "Peer": "east" }] },
        { "Name": "web", "Consumers": [{ "Peer": "east" }, { "SamenessGroup": "g" }] },
        { "Name": "later", "Consumers": [{ "Partition": "default" }] },
    ] });
    client.write("/v1/config", &entry).await;
    let listed = client.get("/v1/exported-services").await;
    assert!(listed.index() > 0);
    assert_eq!(
        listed.json(),
        json!([
            { "Service": "api", "Consumers": { "Peers": ["east"] } },
            { "Service": "web", "Consumers": { "Peers": ["east", "west"], "Partitions": ["other"] } },
        ])
    );
    let filter = "/v1/exported-services?filter=west+in+Consumers.Peers";
    let filtered = client.get(filter).await.json();
    assert_eq!(filtered.as_array().unwrap().len(), 1);
    assert_eq!(filtered[0]["Service"], "web");
}
