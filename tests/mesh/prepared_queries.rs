//! An upstream by prepared query follows the query and its result.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::Method;
use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, client, eventually};
use serde_json::{Value, json};

use crate::{API, WEB};

const SECOND: ServiceSpec = ServiceSpec {
    instance: "api-2",
    ..API
};
const DB: ServiceSpec = ServiceSpec {
    service: "db",
    instance: "db",
    ..API
};

fn query(service: &str, tags: &[&str]) -> Value {
    json!({"Name": "near", "Service": {"Service": service, "Tags": tags}})
}

/// The number of requests to determine the responding instances: with two instances, all reach one
/// once in 10^6 times.
const REQUESTS: usize = 20;

/// Waits until exactly these instances respond.
async fn answers(upstream: SocketAddr, expected: &[&str]) {
    let probe = || async {
        let mut seen = BTreeSet::new();
        for _ in 0..REQUESTS {
            let answer = client::get(upstream, "/").await;
            let (_, body) = answer.unwrap_or_default();
            let body: Value = serde_json::from_str(&body).unwrap_or_default();
            seen.insert(body["instance"].as_str().unwrap_or("nobody").to_owned());
        }
        seen
    };
    let what = format!("{expected:?} answer");
    eventually(&what, probe, |seen| seen.iter().eq(expected)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_follows_its_prepared_query() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for destination in ["api", "db"] {
        mesh.intend("web", destination, "allow").await;
    }
    let made = mesh.api(Method::POST, "/v1/query", Some(query("api", &["blue"])));
    let made: Value = serde_json::from_str(&made.await).expect("JSON");
    let path = format!("/v1/query/{}", made["ID"].as_str().expect("an id"));
    let mut sidecars = Vec::new();
    for spec in [&API, &SECOND, &DB] {
        sidecars.push(mesh.add(spec).await);
    }
    mesh.set_tags(&API, &["blue"]).await;
    mesh.set_tags(&SECOND, &["green"]).await;
    mesh.register(&WEB).await;
    let near = mesh.upstream("web", 0);
    let upstream = json!({
        "DestinationType": "prepared_query", "DestinationName": "near",
        "LocalBindAddress": near.ip(), "LocalBindPort": near.port(),
        "Config": {"protocol": "http"},
    });
    mesh.configure(&WEB, json!({"Upstreams": [upstream]})).await;
    sidecars.push(mesh.join(&WEB).await);
    mesh.settle("web", 200).await;

    let load = Load::start(near);
    answers(near, &["api"]).await;
    // A changed query, tag and service: no request is lost.
    mesh.api(Method::PUT, &path, Some(query("api", &["green"])))
        .await;
    answers(near, &["api-2"]).await;
    mesh.set_tags(&API, &["green"]).await;
    answers(near, &["api", "api-2"]).await;
    mesh.set_tags(&SECOND, &["blue"]).await;
    answers(near, &["api"]).await;
    let seen = load.finish().await;
    assert_eq!(seen.failures, Vec::<String>::new(), "{:?}", seen.answers);

    // The identity of the other service's instances is verified.
    mesh.api(Method::PUT, &path, Some(query("db", &[]))).await;
    answers(near, &["db"]).await;

    // A deleted query returns no instances.
    mesh.api(Method::DELETE, &path, None).await;
    mesh.settle("web", 503).await;
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success());
    }
    mesh.stop().await;
}
