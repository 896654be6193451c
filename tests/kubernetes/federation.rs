//! The Secret with which secondary datacenters join.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use legate_kubernetes::certificates::SigningCa;
use legate_kubernetes::federation;
use legate_kubernetes::leader::Lead;
use legate_kubernetes::servers::{Credentials, Options, Servers};
use legate_model::Secret;
use legate_runtime::Scope;
use legate_store::Store;
use legate_tests::eventually;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cluster::{Cluster, server};

const STOP: Duration = Duration::from_secs(10);

/// A mesh gateway with this WAN address.
async fn gateway(cluster: &Cluster, name: &str, wan: &str) {
    let body = json!({
        "Node": "n1-virtual", "Address": "192.0.2.1",
        "Service": {
            "Kind": "mesh-gateway", "ID": name, "Service": "mesh-gateway",
            "Address": "10.244.0.5", "Port": 8443,
            "Meta": {"consul-wan-federation": "1"},
            "TaggedAddresses": {"wan": {"Address": wan, "Port": 443}},
        },
    });
    cluster.put("/v1/catalog/register", &body).await;
}

/// The texts of the Secret, or null.
fn written(cluster: &Cluster) -> Value {
    let secrets = cluster.kubernetes.objects("Secret");
    let mut own = secrets
        .iter()
        .filter(|secret| secret["metadata"]["name"] == "legate-federation");
    let data = own.next().map(|secret| secret["data"].clone());
    let mut data = data.unwrap_or_default();
    for value in data
        .as_object_mut()
        .into_iter()
        .flat_map(|data| data.values_mut())
    {
        let bytes = STANDARD.decode(value.as_str().unwrap()).unwrap();
        *value = String::from_utf8(bytes).unwrap().into();
    }
    data
}

#[tokio::test]
async fn the_secret_for_secondary_datacenters_follows_the_ca_and_the_gateways() {
    let server = server(None, &Store::new()).await;
    let cluster = Cluster::new(server.http_addr().unwrap()).await;
    let scope = Scope::new("test");
    let options = Options {
        host: cluster.http.ip().to_string(),
        port: cluster.http.port(),
        tls: None,
        credentials: Credentials::None,
        partition: None,
    };
    let servers = Servers::new(options, scope.spawner()).unwrap();
    let url = cluster.kubernetes.url().parse().unwrap();
    let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
    let ca = |name: &str| {
        Some(SigningCa {
            certificates: format!("certificates {name}"),
            key: Secret::new(format!("key {name}")),
        })
    };
    let (authority, receiver) = watch::channel(None);
    let options = federation::Options {
        full_name: "legate".to_owned(),
        namespace: "default".to_owned(),
        datacenter: "dc1".to_owned(),
        replication_token: true,
        ca: receiver,
    };
    let lead = Lead::forever();
    let run = federation::run(client, servers, lead.clone(), options);
    scope.spawn("federation secret", run);

    // It waits for each part.
    authority.send(ca("a")).unwrap();
    gateway(&cluster, "gateway-0", "203.0.113.9").await;
    let token = STANDARD.encode("of replication");
    cluster.kubernetes.apply(json!({
        "apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "legate-acl-replication-acl-token", "namespace": "default"},
        "data": {"token": token},
    }));
    let expected = |name: &str, gateways: &[&str]| {
        let config = json!({"primary_datacenter": "dc1", "primary_gateways": gateways});
        json!({
            "caCert": format!("certificates {name}"), "caKey": format!("key {name}"),
            "replicationToken": "of replication", "serverConfigJSON": config.to_string(),
        })
    };
    let first = expected("a", &["203.0.113.9:443"]);
    let read = || async { written(&cluster) };
    eventually("it is written", read, |data| *data == first).await;

    gateway(&cluster, "gateway-1", "2001:db8::9").await;
    let path = "/v1/internal/federation-state/dc1";
    let both = |state: &Value| state["State"]["MeshGateways"].as_array().map(Vec::len) == Some(2);
    eventually("the servers know both", || cluster.get(path), both).await;
    authority.send(ca("b")).unwrap();
    let changed = expected("b", &["203.0.113.9:443", "[2001:db8::9]:443"]);
    eventually("it is changed", read, |data| *data == changed).await;
    lead.token().cancel();
    scope.stop(STOP).await.unwrap();
    server.stop(STOP).await.unwrap();
}
