//! The reach of an application in transparent mode, for every control plane.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Method;
use legate_tests::captured::{self, OUTSIDE};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, dns, eventually};
use serde_json::{Value, json};

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};
const DB: ServiceSpec = ServiceSpec {
    service: "db",
    instance: "db",
    protocol: "http",
    upstreams: &[],
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &[],
};
/// The dialled port; every port of a virtual IP belongs to the service.
const PORT: u16 = 80;

/// With an intention for `web` a service is reachable by its virtual IPs and by its name; without one
/// it is not. Other destinations are outside the mesh, which the mesh may refuse; instances are
/// dialled directly if that is enabled.
pub(crate) async fn scenario(options: MeshOptions) {
    let mut mesh = Mesh::start(options).await;
    let mut sidecars = Vec::new();
    for spec in [&API, &DB, &WEB] {
        mesh.register(spec).await;
    }
    entry(
        &mesh,
        json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Mode": "transparent"}),
    )
    .await;
    for spec in [&API, &DB, &WEB] {
        let flags = mesh.flags(spec.instance);
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecars.push(sidecar);
    }

    by_virtual_ip(&mesh).await;
    outside_the_mesh(&mut mesh).await;
    instances_directly(&mesh).await;

    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

async fn by_virtual_ip(mesh: &Mesh) {
    let api = resolve(mesh, "api").await;
    let db = resolve(mesh, "db").await;
    assert_ne!(api, db);
    assert!(captured::get(api).await.is_err(), "the default is to deny");
    mesh.intend("web", "api", "allow").await;
    assert_eq!(answered(api).await, "api");
    assert!(captured::get(db).await.is_err(), "nothing allows it");

    let cluster_ip = SocketAddr::from(([10, 96, 0, 5], PORT));
    assert!(captured::get(cluster_ip).await.is_err());
    let body = json!({"Service": "api", "ManualVIPs": ["10.96.0.5"]});
    let path = "/v1/internal/service-virtual-ip";
    mesh.api(Method::PUT, path, Some(body)).await;
    // Consul sends it to proxies with the next change only.
    mesh.intend("web", "api", "deny").await;
    refused(api).await;
    assert!(captured::get(cluster_ip).await.is_err());
    mesh.intend("web", "api", "allow").await;
    assert_eq!(answered(cluster_ip).await, "api");
    assert_eq!(answered(api).await, "api");
}

async fn outside_the_mesh(mesh: &mut Mesh) {
    let outside = SocketAddr::from((OUTSIDE, 9999));
    mesh.outsider("stranger", outside).await;
    assert_eq!(answered(outside).await, "stranger");
    let only =
        |only: bool| json!({"Kind": "mesh", "TransparentProxy": {"MeshDestinationsOnly": only}});
    entry(mesh, only(true)).await;
    refused(outside).await;
    assert_eq!(answered(resolve(mesh, "api").await).await, "api");
}

/// With destinations outside the mesh refused.
async fn instances_directly(mesh: &Mesh) {
    let instance = mesh.public("api");
    assert!(captured::get(instance).await.is_err());
    let directly = json!({"DialedDirectly": true});
    entry(
        mesh,
        json!({
            "Kind": "service-defaults", "Name": "api", "Protocol": "http",
            "TransparentProxy": directly,
        }),
    )
    .await;
    assert_eq!(answered(instance).await, "api");
    assert!(captured::get(mesh.public("db")).await.is_err());
}

async fn entry(mesh: &Mesh, entry: Value) {
    mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
}

/// A service's virtual IP, resolved by DNS.
pub(crate) async fn resolve(mesh: &Mesh, service: &str) -> SocketAddr {
    let name = format!("{service}.virtual.consul.");
    let answer = dns::over_udp(mesh.dns(), &name).await.expect("DNS answers");
    let [IpAddr::V4(ip)] = answer.addresses[..] else {
        panic!("{name}: {answer:?}")
    };
    assert_eq!(ip.octets()[0], Ipv4Addr::new(240, 0, 0, 0).octets()[0]);
    SocketAddr::from((ip, PORT))
}

/// The instance that responds, as soon as one does.
pub(crate) async fn answered(address: SocketAddr) -> String {
    let probe = || async move {
        captured::get(address)
            .await
            .map_err(|error| error.to_string())
    };
    let answers = |answer: &Result<(http::StatusCode, String), String>| matches!(answer, Ok((status, _)) if status.is_success());
    let (_, body) = eventually("somebody answers", probe, answers)
        .await
        .expect("accepted");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    body["instance"].as_str().expect("a name").to_owned()
}

/// Waits until connections to the address are refused.
pub(crate) async fn refused(address: SocketAddr) {
    let probe = || async move {
        captured::get(address)
            .await
            .map_err(|error| error.to_string())
    };
    eventually("nobody answers", probe, Result::is_err)
        .await
        .expect_err("accepted");
}
