//! Routers, splitters and resolvers with traffic: the responding instance, and the request as it
//! arrives there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use http::{Method, Request, StatusCode};
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::API;

const SECOND: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api-2",
    protocol: "http",
    upstreams: &[],
};
const OTHER: ServiceSpec = ServiceSpec {
    service: "other",
    instance: "other",
    protocol: "http",
    upstreams: &[],
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["api", "legacy"],
};

/// `web` calls `api` with two instances of different versions, `other`, and `legacy`, which has no
/// instance.
struct Scene {
    mesh: Mesh,
    sidecars: Vec<Sidecar>,
}

impl Scene {
    async fn start() -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        for entry in [
            json!({"Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"}}),
            resolver(
                "api",
                json!({"DefaultSubset": "v1", "Subsets": {
                    "v1": {"Filter": "Service.Meta.version == 1"},
                    "v2": {"Filter": "Service.Meta.version == 2"},
                }}),
            ),
            resolver("legacy", json!({"Redirect": {"Service": "other"}})),
        ] {
            mesh.entry(entry).await;
        }
        let mut sidecars = Vec::new();
        for (spec, version) in [(API, "1"), (SECOND, "2"), (OTHER, "1")] {
            mesh.register(&spec).await;
            mesh.describe(&spec, json!({"version": version})).await;
            mesh.intend("web", spec.service, "allow").await;
            sidecars.push(mesh.join(&spec).await);
        }
        sidecars.push(mesh.add(&WEB).await);
        mesh.settle("web", 200).await;
        Self { mesh, sidecars }
    }

    fn api(&self) -> SocketAddr {
        self.mesh.upstream("web", 0)
    }

    async fn stop(self) {
        for mut sidecar in self.sidecars {
            assert!(sidecar.stop().await.success());
        }
        self.mesh.stop().await;
    }
}

pub(crate) fn resolver(name: &str, more: Value) -> Value {
    let mut entry = more;
    entry["Kind"] = json!("service-resolver");
    entry["Name"] = json!(name);
    entry
}

/// The request as reported by the application.
pub(crate) async fn ask(
    upstream: SocketAddr,
    request: http::request::Builder,
) -> (StatusCode, Value) {
    let stream = TcpStream::connect(upstream)
        .await
        .expect("the upstream listens");
    let request = request.header("host", "api");
    let (status, body) = client::get_on(stream, request).await.expect("an answer");
    (status, serde_json::from_str(&body).unwrap_or(Value::Null))
}

async fn who(upstream: SocketAddr, path: &str) -> String {
    let (_, answer) = ask(upstream, Request::get(path)).await;
    answer["instance"].as_str().unwrap_or_default().to_owned()
}

