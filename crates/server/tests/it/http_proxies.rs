//! `/v1/internal/legate/proxies`: configurations of connected proxies, and their NACKs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{Method, StatusCode};
use legate_api::discovery::DeltaDiscoveryRequest;
use legate_api::rpc;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, SECRET};
use legate_model::{ServiceInstance, ServiceKind, Upstream, UpstreamType};
use legate_testkit::wait::until;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::grpc::{STOP, register, sidecar, start};
use crate::grpc_xds::{Ads, first, first_of, named, register_mesh};
use crate::http_api_gateways::pair_from;
use crate::http_client::Client;
use crate::running::Running;

const LIST: &str = "/v1/internal/legate/proxies";
const ONE: &str = "/v1/internal/legate/proxy/vm-1/web-1-sidecar-proxy";

fn client(server: &Running) -> Client {
    Client {
        address: server.http_addr().unwrap(),
        token: String::new(),
    }
}

/// Polls the document until it has this value at the pointer: the server processes a client's message a little
/// later, without a visible event.
async fn when(client: &Client, pointer: &str, expected: Value) -> Value {
    until(async || {
        let reply = client.get(ONE).await;
        let seen = || format!("{pointer} is not {expected}: {}", reply.text());
        if reply.status != StatusCode::OK {
            return Err(seen());
        }
        let document = reply.json();
        match document.pointer(pointer) == Some(&expected) {
            true => Ok(document),
            false => Err(seen()),
        }
    })
    .await
}

async fn refuse(ads: &mut Ads) {
    let response = ads.next().await.unwrap();
    ads.send(DeltaDiscoveryRequest {
        response_nonce: response.nonce,
        error_detail: Some(rpc::Status {
            code: 13,
            message: "the port is taken".to_owned(),
            details: Vec::new(),
        }),
        ..named(&response.type_url, &[])
    })
    .await;
}

#[tokio::test]
async fn a_proxys_resources_and_nacks_are_shown() {
    let server = start(|config| config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    let client = client(&server);
    register_mesh(&server).await;
    assert_eq!(client.get(LIST).await.json(), json!([]));
    let missing = client.get(ONE).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND);
    assert!(
        missing.text().contains("is connected to this server"),
        "{}",
        missing.text()
    );

    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first(CLUSTER)).await;
    let cluster = ads.accept().await.resources[0].name.clone();
    ads.send(named(ENDPOINT, &[&cluster])).await;
    ads.accept().await;
    ads.send(named(LISTENER, &[])).await;
    // Two listeners together, then each alone; the upstream's is accepted.
    refuse(&mut ads).await;
    ads.accept().await;
    refuse(&mut ads).await;
    let document = when(&client, "/Types/listener/LastRefusal/Count", json!(1)).await;
    assert_eq!(document["Service"], "web");
    assert_eq!(document["InSync"], false);
    assert_eq!(document["NotServed"], json!([]));
    let listeners = &document["Types"]["listener"];
    assert_eq!(
        (&listeners["InSync"], &listeners["Resources"]),
        (&json!(false), &json!(2))
    );
    let public = listeners["RefusedResources"][0].as_str().unwrap();
    assert!(public.starts_with("public_listener:"), "{public}");
    let refusal = &listeners["LastRefusal"];
    assert_eq!(refusal["Reason"], "the port is taken");
    assert_eq!(refusal["Resources"], json!([public]));
    assert_eq!(document["Types"]["cluster"]["InSync"], true);
    assert_eq!(document["Types"]["route"]["Subscribed"], false);
    let upstream = &document["Upstreams"][0];
    assert_eq!(upstream["Name"], "api");
    assert_eq!(
        upstream["Chain"]["StartNode"],
        "resolver:api.default.default.dc1"
    );
    let listed = client.get(LIST).await.json();
    assert_eq!(listed[0]["ID"], "web-1-sidecar-proxy");
    assert_eq!(listed[0]["LastRefusal"]["Type"], "listener");

    drop(ads);
    until(async || match client.get(LIST).await.json() {
        Value::Array(list) if list.is_empty() => Ok(()),
        list => Err(list.to_string()),
    })
    .await;
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn certificates_of_a_gateway_are_shown_with_their_expiry() {
    let server = start(|config| config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)))).await;
    let client = client(&server);
    let put = async |entry: Value| {
        let reply = client.put("/v1/config", &entry).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    };
    let old = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    for (name, from) in [("old", old), ("new", SystemTime::now())] {
        let (certificate, key) = pair_from(from);
        put(json!({
            "Kind": "inline-certificate", "Name": name, "Certificate": certificate, "PrivateKey": key,
        }))
        .await;
    }
    put(json!({
        "Kind": "file-system-certificate", "Name": "disk", "Certificate": "/a.pem", "PrivateKey": "/b.pem",
    }))
    .await;
    let certificates = json!([
        {"Kind": "inline-certificate", "Name": "new"}, {"Kind": "inline-certificate", "Name": "old"},
        {"Kind": "file-system-certificate", "Name": "disk"},
    ]);
    put(
        json!({"Kind": "api-gateway", "Name": "edge", "Listeners": [{
            "Name": "web", "Port": 8443, "Protocol": "http", "TLS": {"Certificates": certificates},
        }]}),
    )
    .await;
    let gateway = ServiceInstance {
        kind: ServiceKind::ApiGateway,
        id: "edge-1".to_owned(),
        service: "edge".to_owned(),
        port: 8_443,
        ..ServiceInstance::default()
    };
    register(&server, gateway).await;
    let mut ads = Ads::open(&server, "").await.unwrap();
    ads.send(first_of("edge-1", SECRET)).await;
    ads.accept().await;

    let one = client.get("/v1/internal/legate/proxy/vm-1/edge-1").await;
    let shown = one.json()["Certificates"].take();
    let mut shown: Vec<_> = shown.as_array().unwrap().iter().collect();
    shown.sort_by_key(|one| one["Name"].to_string());
    assert_eq!(shown.len(), 3, "{shown:?}");
    let disk = json!({"Name": "file-system-certificate/disk", "Expires": null});
    assert_eq!(*shown[0], disk);
    assert_ne!(shown[1]["Expires"], Value::Null);
    let expired = json!({"Name": "inline-certificate/old", "Expires": "2023-11-14T23:13:20Z"});
    assert_eq!(*shown[2], expired);

    let metrics = async || client.get("/v1/agent/metrics?format=prometheus").await;
    let page = metrics().await.text().to_owned();
    for line in [
        "legate_gateway_certificate_expiry_timestamp_seconds{gateway=\"edge\"} 1700003600",
        "legate_gateway_certificates_expired{gateway=\"edge\"} 1",
    ] {
        assert!(page.contains(line), "{page}");
    }
    drop(ads);
    until(
        async || match metrics().await.text().contains("legate_gateway_") {
            false => Ok(()),
            true => Err("the metrics of a gateway that left".to_owned()),
        },
    )
    .await;
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn proxies_require_read_on_their_service_and_node() {
    let server = start(|config| {
        config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        deny_by_default(config);
    })
    .await;
    let anonymous = client(&server);
    let management = anonymous.with_token(MANAGEMENT);
    register_mesh(&server).await;
    let mut ads = Ads::open(&server, MANAGEMENT).await.unwrap();
    ads.send(first(CLUSTER)).await;
    ads.accept().await;
    when(&management, "/Types/cluster/InSync", json!(true)).await;
    for (rules, status) in [
        (
            "service \"web\" { policy = \"read\" }",
            StatusCode::FORBIDDEN,
        ),
        ("node \"vm-1\" { policy = \"read\" }", StatusCode::FORBIDDEN),
        (
            "service \"web\" { policy = \"read\" } node \"vm-1\" { policy = \"read\" }",
            StatusCode::OK,
        ),
        (
            "service \"web\" { policy = \"read\" } \
             partition \"west\" { node \"vm-1\" { policy = \"read\" } }",
            StatusCode::FORBIDDEN,
        ),
    ] {
        let policy = json!({ "Name": format!("p{}", rules.len()), "Rules": rules });
        let policy = management.write("/v1/acl/policy", &policy).await;
        let token = json!({ "Policies": [{ "ID": policy["ID"] }] });
        let token = management.write("/v1/acl/token", &token).await;
        let reader = anonymous.with_token(token["SecretID"].as_str().unwrap());
        let reply = reader.get(ONE).await;
        assert_eq!(reply.status, status, "{rules}");
        if status == StatusCode::OK {
            // Chains of other services require read permission.
            assert_eq!(reply.json()["Upstreams"][0]["Chain"], Value::Null);
        }
        let expected = match status {
            StatusCode::OK => (1, ""),
            _ => (0, "true"),
        };
        // A node of the same name in another partition is a different node, whichever one the request names.
        for path in [LIST, &format!("{LIST}?partition=west")] {
            let seen = reader.get(path).await;
            let filtered = seen.header("x-consul-results-filtered-by-acls");
            let length = seen.json().as_array().unwrap().len();
            assert_eq!((length, filtered), expected, "{path} {rules}");
        }
    }
    drop(ads);
    server.stop(STOP).await.unwrap();
}

