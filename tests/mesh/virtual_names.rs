//! Routers, splitters, redirects and failover behind the virtual IPs that an application in
//! transparent mode dials.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::{Method, Request};
use legate_tests::mesh::NODE;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, captured, client, eventually};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use crate::API;
use crate::captured_traffic::{refused, resolve};
use crate::chains::resolver;

const fn spec(service: &'static str, instance: &'static str) -> ServiceSpec {
    ServiceSpec {
        service,
        instance,
        protocol: "http",
        upstreams: &[],
    }
}

const SECOND: ServiceSpec = spec("api", "api-2");
const OTHER: ServiceSpec = spec("other", "other");
const WEB: ServiceSpec = spec("web", "web");
const DB: ServiceSpec = ServiceSpec {
    protocol: "tcp",
    ..spec("db", "db")
};
const SPARE: ServiceSpec = ServiceSpec {
    protocol: "tcp",
    ..spec("spare", "spare")
};

#[test]
fn chains_behind_virtual_ips() {
    captured::run("virtual_names::http_in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn http_in_a_network_of_its_own() {
    if captured::is_here() {
        http().await;
    }
}

#[test]
fn failover_targets_accept_connections_behind_a_virtual_ip() {
    captured::run("virtual_names::tcp_in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn tcp_in_a_network_of_its_own() {
    if captured::is_here() {
        for kind in ["envoy", "builtin"] {
            tcp(kind).await;
        }
    }
}

#[test]
fn an_intention_for_everything_and_many_services() {
    captured::run("virtual_names::many_in_a_network_of_its_own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test that makes its network"]
async fn many_in_a_network_of_its_own() {
    if captured::is_here() {
        many().await;
    }
}

/// `web` in transparent mode, and these instances.
async fn start(specs: &[&ServiceSpec]) -> (Mesh, Vec<Sidecar>) {
    start_with("envoy", specs).await
}

/// The same with this kind of proxy.
async fn start_with(kind: &'static str, specs: &[&ServiceSpec]) -> (Mesh, Vec<Sidecar>) {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.use_proxy(kind);
    mesh.entry(json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}))
        .await;
    let mut sidecars = Vec::new();
    for spec in specs {
        sidecars.push(mesh.add(spec).await);
    }
    mesh.register(&WEB).await;
    mesh.entry(json!({
        "Kind": "service-defaults", "Name": "web", "Protocol": "http", "Mode": "transparent",
    }))
    .await;
    sidecars.push(mesh.join(&WEB).await);
    (mesh, sidecars)
}

async fn stop(mesh: Mesh, sidecars: Vec<Sidecar>) {
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}

/// The instance that responds for a path, or the error.
async fn who(address: SocketAddr, path: &str) -> String {
    match captured::ask(address, Request::get(path)).await {
        Ok((status, body)) if status.is_success() => {
            let body: Value = serde_json::from_str(&body).expect("JSON");
            body["instance"].as_str().expect("a name").to_owned()
        }
        Ok((status, body)) => format!("{status}: {body}"),
        Err(error) => error.to_string(),
    }
}

async fn answers(address: SocketAddr, path: &str, instance: &str) {
    let asked = || who(address, path);
    let what = format!("{instance} answers {path} at {address}");
    eventually(&what, asked, |answer| answer == instance).await;
}

async fn http() {
    let (mesh, sidecars) = start(&[&API, &SECOND, &OTHER]).await;
    mesh.describe(&API, json!({"version": "1"})).await;
    mesh.describe(&SECOND, json!({"version": "2"})).await;
    mesh.entry(subsets(json!({}))).await;
    for name in ["legacy", "entry", "halves"] {
        mesh.intend("web", name, "allow").await;
    }
    for service in ["api", "other"] {
        mesh.intend("web", service, "allow").await;
    }
    mesh.entry(resolver(
        "legacy",
        json!({"Redirect": {"Service": "other"}}),
    ))
    .await;
    mesh.entry(router(
        "entry",
        &[("/", json!({"Service": "api", "ServiceSubset": "v2"}))],
    ))
    .await;
    mesh.entry(
        json!({"Kind": "service-splitter", "Name": "halves", "Splits": [
            {"Weight": 50, "Service": "api"}, {"Weight": 50, "Service": "other"},
        ]}),
    )
    .await;
    mesh.entry(router(
        "api",
        &[
            ("/v2/", json!({"ServiceSubset": "v2"})),
            ("/halves/", json!({"Service": "halves"})),
            ("/legacy/", json!({"Service": "legacy"})),
        ],
    ))
    .await;

    names_without_instances(&mesh).await;
    let api = resolve(&mesh, "api").await;
    for (path, instance) in [("/", "api"), ("/v2/a", "api-2"), ("/legacy/a", "other")] {
        answers(api, path, instance).await;
    }
    splits(api, "/halves/a").await;
    failover(&mesh, api).await;
    redirected(&mesh, api).await;
    stop(mesh, sidecars).await;
}

fn subsets(failover: Value) -> Value {
    resolver(
        "api",
        json!({
            "DefaultSubset": "v1",
            "Subsets": {
                "v1": {"Filter": "Service.Meta.version == 1"},
                "v2": {"Filter": "Service.Meta.version == 2"},
            },
            "Failover": failover,
        }),
    )
}

fn router(name: &str, routes: &[(&str, Value)]) -> Value {
    let route = |(prefix, destination): &(&str, Value)| json!({"Match": {"HTTP": {"PathPrefix": prefix}}, "Destination": destination});
    let routes: Vec<Value> = routes.iter().map(route).collect();
    json!({"Kind": "service-router", "Name": name, "Routes": routes})
}

/// Names that a router, splitter or redirect defines have virtual IPs of their own.
async fn names_without_instances(mesh: &Mesh) {
    answers(resolve(mesh, "legacy").await, "/", "other").await;
    answers(resolve(mesh, "entry").await, "/", "api-2").await;
    splits(resolve(mesh, "halves").await, "/").await;
}

/// Waits until both sides of the split have responded.
async fn splits(address: SocketAddr, path: &str) {
    let mut seen = BTreeSet::new();
    for instance in ["api", "other"] {
        answers(address, path, instance).await;
    }
    for _ in 0..20 {
        seen.insert(who(address, path).await);
    }
    let both = BTreeSet::from(["api".to_owned(), "other".to_owned()]);
    assert!(seen.is_subset(&both), "{seen:?}");
}

async fn failover(mesh: &Mesh, api: SocketAddr) {
    let targets = json!({"*": {"Targets": [{"ServiceSubset": "v2"}, {"Service": "other"}]}});
    mesh.entry(subsets(targets)).await;
    answers(api, "/", "api").await;
    mesh.check("api", "critical").await;
    answers(api, "/", "api-2").await;
    mesh.check("api-2", "critical").await;
    answers(api, "/", "other").await;
    mesh.check("api", "passing").await;
    answers(api, "/", "api").await;
    mesh.check("api-2", "passing").await;
}

/// The dialled service determines its addresses, wherever it redirects to.
async fn redirected(mesh: &Mesh, api: SocketAddr) {
    let path = "/v1/config/service-router/api";
    mesh.api(Method::DELETE, path, None).await;
    let redirect = json!({"Redirect": {"Service": "other"}});
    mesh.entry(resolver("entry", json!({}))).await;
    let path = "/v1/config/service-router/entry";
    mesh.api(Method::DELETE, path, None).await;
    mesh.entry(resolver("api", redirect)).await;
    answers(api, "/", "other").await;
    let cluster_ip = SocketAddr::from(([10, 96, 0, 9], api.port()));
    assert!(captured::get(cluster_ip).await.is_err());
    mesh.tag(&API, cluster_ip.ip()).await;
    answers(cluster_ip, "/", "other").await;
    mesh.deregister("api").await;
    refused(cluster_ip).await;
    answers(api, "/", "other").await;
}

/// The reply to a line on a new connection; empty if the connection ends first.
async fn line(server: SocketAddr) -> String {
    let exchange = async {
        let mut stream = captured::connect(server).await?;
        stream.write_all(b"hello\n").await?;
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).await?;
        Ok::<_, io::Error>(reply)
    };
    let reply = timeout(Duration::from_secs(3), exchange).await;
    reply.map_or_else(|_| String::new(), Result::unwrap_or_default)
}

