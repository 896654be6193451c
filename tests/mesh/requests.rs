//! Generated permissions and requests: the decisions of a real Envoy match the documented rule.
//!
//! The rule: the first matching permission decides, or else the default. A condition on a header holds
//! if one of the header's lines satisfies it; an inverted one if none does. An absent header satisfies
//! no condition on its value, and an inverted one only in permissions that deny. The application
//! receives the path that was compared.

use std::collections::BTreeMap;

use http::Method;
use legate_tests::{Mesh, MeshOptions, client, eventually};
use regex::Regex;
use serde_json::{Value, json};

use crate::{API, WEB};

/// The number of sets of permissions for each kind of mesh, and of requests for each set.
const SETS: usize = 12;
const REQUESTS: usize = 40;

/// A path as sent, as compared by default, and as compared if the mesh merges slashes and unescapes
/// escaped ones.
const PATHS: [(&str, &str, &str); 22] = [
    ("/", "/", "/"),
    ("/admin", "/admin", "/admin"),
    ("/admin/", "/admin/", "/admin/"),
    ("/ADMIN", "/ADMIN", "/ADMIN"),
    ("/admins", "/admins", "/admins"),
    ("/admin/x", "/admin/x", "/admin/x"),
    ("/admin?x=/public", "/admin", "/admin"),
    ("//admin", "//admin", "/admin"),
    ("/./admin", "/admin", "/admin"),
    ("/public/../admin", "/admin", "/admin"),
    ("/public/%2e%2e/admin", "/admin", "/admin"),
    ("/public/.%2E/admin", "/admin", "/admin"),
    ("/public//../admin", "/public/admin", "/public/admin"),
    ("/%61dmin", "/admin", "/admin"),
    ("/admin%2Fx", "/admin%2Fx", "/admin/x"),
    ("/public%2f..%2fadmin", "/public%2f..%2fadmin", "/admin"),
    ("/public%5c..%5cadmin", "/public%5c..%5cadmin", "/admin"),
    ("/\\admin", "//admin", "/admin"),
    ("/public\\..\\admin", "/admin", "/admin"),
    ("/admin;v=1", "/admin;v=1", "/admin;v=1"),
    ("/v12/item", "/v12/item", "/v12/item"),
    ("/public", "/public", "/public"),
];
const MATCHED: [&str; 6] = ["/admin", "/admin/", "/admin/x", "/public", "/", "/v1"];
const REGEXES: [&str; 4] = ["/adm.n", "/v[0-9]+/.*", "/(admin|public)(/.*)?", "/.*min"];
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"];
const VALUES: [&str; 8] = [
    "admin",
    "Admin",
    "guest",
    "administrator",
    "superadmin",
    "x,admin",
    "",
    "ad min",
];
const CONDITIONS: [&str; 6] = ["Present", "Exact", "Prefix", "Suffix", "Contains", "Regex"];

/// A deterministic random number generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let limit = u64::try_from(limit).expect("a small number");
        usize::try_from((z ^ (z >> 31)) % limit).expect("a small number")
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// A random permission; those that differ from the default are twice as likely.
    fn permission(&mut self, default: &str) -> Value {
        let mut http = json!({});
        match self.below(4) {
            0 => http["PathExact"] = json!(self.one(&MATCHED)),
            1 => http["PathPrefix"] = json!(self.one(&MATCHED)),
            2 => http["PathRegex"] = json!(self.one(&REGEXES)),
            _ => {}
        }
        let conditions = [0, 1, 1, 2][self.below(4)];
        let headers: Vec<Value> = (0..conditions).map(|_| self.condition()).collect();
        if !headers.is_empty() {
            http["Header"] = json!(headers);
        }
        if self.below(3) == 0 || http == json!({}) {
            let first = self.below(METHODS.len());
            http["Methods"] = json!([METHODS[first], METHODS[(first + 1) % METHODS.len()]]);
        }
        let action = match (self.below(3), default) {
            (0, default) => default,
            (_, "deny") => "allow",
            _ => "deny",
        };
        json!({"Action": action, "HTTP": http})
    }

    fn condition(&mut self) -> Value {
        let kind = *self.one(&CONDITIONS);
        let mut condition = json!({"Name": *self.one(&["X-Role", "x-debug", "x_role"])});
        condition[kind] = match kind {
            "Present" => json!(true),
            "Regex" => json!("(x,)?[aA]dmin"),
            _ => json!(self.one(&["admin", "Admin", "guest"])),
        };
        if self.below(3) == 0 {
            condition["Invert"] = json!(true);
        }
        if !["Present", "Regex"].contains(&kind) && self.below(2) == 0 {
            condition["IgnoreCase"] = json!(true);
        }
        condition
    }

    fn request(&mut self) -> Request {
        let mut headers = Vec::new();
        for name in ["X-ROLE", "x-debug"] {
            for _ in 0..[0, 0, 1, 1, 2][self.below(5)] {
                headers.push((name, *self.one(&VALUES)));
            }
        }
        if self.below(6) == 0 {
            headers.push(("x_role", *self.one(&VALUES)));
        }
        Request {
            method: METHODS[self.below(METHODS.len())],
            path: self.below(PATHS.len()),
            headers,
        }
    }
}

