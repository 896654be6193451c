//! Noise on every path: for any method, query string, headers and body, the response is prompt, small and not
//! an internal error, and the server keeps serving.
//!
//! Paths are taken from the router's source, so that new ones are covered automatically; bodies are derived
//! from the recorded requests in `tests/interop/http`. All noise is generated from one seed.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::acl::{MANAGEMENT, deny_by_default};
use crate::http_client::{Client, start};

const ROUTES: &str = include_str!("../../src/http/mod.rs");
const RECORDINGS: [&str; 9] = [
    include_str!("../../../../tests/interop/http/acl-nouns.txt"),
    include_str!("../../../../tests/interop/http/acl-rights.txt"),
    include_str!("../../../../tests/interop/http/plain-agent.txt"),
    include_str!("../../../../tests/interop/http/plain-catalog.txt"),
    include_str!("../../../../tests/interop/http/plain-config.txt"),
    include_str!("../../../../tests/interop/http/plain-intentions.txt"),
    include_str!("../../../../tests/interop/http/plain-kv.txt"),
    include_str!("../../../../tests/interop/http/plain-queries.txt"),
    include_str!("../../../../tests/interop/http/plain-sessions.txt"),
];
/// Paths that stop the server, or whose responses do not end.
const LEFT_OUT: [&str; 4] = [
    "/v1/agent/leave",
    "/v1/agent/monitor",
    "/v1/agent/metrics/stream",
    "/debug/pprof/{name}",
];
const NAMES: [&str; 10] = [
    "web",
    "n1",
    "%00",
    "%ff",
    "..",
    "a%2Fb",
    "%F0%9F%A6%80",
    "*",
    "",
    "11111111-2222-3333-4444-555555555555",
];
const PARAMETERS: &str = "acquire all by bind-type cached cas compile-dc consistent dc destination dry-run enable \
    expanded filter flags format global hash index keys kind limit loglevel merge-central-config name near \
    node node-meta note ns partition passing peer pem pretty prune raw reason recurse relay-factor release \
    replace-existing-checks separator service source stale tag token type wan";
const VALUES: [&str; 12] = [
    "",
    "1",
    "-1",
    "99999999999999999999",
    "true",
    "x",
    "%ff",
    "%00",
    "a+==+b",
    "((((((((((((((((",
    "Node+matches+%22(%22",
    "a:b",
];
/// Requests per method of a path.
const ROUNDS: usize = 12;
const SOON: Duration = Duration::from_secs(10);
const SMALL: usize = 4 << 20;

/// A deterministic sequence of numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from(mixed >> 33).unwrap()
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.next() % all.len()]
    }

    fn chance(&mut self, of: usize) -> bool {
        self.next().is_multiple_of(of)
    }
}

fn routes() -> BTreeSet<&'static str> {
    let texts = ROUTES.split('"').skip(1).step_by(2);
    let mut routes: BTreeSet<_> = texts
        .filter(|text| text.starts_with("/v1/") || text.starts_with("/debug/"))
        .collect();
    for path in LEFT_OUT {
        assert!(routes.remove(path), "{path} is no route");
    }
    routes
}

