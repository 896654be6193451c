//! Two datacenters as one mesh: one CA, services called across, directly and through mesh gateways.

use std::net::{IpAddr, SocketAddr};

use http::Method;
use legate_identity::tls::ServerPolicy;
use legate_server::AgentFiles;
use legate_testkit::certs::{CertFiles, TestCa};
use legate_tests::client::{self, Answer};
use legate_tests::{Datacenter, Mesh, MeshOptions, ServiceSpec, Sidecar, eventually};
use serde_json::{Value, json};

use crate::chains::resolver;
use crate::{API, WEB};

/// The instance of `api` in the other datacenter.
const FAR: ServiceSpec = ServiceSpec {
    instance: "far",
    ..API
};

/// A datacenter with the primary `dc1`.
fn of(
    ca: &TestCa,
    name: &'static str,
    join: Option<IpAddr>,
    gateways: Option<Vec<SocketAddr>>,
) -> MeshOptions {
    let names = [
        format!("server.{name}.consul"),
        format!("server.server.{name}.consul"),
    ];
    let CertFiles { cert, key, .. } = ca.agent(&names.each_ref().map(String::as_str));
    let files = AgentFiles {
        certificate: cert,
        key,
        policy: ServerPolicy {
            client_authorities: vec![ca.ca_file()],
            ..ServerPolicy::default()
        },
    };
    MeshOptions {
        datacenter: Some(Datacenter {
            name,
            primary: "dc1",
            files,
            join,
            gateways,
            node: None,
        }),
        ..MeshOptions::default()
    }
}

/// A primary datacenter and a secondary one, which have joined.
struct Two {
    _ca: TestCa,
    near: Mesh,
    far: Mesh,
}

impl Two {
    async fn start() -> Self {
        let ca = TestCa::new();
        let near = Mesh::start(of(&ca, "dc1", None, None)).await;
        let far = Mesh::start(of(&ca, "dc2", Some(near.server()), None)).await;
        Self { _ca: ca, near, far }
    }