/// All sidecars have this kind of proxy.
async fn tcp(kind: &'static str) {
    let (mesh, sidecars) = start_with(kind, &[&DB, &SPARE]).await;
    for service in ["db", "spare"] {
        mesh.intend("web", service, "allow").await;
    }
    let db = resolve(&mesh, "db").await;
    let comes = async |reply: &'static str| {
        eventually(reply, || line(db), |line| line == reply).await;
    };
    comes("db: hello\n").await;
    let failover = json!({"Failover": {"*": {"Service": "spare"}}});
    mesh.entry(resolver("db", failover)).await;
    mesh.check("db", "critical").await;
    comes("spare: hello\n").await;
    mesh.check("db", "passing").await;
    comes("db: hello\n").await;
    // The intentions of the failover target apply.
    mesh.check("db", "critical").await;
    comes("spare: hello\n").await;
    mesh.intend("web", "spare", "deny").await;
    comes("").await;
    stop(mesh, sidecars).await;
}

/// The number of filter chains of the outbound listener, and the number of the mesh's clusters.
async fn sizes(web: &Sidecar) -> (usize, usize) {
    let body = admin(web, "/config_dump?resource=dynamic_listeners").await;
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let listeners = body["configs"].as_array().into_iter().flatten();
    let mut states = listeners.map(|listener| &listener["active_state"]["listener"]);
    let outbound = states.find(|listener| {
        let name = listener["name"].as_str().unwrap_or_default();
        name.starts_with("outbound_listener")
    });
    let chains = outbound.and_then(|listener| listener["filter_chains"].as_array());
    let clusters = admin(web, "/clusters").await;
    let clusters: BTreeSet<&str> = clusters
        .lines()
        .filter_map(|line| line.split_once("::").map(|(name, _)| name))
        .filter(|name| name.contains(".internal."))
        .collect();
    (chains.map_or(0, Vec::len), clusters.len())
}

