use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use clap::Parser;
use http::{HeaderMap, Method, StatusCode, Uri};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;

/// State of a fake API server and fake servers, which are one HTTP server here.
#[derive(Clone, Debug, Default, PartialEq)]
struct Held {
    secrets: BTreeMap<String, Value>,
    /// The first token.
    token: Option<String>,
    /// Objects by kind and id.
    objects: BTreeMap<(String, String), Value>,
}

#[derive(Default)]
struct World {
    held: Held,
    /// Names of the requests that changed something, with the datacenter that they name.
    written: Vec<String>,
    requests: usize,
    /// The request that fails, and whether it still has its effect.
    breaks: Option<(usize, bool)>,
    acl_disabled: bool,
}

type Shared = Arc<Mutex<World>>;

const OWN_LIST: [(&str, &str); 4] = [
    ("policies", "policy"),
    ("roles", "role"),
    ("auth-methods", "auth-method"),
    ("binding-rules", "binding-rule"),
];

impl World {
    fn answer(&mut self, method: &Method, uri: &Uri, token: &str, body: &Value) -> (u16, Value) {
        self.requests += 1;
        let breaks = self.breaks.filter(|(at, _)| *at <= self.requests);
        if breaks.is_some_and(|(at, effect)| at < self.requests || !effect) {
            return (500, json!("No cluster leader"));
        }
        let path: Vec<&str> = uri.path().split('/').skip(1).collect();
        let before = self.held.clone();
        let answer = match path.as_slice() {
            ["api", "v1", "namespaces", "mesh", "secrets", rest @ ..] => self.secret(rest, body),
            ["v1", "acl", ..] if self.acl_disabled => (401, json!("ACL support disabled")),
            ["v1", "acl", "bootstrap"] => match &self.held.token {
                Some(_) => (
                    403,
                    json!("ACL bootstrap no longer allowed (reset index: 9)"),
                ),
                None => {
                    let secret = body["BootstrapSecret"].as_str().unwrap();
                    self.held.token = Some(secret.to_owned());
                    (200, json!({"SecretID": secret}))
                }
            },
            ["v1", "acl", "replication"] => {
                (200, json!({"LastErrorMessage": "no gateway answers"}))
            }
            ["v1", "acl", "token", "self"] if self.has_made(token) => (200, json!({})),
            ["v1", "acl", ..] if self.held.token.as_deref() != Some(token) => {
                (403, json!("ACL not found"))
            }
            ["v1", "acl", "token", "self"] => (200, json!({})),
            ["v1", "namespace" | "partition", ..] if self.held.token.as_deref() != Some(token) => {
                (403, json!("ACL not found"))
            }
            ["v1", kind @ ("namespace" | "partition"), rest @ ..] => {
                self.tenant(method, kind, rest, body)
            }
            ["v1", "acl", ..] if !self.has_tenants(uri.query()) => {
                (400, json!("no such namespace or partition"))
            }
            ["v1", "acl", rest @ ..] => self.object(method, rest, uri.query(), body),
            _ => (404, json!("unknown")),
        };
        if before != self.held {
            let datacenter = parameter(uri.query(), "dc");
            let datacenter = datacenter.map_or_else(String::new, |dc| format!(" in {dc}"));
            self.written
                .push(format!("{method} {}{datacenter}", uri.path()));
        }
        match breaks {
            Some(_) => (500, json!("the answer is lost")),
            None => answer,
        }
    }

