//! Renewal of certificates and roots without disruption.

use std::time::Duration;

use http::Method;
use legate_ca::CaConfig;
use legate_tests::load::Load;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::{API, WEB};

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_rotation_drops_no_connection() {
    let ca = CaConfig {
        leaf_ttl: Duration::from_secs(16),
        ..CaConfig::default()
    };
    let mut mesh = Mesh::start(MeshOptions {
        ca,
        ..MeshOptions::default()
    })
    .await;
    mesh.intend("web", "api", "allow").await;
    mesh.intend("shop", "db", "allow").await;
    let mut sidecars = Vec::new();
    for spec in [&API, &WEB, &DB, &SHOP] {
        sidecars.push(mesh.add(spec).await);
    }
    mesh.settle("web", 200).await;
    let mut serials = Vec::new();
    for sidecar in &sidecars {
        serials.push(
            sidecar
                .leaf_serial()
                .await
                .expect("Envoy has a certificate"),
        );
    }
    let load = Load::start(mesh.upstream("web", 0));
    let stream = TcpStream::connect(mesh.upstream("shop", 0))
        .await
        .expect("the upstream listens");
    let mut stream = BufReader::new(stream);
    echo(&mut stream, 0).await;

    for (number, (sidecar, serial)) in sidecars.iter().zip(&serials).enumerate() {
        let renewed = |now: &Option<String>| now.as_ref().is_some_and(|now| now != serial);
        eventually("a leaf is renewed", || sidecar.leaf_serial(), renewed).await;
        echo(&mut stream, number + 1).await;
    }

    let seen = load.finish().await;
    assert_eq!(
        seen.failures,
        Vec::<String>::new(),
        "answers: {:?}",
        seen.answers
    );
    drop(stream);
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traffic_continues_during_a_root_rotation() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    mesh.intend("shop", "db", "allow").await;
    let mut sidecars = Vec::new();
    for spec in [&API, &WEB, &DB, &SHOP] {
        sidecars.push(mesh.add(spec).await);
    }
    mesh.settle("web", 200).await;
    let load = Load::start(mesh.upstream("web", 0));
    let stream = TcpStream::connect(mesh.upstream("shop", 0))
        .await
        .expect("the upstream listens");
    let mut stream = BufReader::new(stream);
    echo(&mut stream, 0).await;

    // Roots of either key type. Each Envoy has a leaf of the new root before the next rotation.
    for (number, (algorithm, bits)) in [("rsa", 2048), ("ec", 384)].into_iter().enumerate() {
        let mut serials = Vec::new();
        for sidecar in &sidecars {
            serials.push(sidecar.leaf_serial().await.expect("a certificate"));
        }
        let configuration = json!({
            "Provider": "consul",
            "Config": { "PrivateKeyType": algorithm, "PrivateKeyBits": bits },
        });
        let path = "/v1/connect/ca/configuration";
        mesh.api(Method::PUT, path, Some(configuration)).await;
        for (sidecar, serial) in sidecars.iter().zip(&serials) {
            let renewed = |now: &Option<String>| now.as_ref().is_some_and(|now| now != serial);
            // Leaves are renewed at random times within half a minute.
            let limit = Duration::from_secs(60);
            eventually_within(
                limit,
                "a leaf is renewed",
                || sidecar.leaf_serial(),
                renewed,
            )
            .await;
        }
        echo(&mut stream, number + 1).await;
    }
    let roots = mesh.api(Method::GET, "/v1/connect/ca/roots", None).await;
    let roots: Value = serde_json::from_str(&roots).expect("JSON");
    assert_eq!(roots["Roots"].as_array().map(Vec::len), Some(3));

    let seen = load.finish().await;
    assert_eq!(
        seen.failures,
        Vec::<String>::new(),
        "answers: {:?}",
        seen.answers
    );
    drop(stream);
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

/// Sends one line over the connection that has been open all the time.
async fn echo(stream: &mut BufReader<TcpStream>, number: usize) {
    stream
        .write_all(format!("line {number}\n").as_bytes())
        .await
        .expect("the connection is open");
    let mut reply = String::new();
    stream
        .read_line(&mut reply)
        .await
        .expect("the connection is open");
    assert_eq!(reply, format!("db: line {number}\n"));
}
