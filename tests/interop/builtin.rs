//! The built-in proxy with servers of a real Consul, which put certificates into listeners and clusters.

use legate_tests::interop::Pair;
use legate_tests::{MeshOptions, ServiceSpec, client, eventually};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

const DB: ServiceSpec = ServiceSpec::tcp("db", &[]);
const SHOP: ServiceSpec = ServiceSpec::tcp("shop", &["db"]);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tcp_and_intentions() {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut mesh = pair.mesh(MeshOptions::default()).await;
    mesh.use_proxy("builtin");
    mesh.intend("shop", "db", "allow").await;
    let mut db = mesh.add(&DB).await;
    let mut shop = mesh.add(&SHOP).await;
    let upstream = mesh.upstream("shop", 0);
    for (action, expected) in [
        ("allow", "db: hello\n"),
        ("deny", ""),
        ("allow", "db: hello\n"),
    ] {
        mesh.intend("shop", "db", action).await;
        eventually(
            action,
            || client::line(upstream, "hello"),
            |reply| reply == expected,
        )
        .await;
    }
    // A root of another key: certificates in listeners change, and an open connection stays.
    let mut open = BufReader::new(TcpStream::connect(upstream).await.expect("it listens"));
    let serial = db.leaf_serial().await;
    let configuration = serde_json::json!({
        "Provider": "consul",
        "Config": { "PrivateKeyType": "ec", "PrivateKeyBits": 384 },
    });
    let path = "/v1/connect/ca/configuration";
    mesh.api(http::Method::PUT, path, Some(configuration)).await;
    eventually(
        "a certificate of the new root",
        || db.leaf_serial(),
        |now| *now != serial,
    )
    .await;
    open.write_all(b"hello\n").await.expect("it is open");
    let mut reply = String::new();
    open.read_line(&mut reply).await.expect("it is open");
    assert_eq!(reply, "db: hello\n");
    for sidecar in [&mut shop, &mut db] {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
