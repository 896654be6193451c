//! Services outside the mesh that a gateway leads to, and the services in the mesh beside them. In place of the
//! gateway stands the sidecar of a service, which proves to be the destination as a gateway does.

use std::net::SocketAddr;

use legate_tests::{Mesh, MeshOptions, ServiceSpec, captured};
use serde_json::json;

use crate::captured_traffic::{answered, refused, resolve};

const fn http(service: &'static str) -> ServiceSpec {
    ServiceSpec {
        service,
        instance: service,
        protocol: "http",
        upstreams: &[],
    }
}

/// That of the virtual IPs, too: Envoy looks at the port first.
const PORT: u16 = 80;

/// Nobody has it in this network.
const SITE: [u8; 4] = [10, 96, 0, 77];

#[test]
fn destinations_are_reached_through_their_gateways() {
    captured::run("egress::in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here() {
        scenario().await;
    }
}

async fn scenario() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let specs = [http("api"), http("site"), http("web")];
    for spec in &specs {
        mesh.register(spec).await;
    }
    let transparent = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Mode": "transparent"});
    mesh.entry(transparent).await;
    let mut sidecars = Vec::new();
    for spec in &specs {
        let flags = mesh.flags(spec.instance);
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecars.push(sidecar);
    }
    mesh.intend("web", "*", "allow").await;
    let api = resolve(&mesh, "api").await;
    assert_eq!((api.port(), answered(api).await.as_str()), (PORT, "api"));
    let site = SocketAddr::from((SITE, PORT));
    refused(site).await;

    let destination = |protocol: &str| {
        json!({
            "Kind": "service-defaults", "Name": "site", "Protocol": protocol,
            "Destination": {"Addresses": [site.ip()], "Port": PORT},
        })
    };
    mesh.entry(destination("tcp")).await;
    refused(site).await;
    let gateway = mesh.public("site");
    mesh.catalog(json!({"Service": {
        "Kind": "terminating-gateway", "ID": "gateway", "Service": "gateway",
        "Address": gateway.ip(), "Port": gateway.port(),
    }}))
    .await;
    mesh.entry(json!({
        "Kind": "terminating-gateway", "Name": "gateway", "Services": [{"Name": "site"}],
    }))
    .await;
    for protocol in ["tcp", "http"] {
        mesh.entry(destination(protocol)).await;
        assert_eq!(answered(site).await, "site", "{protocol}");
        assert_eq!(answered(api).await, "api", "{protocol}: on the same port");
    }
    mesh.intend("web", "*", "deny").await;
    refused(site).await;

    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