    /// Registers `web` with `api` in the other datacenter as its upstream, reached in a mode.
    async fn call_in(&self, mode: &str) {
        let upstream = self.near.upstream("web", 0);
        let upstream = json!({
            "DestinationName": "api", "Datacenter": "dc2", "MeshGateway": {"Mode": mode},
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_called_in_another_datacenter_in_every_gateway_mode() {
    let mut two = Two::start().await;
    // The rules of both, written in either.
    two.far.intend("web", "api", "allow").await;
    let mut sidecars = vec![two.far.add(&FAR).await];
    two.near.register(&WEB).await;
    two.call_in("none").await;
    sidecars.push(two.near.join(&WEB).await);
    two.answers(200, "far").await;

    let mut gateway = two
        .far
        .add_gateway("mesh-gateway", "far-gateway", json!({}))
        .await;
    two.call_in("remote").await;
    two.answers(200, "far").await;
    // The way leads through the gateway.
    assert!(gateway.stop().await.success(), "{}", gateway.log());
    two.answers(503, "").await;
    let flags = two.far.flags("far-gateway");
    let flags = flags.with("proxy-id", "far-gateway");
    gateway = two.far.sidecar("far-gateway", &flags);
    gateway.ready().await;
    two.answers(200, "far").await;

    let near = two
        .near
        .add_gateway("mesh-gateway", "near-gateway", json!({}))
        .await;
    two.call_in("local").await;
    two.answers(200, "far").await;
    // The callee decides, with the identity of the caller end to end.
    two.near.intend("web", "api", "deny").await;
    two.answers(403, "RBAC").await;
    two.near.intend("web", "api", "allow").await;
    two.answers(200, "far").await;

    // Without the servers of the other datacenter, its services go on, and without the primary's own ones too.
    two.far.stop_server().await;
    two.answers(200, "far").await;
    sidecars.extend([gateway, near]);
    two.stop(sidecars).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_fail_over_to_another_datacenter_and_back() {
    let mut two = Two::start().await;
    two.near.intend("web", "api", "allow").await;
    let failover = json!({"Failover": {"*": {"Datacenters": ["dc2"]}}});
    two.near.entry(resolver("api", failover)).await;
    let sidecars = vec![
        two.far.add(&FAR).await,
        two.near.add(&API).await,
        two.near.add(&WEB).await,
    ];
    two.answers(200, "api").await;
    two.near.check("api", "critical").await;
    two.answers(200, "far").await;
    two.near.check("api", "passing").await;
    two.answers(200, "api").await;
    let roots = |mesh: Value| mesh["ActiveRootID"].clone();
    let path = "/v1/connect/ca/roots";
    let near: Value = serde_json::from_str(&two.near.api(Method::GET, path, None).await).unwrap();
    let far: Value = serde_json::from_str(&two.far.api(Method::GET, path, None).await).unwrap();
    assert_eq!(roots(near), roots(far));
    two.stop(sidecars).await;
}

/// A mesh gateway that leads to servers.
async fn gateway_to_servers(mesh: &mut Mesh, name: &'static str) -> Sidecar {
    let fields = json!({"Meta": {"consul-wan-federation": "1"}});
    mesh.add_gateway_with("mesh-gateway", name, fields).await
}

/// Asks the API until the answer contains a text.
async fn reads(mesh: &Mesh, path: &str, text: &str) {
    let http = mesh.http();
    let read = || async move { client::get(http, path).await.ok() };
    let name = format!("{path} with {text}");
    let expected = |answer: &Option<Answer>| {
        answer
            .as_ref()
            .is_some_and(|(status, got)| status.is_success() && got.contains(text))
    };
    eventually(&name, read, expected).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_reach_each_other_through_gateways_only() {
    let ca = TestCa::new();
    let mut near = Mesh::start(of(&ca, "dc1", None, Some(Vec::new()))).await;
    let mut near_gateway = gateway_to_servers(&mut near, "near-gateway").await;
    let known = vec![near.public("near-gateway")];
    // It starts when it has the CA of the primary, which it knows a gateway of, and nothing else.
    let mut far = Mesh::start(of(&ca, "dc2", None, Some(known))).await;
    let mut far_gateway = gateway_to_servers(&mut far, "far-gateway").await;
    let mut two = Two { _ca: ca, near, far };

    // The primary learns of the other gateway, and reaches its server through its own one.
    let states = "/v1/internal/federation-states";
    reads(&two.near, states, "far-gateway").await;
    reads(&two.far, states, "near-gateway").await;
    let far = json!("far");
    two.far.api(Method::PUT, "/v1/kv/a?dc=dc2", Some(far)).await;
    reads(&two.near, "/v1/kv/a?raw&dc=dc2", "far").await;
    let status = "/v1/internal/legate/status";
    let own = two.near.public("near-gateway");
    reads(&two.near, status, &own.to_string()).await;

    // Services, too.
    two.near.intend("web", "api", "allow").await;
    let mut sidecars = vec![two.far.add(&FAR).await];
    two.near.register(&WEB).await;
    two.call_in("local").await;
    sidecars.push(two.near.join(&WEB).await);
    two.answers(200, "far").await;

    // A gateway is replaced by another one.
    let second = gateway_to_servers(&mut two.near, "near-gateway-2").await;
    reads(&two.far, states, "near-gateway-2").await;
    let stopped = std::mem::replace(&mut near_gateway, second).stop().await;
    assert!(stopped.success());
    two.near.deregister("near-gateway").await;
    let second = gateway_to_servers(&mut two.far, "far-gateway-2").await;
    reads(&two.near, states, "far-gateway-2").await;
    let stopped = std::mem::replace(&mut far_gateway, second).stop().await;
    assert!(stopped.success());
    two.far.deregister("far-gateway").await;
    reads(&two.near, "/v1/kv/a?raw&dc=dc2", "far").await;
    reads(&two.far, "/v1/catalog/services?dc=dc1", "web").await;
    two.near.intend("web", "api", "deny").await;
    two.answers(403, "RBAC").await;

    // A server that starts again finds the way again.
    two.far.stop_server().await;
    two.far.start_server().await;
    reads(&two.near, "/v1/kv/a?raw&dc=dc2", "far").await;
    two.near.intend("web", "api", "allow").await;
    two.answers(200, "far").await;
    sidecars.extend([near_gateway, far_gateway]);
    two.stop(sidecars).await;
}