    fn secret(&mut self, rest: &[&str], body: &Value) -> (u16, Value) {
        let missing = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "not found", "reason": "NotFound", "code": 404,
        });
        match rest {
            [name] => match self.held.secrets.get(*name) {
                Some(secret) => (200, secret.clone()),
                None => (404, missing),
            },
            _ => {
                let name = body["metadata"]["name"].as_str().unwrap().to_owned();
                self.held.secrets.insert(name, body.clone());
                (201, body.clone())
            }
        }
    }

    fn has_made(&self, secret: &str) -> bool {
        let mut objects = self.held.objects.values();
        objects.any(|object| object["SecretID"] == secret)
    }

    fn tenant(&mut self, method: &Method, kind: &str, rest: &[&str], body: &Value) -> (u16, Value) {
        let name = rest.first().copied().or(body["Name"].as_str()).unwrap();
        let key = (kind.to_owned(), name.to_owned());
        if method == Method::PUT {
            self.held.objects.insert(key.clone(), body.clone());
        }
        match (self.held.objects.get(&key), name) {
            (Some(held), _) => (200, held.clone()),
            (None, "default") => (200, json!({"Name": "default", "ACLs": null})),
            (None, _) => (404, json!("not found")),
        }
    }

    fn has_tenants(&self, query: Option<&str>) -> bool {
        [("ns", "namespace"), ("partition", "partition")]
            .into_iter()
            .all(|(name, kind)| {
                let named = parameter(query, name).filter(|name| name != "default");
                let key = named.map(|name| (kind.to_owned(), name));
                key.is_none_or(|key| self.held.objects.contains_key(&key))
            })
    }

    fn object(
        &mut self,
        method: &Method,
        rest: &[&str],
        query: Option<&str>,
        body: &Value,
    ) -> (u16, Value) {
        let objects = &mut self.held.objects;
        if let [list] = rest
            && let Some((_, kind)) = OWN_LIST.iter().find(|(name, _)| name == list)
        {
            let of_method = parameter(query, "authmethod");
            let ns = parameter(query, "ns").unwrap_or("default".to_owned());
            let found = objects
                .iter()
                .filter(|((known, _), _)| known == kind)
                .filter(|(_, held)| held["Namespace"].as_str().unwrap_or("default") == ns)
                .filter(|(_, held)| {
                    let of_method = of_method.as_ref();
                    of_method.is_none_or(|name| held["AuthMethod"] == *name)
                });
            // As in Consul, lists leave out large and secret fields.
            let listed = found.map(|(_, held)| {
                let mut listed = held.clone();
                listed.as_object_mut().unwrap().remove("Config");
                listed.as_object_mut().unwrap().remove("Rules");
                listed
            });
            return (200, listed.collect());
        }
        let kind = rest[0].to_owned();
        let id = match rest {
            [_, id] => (*id).to_owned(),
            _ if kind == "auth-method" => body["Name"].as_str().unwrap().to_owned(),
            _ => format!("id-{}", objects.len()),
        };
        let key = (kind.clone(), id.clone());
        match method.as_str() {
            "GET" => (200, objects[&key].clone()),
            "DELETE" => (200, json!(objects.remove(&key).is_some())),
            _ => {
                let mut held = body.clone();
                if kind != "auth-method" {
                    held["ID"] = json!(id);
                }
                if let Some(namespace) = parameter(query, "ns") {
                    held["Namespace"] = json!(namespace);
                }
                objects.insert(key, held.clone());
                (200, held)
            }
        }
    }
}

fn parameter(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = query?.split('&').filter_map(|pair| pair.split_once('='));
    let found = pairs.find(|(known, _)| *known == name);
    found.map(|(_, value)| value.to_owned())
}

async fn handle(
    State(world): State<Shared>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let token = headers.get("x-consul-token");
    let token = token.map_or("", |value| value.to_str().unwrap());
    let body = serde_json::from_slice(&body).unwrap_or_default();
    let (status, value) = world.lock().unwrap().answer(&method, &uri, token, &body);
    let status = StatusCode::from_u16(status).unwrap();
    let text = match value {
        Value::String(text) => text,
        value => value.to_string(),
    };
    (status, [("content-type", "application/json")], text).into_response()
}

/// The flags that the chart sets.
#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    options: Options,
}

struct Running {
    world: Shared,
    options: Options,
    client: Client,
    servers: Servers,
    _scope: Scope,
}

