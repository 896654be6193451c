//! Selection of instances: the same one for equal hashes, and any for other policies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use http::Request;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, Sidecar, client, eventually};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};

use crate::chains::resolver;
use crate::{API, WEB};

const fn instance(instance: &'static str) -> ServiceSpec {
    ServiceSpec { instance, ..API }
}

const INSTANCES: [ServiceSpec; 3] = [API, instance("api-2"), instance("api-3")];
/// The number of hashed values: all of them map to one of three instances once in 10^9 times.
const VALUES: u8 = 20;

struct Scene {
    mesh: Mesh,
    sidecars: Vec<Sidecar>,
}

impl Scene {
    async fn start() -> Self {
        let mut mesh = Mesh::start(MeshOptions::default()).await;
        mesh.intend("web", "api", "allow").await;
        let mut sidecars = Vec::new();
        for spec in &INSTANCES {
            sidecars.push(mesh.add(spec).await);
        }
        sidecars.push(mesh.add(&WEB).await);
        mesh.settle("web", 200).await;
        Self { mesh, sidecars }
    }

    fn upstream(&self) -> SocketAddr {
        self.mesh.upstream("web", 0)
    }

    /// Sets a load balancer, and waits until `web` has the policy and all instances.
    async fn balance(&self, policy: &str, envoys: &str, more: Value) {
        let mut balancer = more;
        balancer["Policy"] = json!(policy);
        self.mesh
            .entry(resolver("api", json!({"LoadBalancer": balancer})))
            .await;
        let web = self.sidecars.last().expect("the caller is the last");
        let has = || async {
            let path = "/config_dump?resource=dynamic_active_clusters";
            let (_, body) = client::get(web.admin(), path).await.expect("the admin API");
            let body: Value = serde_json::from_str(&body).expect("JSON");
            let clusters = body["configs"].as_array().into_iter().flatten();
            let mut api = clusters
                .map(|cluster| &cluster["cluster"])
                .filter(|cluster| {
                    cluster["name"]
                        .as_str()
                        .is_some_and(|name| name.starts_with("api."))
                });
            let policy = api.next().map(|cluster| cluster["lb_policy"].clone());
            (policy, web.endpoints().await.len())
        };
        let right = |(policy, endpoints): &(Option<Value>, usize)| {
            let policy = policy.as_ref().and_then(Value::as_str);
            policy.unwrap_or("ROUND_ROBIN") == envoys && *endpoints == INSTANCES.len()
        };
        eventually(&format!("web balances by {policy}"), has, right).await;
    }

    /// The instance that responds on a connection from this address, and the cookie that it sets.
    async fn ask(
        &self,
        from: Ipv4Addr,
        request: http::request::Builder,
    ) -> (String, Option<String>) {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind((from, 0).into()).expect("a free port");
        let stream: TcpStream = socket
            .connect(self.upstream())
            .await
            .expect("the upstream listens");
        let answer = client::answer_on(stream, request.header("host", "api"))
            .await
            .expect("an answer");
        let cookie = answer.headers().get("set-cookie");
        let cookie = cookie
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
        (
            body["instance"].as_str().unwrap_or_default().to_owned(),
            cookie,
        )
    }

    /// Waits until requests with equal values reach the same instance, and checks that several
    /// instances are used.
    async fn sticks<'a, A: Future<Output = String> + 'a>(&'a self, ask: impl Fn(u8) -> A) {
        let all = || async {
            let mut seen: BTreeMap<u8, BTreeSet<String>> = BTreeMap::new();
            for value in (0..VALUES).chain(0..VALUES).chain(0..VALUES) {
                seen.entry(value).or_default().insert(ask(value).await);
            }
            seen
        };
        let seen = eventually("the same value leads to the same instance", all, |seen| {
            seen.values().all(|instances| instances.len() == 1)
        })
        .await;
        let instances: BTreeSet<String> = seen.into_values().flatten().collect();
        assert!(instances.len() > 1, "{instances:?}");
        assert!(!instances.contains(""), "{instances:?}");
    }

    async fn stop(mut self) {
        for sidecar in self.sidecars.iter_mut().rev() {
            assert!(sidecar.stop().await.success(), "{}", sidecar.log());
        }
        self.mesh.stop().await;
    }
}

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_hashes_select_the_same_instance() {
    let scene = Scene::start().await;
    let by = |policy: Value| json!({"HashPolicies": [policy]});
    let header = by(json!({"Field": "header", "FieldValue": "x-user"}));
    scene
        .balance("ring_hash", "RING_HASH", header.clone())
        .await;
    let user = |n: u8| Request::get("/").header("x-user", n.to_string());
    scene
        .sticks(async |n| scene.ask(HERE, user(n)).await.0)
        .await;
    scene.balance("maglev", "MAGLEV", header).await;
    scene
        .sticks(async |n| scene.ask(HERE, user(n)).await.0)
        .await;

    let query = by(json!({"Field": "query_parameter", "FieldValue": "user"}));
    scene.balance("maglev", "MAGLEV", query).await;
    let user = |n: u8| Request::get(format!("/?user={n}"));
    scene
        .sticks(async |n| scene.ask(HERE, user(n)).await.0)
        .await;

    scene
        .balance("ring_hash", "RING_HASH", by(json!({"SourceIP": true})))
        .await;
    let from = |n: u8| Ipv4Addr::new(127, 9, 9, 1 + n);
    scene
        .sticks(async |n| scene.ask(from(n), Request::get("/")).await.0)
        .await;

    cookies(&scene).await;
    scene.stop().await;
}

/// Envoy generates a cookie for callers without one.
async fn cookies(scene: &Scene) {
    let cookie = json!({"HashPolicies": [{
        "Field": "cookie", "FieldValue": "who", "CookieConfig": {"TTL": "60s", "Path": "/"},
    }]});
    scene.balance("ring_hash", "RING_HASH", cookie).await;
    let given = || async { scene.ask(HERE, Request::get("/")).await.1 };
    let cookie = eventually("a cookie is given", given, Option::is_some).await;
    let cookie = cookie.expect("accepted");
    assert!(
        cookie.starts_with("who=") && cookie.contains("Max-Age=60"),
        "{cookie}"
    );
    for _ in 0..VALUES {
        let (instance, cookie) = scene.ask(HERE, Request::get("/")).await;
        let cookie = cookie.expect("a cookie");
        let value = cookie.split(';').next().expect("a value");
        for _ in 0..3 {
            let request = Request::get("/").header("cookie", value);
            assert_eq!(scene.ask(HERE, request).await, (instance.clone(), None));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_policies_use_every_instance() {
    let scene = Scene::start().await;
    for (policy, envoys, more) in [
        (
            "least_request",
            "LEAST_REQUEST",
            json!({"LeastRequestConfig": {"ChoiceCount": 3}}),
        ),
        ("random", "RANDOM", json!({})),
        ("round_robin", "ROUND_ROBIN", json!({})),
    ] {
        scene.balance(policy, envoys, more).await;
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            seen.insert(scene.ask(HERE, Request::get("/")).await.0);
        }
        let all = INSTANCES.map(|spec| spec.instance.to_owned());
        assert_eq!(seen, BTreeSet::from(all), "{policy}");
    }
    scene.stop().await;
}
