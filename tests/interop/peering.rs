//! A cluster of Legate that is peered with one of a real Consul: either one accepts, and each calls services of the other
//! one through mesh gateways, with real Envoys.

use http::Method;
use legate_tests::client::{self, Answer};
use legate_tests::interop::Pair;
use legate_tests::load::Load;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};

/// Called by the other cluster, and its callers. Both clusters have both.
const STORE: ServiceSpec = ServiceSpec {
    service: "store",
    instance: "store",
    protocol: "http",
    upstreams: &[],
};
const SHOP: ServiceSpec = ServiceSpec {
    service: "shop",
    instance: "shop",
    protocol: "http",
    upstreams: &[],
};

/// A cluster, with the name by which the other one knows it.
struct Cluster {
    mesh: Mesh,
    name: &'static str,
    sidecars: Vec<Sidecar>,
}

impl Cluster {
    /// What callers and the called service need, apart from the peering.
    async fn prepare(&mut self, other: &str) {
        let exported = json!({
            "Kind": "exported-services", "Name": "default",
            "Services": [{"Name": "store", "Consumers": [{"Peer": other}]}],
        });
        self.mesh.entry(exported).await;
        self.intend(other, "allow").await;
        let gateway = self
            .mesh
            .add_gateway("mesh-gateway", "gateway", json!({}))
            .await;
        let store = self.mesh.add(&STORE).await;
        self.mesh.register(&SHOP).await;
        let upstream = self.mesh.upstream("shop", 0);
        let upstream = json!({
            "DestinationName": "store", "DestinationPeer": other,
            "MeshGateway": {"Mode": "local"},
            "LocalBindAddress": upstream.ip(), "LocalBindPort": upstream.port(),
        });
        self.mesh
            .configure(&SHOP, json!({"Upstreams": [upstream]}))
            .await;
        let shop = self.mesh.join(&SHOP).await;
        self.sidecars.extend([gateway, store, shop]);
    }

    /// Whether `shop` of the other cluster may call `store` of this one.
    async fn intend(&self, other: &str, action: &str) {
        let entry = json!({
            "Kind": "service-intentions", "Name": "store",
            "Sources": [{"Name": "shop", "Peer": other, "Action": action}],
        });
        self.mesh.entry(entry).await;
    }

    /// Waits until a peering has a state.
    async fn is(&self, other: &str, expected: &str) {
        let path = format!("/v1/peering/{other}");
        let read = || async {
            let peering = client::get(self.mesh.http(), &path).await.ok()?;
            serde_json::from_str::<Value>(&peering.1).ok()
        };
        let is = |peering: &Option<Value>| {
            peering
                .as_ref()
                .is_some_and(|peering| peering["State"] == expected)
        };
        eventually(&format!("{other} is {expected}"), read, is).await;
    }

    /// Calls the other cluster until it answers with this status.
    async fn is_answered(&self, status: u16) {
        let upstream = self.mesh.upstream("shop", 0);
        let call = || async move { client::get(upstream, "/").await.ok() };
        let expected = |answer: &Option<Answer>| {
            answer
                .as_ref()
                .is_some_and(|(got, _)| got.as_u16() == status)
        };
        eventually(&format!("{} gets {status}", self.name), call, expected).await;
    }
}

/// Peers two clusters, the first of which makes the token.
async fn establish(accepts: &Cluster, dials: &Cluster) {
    let path = "/v1/peering/token";
    let name = json!({"PeerName": dials.name});
    let token = accepts.mesh.api(Method::POST, path, Some(name)).await;
    let token: Value = serde_json::from_str(&token).expect("JSON");
    let establish = json!({"PeerName": accepts.name, "PeeringToken": token["PeeringToken"]});
    let path = "/v1/peering/establish";
    dials.mesh.api(Method::POST, path, Some(establish)).await;
    accepts.is(dials.name, "ACTIVE").await;
    dials.is(accepts.name, "ACTIVE").await;
}

async fn calls_both_ways(legate_accepts: bool) {
    let Some(pair) = Pair::legate_dataplane() else {
        return;
    };
    let mut legate = Cluster {
        mesh: Mesh::start(MeshOptions::default()).await,
        name: "legate",
        sidecars: Vec::new(),
    };
    let mut consul = Cluster {
        mesh: pair.mesh(MeshOptions::default()).await,
        name: "consul",
        sidecars: Vec::new(),
    };
    match legate_accepts {
        true => establish(&legate, &consul).await,
        false => establish(&consul, &legate).await,
    }
    legate.prepare("consul").await;
    consul.prepare("legate").await;
    legate.is_answered(200).await;
    consul.is_answered(200).await;

    // Our server restarts under load: callers in both clusters go on.
    let loads = [&legate, &consul].map(|cluster| Load::start(cluster.mesh.upstream("shop", 0)));
    legate.mesh.stop_server().await;
    consul.is("legate", "FAILING").await;
    legate.mesh.start_server().await;
    legate.is("consul", "ACTIVE").await;
    consul.is("legate", "ACTIVE").await;
    for load in loads {
        let seen = load.finish().await;
        let none: Vec<String> = Vec::new();
        assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
    }

    for (called, calling) in [(&legate, &consul), (&consul, &legate)] {
        called.intend(calling.name, "deny").await;
        calling.is_answered(403).await;
        called.intend(calling.name, "allow").await;
        calling.is_answered(200).await;
    }

    // Each side notices the end.
    legate
        .mesh
        .api(Method::DELETE, "/v1/peering/consul", None)
        .await;
    consul.is("legate", "TERMINATED").await;
    for cluster in [legate, consul] {
        for mut sidecar in cluster.sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        cluster.mesh.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_consul_that_dials() {
    calls_both_ways(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_consul_that_accepts() {
    calls_both_ways(false).await;
}