impl Running {
    async fn start(flags: &[&str]) -> Running {
        let world = Shared::default();
        let ca = "-----BEGIN CERTIFICATE-----";
        let encoded = |text: &str| ByteStringJson::of(text);
        let reviewer = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "full-auth-method"},
            "data": {"ca.crt": encoded(ca), "token": encoded("reviewer.token.jwt")},
        });
        let name = "full-auth-method".to_owned();
        world.lock().unwrap().held.secrets.insert(name, reviewer);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(handle).with_state(world.clone());
        let scope = Scope::new("test");
        let serve = axum::serve(listener, router);
        scope.spawn("world", std::future::IntoFuture::into_future(serve));
        let port = format!("--server-http-port={}", address.port());
        let own = [
            "acl-init",
            "--full-name=full",
            "--namespace=mesh",
            "--server-addresses=127.0.0.1",
            &port,
        ];
        let options = Flags::parse_from(own.iter().chain(flags)).options;
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Running {
            world,
            client: Client::try_from(config).unwrap(),
            servers: Servers::new(
                options.servers.options(Credentials::None).unwrap(),
                scope.spawner(),
            )
            .unwrap(),
            options,
            _scope: scope,
        }
    }

    async fn attempt(&self) -> Result<(), Failure> {
        attempt(&self.options, &self.client, &self.servers).await
    }

    fn held(&self) -> Held {
        self.world.lock().unwrap().held.clone()
    }

    /// Takes the names of the requests that wrote since the last call.
    fn written(&self) -> Vec<String> {
        std::mem::take(&mut self.world.lock().unwrap().written)
    }

    #[track_caller]
    fn names(&self, kind: &str) -> Vec<String> {
        let held = self.held();
        let of_kind = held.objects.iter().filter(|((known, _), _)| known == kind);
        let name = |object: &Value| match object["Name"].as_str() {
            Some(name) => name.to_owned(),
            None => format!("{}: {}", object["AuthMethod"], object["BindName"]),
        };
        of_kind.map(|(_, object)| name(object)).collect()
    }
}

/// Bytes in Kubernetes' JSON encoding.
struct ByteStringJson;

impl ByteStringJson {
    fn of(text: &str) -> Value {
        serde_json::to_value(k8s_openapi::ByteString(text.as_bytes().to_vec())).unwrap()
    }
}

/// Clears the values that differ between clean runs.
fn without_token(mut held: Held) -> Held {
    held.token = held.token.map(|_| String::new());
    for object in held.objects.values_mut() {
        object.as_object_mut().unwrap().remove("SecretID");
    }
    for secret in held.secrets.values_mut() {
        secret["data"] = Value::Null;
    }
    held
}

#[tokio::test]
async fn everything_is_made_once_and_nothing_the_second_time() {
    let running = Running::start(&["--kubernetes-host=https://10.0.0.1"]).await;
    running.attempt().await.unwrap();
    assert_eq!(running.names("policy"), ["full-operator-acl-policy"]);
    assert_eq!(running.names("role"), ["full-operator-acl-role"]);
    assert_eq!(
        running.names("auth-method"),
        ["full-k8s-auth-method", "full-k8s-component-auth-method"]
    );
    assert_eq!(
        running.names("binding-rule"),
        [
            "\"full-k8s-auth-method\": \"${serviceaccount.name}\"",
            "\"full-k8s-component-auth-method\": \"full-operator-acl-role\"",
        ]
    );
    let held = running.held();
    let key = ("auth-method".to_owned(), "full-k8s-auth-method".to_owned());
    let config = &held.objects[&key]["Config"];
    assert_eq!(config["Host"], "https://10.0.0.1");
    assert_eq!(config["ServiceAccountJWT"], "reviewer.token.jwt");
    let kept = &held.secrets["full-bootstrap-acl-token"]["data"]["token"];
    assert_eq!(*kept, ByteStringJson::of(&held.token.unwrap()));
    assert_eq!(running.written().len(), 8);

    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
    drop(running);
}

