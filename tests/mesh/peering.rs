//! Two clusters with CAs of their own that are peered: services called across through mesh gateways, with real Envoys,
//! while rules, roots, servers and the peering itself change.

use std::time::Duration;

use http::Method;
use legate_tests::client::{self, Answer};
use legate_tests::load::Load;
use legate_tests::wait::eventually_within;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};

use crate::{API, WEB};

/// The instance of `api` in the other cluster.
const FAR: ServiceSpec = ServiceSpec {
    instance: "far",
    ..API
};

/// A cluster that calls services of another one. Each knows the other by its name here.
struct Peers {
    near: Mesh,
    far: Mesh,
}

impl Peers {
    /// Clusters that are peered: `far` dials.
    async fn start() -> Self {
        let near = Mesh::start(MeshOptions::default()).await;
        let far = Mesh::start(MeshOptions::default()).await;
        let peers = Self { near, far };
        peers.establish().await;
        peers
    }

    async fn establish(&self) {
        let name = json!({"PeerName": "far"});
        let token = self
            .near
            .api(Method::POST, "/v1/peering/token", Some(name))
            .await;
        let token: Value = serde_json::from_str(&token).expect("JSON");
        let establish = json!({"PeerName": "near", "PeeringToken": token["PeeringToken"]});
        self.far
            .api(Method::POST, "/v1/peering/establish", Some(establish))
            .await;
        state(&self.near, "far", "ACTIVE").await;
        state(&self.far, "near", "ACTIVE").await;
    }

    /// Exports `api` from the other cluster, or nothing.
    async fn export(&self, services: &[&str]) {
        let services: Vec<_> = services
            .iter()
            .map(|name| json!({"Name": name, "Consumers": [{"Peer": "near"}]}))
            .collect();
        let entry = json!({
            "Kind": "exported-services", "Name": "default", "Services": services,
        });
        self.far.entry(entry).await;
    }

    /// Whether `web` of this cluster may call `api` of the other one.
    async fn intend(&self, action: &str) {
        let entry = json!({
            "Kind": "service-intentions", "Name": "api",
            "Sources": [{"Name": "web", "Peer": "near", "Action": action}],
        });
        self.far.entry(entry).await;
    }

    /// Registers `web` with `api` of the other cluster as its upstream, reached in a mode.
    async fn call_in(&self, mode: &str) {
        let upstream = self.near.upstream("web", 0);
        let upstream = json!({
            "DestinationName": "api", "DestinationPeer": "far", "MeshGateway": {"Mode": mode},
            "LocalBindAddress": upstream.ip(), "LocalBindPort": upstream.port(),
        });
        self.near
            .configure(&WEB, json!({"Upstreams": [upstream]}))
            .await;
    }

    /// Calls the upstream of `web` until the answer is this one.
    async fn answers(&self, status: u16, body: &str) {
        self.near.answers("web", status, body).await;
    }

    async fn stop(self, sidecars: Vec<Sidecar>) {
        for mut sidecar in sidecars {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.near.stop().await;
        self.far.stop().await;
    }
}

/// Waits until a peering has a state.
async fn state(mesh: &Mesh, name: &str, expected: &str) {
    let path = format!("/v1/peering/{name}");
    let read = || async {
        let peering = client::get(mesh.http(), &path).await.ok()?;
        serde_json::from_str::<Value>(&peering.1).ok()
    };
    let is = |peering: &Option<Value>| {
        peering
            .as_ref()
            .is_some_and(|peering| peering["State"] == expected)
    };
    eventually(&format!("{name} is {expected}"), read, is).await;
}

/// Replaces the root of a cluster, and waits until these proxies of it have certificates of the new one.
async fn rotate(mesh: &Mesh, proxies: &[&Sidecar]) {
    let mut serials = Vec::new();
    for proxy in proxies {
        serials.push(proxy.leaf_serial().await.expect("a certificate"));
    }
    let configuration = json!({
        "Provider": "consul", "Config": {"PrivateKeyType": "ec", "PrivateKeyBits": 384},
    });
    let path = "/v1/connect/ca/configuration";
    mesh.api(Method::PUT, path, Some(configuration)).await;
    for (proxy, serial) in proxies.iter().zip(&serials) {
        let renewed = |now: &Option<String>| now.as_ref().is_some_and(|now| now != serial);
        // Leaves are renewed at random times within half a minute.
        let limit = Duration::from_secs(60);
        eventually_within(limit, "a leaf is renewed", || proxy.leaf_serial(), renewed).await;
    }
}

fn speaks(service: &str, protocol: &str) -> Value {
    json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol})
}

