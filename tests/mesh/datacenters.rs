//! Two datacenters as one mesh: one CA, services called across, directly and through mesh gateways.

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

/// A primary datacenter and a secondary one, which have joined.
struct Two {
    _ca: TestCa,
    near: Mesh,
    far: Mesh,
}

impl Two {
    async fn start() -> Self {
        let ca = TestCa::new();
        let of = |name: &'static str, join| {
            let CertFiles { cert, key, .. } = ca.agent(&[&format!("server.{name}.consul")]);
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
                }),
                ..MeshOptions::default()
            }
        };
        let near = Mesh::start(of("dc1", None)).await;
        let far = Mesh::start(of("dc2", Some(near.server()))).await;
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
        let upstream = self.near.upstream("web", 0);
        let call = || async move { client::get(upstream, "/").await.ok() };
        let expected = |answer: &Option<Answer>| {
            answer
                .as_ref()
                .is_some_and(|(got, text)| got.as_u16() == status && text.contains(body))
        };
        eventually(&format!("{status} {body}"), call, expected).await;
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
