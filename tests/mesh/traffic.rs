//! Traffic flows between services with verified identities only.

use legate_tests::{Mesh, MeshOptions, ServiceSpec, client, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{API, WEB};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_with_mutual_tls() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("web", "api", "allow").await;
    let mut api = mesh.add(&API).await;
    let mut web = mesh.add(&WEB).await;
    mesh.settle("web", 200).await;

    let (_, body) = client::get(mesh.upstream("web", 0), "/")
        .await
        .expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let caller = body["caller"]
        .as_str()
        .expect("the application learns who calls");
    assert!(
        caller.starts_with("spiffe://") && caller.ends_with(".consul/ns/default/dc/dc1/svc/web"),
        "{caller}"
    );
    assert!(
        api.stat(&format!("listener.{}_{}.ssl.handshake", api.address, 20000))
            .await
            > 0,
        "no TLS handshake counted"
    );
    assert!(
        client::get(mesh.public("api"), "/").await.is_err(),
        "the public listener answers plain HTTP"
    );

    for sidecar in [&mut web, &mut api] {
        assert!(
            sidecar.stop().await.success(),
            "SIGTERM is a clean end:\n{}",
            sidecar.log()
        );
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_with_mutual_tls() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("shop", "db", "allow").await;
    let db = ServiceSpec {
        service: "db",
        instance: "db",
        protocol: "tcp",
        upstreams: &[],
    };
    let shop = ServiceSpec {
        service: "shop",
        instance: "shop",
        protocol: "tcp",
        upstreams: &["db"],
    };
    let mut db = mesh.add(&db).await;
    let mut shop = mesh.add(&shop).await;

    let upstream = mesh.upstream("shop", 0);
    let reply = eventually(
        "a line comes back",
        || client::line(upstream, "hello"),
        |reply| !reply.is_empty(),
    )
    .await;
    assert_eq!(reply, "db: hello\n");

    for sidecar in [&mut shop, &mut db] {
        sidecar.signal(Signal::SIGINT);
        assert!(
            sidecar.exit().await.success(),
            "SIGINT is a clean end:\n{}",
            sidecar.log()
        );
    }
    mesh.stop().await;
}
