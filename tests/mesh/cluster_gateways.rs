//! Gateways of Kubernetes clusters: what a cluster's operator writes, on an Envoy that knows no
//! cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use legate_runtime::Scope;
use legate_tests::{Mesh, MeshOptions, Sidecar, client, eventually};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use tokio::net::{TcpListener, UdpSocket};
use tokio::time::timeout;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;

use crate::API;
use crate::api_gateways::{ask_on, connect, pair, presented};

const GATEWAY: &str = "/v1/internal/legate/gateway/edge";
const HTTP: u16 = 8000;
const TLS: u16 = 8443;
const HOST: &str = "500.test";

/// A port that leads to the port 80 of the Service `web`.
fn listener(port: u16, tls: &Value) -> Value {
    let backend = json!({"Namespace": "shop", "Name": "web", "Port": 80, "Protocol": "Http1"});
    let rule = json!({
        "Origin": {"Route": {"Name": "route"}, "Rule": 0},
        "Action": {"Forward": [{"Weight": 1, "Target": {"Backend": backend}}]},
    });
    json!({
        "Port": port,
        "Chains": [{"Tls": tls, "Content": 0}],
        "Contents": [{"Http": [{"Domains": ["*"], "Otherwise": 404, "Rules": [rule]}]}],
        "HostPorts": "Any",
    })
}

fn endpoints(at: SocketAddr) -> Value {
    let of = json!({"Namespace": "shop", "Name": "web", "Port": 80});
    json!([{"Of": of, "Endpoints": [{"Address": at.ip(), "Port": at.port()}]}])
}

fn secrets((certificate, key): &(String, String)) -> Value {
    json!([{"Name": "shop/cert", "Certificate": certificate, "PrivateKey": key}])
}

async fn put(mesh: &Mesh, path: &str, body: Value) {
    let path = format!("{GATEWAY}{path}");
    mesh.api(Method::PUT, &path, Some(body)).await;
}

/// The name of the application that answers, or what came instead.
async fn instance(server: SocketAddr) -> Result<String, String> {
    let answer = client::get(server, "/").await;
    let (status, body) = answer.map_err(|error| error.to_string())?;
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    match (status, body["instance"].as_str()) {
        (StatusCode::OK, Some(instance)) => Ok(instance.to_owned()),
        _ => Err(format!("{status}: {body}")),
    }
}