/// A page of Envoy's admin API, which answers late while Envoy adds many clusters.
async fn admin(web: &Sidecar, path: &str) -> String {
    let page = || client::get(web.admin(), path);
    let answered = eventually("the admin API answers", page, Result::is_ok).await;
    answered.expect("an answer").1
}

async fn many() {
    const MANY: usize = 100;
    let (mesh, sidecars) = start(&[&API]).await;
    let web = sidecars.last().expect("the caller is the last");
    mesh.intend("web", "api", "allow").await;
    let api = resolve(&mesh, "api").await;
    answers(api, "/", "api").await;
    assert_eq!(sizes(web).await, (1, 1));
    for n in 0..MANY {
        let port = 1000 + n;
        let proxy = json!({
            "Node": NODE, "Address": "127.0.0.1",
            "Service": {
                "Kind": "connect-proxy", "ID": format!("many-{n}-proxy"), "Service": format!("many-{n}-proxy"),
                "Port": port, "Proxy": {"DestinationServiceName": format!("many-{n}")},
            },
        });
        mesh.api(Method::PUT, "/v1/catalog/register", Some(proxy))
            .await;
    }
    assert_eq!(
        sizes(web).await,
        (1, 1),
        "what web may not call is not sent"
    );
    // One chain and one cluster for each service, whatever its instances.
    mesh.intend("*", "*", "allow").await;
    let sized = || sizes(web);
    let all = (MANY + 1, MANY + 1);
    eventually("all can be called", sized, |sizes| *sizes == all).await;
    answers(api, "/", "api").await;
    mesh.intend("*", "*", "deny").await;
    eventually("only one can be", sized, |sizes| *sizes == (1, 1)).await;
    answers(api, "/", "api").await;
    let any: IpAddr = [240, 0, 0, 9].into();
    refused(SocketAddr::new(any, 80)).await;
    stop(mesh, sidecars).await;
}
