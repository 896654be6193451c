//! Property: behind an API gateway every request reaches the service that a model of the documentation
//! says, for generated sets of routes, and no request a service that no route names.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use http::{Method, Request};
use http_body_util::Full;
use legate_tests::{Mesh, MeshOptions, ServiceSpec, client, eventually};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::API;

const OTHER: ServiceSpec = ServiceSpec {
    service: "other",
    instance: "other",
    protocol: "http",
    upstreams: &[],
};
/// A service that has no instance.
const GONE: &str = "gone";
/// A service that does not speak HTTP.
const BYTES: &str = "bytes";

const HTTP: u16 = 8000;
/// The number of sets. Each is a change of the last one, on one gateway.
const SETS: usize = 30;

const PATHS: [&str; 6] = ["/", "/a", "/ab", "/a/", "/a/b", "/b/a"];
const HOSTS: [&str; 4] = ["a.test", "x.test", "x.y.test", "other.example"];
const HEADER: &str = "x-one";

/// What one rule of a route requires.
#[derive(Clone, Debug)]
struct Condition {
    path: &'static str,
    exact: bool,
    method: Option<&'static str>,
    header: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Rule {
    conditions: Vec<Condition>,
    services: Vec<&'static str>,
}

#[derive(Clone, Debug)]
struct Route {
    hosts: Vec<&'static str>,
    rules: Vec<Rule>,
}

/// A request by a client.
#[derive(Clone, Debug)]
struct Asked {
    host: &'static str,
    path: &'static str,
    method: &'static str,
    header: Option<&'static str>,
}

/// What may answer: an instance, or the gateway with a status.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Instance(String),
    Status(u16),
}

fn routes() -> impl Strategy<Value = Vec<Route>> {
    let condition = (
        select(&PATHS[..]),
        any::<bool>(),
        option::weighted(0.3, select(&["GET", "POST"][..])),
        option::weighted(0.3, select(&["1", "2"][..])),
    );
    let condition = condition.prop_map(|(path, exact, method, header)| Condition {
        path,
        exact,
        method,
        header,
    });
    let services = prop_oneof![
        6 => subsequence(&["api", "other"][..], 1..=2),
        1 => Just(vec![GONE]),
        1 => Just(vec!["api", BYTES]),
    ];
    let rule = (vec(condition, 0..=2), services).prop_map(|(conditions, services)| Rule {
        conditions,
        services,
    });
    let hosts = subsequence(&["a.test", "x.test", "x.y.test"][..], 0..=2);
    let route = (hosts, vec(rule, 1..=3)).prop_map(|(hosts, rules)| Route { hosts, rules });
    vec(route, 1..=4)
}

/// The condition of a rule without any.
static ANY: [Condition; 1] = [Condition {
    path: "/",
    exact: false,
    method: None,
    header: None,
}];

impl Route {
    fn entry(&self, name: &str) -> Value {
        let rules: Vec<Value> = self.rules.iter().map(Rule::document).collect();
        json!({
            "Kind": "http-route", "Name": name, "Parents": [{"Name": "edge"}], "Hostnames": self.hosts,
            "Rules": rules,
        })
    }

    fn is_accepted(&self) -> bool {
        let mut services = self.rules.iter().flat_map(|rule| &rule.services);
        services.all(|service| *service != BYTES)
    }
}

impl Rule {
    fn document(&self) -> Value {
        let services = self.services.iter().map(|name| json!({"Name": name}));
        let matches = self.conditions.iter().map(|one| {
            let how = if one.exact { "exact" } else { "prefix" };
            let header = one.header.iter();
            let headers =
                header.map(|value| json!({"Match": "exact", "Name": HEADER, "Value": value}));
            json!({
                "Path": {"Match": how, "Value": one.path},
                "Method": one.method.unwrap_or_default(),
                "Headers": headers.collect::<Vec<_>>(),
            })
        });
        json!({
            "Matches": matches.collect::<Vec<_>>(), "Services": services.collect::<Vec<_>>(),
        })
    }
}

impl Condition {
    fn holds(&self, asked: &Asked) -> bool {
        let path = match self.exact {
            true => asked.path == self.path,
            false => asked.path.starts_with(self.path),
        };
        path && self.method.is_none_or(|method| method == asked.method)
            && self.header.is_none_or(|value| asked.header == Some(value))
    }

    /// The greatest precedes.
    fn rank(&self) -> (usize, bool, bool, bool) {
        (
            self.path.len(),
            self.header.is_some(),
            self.exact,
            self.method.is_some(),
        )
    }
}