async fn changes(envoy: &Sidecar) -> Vec<u64> {
    let mut found = Vec::new();
    for name in [
        "listener_manager.listener_added",
        "listener_manager.listener_modified",
        "listener_manager.listener_in_place_updated",
        "cluster_manager.cluster_added",
        "cluster_manager.cluster_modified",
    ] {
        found.push(envoy.stat(name).await);
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_and_certificates_change_without_a_failed_request() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let (one, two) = (mesh.application("one"), mesh.application("two"));
    mesh.outsider("one", one).await;
    mesh.outsider("two", two).await;
    let (first, renewed) = (pair(HOST), pair(HOST));
    let terminated = json!({"Terminated": {"Certificates": [{"Secret": "shop/cert"}]}});
    let body = json!({
        "Listeners": [listener(HTTP, &json!("None")), listener(TLS, &terminated)],
        "Endpoints": endpoints(one),
        "Secrets": secrets(&first),
    });
    put(&mesh, "", body).await;
    let mut envoy = mesh.add_gateway("api-gateway", "edge", json!({})).await;
    let (plain, tls): (SocketAddr, SocketAddr) =
        ((envoy.address, HTTP).into(), (envoy.address, TLS).into());
    let is =
        |name: &'static str| move |found: &Result<String, String>| found.as_deref() == Ok(name);
    eventually("one answers", || instance(plain), is("one"))
        .await
        .expect("it answers");
    let found = eventually("it accepts TLS", || connect(tls, HOST), Option::is_some);
    let mut open = found.await.expect("a connection");
    assert_eq!(ask_on(&mut open).await, "HTTP/1.1 200 OK");
    let before = changes(&envoy).await;

    let ended = Arc::new(AtomicBool::new(false));
    let asking = {
        let ended = Arc::clone(&ended);
        async move {
            let mut answers = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                answers.push(instance(plain).await);
            }
            answers
        }
    };
    let changing = async {
        for (at, name) in [(two, "two"), (one, "one"), (two, "two")] {
            put(&mesh, "/endpoints", json!({"Endpoints": endpoints(at)})).await;
            eventually("the endpoint is another", || instance(plain), is(name))
                .await
                .expect("it answers");
        }
        ended.store(true, Ordering::Relaxed);
    };
    let (answers, ()) = tokio::join!(asking, changing);
    let failed: Vec<_> = answers.iter().filter(|answer| answer.is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");

    put(&mesh, "/secrets", json!({"Secrets": secrets(&renewed)})).await;
    let der = CertificateDer::from_pem_slice(renewed.0.as_bytes()).expect("PEM");
    let is_renewed = |found: &Option<CertificateDer<'static>>| found.as_ref() == Some(&der);
    eventually("it is renewed", || presented(tls, HOST), is_renewed).await;
    assert_eq!(ask_on(&mut open).await, "HTTP/1.1 200 OK");
    assert_eq!(changes(&envoy).await, before, "no listener, no cluster");

    put(&mesh, "", json!({"Listeners": []})).await;
    let closed = || async move { instance(plain).await.is_err() };
    eventually("the ports are closed", closed, |closed| *closed).await;
    assert!(envoy.stop().await.success(), "{}", envoy.log());
    mesh.stop().await;
}

/// The status of the gateway.
async fn status(mesh: &Mesh) -> Value {
    let text = mesh
        .api(Method::GET, &format!("{GATEWAY}/status"), None)
        .await;
    serde_json::from_str(&text).expect("JSON")
}

fn body(listeners: &[Value], generation: i64) -> Value {
    json!({"Listeners": listeners, "Generations": {"": generation, "shop/more": 7}})
}

fn acknowledged(generation: i64) -> Value {
    json!({"": generation, "shop/more": 7})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_generation_is_acknowledged_once_envoy_has_all_of_it() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let plain = listener(HTTP, &json!("None"));
    put(&mesh, "", body(std::slice::from_ref(&plain), 1)).await;
    assert_eq!(status(&mesh).await["Acknowledged"], json!({}));
    let mut envoy = mesh.add_gateway("api-gateway", "edge", json!({})).await;
    let is = |expected: Value| move |found: &Value| *found == expected;
    let all =
        |generation| json!({"Owner": "", "Acknowledged": acknowledged(generation), "Rejected": {}});
    eventually("it is acknowledged", || status(&mesh), is(all(1))).await;
    put(&mesh, "", body(std::slice::from_ref(&plain), 2)).await;
    eventually("nothing has to be sent", || status(&mesh), is(all(2))).await;

    kill(envoy.envoy(), Signal::SIGSTOP).expect("it stops");
    let more = listener(HTTP + 1, &json!("None"));
    put(&mesh, "", body(&[plain.clone(), more.clone()], 3)).await;
    let sent = || async {
        let path = "/v1/internal/legate/proxies";
        let proxies = mesh.api(Method::GET, path, None).await;
        serde_json::from_str::<Value>(&proxies).expect("JSON")[0]["InSync"].take()
    };
    eventually("it was sent", sent, is(json!(false))).await;
    assert_eq!(status(&mesh).await, all(2));
    kill(envoy.envoy(), Signal::SIGCONT).expect("it goes on");
    eventually("it is acknowledged", || status(&mesh), is(all(3))).await;
    let found = instance((envoy.address, HTTP + 1).into()).await;
    assert!(found.is_err_and(|error| error.starts_with("503")));

    let taken = TcpListener::bind((envoy.address, HTTP + 2)).await;
    let taken = taken.expect("the port is free");
    let other = listener(HTTP + 2, &json!("None"));
    put(&mesh, "", body(&[plain.clone(), more, other], 4)).await;
    let has_reason = |found: &Value| {
        let rejected = found["Rejected"].as_object().expect("a map");
        let reason = rejected["8002"].as_str().unwrap_or_default();
        found["Acknowledged"] == acknowledged(3) && reason.contains("Address already in use")
    };
    let is_rejected = |found: &Value| found["Rejected"] != json!({}) && has_reason(found);
    eventually("a port is rejected", || status(&mesh), is_rejected).await;
    put(&mesh, "", body(&[plain], 5)).await;
    eventually("it is acknowledged", || status(&mesh), is(all(5))).await;
    drop(taken);
    assert!(envoy.stop().await.success(), "{}", envoy.log());
    mesh.stop().await;
}

const UDP: u16 = 5353;

/// A port of UDP that leads to Services by weight; one without a name drops its share.
fn datagrams(backends: &[(&str, u32)]) -> Value {
    let backends = backends.iter().map(|(name, weight)| {
        let backend = json!({"Namespace": "shop", "Name": name, "Port": 53, "Protocol": "Udp"});
        let target = match *name {
            "" => json!({"Answer": 500}),
            _ => json!({"Backend": backend}),
        };
        json!({"Weight": weight, "Target": target})
    });
    json!([{"Port": UDP, "Backends": backends.collect::<Vec<_>>()}])
}

fn udp_endpoints(name: &str, at: SocketAddr) -> Value {
    let of = json!({"Namespace": "shop", "Name": name, "Port": 53, "Transport": "Udp"});
    json!({"Of": of, "Endpoints": [{"Address": at.ip(), "Port": at.port()}]})
}

/// Answers each datagram with a name.
async fn answer_with(name: &'static str, at: SocketAddr) {
    let socket = UdpSocket::bind(at).await.expect("the port is free");
    let mut datagram = [0; 64];
    loop {
        let (_, from) = socket.recv_from(&mut datagram).await.expect("a datagram");
        let _sent = socket.send_to(name.as_bytes(), from).await;
    }
}

/// What answers one datagram of a new client, empty if nothing does.
async fn ask_udp(from: SocketAddr, server: SocketAddr) -> String {
    let socket = UdpSocket::bind(from).await.expect("a free port");
    socket.send_to(b"?", server).await.expect("it is sent");
    let mut answer = [0; 64];
    let received = timeout(Duration::from_millis(300), socket.recv(&mut answer)).await;
    match received {
        Ok(Ok(length)) => String::from_utf8_lossy(&answer[..length]).into_owned(),
        _ => String::new(),
    }
}

/// Who answers the datagrams of this many clients, with their numbers.
async fn answers(server: SocketAddr, clients: usize) -> BTreeMap<String, usize> {
    let from: SocketAddr = (server.ip(), 0).into();
    let asked = (0..clients).map(|_| ask_udp(from, server));
    let mut found = BTreeMap::new();
    for answer in stream::iter(asked)
        .buffer_unordered(20)
        .collect::<Vec<_>>()
        .await
    {
        *found.entry(answer).or_default() += 1;
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn datagrams_are_shared_by_weight() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let (one, two) = (mesh.application("one"), mesh.application("two"));
    let applications = Scope::new("applications");
    for (name, at) in [("one", one), ("two", two)] {
        let spawner = applications.spawner();
        spawner.spawn_until_stop(name, answer_with(name, at));
    }
    let body = |backends: &[(&str, u32)], generation: i64| {
        let all = [udp_endpoints("one", one), udp_endpoints("two", two)];
        let used = all.into_iter().filter(|endpoints| {
            let of = endpoints["Of"]["Name"].as_str().expect("a name");
            backends.iter().any(|(name, _)| *name == of)
        });
        json!({
            "Listeners": [], "Datagrams": datagrams(backends),
            "Endpoints": used.collect::<Vec<_>>(), "Generations": {"": generation},
        })
    };
    put(&mesh, "", body(&[("one", 3), ("two", 1), ("", 1)], 1)).await;
    let mut envoy = mesh.add_gateway("api-gateway", "edge", json!({})).await;
    let served = |generation: i64| {
        let mesh = &mesh;
        let is = move |found: &Value| found["Acknowledged"][""] == generation;
        async move { eventually("it is served", || status(mesh), is).await }
    };
    served(1).await;
    let server: SocketAddr = (envoy.address, UDP).into();
    let found = answers(server, 200).await;
    for (name, expected) in [("one", 120), ("two", 40), ("", 40)] {
        let count = found.get(name).copied().unwrap_or_default();
        assert!(count.abs_diff(expected) <= 10, "{name}: {found:?}");
    }

    let all = |name: &str| BTreeMap::from([(name.to_owned(), 40)]);
    put(&mesh, "", body(&[("two", 1)], 2)).await;
    served(2).await;
    assert_eq!(answers(server, 40).await, all("two"));
    put(&mesh, "", body(&[], 3)).await;
    served(3).await;
    assert_eq!(answers(server, 40).await, all(""));
    // A Service without endpoints keeps its share, too.
    let mut empty = body(&[("one", 1), ("two", 1)], 4);
    empty["Endpoints"][0]["Endpoints"] = json!([]);
    put(&mesh, "", empty).await;
    served(4).await;
    let found = answers(server, 40).await;
    assert!(!found.contains_key("one"), "{found:?}");
    assert!(found["two"].abs_diff(20) <= 5, "{found:?}");
    assert!(envoy.stop().await.success(), "{}", envoy.log());
    let stopped = applications.stop(Duration::from_secs(5)).await;
    stopped.expect("the applications stop");
    mesh.stop().await;
}

/// Who answers this many requests, with their numbers; instead of an answer its status.
async fn answered(server: SocketAddr, requests: usize) -> BTreeMap<String, usize> {
    let mut found = BTreeMap::new();
    for _ in 0..requests {
        let answer = instance(server).await;
        let answer = answer.unwrap_or_else(|error| error.chars().take(3).collect());
        *found.entry(answer).or_default() += 1;
    }
    found
}

/// The Service `web` has a pod in the mesh and one outside of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_in_the_mesh_are_called_by_mutual_tls() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let outside = mesh.application("one");
    mesh.outsider("one", outside).await;
    let mut api = mesh.add(&API).await;
    let sidecar = mesh.public("api");
    assert!(instance(sidecar).await.is_err(), "not in plain text");
    let (plain, in_mesh) = (
        json!({"Address": outside.ip(), "Port": outside.port()}),
        json!({"Address": sidecar.ip(), "Port": sidecar.port(), "Identity": {"Name": "api"}}),
    );
    let of = json!({"Namespace": "shop", "Name": "web", "Port": 80});
    let endpoints = |all: &[&Value]| json!([{"Of": of, "Endpoints": all}]);
    let body = json!({
        "Listeners": [listener(HTTP, &json!("None"))], "Endpoints": endpoints(&[&plain]),
    });
    put(&mesh, "", body).await;
    let mut envoy = mesh.add_gateway("api-gateway", "edge", json!({})).await;
    let server: SocketAddr = (envoy.address, HTTP).into();
    let half = |name: &'static str| {
        move |found: &BTreeMap<String, usize>| {
            let count = |name: &str| found.get(name).copied().unwrap_or_default();
            count("one") == 10 && count(name) == 10
        }
    };
    let all =
        |name: &'static str| move |found: &BTreeMap<String, usize>| found.get(name) == Some(&20);
    let ask = || answered(server, 20);
    eventually("the pod outside of the mesh answers", ask, all("one")).await;
    let both = json!({"Endpoints": endpoints(&[&plain, &in_mesh])});
    put(&mesh, "/endpoints", both).await;
    eventually("the pod in the mesh denies", ask, half("403")).await;
    mesh.intend("edge", "api", "allow").await;
    eventually("the pod in the mesh answers", ask, half("api")).await;
    // Another service than the one that the sidecar has a certificate of.
    let mut wrong = in_mesh.clone();
    wrong["Identity"]["Name"] = json!("other");
    let changed = json!({"Endpoints": endpoints(&[&plain, &wrong])});
    put(&mesh, "/endpoints", changed).await;
    let is_refused = |found: &BTreeMap<String, usize>| !found.contains_key("api");
    eventually("the identity is verified", ask, is_refused).await;
    let only = json!({"Endpoints": endpoints(&[&in_mesh])});
    put(&mesh, "/endpoints", only).await;
    eventually("the pod in the mesh answers all", ask, all("api")).await;

    // A policy for TLS is for pods that are not in the mesh.
    let mut with_tls = listener(HTTP, &json!("None"));
    let target = "/Contents/0/Http/0/Rules/0/Action/Forward/0/Target/Backend";
    let tls = json!({
        "ServerName": "web.test", "Authorities": {"Pem": pair(HOST).0}, "Names": [{"Host": "web.test"}],
    });
    with_tls.pointer_mut(target).expect("a backend")["Tls"] = tls;
    let body = json!({"Listeners": [with_tls], "Endpoints": endpoints(&[&plain])});
    put(&mesh, "", body).await;
    eventually("the policy applies", ask, all("503")).await;
    let both = json!({"Endpoints": endpoints(&[&plain, &in_mesh])});
    put(&mesh, "/endpoints", both).await;
    // Requests that no application has seen are tried again.
    eventually("the pod in the mesh answers all", ask, all("api")).await;
    mesh.intend("edge", "api", "deny").await;
    let denied = |found: &BTreeMap<String, usize>| !found.contains_key("api");
    eventually("it is denied again", ask, denied).await;
    assert!(envoy.stop().await.success(), "{}", envoy.log());
    assert!(api.stop().await.success(), "{}", api.log());
    mesh.stop().await;
}