/// The protocol with which `api` is exported: it decides who terminates TLS at the gateway.
async fn called_across(protocol: &str, proxy: &'static str) {
    let mut peers = Peers::start().await;
    for mesh in [&mut peers.near, &mut peers.far] {
        mesh.use_proxy(proxy);
    }
    peers.far.register(&FAR).await;
    peers.far.entry(speaks("api", protocol)).await;
    let far = peers.far.join(&FAR).await;
    peers.export(&["api"]).await;
    peers.intend("allow").await;
    let far_gateway = peers
        .far
        .add_gateway("mesh-gateway", "far-gateway", json!({}))
        .await;
    let near_gateway = peers
        .near
        .add_gateway("mesh-gateway", "near-gateway", json!({}))
        .await;
    peers.near.register(&WEB).await;
    peers.near.entry(speaks("web", protocol)).await;
    peers.call_in("remote").await;
    let web = peers.near.join(&WEB).await;
    peers.answers(200, "far").await;
    peers.call_in("local").await;
    peers.answers(200, "far").await;

    let load = Load::start(peers.near.upstream("web", 0));
    rotate(&peers.far, &[&far]).await;
    rotate(&peers.near, &[&web]).await;
    // The servers of a side restart: its proxies and the other side go on.
    peers.far.stop_server().await;
    state(&peers.near, "far", "FAILING").await;
    peers.far.start_server().await;
    state(&peers.near, "far", "ACTIVE").await;
    let before = load.seen().of(FAR.instance);
    eventually(
        "requests go on",
        || async { load.seen() },
        |seen| seen.of(FAR.instance) > before + 200,
    )
    .await;
    let seen = load.finish().await;
    let none: Vec<String> = Vec::new();
    assert_eq!(seen.failures, none, "answers: {:?}", seen.answers);

    match protocol {
        "http" => {
            peers.intend("deny").await;
            peers.answers(403, "RBAC").await;
            peers.intend("allow").await;
            peers.answers(200, "far").await;
        }
        _ => {
            peers.intend("deny").await;
            refused(&peers).await;
            peers.intend("allow").await;
            peers.answers(200, "far").await;
        }
    }
    // What is exported no more has no endpoints.
    peers.export(&["other"]).await;
    refused(&peers).await;
    peers.stop(vec![web, far, near_gateway, far_gateway]).await;
}

/// Calls the upstream of `web` until there is no answer of the application.
async fn refused(peers: &Peers) {
    let upstream = peers.near.upstream("web", 0);
    let call = || async move { client::get(upstream, "/").await.ok() };
    let expected = |answer: &Option<Answer>| {
        answer
            .as_ref()
            .is_none_or(|(status, _)| !status.is_success())
    };
    eventually("no answer", call, expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_http_service_is_called_across() {
    called_across("http", "envoy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tcp_service_is_called_across() {
    called_across("tcp", "envoy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tcp_service_is_called_across_without_envoy() {
    called_across("tcp", "builtin").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_fail_over_to_a_peer_and_back() {
    let mut peers = Peers::start().await;
    for mesh in [&peers.near, &peers.far] {
        mesh.entry(speaks("api", "http")).await;
    }
    peers.export(&["api"]).await;
    peers.intend("allow").await;
    peers.near.intend("web", "api", "allow").await;
    let failover = json!({
        "Kind": "service-resolver", "Name": "api",
        "Failover": {"*": {"Targets": [{"Peer": "far"}]}},
    });
    peers.near.entry(failover).await;
    let sidecars = vec![
        peers
            .far
            .add_gateway("mesh-gateway", "far-gateway", json!({}))
            .await,
        peers.far.add(&FAR).await,
        peers.near.add(&API).await,
        peers.near.add(&WEB).await,
    ];
    peers.answers(200, "api").await;
    peers.near.check("api", "critical").await;
    peers.answers(200, "far").await;
    peers.near.check("api", "passing").await;
    peers.answers(200, "api").await;

    // Without a resolver, the default group of the partition says where.
    let resolver = "/v1/config/service-resolver/api";
    peers.near.api(Method::DELETE, resolver, None).await;
    peers.near.check("api", "critical").await;
    refused(&peers).await;
    let group = json!({
        "Kind": "sameness-group", "Name": "everywhere", "DefaultForFailover": true, "IncludeLocal": true,
        "Members": [{"Partition": "default"}, {"Peer": "far"}],
    });
    peers.near.entry(group).await;
    peers.answers(200, "far").await;
    peers.near.check("api", "passing").await;
    peers.answers(200, "api").await;

    // Without the peering, nothing of it remains.
    peers.near.check("api", "critical").await;
    peers.answers(200, "far").await;
    peers
        .near
        .api(Method::DELETE, "/v1/peering/far", None)
        .await;
    state(&peers.far, "near", "TERMINATED").await;
    refused(&peers).await;
    peers.near.check("api", "passing").await;
    peers.answers(200, "api").await;
    peers.stop(sidecars).await;
}