/// What the documentation says about a request.
fn expected(routes: &[Route], asked: &Asked) -> BTreeSet<Outcome> {
    // Routes for any host are not tried for a host that others name.
    let named = |route: &&Route| route.hosts.contains(&asked.host);
    let is_named = routes.iter().any(|route| named(&route));
    let of_host = routes.iter().filter(|route| match is_named {
        true => named(route),
        false => route.hosts.is_empty(),
    });
    // The first of the greatest: that of the older route.
    let mut best: Option<(&Condition, &Route, &Rule)> = None;
    for route in of_host {
        for rule in &route.rules {
            let conditions = match rule.conditions.is_empty() {
                true => &ANY[..],
                false => &*rule.conditions,
            };
            for one in conditions.iter().filter(|one| one.holds(asked)) {
                if best.is_none_or(|(best, ..)| one.rank() > best.rank()) {
                    best = Some((one, route, rule));
                }
            }
        }
    }
    match best {
        None => [Outcome::Status(404)].into(),
        Some((_, route, _)) if !route.is_accepted() => [Outcome::Status(500)].into(),
        Some((_, _, rule)) => {
            let outcome = |service: &&str| match *service {
                GONE => Outcome::Status(503),
                service => Outcome::Instance(service.to_owned()),
            };
            rule.services.iter().map(outcome).collect()
        }
    }
}

async fn outcome(gateway: SocketAddr, asked: &Asked) -> Result<Outcome, String> {
    let mut request = Request::builder()
        .method(asked.method)
        .uri(asked.path)
        .header("host", asked.host);
    if let Some(value) = asked.header {
        request = request.header(HEADER, value);
    }
    let request = request.body(Full::default()).expect("a request");
    let answer = client::ask(gateway, request).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let body: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    Ok(match body["instance"].as_str() {
        Some(instance) => Outcome::Instance(instance.to_owned()),
        None => Outcome::Status(answer.status().as_u16()),
    })
}

fn requests() -> Vec<Asked> {
    let mut all = Vec::new();
    for host in HOSTS {
        for path in PATHS {
            for method in ["GET", "POST"] {
                for header in [None, Some("1"), Some("3")] {
                    all.push(Asked {
                        host,
                        path,
                        method,
                        header,
                    });
                }
            }
        }
    }
    all
}

/// Replaces the routes, and waits until the gateway has them.
async fn put(mesh: &Mesh, gateway: SocketAddr, at: usize, last: usize, routes: &[Route]) {
    for number in 0..last {
        let path = format!("/v1/config/http-route/r{number}");
        mesh.api(Method::DELETE, &path, None).await;
    }
    for (number, route) in routes.iter().enumerate() {
        mesh.entry(route.entry(&format!("r{number}"))).await;
    }
    // All routes of a port arrive in one piece.
    let path = format!("/set-{at}");
    mesh.entry(json!({
        "Kind": "http-route", "Name": "mark", "Parents": [{"Name": "edge"}], "Hostnames": ["mark.example"],
        "Rules": [{"Matches": [{"Path": {"Match": "exact", "Value": path}}], "Services": [{"Name": "api"}]}],
    }))
    .await;
    let ask = || async {
        let request = Request::get(&path).header("host", "mark.example");
        let answer = client::ask(gateway, request.body(Full::default()).expect("a request")).await;
        answer
            .map(|answer| answer.status().as_u16())
            .unwrap_or_default()
    };
    eventually("the gateway has the routes", ask, |status| *status == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_reach_what_the_routes_say() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    mesh.intend("edge", "*", "allow").await;
    let mut sidecars = vec![mesh.add(&API).await, mesh.add(&OTHER).await];
    for (name, protocol) in [(GONE, "http"), (BYTES, "tcp")] {
        mesh.entry(json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol}))
            .await;
    }
    let listeners = json!([{"Name": "one", "Port": HTTP, "Protocol": "http"}]);
    mesh.entry(json!({"Kind": "api-gateway", "Name": "edge", "Listeners": listeners}))
        .await;
    let edge = mesh.add_gateway("api-gateway", "edge", json!({})).await;
    let gateway: SocketAddr = (edge.address, HTTP).into();
    sidecars.push(edge);

    let mut runner = TestRunner::default();
    let mut last = 0;
    for at in 0..SETS {
        let routes = routes().new_tree(&mut runner).expect("routes").current();
        put(&mesh, gateway, at, last, &routes).await;
        last = routes.len();
        for asked in requests() {
            let expected = expected(&routes, &asked);
            let found = outcome(gateway, &asked).await;
            let found = found.unwrap_or_else(|error| panic!("{asked:?}: {error}"));
            assert!(
                expected.contains(&found),
                "{asked:?}: {found:?} instead of {expected:?}, with {routes:#?}"
            );
        }
    }
    for mut sidecar in sidecars {
        assert!(sidecar.stop().await.success(), "{}", sidecar.log());
    }
    mesh.stop().await;
}