#[tokio::test]
async fn the_chain_of_a_query_requires_read_on_the_stored_query() {
    let server = start(|config| {
        config.http = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        deny_by_default(config);
    })
    .await;
    let management = client(&server).with_token(MANAGEMENT);
    let template = json!({
        "Name": "geo-", "Template": { "Type": "name_prefix_match" },
        "Service": { "Service": "${name.suffix}" },
    });
    let template = template.to_string();
    let made = management.send(Method::POST, "/v1/query", &template).await;
    assert_eq!(made.status, StatusCode::OK);
    let upstream = Upstream {
        destination_type: UpstreamType::PreparedQuery,
        destination_name: "geo-api".to_owned(),
        local_bind_port: 9_191,
        ..Upstream::default()
    };
    let mut web = sidecar("web");
    web.proxy.upstreams = vec![Arc::new(upstream)];
    register(&server, web).await;
    let mut ads = Ads::open(&server, MANAGEMENT).await.unwrap();
    ads.send(first(CLUSTER)).await;
    ads.accept().await;
    when(&management, "/Types/cluster/InSync", json!(true)).await;
    let own = "service \"web\" { policy = \"read\" } node \"vm-1\" { policy = \"read\" }";
    for (query, explained) in [
        ("query \"geo-\" { policy = \"read\" }", StatusCode::OK),
        (
            "query \"geo-api\" { policy = \"read\" }",
            StatusCode::FORBIDDEN,
        ),
    ] {
        let rules = format!("{own} {query}");
        let policy = json!({ "Name": format!("p{}", rules.len()), "Rules": rules });
        let policy = management.write("/v1/acl/policy", &policy).await;
        let token = json!({ "Policies": [{ "ID": policy["ID"] }] });
        let token = management.write("/v1/acl/token", &token).await;
        let reader = management.with_token(token["SecretID"].as_str().unwrap());
        let reply = reader.get("/v1/query/geo-api/explain").await;
        assert_eq!(reply.status, explained, "{query}");
        let shown = &reader.get(ONE).await.json()["Upstreams"][0];
        assert_eq!(shown["Name"], "geo-api");
        assert_eq!(
            shown["Chain"].is_object(),
            explained == StatusCode::OK,
            "{query}"
        );
    }
    drop(ads);
    server.stop(STOP).await.unwrap();
}