#[derive(Debug)]
struct Request {
    method: &'static str,
    /// The index in [`PATHS`].
    path: usize,
    headers: Vec<(&'static str, &'static str)>,
}

impl Request {
    fn text(&self) -> String {
        let path = PATHS[self.path].0;
        let mut text = format!("{} {path} HTTP/1.1\r\nhost: api\r\n", self.method);
        text.push_str("connection: close\r\ncontent-length: 0\r\n");
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("\r\n");
        text
    }

    /// The path as compared by conditions.
    fn compared(&self, form: Form) -> &'static str {
        match form {
            Form::Usual => PATHS[self.path].1,
            Form::Strict => PATHS[self.path].2,
        }
    }

    fn lines(&self, name: &str) -> Vec<&'static str> {
        let is = |other: &str| other.eq_ignore_ascii_case(name);
        let lines = self.headers.iter().filter(|(other, _)| is(other));
        lines.map(|(_, value)| *value).collect()
    }
}

/// The mesh's normalization of requests.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Usual,
    Strict,
}

/// The documented rule: the status of the response to a request.
fn rule(permissions: &[Value], request: &Request, form: Form, default: &str) -> u16 {
    let has_underscore = request.headers.iter().any(|(name, _)| name.contains('_'));
    if form == Form::Strict && has_underscore {
        return 400;
    }
    let path = request.compared(form);
    let decides = permissions.iter().find(|one| fits(one, request, path));
    match decides.map_or(default, |one| one["Action"].as_str().expect("an action")) {
        "allow" => 200,
        _ => 403,
    }
}

fn fits(permission: &Value, request: &Request, path: &str) -> bool {
    let http = &permission["HTTP"];
    let text = |field: &str| http[field].as_str();
    let list = |field: &str| http[field].as_array().into_iter().flatten();
    let whole = |regex: &str| Regex::new(&format!("^(?:{regex})$")).expect("a regex");
    let denies = permission["Action"] == "deny";
    text("PathExact").is_none_or(|exact| path == exact)
        && text("PathPrefix").is_none_or(|prefix| path.starts_with(prefix))
        && text("PathRegex").is_none_or(|regex| whole(regex).is_match(path))
        && (http["Methods"].is_null() || list("Methods").any(|one| *one == request.method))
        && list("Header").all(|condition| meets(condition, request, denies))
}

fn meets(condition: &Value, request: &Request, denies: bool) -> bool {
    let name = condition["Name"].as_str().expect("a name");
    let invert = condition["Invert"] == true;
    let mut lines = request.lines(name);
    if condition["Present"] == true {
        return lines.is_empty() == invert;
    }
    if lines.is_empty() {
        if !(invert && denies) {
            return false;
        }
        lines.push("");
    }
    lines.iter().any(|line| is_met(condition, line)) != invert
}

fn is_met(condition: &Value, line: &str) -> bool {
    let lower = |text: &str| match condition["IgnoreCase"] == true {
        true => text.to_lowercase(),
        false => text.to_owned(),
    };
    let shown = lower(line);
    let text = |field: &str| condition[field].as_str().map(lower);
    text("Exact").is_none_or(|exact| shown == exact)
        && text("Prefix").is_none_or(|prefix| shown.starts_with(&prefix))
        && text("Suffix").is_none_or(|suffix| shown.ends_with(&suffix))
        && text("Contains").is_none_or(|part| shown.contains(&part))
        && condition["Regex"].as_str().is_none_or(|regex| {
            let regex = Regex::new(&format!("^(?:{regex})$")).expect("a regex");
            regex.is_match(line)
        })
}

