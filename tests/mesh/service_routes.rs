//! Services of a Kubernetes cluster that have routes or several ports: sidecars reach each port of a Service by its
//! address, with the routes for their own namespace.

use std::net::{Ipv4Addr, SocketAddr};

use http::{Method, Request};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, captured, eventually};
use serde_json::{Value, json};

use crate::captured_traffic::{answered, refused};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 7);
const ADMIN: u16 = 9090;
const CLUSTER: &str = "cluster-1";

const fn service(name: &'static str) -> ServiceSpec {
    ServiceSpec {
        service: name,
        instance: name,
        protocol: "http",
        upstreams: &[],
    }
}

const V1: ServiceSpec = service("v1");
const V2: ServiceSpec = service("v2");
const WEB: ServiceSpec = service("web");

#[test]
fn ports_of_services_have_routes_of_their_own() {
    captured::run("service_routes::in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn in_a_network_of_its_own() {
    if captured::is_here() {
        scenario().await;
    }
}

fn backend(service: &str, port: u16, protocol: &str) -> Value {
    let backend = json!({"Namespace": "shop", "Name": service, "Port": port, "Protocol": protocol});
    json!([{"Weight": 1, "Target": {"Backend": backend}}])
}

fn rule(matched: &Value, action: &Value) -> Value {
    json!({
        "Origin": {"Route": {"Name": "route"}, "Rule": 0}, "Matched": matched, "Action": action,
    })
}

fn listener(port: u16, content: &Value) -> Value {
    json!({
        "Port": port,
        "Chains": [{"Tls": "None", "Content": 0}],
        "Contents": [content],
        "HostPorts": "Any",
    })
}

fn http(rules: &[Value]) -> Value {
    json!({"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": rules}]})
}

/// The Service `front`: requests with a header go to `v2` and others to `v1`, and two more ports lead to `v1`.
fn producer(mesh: &Mesh) -> Value {
    let header = json!({"Headers": [{"Name": "to", "Value": {"Exact": "v2"}}]});
    let rules = [
        rule(&header, &json!({"Forward": backend("v2", 80, "Http1")})),
        rule(&json!({}), &json!({"Forward": backend("v1", 80, "Http1")})),
    ];
    let endpoint = |of: &str, application: Option<u16>| {
        let address = mesh.public(of);
        json!([{
            "Address": address.ip(), "Port": address.port(), "Identity": {"Name": of},
            "Application": application,
        }])
    };
    let of = |service: &str, port: u16, application| {
        let of = json!({"Namespace": "shop", "Name": service, "Port": port});
        json!({"Of": of, "Endpoints": endpoint(service, application)})
    };
    json!({
        "Owner": CLUSTER,
        "Frontend": {"Namespace": "shop", "Name": "front", "Addresses": [ADDRESS]},
        "Listeners": [
            listener(80, &http(&rules)),
            listener(81, &json!({"Tcp": backend("v1", 81, "Tcp")})),
            listener(82, &json!({"Tcp": backend("v1", 80, "Tcp")})),
        ],
        "Endpoints": [
            of("v1", 80, None), of("v2", 80, None), of("v1", 81, Some(ADMIN)),
        ],
    })
}

async fn put(mesh: &Mesh, name: &str, body: Value) {
    let path = format!("/v1/internal/legate/gateway/{name}");
    mesh.api(Method::PUT, &path, Some(body)).await;
}

/// The status of a request with this header.
async fn status(port: u16, to: &str) -> u16 {
    let request = Request::get("/").header("to", to);
    let answer = captured::ask((ADDRESS, port).into(), request).await;
    answer.map_or(0, |(status, _)| status.as_u16())
}