/// The first line and the body of each recorded request with a body.
fn bodies() -> Vec<(String, String)> {
    let mut bodies = Vec::new();
    for block in RECORDINGS
        .iter()
        .flat_map(|text| text.split("\n=== ").skip(1))
    {
        let (request, _) = block.split_once("\n--- ").unwrap_or((block, ""));
        let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
        let path = head.split_whitespace().nth(1).unwrap_or_default();
        if !body.trim().is_empty() {
            bodies.push((path.to_owned(), body.to_owned()));
        }
    }
    bodies
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_path_survives_noise() {
    let (_server, client) = start(deny_by_default).await;
    let client = client.with_token(MANAGEMENT);
    let routes = routes();
    assert!(routes.len() > 120, "{}", routes.len());
    let bodies = bodies();
    assert!(bodies.len() > 200, "{}", bodies.len());
    let mut numbers = Numbers(1);
    for route in routes {
        let beginning = route.split('{').next().unwrap();
        let own: Vec<_> = bodies
            .iter()
            .filter(|(path, _)| path.starts_with(beginning))
            .map(|(_, body)| body.as_str())
            .collect();
        let methods = methods(&client, route).await;
        for round in 0..ROUNDS {
            for method in &methods {
                let path = path(route, &mut numbers);
                let seed = match own.is_empty() || numbers.chance(8) {
                    true => numbers.one_of(&bodies).1.as_str(),
                    false => *numbers.one_of(&own),
                };
                let body = body(seed, round, &mut numbers);
                survives(&client, method, &path, body, &mut numbers).await;
            }
        }
        let after = client.get("/v1/status/leader").await;
        assert_eq!(after.status, StatusCode::OK, "after {route}");
    }
    client.write("/v1/kv/after", &json!("all")).await;
    assert_eq!(client.get("/v1/kv/after?raw").await.text(), "\"all\"");
}

/// The methods of the path, and one that no path has.
async fn methods(client: &Client, route: &str) -> Vec<Method> {
    let path = route.replace(['{', '}', '*'], "");
    let reply = client.send(Method::OPTIONS, &path, "").await;
    let allowed = reply.header("allow").split(',').map(str::parse);
    let own = allowed.filter_map(Result::ok);
    own.filter(|method| *method != Method::OPTIONS)
        .chain([Method::PATCH])
        .collect()
}

async fn survives(
    client: &Client,
    method: &Method,
    path: &str,
    body: Bytes,
    numbers: &mut Numbers,
) {
    let shown = format!("{method} {path} {:?}", String::from_utf8_lossy(&body));
    let mut request = Request::builder().method(method).uri(path);
    if !numbers.chance(5) {
        request = request.header("x-consul-token", &client.token);
    }
    if numbers.chance(4) {
        let (name, value) = *numbers.one_of(&[
            ("accept-encoding", "gzip"),
            ("authorization", "Bearer x"),
            ("cache-control", "max-age=x"),
            (
                "cache-control",
                "max-age=99999999999999999999, stale-if-error",
            ),
            ("content-type", "nonsense"),
            ("x-consul-token", ""),
            ("traceparent", "00-x"),
        ]);
        request = request.header(name, value);
    }
    let request = request.body(Full::new(body)).unwrap();
    let reply = tokio::time::timeout(SOON, client.exchange(request)).await;
    let reply = reply.unwrap_or_else(|_| panic!("no answer: {shown}"));
    assert!(reply.body.len() <= SMALL, "{}: {shown}", reply.body.len());
    if reply.status.is_server_error() && *method != Method::HEAD {
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        let defect = [
            "The server failed on this request",
            "could not be encoded as JSON",
        ];
        assert!(
            !text.is_empty() && !defect.iter().any(|word| text.contains(word)),
            "{}: {text}: {shown}",
            reply.status
        );
    }
}

/// The route with generated names, and a query string.
fn path(route: &str, numbers: &mut Numbers) -> String {
    let mut path = String::new();
    for part in route.split('/').skip(1) {
        path.push('/');
        match part.starts_with('{') {
            true if numbers.chance(16) => path.push_str(&"long".repeat(200)),
            true => {
                let name = *numbers.one_of::<&str>(&NAMES);
                path.push_str(name);
            }
            false => path.push_str(part),
        }
    }
    let names: Vec<_> = PARAMETERS.split_whitespace().collect();
    // Limits the wait of blocking queries.
    path.push_str("?wait=1ms");
    for _ in 0..numbers.next() % 4 {
        let (name, value) = (*numbers.one_of(&names), *numbers.one_of(&VALUES));
        let _ = write!(path, "&{name}={value}");
    }
    path
}

/// The body as recorded, with a changed value, with damage, or random.
fn body(seed: &str, round: usize, numbers: &mut Numbers) -> Bytes {
    match (round % 4, serde_json::from_str::<Value>(seed)) {
        (0, _) => Bytes::copy_from_slice(seed.as_bytes()),
        (1, Ok(mut value)) => {
            for _ in 0..=numbers.next() % 3 {
                mutate(&mut value, numbers);
            }
            Bytes::from(value.to_string())
        }
        (3, _) if numbers.chance(2) => {
            let length = numbers.next() % 300;
            (0..length)
                .map(|_| numbers.next().to_le_bytes()[0])
                .collect()
        }
        _ => {
            let mut bytes = seed.as_bytes().to_vec();
            for _ in 0..=numbers.next() % 4 {
                let place = numbers.next() % bytes.len();
                bytes[place] = *numbers.one_of(b"\0\xff\"{}[]:,0-\\eN ");
            }
            if numbers.chance(4) {
                bytes.truncate(numbers.next() % bytes.len());
            }
            Bytes::from(bytes)
        }
    }
}

/// Replaces a value somewhere in the document.
fn mutate(value: &mut Value, numbers: &mut Numbers) {
    let inside = match value {
        Value::Object(fields) if !fields.is_empty() && !numbers.chance(6) => {
            let place = numbers.next() % fields.len();
            fields.values_mut().nth(place)
        }
        Value::Array(elements) if !elements.is_empty() && !numbers.chance(6) => {
            let place = numbers.next() % elements.len();
            elements.get_mut(place)
        }
        _ => None,
    };
    if let Some(inside) = inside {
        return mutate(inside, numbers);
    }
    let deep = (0..200).fold(json!(1), |inside, _| json!([inside]));
    let others = [
        json!(null),
        json!(true),
        json!(-1),
        json!(u64::MAX),
        json!(1e300),
        json!(""),
        json!("x".repeat(10_000)),
        json!("\u{0}\u{202e}/../*"),
        json!("-5s"),
        json!("99999999h"),
        json!([]),
        json!({}),
        json!({ "Kind": null, "kind": 1 }),
        json!(vec![json!({}); 1000]),
        deep,
    ];
    *value = numbers.one_of(&others).clone();
}