/// Writes permissions and waits until they apply: the first one is identified by its path.
async fn intend(mesh: &Mesh, set: usize, permissions: &[Value]) {
    let marker = format!("/set-{set}");
    let mut all = vec![
        json!({"Action": "allow", "HTTP": {"PathExact": marker}}),
        json!({"Action": "deny", "HTTP": {"PathPrefix": "/set-"}}),
    ];
    all.extend_from_slice(permissions);
    let entry = json!({"Kind": "service-intentions", "Name": "api", "Sources": [
        {"Name": "web", "Permissions": all},
    ]});
    mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
    let upstream = mesh.upstream("web", 0);
    let ask = || async {
        let answer = client::get(upstream, &marker).await;
        answer.map(|(status, _)| status.as_u16()).unwrap_or(0)
    };
    // The previous set refuses this path.
    eventually("the permissions hold", ask, |status| *status == 200).await;
}

async fn agrees(form: Form, allow: bool, seed: u64) {
    let mut mesh = Mesh::start(MeshOptions {
        allow,
        ..MeshOptions::default()
    })
    .await;
    if form == Form::Strict {
        let normalization = json!({
            "MergeSlashes": true, "PathWithEscapedSlashesAction": "UNESCAPE_AND_FORWARD",
            "HeadersWithUnderscoresAction": "REJECT_REQUEST",
        });
        let entry = json!({"Kind": "mesh", "HTTP": {"Incoming": {
            "RequestNormalization": normalization,
        }}});
        mesh.api(Method::PUT, "/v1/config", Some(entry)).await;
    }
    let mut sidecars = vec![mesh.add(&API).await, mesh.add(&WEB).await];
    let default = if allow { "allow" } else { "deny" };
    let mut dice = Dice(seed);
    let mut answers = BTreeMap::new();
    for set in 0..SETS {
        let permissions: Vec<Value> = (0..1 + dice.below(5))
            .map(|_| dice.permission(default))
            .collect();
        intend(&mesh, set, &permissions).await;
        for _ in 0..REQUESTS {
            let request = dice.request();
            let expected = rule(&permissions, &request, form, default);
            let answer = client::raw(mesh.upstream("web", 0), &request.text()).await;
            let (status, body) = answer.unwrap_or_else(|error| panic!("{request:?}: {error}"));
            assert_eq!(
                status.as_u16(),
                expected,
                "{} {request:?} default {default} seed {seed}: {permissions:#?}",
                PATHS[request.path].0
            );
            if expected == 200 && request.method != "HEAD" {
                let path = format!("\"path\":\"{}", request.compared(form));
                let ends = |rest: &str| rest.starts_with(['"', '?']);
                assert!(body.split(&path).skip(1).any(ends), "{request:?}: {body}");
            }
            *answers.entry(expected).or_insert(0) += 1;
        }
    }
    // Both results occur often.
    assert!(answers[&200] > 50 && answers[&403] > 50, "{answers:?}");
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success());
    }
    mesh.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_matches_the_rule_with_default_deny() {
    agrees(Form::Usual, false, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_matches_the_rule_with_default_allow() {
    agrees(Form::Usual, true, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_matches_the_rule_with_strict_normalization() {
    agrees(Form::Strict, false, 3).await;
    agrees(Form::Strict, true, 4).await;
}

/// The host of a request is a header like any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_host_is_a_header() {
    let mut mesh = Mesh::start(MeshOptions::default()).await;
    let mut sidecars = vec![mesh.add(&API).await, mesh.add(&WEB).await];
    let host = json!({"Name": "Host", "Suffix": "bad.com", "IgnoreCase": true});
    let permissions = [
        json!({"Action": "deny", "HTTP": {"Header": [host]}}),
        json!({"Action": "allow", "HTTP": {"PathPrefix": "/"}}),
    ];
    intend(&mesh, 0, &permissions).await;
    for (host, status) in [
        ("foo.bad.com", 403),
        ("foo.BaD.com", 403),
        ("bad.com.example", 200),
        ("api", 200),
    ] {
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = client::raw(mesh.upstream("web", 0), &request).await;
        assert_eq!(answer.expect("an answer").0.as_u16(), status, "{host}");
    }
    for sidecar in &mut sidecars {
        assert!(sidecar.stop().await.success());
    }
    mesh.stop().await;
}