#[tokio::test]
async fn each_gateway_logs_in_and_keeps_what_others_gave_to_it() {
    let flags = [
        "--mesh-gateway=mesh-gateway",
        "--ingress-gateway=edge",
        "--terminating-gateway=egress",
    ];
    let mut running = Running::start(&flags).await;
    running.attempt().await.unwrap();
    let parts = ["operator", "mesh-gateway", "edge", "egress"];
    let roles = parts.map(|part| format!("full-{part}-acl-role"));
    assert_eq!(running.names("policy").len(), 4);
    assert_eq!(running.names("role"), roles);
    let find = |held: &Held, kind: &str, field: &str, name: &str| {
        let mut of_kind = held.objects.iter().filter(|((known, _), _)| known == kind);
        let found = of_kind.find(|(_, object)| object[field] == name);
        found.map(|(key, object)| (key.clone(), object.clone()))
    };
    let held = running.held();
    let (_, rule) = find(&held, "binding-rule", "BindName", "full-edge-acl-role").unwrap();
    assert_eq!(rule["AuthMethod"], "full-k8s-component-auth-method");
    assert_eq!(
        rule["Selector"],
        "serviceaccount.namespace==\"mesh\" and serviceaccount.name==\"full-edge\""
    );
    let (_, policy) = find(&held, "policy", "Name", "full-mesh-gateway-acl-policy").unwrap();
    let rules = policy["Rules"].as_str().unwrap();
    assert!(rules.starts_with("mesh = \"write\"\nservice \"mesh-gateway\""));
    running.written();

    // An operator gives the terminating gateway rights on what it represents.
    let (key, mut role) = find(&held, "role", "Name", "full-egress-acl-role").unwrap();
    let links = json!([{"Name": "db-write"}, {"Name": "full-egress-acl-policy"}]);
    role["Policies"] = links.clone();
    role["ServiceIdentities"] = json!([{"ServiceName": "db"}]);
    running
        .world
        .lock()
        .unwrap()
        .held
        .objects
        .insert(key.clone(), role);
    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
    running
        .world
        .lock()
        .unwrap()
        .held
        .objects
        .get_mut(&key)
        .unwrap()["Description"] = json!("");
    running.attempt().await.unwrap();
    assert_eq!(running.written().len(), 1);
    let role = &running.held().objects[&key];
    assert_eq!(role["Policies"], links);
    assert_eq!(role["ServiceIdentities"], json!([{"ServiceName": "db"}]));

    // A gateway that the chart no longer has cannot log in.
    running.options.ingress_gateway.clear();
    running.attempt().await.unwrap();
    let held = running.held();
    assert!(find(&held, "binding-rule", "BindName", "full-edge-acl-role").is_none());
    assert_eq!(running.names("binding-rule").len(), 4);
    assert_eq!(running.written().len(), 1);
}

#[tokio::test]
async fn gateways_of_the_gateway_api_log_in_by_the_names_of_their_accounts() {
    let name = "${serviceaccount.namespace}--${serviceaccount.name}";
    for (flags, expected) in [(&[][..], 0), (&["--api-gateways"], 1)] {
        let running = Running::start(flags).await;
        running.attempt().await.unwrap();
        let held = running.held();
        let rules = held.objects.values();
        let mut rules: Vec<_> = rules.filter(|object| object["BindName"] == name).collect();
        assert_eq!(rules.len(), expected);
        if let Some(rule) = rules.pop() {
            assert_eq!(rule["BindType"], "service");
            assert_eq!(rule["AuthMethod"], "full-k8s-component-auth-method");
        }
    }
}

