//! A cluster of Legate that is peered with one of a real Consul: either one accepts, and each calls services of the other
//! one through mesh gateways, with real Envoys.

use std::time::Duration;

use http::Method;
use legate_tests::client::{self, Answer};
use legate_tests::interop::Pair;
use legate_tests::load::Load;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};

/// Called by the other cluster, and its callers. Both clusters have both.
const STORE: ServiceSpec = ServiceSpec {
    service: "store",
    instance: "store",
    protocol: "http",
    upstreams: &[],
};
const LEDGER: ServiceSpec = ServiceSpec::tcp("ledger", &[]);
const SHOP: ServiceSpec = ServiceSpec {
    service: "shop",
    instance: "shop",
    protocol: "http",
    upstreams: &[],
};

/// The upstreams of `shop`: `store` of the other cluster, and of its own, and `ledger` of the other one.
const THERE: u16 = 0;
const HERE: u16 = 1;
const LEDGER_THERE: u16 = 2;
/// A gateway that has answered five times with an error while its own server changes it, is not used
/// for 30 seconds (`outlier_detection` of upstreams in peers, also with Consul).
const ANSWERED: Duration = Duration::from_secs(60);
/// Within this time a proxy has a certificate of a new root. Consul spreads renewals over 30 seconds.
const RENEWED: Duration = Duration::from_secs(90);

/// A cluster, with the name by which the other one knows it.
struct Cluster {
    mesh: Mesh,
    name: &'static str,
    sidecars: Vec<Sidecar>,
}

impl Cluster {
    /// What callers and the called service need, apart from the peering.
    async fn prepare(&mut self, other: &str) {
        let consumers = json!([{"Peer": other}]);
        let exported = json!({
            "Kind": "exported-services", "Name": "default",
            "Services": [
                {"Name": "store", "Consumers": consumers},
                {"Name": "ledger", "Consumers": consumers},
            ],
        });
        self.mesh.entry(exported).await;
        self.intend(other, "allow").await;
        let gateway = self
            .mesh
            .add_gateway("mesh-gateway", "gateway", json!({}))
            .await;
        let store = self.mesh.add(&STORE).await;
        let ledger = self.mesh.add(&LEDGER).await;
        self.mesh.register(&SHOP).await;
        let at = [THERE, HERE, LEDGER_THERE].map(|n| self.mesh.upstream("shop", n));
        let upstream = |n: u16, service: &str, peer: &str| {
            json!({
                "DestinationName": service, "DestinationPeer": peer,
                "MeshGateway": {"Mode": "local"},
                "LocalBindAddress": at[usize::from(n)].ip(),
                "LocalBindPort": at[usize::from(n)].port(),
            })
        };
        let upstreams = [
            upstream(THERE, "store", other),
            upstream(HERE, "store", ""),
            upstream(LEDGER_THERE, "ledger", other),
        ];
        self.mesh
            .configure(&SHOP, json!({"Upstreams": upstreams}))
            .await;
        let shop = self.mesh.join(&SHOP).await;
        self.sidecars.extend([gateway, store, ledger, shop]);
    }