/// Waits until this instance responds for a path.
pub(crate) async fn answers(upstream: SocketAddr, path: &str, instance: &str) {
    let asked = || who(upstream, path);
    let what = format!("{instance} answers {path}");
    eventually(&what, asked, |answer| answer == instance).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_routed_by_the_router() {
    let scene = Scene::start().await;
    let api = scene.api();
    assert_eq!(who(api, "/").await, "api", "the default subset");
    assert_eq!(
        who(scene.mesh.upstream("web", 1), "/").await,
        "other",
        "a redirect"
    );

    let route = |http: Value, destination: Value| json!({"Match": {"HTTP": http}, "Destination": destination});
    let two = json!({"ServiceSubset": "v2"});
    let routes = [
        route(
            json!({"PathPrefix": "/other/"}),
            json!({
                "Service": "other", "PrefixRewrite": "/new/",
                "RequestHeaders": {"Set": {"x-set": "1"}, "Remove": ["x-gone"]},
                "ResponseHeaders": {"Add": {"x-added": "1"}},
            }),
        ),
        route(
            json!({"PathExact": "/exact", "CaseInsensitive": true}),
            two.clone(),
        ),
        route(json!({"PathRegex": "/v[2-9]/.*"}), two.clone()),
        route(
            json!({"Header": [{"Name": "x-version", "Exact": "2"}]}),
            two.clone(),
        ),
        route(
            json!({"Header": [{"Name": "x-plain", "Present": true, "Invert": true}, {"Name": "x-two", "Prefix": "t"}]}),
            two.clone(),
        ),
        route(
            json!({"QueryParam": [{"Name": "version", "Regex": "2.*"}]}),
            two.clone(),
        ),
        route(json!({"Methods": ["PUT", "DELETE"]}), two.clone()),
    ];
    let router = json!({"Kind": "service-router", "Name": "api", "Routes": routes});
    scene.mesh.entry(router).await;
    answers(api, "/exact", "api-2").await;

    let request = Request::get("/other/a?b=c").header("x-gone", "1");
    let (status, answer) = ask(api, request).await;
    assert_eq!(
        (status, &answer["instance"]),
        (StatusCode::OK, &json!("other"))
    );
    assert_eq!(answer["path"], "/new/a?b=c");
    assert_eq!(answer["headers"]["x-set"], "1");
    assert_eq!(answer["headers"].get("x-gone"), None);
    let cases = [
        (Request::get("/EXACT"), "api-2"),
        (Request::get("/exactly"), "api"),
        (Request::get("/v3/a"), "api-2"),
        (Request::get("/v1/a"), "api"),
        (Request::get("/").header("x-version", "2"), "api-2"),
        (Request::get("/").header("x-version", "22"), "api"),
        (Request::get("/").header("x-two", "two"), "api-2"),
        (
            Request::get("/")
                .header("x-two", "two")
                .header("x-plain", ""),
            "api",
        ),
        (Request::get("/?version=2.1"), "api-2"),
        (Request::get("/?version=1.2"), "api"),
        (Request::get("/x").method(Method::PUT), "api-2"),
        (Request::get("/x").method(Method::PATCH), "api"),
    ];
    for (request, instance) in cases {
        let what = format!("{request:?}");
        let (_, answer) = ask(api, request).await;
        assert_eq!(answer["instance"], instance, "{what}");
    }
    let path = "/v1/config/service-router/api";
    scene.mesh.api(Method::DELETE, path, None).await;
    answers(api, "/exact", "api").await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_split() {
    let scene = Scene::start().await;
    let split = |first: u8| {
        json!({"Kind": "service-splitter", "Name": "api", "Splits": [
            {"Weight": first, "ServiceSubset": "v1", "RequestHeaders": {"Set": {"x-split": "1"}}},
            {"Weight": 100 - first, "ServiceSubset": "v2"},
        ]})
    };
    scene.mesh.entry(split(0)).await;
    answers(scene.api(), "/a", "api-2").await;
    scene.mesh.entry(split(50)).await;
    answers(scene.api(), "/a", "api").await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..200 {
        let (_, answer) = ask(scene.api(), Request::get("/a")).await;
        let instance = answer["instance"].as_str().unwrap_or_default().to_owned();
        let of_first = answer["headers"]["x-split"] == "1";
        assert_eq!(of_first, instance == "api");
        *seen.entry(instance).or_default() += 1;
    }
    // Of 200 fair coin tosses fewer than 50 have one result once in 10^12 times.
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert!(seen.values().all(|count| *count > 50), "{seen:?}");
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_targets_respond_while_a_service_fails() {
    let scene = Scene::start().await;
    let mesh = &scene.mesh;
    let failover = json!({
        "DefaultSubset": "v1",
        "Subsets": {"v1": {"Filter": "Service.Meta.version == 1"}, "v2": {"Filter": "Service.Meta.version == 2"}},
        "Failover": {"*": {"Targets": [{"ServiceSubset": "v2"}, {"Service": "other"}]}},
    });
    mesh.entry(resolver("api", failover)).await;
    answers(scene.api(), "/", "api").await;
    mesh.check("api", "critical").await;
    answers(scene.api(), "/", "api-2").await;
    mesh.check("api-2", "critical").await;
    answers(scene.api(), "/", "other").await;
    // Recovered: the primary target responds again.
    mesh.check("api", "passing").await;
    answers(scene.api(), "/", "api").await;
    mesh.deregister("api").await;
    answers(scene.api(), "/", "other").await;
    scene.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subset_of_passing_instances() {
    let scene = Scene::start().await;
    let mesh = &scene.mesh;
    let subset = json!({"DefaultSubset": "all", "Subsets": {"all": {"OnlyPassing": true}}});
    mesh.entry(resolver("api", subset)).await;
    answers(scene.api(), "/", "api-2").await;
    mesh.check("api-2", "warning").await;
    let some = || async {
        let mut seen = BTreeSet::new();
        for _ in 0..10 {
            seen.insert(who(scene.api(), "/").await);
        }
        seen
    };
    let only = BTreeSet::from(["api".to_owned()]);
    eventually("api alone answers", some, |seen| *seen == only).await;
    mesh.check("api-2", "passing").await;
    answers(scene.api(), "/", "api-2").await;
    scene.stop().await;
}