#[tokio::test]
async fn after_a_crash_at_any_request_the_next_run_goes_on() {
    let flags = ["--create-replication-token"];
    let clean = Running::start(&flags).await;
    clean.attempt().await.unwrap();
    let requests = clean.world.lock().unwrap().requests;
    assert!(requests > 15);
    for effect in [false, true] {
        for at in 1..=requests {
            let running = Running::start(&flags).await;
            running.world.lock().unwrap().breaks = Some((at, effect));
            let failure = running.attempt().await.unwrap_err();
            assert!(matches!(failure, Failure::Later(_)), "{at}: {failure:?}");
            running.world.lock().unwrap().breaks = None;
            running.attempt().await.unwrap();
            let (held, wanted) = (without_token(running.held()), without_token(clean.held()));
            assert_eq!(held, wanted, "{at} {effect}");
            drop(running);
        }
    }
}

#[tokio::test]
async fn changes_are_written_and_objects_of_others_stay() {
    let running = Running::start(&[]).await;
    running.attempt().await.unwrap();
    running.written();
    {
        let objects = &mut running.world.lock().unwrap().held.objects;
        let of = |kind: &str| {
            let found = objects.keys().find(|(known, _)| known == kind);
            found.cloned().unwrap()
        };
        let (policy, role, rule) = (of("policy"), of("role"), of("binding-rule"));
        let pods = objects[&rule].clone();
        objects.get_mut(&policy).unwrap()["Rules"] = json!("");
        objects.get_mut(&role).unwrap()["Policies"] = json!([]);
        objects.get_mut(&rule).unwrap()["Selector"] = json!("");
        let method = ("auth-method".to_owned(), "full-k8s-auth-method".to_owned());
        objects.get_mut(&method).unwrap()["Config"]["ServiceAccountJWT"] = json!("old");
        // A concurrent Job, and another user.
        let mut twice = pods.clone();
        twice["ID"] = json!("zz");
        objects.insert(("binding-rule".to_owned(), "zz".to_owned()), twice);
        let mut foreign = pods;
        foreign["ID"] = json!("yy");
        foreign["Description"] = json!("mine");
        objects.insert(("binding-rule".to_owned(), "yy".to_owned()), foreign);
    }
    running.attempt().await.unwrap();
    let written = running.written();
    assert_eq!(written.len(), 5, "{written:?}");
    assert!(written.contains(&"DELETE /v1/acl/binding-rule/zz".to_owned()));
    assert_eq!(running.names("binding-rule").len(), 3);
    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
}

#[tokio::test]
async fn a_given_token_is_the_first_one_and_no_secret_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "given\n").unwrap();
    let flag = format!("--bootstrap-token-file={}", file.display());
    let running = Running::start(&[&flag]).await;
    running.attempt().await.unwrap();
    let held = running.held();
    assert_eq!(held.token.as_deref(), Some("given"));
    assert!(!held.secrets.contains_key("full-bootstrap-acl-token"));
    std::fs::write(&file, "").unwrap();
    let Err(Failure::Final(text)) = running.attempt().await else {
        panic!("there is no token");
    };
    assert!(text.contains("--bootstrap-token-file"), "{text}");
}

#[tokio::test]
async fn final_failures_name_the_action() {
    let running = Running::start(&[]).await;
    running.world.lock().unwrap().held.token = Some("of somebody else".to_owned());
    let Err(Failure::Final(text)) = running.attempt().await else {
        panic!("the token is not known");
    };
    for part in [
        "mesh/full-bootstrap-acl-token",
        "reset index: 9",
        "key token",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("somebody else"), "{text}");

    let running = Running::start(&[]).await;
    running.world.lock().unwrap().acl_disabled = true;
    let Err(Failure::Final(text)) = running.attempt().await else {
        panic!("there is no access control");
    };
    assert!(text.contains("--acl"), "{text}");

    // The reviewer's token that Kubernetes has not filled in yet.
    let running = Running::start(&[]).await;
    let empty = |world: &mut World| {
        let secret = world.held.secrets.get_mut("full-auth-method").unwrap();
        secret["data"] = json!({});
    };
    empty(&mut running.world.lock().unwrap());
    let failure = running.attempt().await;
    assert!(
        matches!(&failure, Err(Failure::Later(text)) if text.contains("full-auth-method")),
        "{failure:?}"
    );
}

