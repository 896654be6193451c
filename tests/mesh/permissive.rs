//! Gradual migration into the mesh: permissive `MutualTLSMode` accepts callers that are not in the mesh
//! yet.

use legate_tests::{Mesh, MeshOptions, captured, client, eventually};
use serde_json::json;

use crate::{API, WEB};

#[test]
fn plain_connections_are_accepted_in_permissive_mode() {
    captured::run("permissive::in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here() {
        scenario("envoy", "http").await;
        scenario("builtin", "tcp").await;
    }
}

async fn scenario(proxy: &'static str, protocol: &str) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy(proxy);
    mesh.intend("web", "api", "allow").await;
    for service in [&API, &WEB] {
        mesh.register(service).await;
        let name = service.service;
        let entry = json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol});
        mesh.entry(entry).await;
    }
    let mut api = mesh.join(&API).await;
    let mut web = mesh.join(&WEB).await;
    mesh.settle("web", 200).await;
    let application = mesh.application("api");
    let plain = || async move { captured::get_from_outside(application).await.map_err(drop) };
    assert!(plain().await.is_err(), "without TLS nobody gets in");

    let mode = |mode: &str| {
        json!({
            "Kind": "service-defaults", "Name": "api", "Protocol": protocol, "Mode": "transparent",
            "MutualTLSMode": mode,
        })
    };
    mesh.entry(json!({"Kind": "mesh", "AllowEnablingPermissiveMutualTLS": true}))
        .await;
    mesh.entry(mode("permissive")).await;
    let (_, body) = eventually("a stranger is let in", plain, Result::is_ok)
        .await
        .expect("accepted");
    assert!(body.contains("\"caller\":null"), "nobody vouches: {body}");
    let (status, body) = client::get(mesh.upstream("web", 0), "/")
        .await
        .expect("an answer");
    assert!(
        status.is_success() && (protocol == "tcp" || body.contains("/svc/web")),
        "{status} {body}"
    );
    let public = mesh.public("api");
    assert!(
        client::get(public, "/").await.is_err(),
        "the mesh's own port still takes mutual TLS only"
    );

    mesh.entry(mode("strict")).await;
    eventually("strangers are refused again", plain, Result::is_err)
        .await
        .expect_err("accepted");
    mesh.settle("web", 200).await;
    for sidecar in [&mut api, &mut web] {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