async fn scenario() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    for spec in [&V1, &V2, &WEB] {
        mesh.register(spec).await;
        mesh.intend("web", spec.service, "allow").await;
    }
    let entry = json!({"Kind": "service-defaults", "Name": "web", "Protocol": "http", "Mode": "transparent"});
    mesh.entry(entry).await;
    let admin = SocketAddr::from((mesh.application("v1").ip(), ADMIN));
    mesh.outsider("admin", admin).await;
    let ports = json!({"Config": {"legate_ports": [ADMIN]}});
    mesh.configure(&V1, ports).await;
    let pod = json!({"k8s-cluster-uid": CLUSTER, "k8s-namespace": "shop"});
    mesh.describe(&WEB, pod).await;
    let mut sidecars = Vec::new();
    for spec in [&V1, &V2, &WEB] {
        let flags = mesh.flags(spec.instance);
        let mut sidecar = mesh.sidecar(spec.instance, &flags);
        sidecar.ready().await;
        sidecars.push(sidecar);
    }
    let at = |port: u16| SocketAddr::from((ADDRESS, port));
    assert!(captured::get(at(80)).await.is_err(), "nothing is written");

    put(&mesh, "_front.shop", producer(&mesh)).await;
    assert_eq!(answered(at(80)).await, "v1");
    let (_, body) = captured::ask(at(80), Request::get("/").header("to", "v2"))
        .await
        .expect("an answer");
    assert!(body.contains("\"v2\""), "{body}");
    assert_eq!(answered(at(82)).await, "v1", "connections");
    assert_eq!(
        answered(at(81)).await,
        "admin",
        "another port of the application"
    );
    let elsewhere = captured::get(at(83)).await;
    assert!(
        elsewhere.is_err(),
        "the Service has no such port: {elsewhere:?}"
    );

    consumers(&mesh, &pod_routes()).await;
    ports_of_the_mesh(&mesh).await;
    mesh.intend("web", "v1", "deny").await;
    let denied = |status: &u16| *status == 403;
    eventually("v1 denies requests", || status(82, "v1"), denied).await;
    refused(at(81)).await;
    eventually(
        "v2 is allowed",
        || status(80, "v2"),
        |status| *status == 200,
    )
    .await;
    mesh.api(
        Method::DELETE,
        "/v1/internal/legate/gateway/_front.shop",
        None,
    )
    .await;
    refused(at(80)).await;
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

/// What pods of a namespace get instead.
fn pod_routes() -> impl Fn(&str, u16) -> Value {
    |callers, answer| {
        let frontend = json!({
            "Namespace": "shop", "Name": "front", "Addresses": [ADDRESS], "Callers": callers,
        });
        let rules = [rule(&json!({}), &json!({"Answer": answer}))];
        json!({
            "Owner": CLUSTER, "Frontend": frontend, "Listeners": [listener(80, &http(&rules))],
        })
    }
}

/// A Service with the name and an address of a service of the mesh: the ports of that are left to it.
async fn ports_of_the_mesh(mesh: &Mesh) {
    let address: Ipv4Addr = [10, 96, 0, 8].into();
    let path = "/v1/internal/service-virtual-ip";
    let body = json!({"Service": "v2", "ManualVIPs": [address]});
    mesh.api(Method::PUT, path, Some(body)).await;
    let frontend = |ports: &[u16]| {
        let rules = [rule(&json!({}), &json!({"Answer": 418}))];
        json!({
            "Owner": CLUSTER,
            "Frontend": {
                "Namespace": "shop", "Name": "v2", "Addresses": [address], "MeshPorts": ports,
            },
            "Listeners": [listener(80, &http(&rules)), listener(81, &http(&rules))],
        })
    };
    let status = |port: u16| async move {
        let answer = captured::ask((address, port).into(), Request::get("/")).await;
        answer.map_or(0, |(status, _)| status.as_u16())
    };
    let is = |expected: u16| move |status: &u16| *status == expected;
    put(mesh, "_v2.shop", frontend(&[])).await;
    eventually("the frontend has both ports", || status(80), is(418)).await;
    put(mesh, "_v2.shop", frontend(&[80])).await;
    eventually("v2 has its port", || status(80), is(200)).await;
    assert_eq!(status(81).await, 418);
    // To callers that may not call it the mesh gives no chain.
    mesh.intend("web", "v2", "deny").await;
    eventually("the frontend has both again", || status(80), is(418)).await;
    mesh.intend("web", "v2", "allow").await;
    eventually("v2 has its port again", || status(80), is(200)).await;
    let path = "/v1/internal/legate/gateway/_v2.shop";
    mesh.api(Method::DELETE, path, None).await;
}

async fn consumers(mesh: &Mesh, routes: &impl Fn(&str, u16) -> Value) {
    put(mesh, "_front.shop.other", routes("other", 418)).await;
    put(mesh, "_front.shop.shop", routes("shop", 403)).await;
    let is = |expected: u16| move |status: &u16| *status == expected;
    eventually("its own routes", || status(80, "v1"), is(403)).await;
    let path = "/v1/internal/legate/gateway/_front.shop.shop";
    mesh.api(Method::DELETE, path, None).await;
    eventually("those of everybody", || status(80, "v1"), is(200)).await;
}