    /// Whether `shop` of the other cluster may call the services of this one. That of this one may.
    async fn intend(&self, other: &str, action: &str) {
        for service in ["store", "ledger"] {
            let entry = json!({
                "Kind": "service-intentions", "Name": service,
                "Sources": [
                    {"Name": "shop", "Peer": other, "Action": action},
                    {"Name": "shop", "Action": "allow"},
                ],
            });
            self.mesh.entry(entry).await;
        }
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

    /// Calls `store` of the other cluster, or of this one, until it answers with this status.
    async fn is_answered(&self, by: u16, status: u16) {
        let upstream = self.mesh.upstream("shop", by);
        let call = || async move { client::get(upstream, "/").await.ok() };
        let expected = |answer: &Option<Answer>| {
            answer
                .as_ref()
                .is_some_and(|(got, _)| got.as_u16() == status)
        };
        let what = format!("{} gets {status}", self.name);
        eventually_within(ANSWERED, &what, call, expected).await;
    }

    /// Calls `ledger` of the other cluster until it answers so; it does not if it is denied.
    async fn ledger_says(&self, expected: &str) {
        let upstream = self.mesh.upstream("shop", LEDGER_THERE);
        let call = || client::line(upstream, "hello");
        eventually_within(ANSWERED, self.name, call, |reply| reply == expected).await;
    }
}

/// Servers restart under load, and notice each other. Callers in both clusters go on.
async fn restart(restarted: &mut Cluster, other: &Cluster) {
    let both = [&*restarted, other];
    let loads = both.map(|cluster| Load::start(cluster.mesh.upstream("shop", THERE)));
    restarted.mesh.stop_server().await;
    other.is(restarted.name, "FAILING").await;
    restarted.mesh.start_server().await;
    restarted.is(other.name, "ACTIVE").await;
    other.is(restarted.name, "ACTIVE").await;
    for load in loads {
        let seen = load.finish().await;
        let none: Vec<String> = Vec::new();
        assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
    }
}

/// A new root under load, and new certificates of it for all proxies of the cluster: no call fails, in either direction.
async fn rotate(rotated: &Cluster, both: [&Cluster; 2]) {
    let mut serials = Vec::new();
    for sidecar in &rotated.sidecars {
        serials.push(sidecar.leaf_serial().await.expect("a certificate"));
    }
    let loads = both.map(|cluster| Load::start(cluster.mesh.upstream("shop", THERE)));
    let configuration = json!({
        "Provider": "consul",
        "Config": { "PrivateKeyType": "ec", "PrivateKeyBits": 384 },
    });
    let path = "/v1/connect/ca/configuration";
    rotated
        .mesh
        .api(Method::PUT, path, Some(configuration))
        .await;
    for (sidecar, serial) in rotated.sidecars.iter().zip(serials) {
        eventually_within(
            RENEWED,
            "a certificate of the new root",
            || sidecar.leaf_serial(),
            |now| now.as_ref().is_some_and(|now| *now != serial),
        )
        .await;
    }
    for load in loads {
        let seen = load.finish().await;
        let none: Vec<String> = Vec::new();
        assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);
    }
}

/// The other cluster answers while no instance of this one is healthy. Its intentions tell who has answered.
async fn fail_over_and_back(calling: &Cluster, called: &Cluster) {
    let resolver = json!({
        "Kind": "service-resolver", "Name": "store",
        "Failover": {"*": {"Targets": [{"Peer": called.name}]}},
    });
    calling.mesh.entry(resolver).await;
    called.intend(calling.name, "deny").await;
    calling.is_answered(THERE, 403).await;
    calling.is_answered(HERE, 200).await;
    calling.mesh.check("store", "critical").await;
    calling.is_answered(HERE, 403).await;
    called.intend(calling.name, "allow").await;
    calling.is_answered(HERE, 200).await;
    called.intend(calling.name, "deny").await;
    calling.is_answered(HERE, 403).await;
    calling.mesh.check("store", "passing").await;
    calling.is_answered(HERE, 200).await;
    called.intend(calling.name, "allow").await;
    calling.is_answered(THERE, 200).await;
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
        mesh: pair
            .mesh(MeshOptions {
                durable: true,
                ..MeshOptions::default()
            })
            .await,
        name: "consul",
        sidecars: Vec::new(),
    };
    match legate_accepts {
        true => establish(&legate, &consul).await,
        false => establish(&consul, &legate).await,
    }
    legate.prepare("consul").await;
    consul.prepare("legate").await;
    for cluster in [&legate, &consul] {
        cluster.is_answered(THERE, 200).await;
        cluster.ledger_says("ledger: hello\n").await;
    }

    // Before intentions change: Envoy keeps connections with the rules of an earlier listener for a
    // while, and their answers would count as failures.
    for rotated in [&legate, &consul] {
        rotate(rotated, [&legate, &consul]).await;
    }

    restart(&mut legate, &consul).await;
    restart(&mut consul, &legate).await;

    for (called, calling) in [(&legate, &consul), (&consul, &legate)] {
        called.intend(calling.name, "deny").await;
        calling.is_answered(THERE, 403).await;
        calling.ledger_says("").await;
        called.intend(calling.name, "allow").await;
        calling.is_answered(THERE, 200).await;
        calling.ledger_says("ledger: hello\n").await;
    }
    for (called, calling) in [(&legate, &consul), (&consul, &legate)] {
        fail_over_and_back(calling, called).await;
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