#[tokio::test]
async fn an_unreachable_api_server_is_reported_with_its_cause() {
    let running = Running::start(&[]).await;
    let away = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let away = Client::try_from(away).unwrap();
    let failure = attempt(&running.options, &away, &running.servers).await;
    let Err(Failure::Later(text)) = failure else {
        panic!("{failure:?}");
    };
    assert!(text.contains("mesh/full-bootstrap-acl-token"), "{text}");
    assert!(text.contains("Connection refused"), "{text}");
}

#[tokio::test]
async fn it_waits_for_servers_until_the_deadline() {
    let mut running = Running::start(&[]).await;
    running.world.lock().unwrap().breaks = Some((1, false));
    running.options.timeout = Duration::from_secs(600);
    // From here on, time advances whenever the runtime is idle.
    tokio::time::pause();
    let error = attempts(&running.options, &running.client, &running.servers).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("--timeout"), "{error}");
}

#[tokio::test]
async fn a_primary_has_a_token_for_others() {
    let running = Running::start(&["--create-replication-token"]).await;
    running.attempt().await.unwrap();
    let held = running.held();
    let with = |field: &str| {
        let mut objects = held.objects.values();
        objects.find(|object| !object[field].is_null()).unwrap()
    };
    let token = with("SecretID");
    let policy = json!([{"Name": "full-acl-replication-acl-policy"}]);
    assert_eq!(token["Policies"], policy);
    let kept = &held.secrets["full-acl-replication-acl-token"]["data"]["token"];
    assert_eq!(
        *kept,
        ByteStringJson::of(token["SecretID"].as_str().unwrap())
    );
    let named = |object: &&Value| object["Name"] == policy[0]["Name"];
    let policy = held.objects.values().find(named).unwrap();
    let rules = policy["Rules"].as_str().unwrap();
    legate_model::acl::Rules::parse(rules).unwrap();
    running.written();
    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
}

/// The flags of a secondary datacenter, whose file with the token is in the folder.
fn secondary(folder: &std::path::Path) -> Vec<String> {
    let file = folder.join("token");
    std::fs::write(&file, "of the primary\n").unwrap();
    vec![
        format!("--replication-token-file={}", file.display()),
        "--datacenter=dc2".to_owned(),
        "--primary-datacenter=dc1".to_owned(),
        "--primary-kubernetes-host=https://192.0.2.1:6443".to_owned(),
        "--mesh-gateway=mesh-gateway".to_owned(),
    ]
}

#[tokio::test]
async fn a_secondary_waits_for_the_primary_and_shares_its_objects() {
    let folder = tempfile::tempdir().unwrap();
    let flags = secondary(folder.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let running = Running::start(&flags).await;
    let failure = running.attempt().await.unwrap_err();
    assert!(
        matches!(&failure, Failure::Later(text) if text.contains("no gateway answers")),
        "{failure:?}"
    );
    assert_eq!(
        running.written(),
        Vec::<String>::new(),
        "nothing is bootstrapped"
    );

    running.world.lock().unwrap().held.token = Some("of the primary".to_owned());
    running.attempt().await.unwrap();
    let kinds = [
        "policy",
        "policy",
        "role",
        "role",
        "auth-method",
        "binding-rule",
    ];
    let in_primary = kinds.map(|kind| format!("PUT /v1/acl/{kind} in dc1"));
    let mut written = running.written();
    let local = written.extract_if(.., |one| !one.ends_with(" in dc1"));
    let local: Vec<String> = local.collect();
    assert_eq!(
        local,
        ["PUT /v1/acl/auth-method", "PUT /v1/acl/binding-rule"]
    );
    assert_eq!(written[..6], in_primary);
    assert_eq!(written.len(), 7, "a rule for each component");
    let ends = |part: &str, end: &str| format!("full-{part}-acl-{end}-dc2");
    let names = |end| [ends("mesh-gateway", end), ends("operator", end)];
    for (kind, end) in [("policy", "policy"), ("role", "role")] {
        let mut found = running.names(kind);
        found.sort();
        assert_eq!(found, names(end));
    }
    let held = running.held();
    let method = |name: &str| &held.objects[&("auth-method".to_owned(), name.to_owned())];
    let components = method("full-k8s-component-auth-method-dc2");
    assert_eq!(components["TokenLocality"], "global");
    assert_eq!(components["Config"]["Host"], "https://192.0.2.1:6443");
    let pods = method("full-k8s-auth-method");
    assert!(pods["TokenLocality"].is_null());
    assert_eq!(pods["Config"]["Host"], "https://kubernetes.default.svc");
    assert!(!held.secrets.contains_key("full-bootstrap-acl-token"));

    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
}

#[test]
fn a_secondary_needs_all_its_flags() {
    let folder = tempfile::tempdir().unwrap();
    let own = [
        "acl-init",
        "--full-name=full",
        "--namespace=mesh",
        "--server-addresses=a",
    ];
    let all = secondary(folder.path());
    let parses = |flags: &[String]| {
        let own = own.iter().map(ToString::to_string);
        Flags::try_parse_from(own.chain(flags.iter().cloned())).is_ok()
    };
    assert!(parses(&all));
    for at in 1..=3 {
        let mut some = all.clone();
        some.remove(at);
        assert!(!parses(&some), "{some:?}");
    }
    for other in ["--create-replication-token", "--bootstrap-token-file=b"] {
        assert!(
            !parses(&[&all[..], &[other.to_owned()]].concat()),
            "{other}"
        );
    }
}

#[tokio::test]
async fn tenants_are_created_before_their_objects() {
    let running = Running::start(&[
        "--partition=east",
        "--destination-namespace=apps",
        "--cross-namespace-acl-policy=cross-namespace-policy",
    ])
    .await;
    running.attempt().await.unwrap();
    assert_eq!(running.names("partition"), ["east"]);
    assert_eq!(running.names("namespace"), ["apps", "default"]);
    let held = running.held();
    let of = |kind: &str, name: &str| &held.objects[&(kind.to_owned(), name.to_owned())];
    let policies = json!([{"Name": "cross-namespace-policy"}]);
    for name in ["apps", "default"] {
        let namespace = of("namespace", name);
        assert_eq!(namespace["ACLs"]["PolicyDefaults"], policies, "{name}");
    }
    let method = of("auth-method", "full-k8s-auth-method");
    assert_eq!(method["Namespace"], "apps");
    assert!(method["NamespaceRules"].is_null());
    let components = of("auth-method", "full-k8s-component-auth-method");
    assert_eq!(components["Namespace"], "default");
    let policy = held
        .objects
        .values()
        .find(|held| held["Name"] == "full-operator-acl-policy");
    let rules = policy.unwrap()["Rules"].as_str().unwrap();
    assert!(
        !rules.contains("operator") && rules.contains("namespace_prefix"),
        "{rules}"
    );
    running.written();
    running.attempt().await.unwrap();
    assert_eq!(running.written(), Vec::<String>::new());
}

#[tokio::test]
async fn logins_of_mirrored_namespaces_create_tokens_there() {
    let running = Running::start(&["--mirror-namespaces=k8s-"]).await;
    running.attempt().await.unwrap();
    let held = running.held();
    let key = ("auth-method".to_owned(), "full-k8s-auth-method".to_owned());
    let method = &held.objects[&key];
    let bound = "k8s-${serviceaccount.namespace}";
    let rules = json!([{"Selector": "", "BindNamespace": bound}]);
    assert_eq!(
        (&method["Namespace"], &method["NamespaceRules"]),
        (&json!("default"), &rules)
    );
    // Without the policy, no namespace has to be created here.
    assert_eq!(running.names("namespace"), Vec::<String>::new());
}
