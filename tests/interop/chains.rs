//! Compares discovery chains with those of a real Consul for the same config entries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_discovery_chain::{Entries, Overrides, Request, compile};
use legate_model::{
    ProxyDefaults, ServiceDefaults, ServiceName, ServiceResolver, ServiceRouter, ServiceSplitter,
    Tenancy, TrustDomain,
};
use legate_server::{Parts, Server, ServerConfig};
use legate_tests::client;
use legate_tests::interop::Pair;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::consul_catalog::consul;

/// Entries by kind and name.
struct Written<'a>(BTreeMap<(&'a str, &'a str), &'a Value>);

impl<'a> Written<'a> {
    fn new(entries: &'a [Value]) -> Self {
        let text = |value: &'a Value| value.as_str().expect("a text");
        let key = |entry: &'a Value| ((text(&entry["Kind"]), text(&entry["Name"])), entry);
        Self(entries.iter().map(key).collect())
    }

    fn read<T: DeserializeOwned>(&self, kind: &str, name: &str) -> Option<T> {
        let entry = *self.0.get(&(kind, name))?;
        Some(serde_json::from_value(entry.clone()).expect("an entry"))
    }
}

impl Entries for Written<'_> {
    fn router(&self, service: &ServiceName) -> Option<ServiceRouter> {
        self.read("service-router", &service.name)
    }
    fn splitter(&self, service: &ServiceName) -> Option<ServiceSplitter> {
        self.read("service-splitter", &service.name)
    }
    fn resolver(&self, service: &ServiceName) -> Option<ServiceResolver> {
        self.read("service-resolver", &service.name)
    }
    fn defaults(&self, service: &ServiceName) -> Option<ServiceDefaults> {
        self.read("service-defaults", &service.name)
    }
    fn proxy_defaults(&self, _: &Tenancy) -> Option<ProxyDefaults> {
        self.read("proxy-defaults", "global")
    }
}

fn http() -> Value {
    json!({
        "Kind": "proxy-defaults", "Name": "global", "Config": {"protocol": "http"},
        "MeshGateway": {"Mode": "local"},
    })
}

fn splitter(name: &str, splits: Value) -> Value {
    json!({"Kind": "service-splitter", "Name": name, "Splits": splits})
}

fn resolver(name: &str, mut entry: Value) -> Value {
    entry["Kind"] = "service-resolver".into();
    entry["Name"] = name.into();
    entry
}

/// Routes to splits to subsets, redirects and failover.
fn everything() -> Vec<Value> {
    vec![
        http(),
        resolver(
            "web",
            json!({
                "DefaultSubset": "v1", "ConnectTimeout": "3s", "RequestTimeout": "9s",
                "Subsets": {
                    "v1": {"Filter": "Service.Meta.version == v1"}, "v2": {"OnlyPassing": true},
                },
                "Failover": {
                    "v1": {"ServiceSubset": "v2"},
                    "*": {"Targets": [{"Service": "old"}, {"Datacenter": "dc2"}]},
                },
                "LoadBalancer": {"Policy": "ring_hash", "RingHashConfig": {"MinimumRingSize": 9},
                    "HashPolicies": [{"Field": "header", "FieldValue": "x", "Terminal": true}]},
            }),
        ),
        resolver("old", json!({"Redirect": {"Service": "new"}})),
        resolver("new", json!({"ConnectTimeout": "1s"})),
        splitter(
            "web",
            json!([
                {"Weight": 33.33, "ServiceSubset": "v1",
                 "RequestHeaders": {"Set": {"x": "1"}, "Remove": ["y"]}},
                {"Weight": 66.67, "Service": "canary", "ResponseHeaders": {"Add": {"z": "2"}}},
            ]),
        ),
        splitter(
            "canary",
            json!([
                {"Weight": 10, "RequestHeaders": {"Set": {"x": "3"}}},
                {"Weight": 90, "Service": "new", "ResponseHeaders": {"Add": {"z": "4"}}},
            ]),
        ),
        json!({"Kind": "service-router", "Name": "web", "Routes": [
            {"Match": {"HTTP": {"PathPrefix": "/a", "Methods": ["GET"],
                "Header": [{"Name": "h", "Prefix": "p", "Invert": true}],
                "QueryParam": [{"Name": "q", "Present": true}]}},
             "Destination": {"Service": "new", "PrefixRewrite": "/", "RequestTimeout": "2s",
                "IdleTimeout": "4s", "NumRetries": 3, "RetryOn": ["5xx"],
                "RetryOnStatusCodes": [503]}},
            {"Match": {"HTTP": {"PathExact": "/b", "CaseInsensitive": true}},
             "Destination": {"ServiceSubset": "v2", "RetryOnConnectFailure": true}},
            {"Match": {"HTTP": {"PathRegex": "/c.*"}}},
        ]}),
    ]
}

/// Cases with entries in an order in which each is valid after the previous ones. The chain is that of
/// `web`.
fn cases() -> Vec<(&'static str, Vec<Value>)> {
    vec![
        ("nothing", vec![]),
        (
            "defaults",
            vec![json!({
                "Kind": "service-defaults", "Name": "web", "Protocol": "http2", "Meta": {"a": "b"},
                "TransparentProxy": {"DialedDirectly": true}, "MeshGateway": {"Mode": "remote"},
            })],
        ),
        (
            "outside",
            vec![json!({
                "Kind": "service-defaults", "Name": "web", "Protocol": "tcp",
                "ExternalSNI": "example.com",
            })],
        ),
        ("everything", everything()),
        (
            "redirects",
            vec![
                resolver(
                    "api",
                    json!({"Subsets": {"v2": {}}, "Failover": {"v2": {
                        "Datacenters": ["dc1", "dc2", "dc3"],
                    }}}),
                ),
                resolver(
                    "web",
                    json!({"Redirect": {"Service": "api", "ServiceSubset": "v2"}}),
                ),
            ],
        ),
    ]
}

/// Removes the default tenancy that Consul adds below `Definition`, and normalizes numbers, because Go
/// writes 10 where others write 10.0.
fn normalised(value: &mut Value, in_definition: bool) {
    match value {
        Value::Object(fields) => {
            let tenancy = |name: &str| name == "Namespace" || name == "Partition";
            fields.retain(|name, _| !(in_definition && tenancy(name)));
            for (name, value) in fields {
                normalised(value, in_definition || name == "Definition");
            }
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| normalised(item, in_definition)),
        Value::Number(number) => *value = json!(number.as_f64()),
        _ => {}
    }
}

async fn ask(http: SocketAddr, path: &str) -> Value {
    let (_, body) = client::get(http, path).await.expect("Consul answers");
    serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"))
}

#[tokio::test]
async fn chains_are_those_of_consul() {
    let Some(binary) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let (_consul, http) = consul(&binary, "127.0.77.2", "").await;
    let roots = ask(http, "/v1/connect/ca/roots").await;
    let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain");
    let trust_domain: TrustDomain = trust_domain.parse().expect("a trust domain");
    for (what, entries) in cases() {
        for entry in &entries {
            let answer = client::send(Method::PUT, http, "/v1/config", None, Some(entry)).await;
            let (status, body) = answer.expect("Consul answers");
            assert!(status.is_success(), "{what}: {entry}: {}", body);
        }
        let mut theirs = ask(http, "/v1/discovery-chain/web").await["Chain"].take();
        for field in ["AutoVirtualIPs", "ManualVirtualIPs"] {
            theirs.as_object_mut().expect("a chain").remove(field);
        }
        let request = Request {
            service: &"web".into(),
            datacenter: "dc1",
            trust_domain: &trust_domain,
            overrides: Overrides::default(),
        };
        let ours = compile(&request, &Written::new(&entries)).expect("a chain");
        // Compared as text, because a weight keeps its digits only there.
        let text = serde_json::to_string(&ours).expect("JSON");
        let mut ours: Value = serde_json::from_str(&text).expect("JSON");
        normalised(&mut theirs, false);
        normalised(&mut ours, false);
        assert_eq!(ours, theirs, "{what}");
        for entry in entries.iter().rev() {
            let text = |field: &str| entry[field].as_str().unwrap_or_default();
            let path = format!("/v1/config/{}/{}", text("Kind"), text("Name"));
            let removed = client::send(Method::DELETE, http, &path, None, None).await;
            removed.expect("Consul answers");
        }
    }
}

/// A sequence of writes and removals; whether one is refused depends on the previous ones.
fn changes() -> Vec<(Method, Value)> {
    let protocol = |name: &str, protocol: &str| json!({"Kind": "service-defaults", "Name": name, "Protocol": protocol});
    let router = |name: &str, to: Value| {
        json!({"Kind": "service-router", "Name": name, "Routes": [{
            "Match": {"HTTP": {"PathPrefix": "/x"}}, "Destination": to,
        }]})
    };
    let half = |name: &str, to: &str| {
        splitter(name, json!([{"Weight": 50}, {"Weight": 50, "Service": to}]))
    };
    let redirect = |name: &str, to: Value| resolver(name, json!({"Redirect": to}));
    let api = || json!({"Service": "api"});
    let (put, delete) = (|| Method::PUT, || Method::DELETE);
    vec![
        (put(), router("web", api())),
        (put(), protocol("web", "http")),
        (put(), router("web", api())),
        (put(), protocol("api", "http")),
        (put(), router("web", api())),
        (delete(), protocol("web", "http")),
        (put(), protocol("api", "grpc")),
        (delete(), protocol("api", "http")),
        (
            put(),
            resolver(
                "api",
                json!({"Subsets": {"v1": {"Filter": "Service.Meta.x =="}}}),
            ),
        ),
        (
            put(),
            resolver("api", json!({"Subsets": {"v1": {"OnlyPassing": true}}})),
        ),
        (put(), half("api", "canary")),
        (put(), protocol("canary", "http")),
        (put(), half("api", "canary")),
        (put(), half("canary", "api")),
        (put(), protocol("canary", "tcp")),
        (
            put(),
            redirect("old", json!({"Service": "api", "ServiceSubset": "v1"})),
        ),
        (put(), protocol("old", "http")),
        (
            put(),
            redirect("old", json!({"Service": "api", "ServiceSubset": "v1"})),
        ),
        (put(), resolver("api", json!({}))),
        (delete(), resolver("api", json!({}))),
        (put(), redirect("a", json!({"Service": "b"}))),
        (put(), redirect("b", json!({"Service": "a"}))),
        (put(), redirect("b", json!({"Service": "b"}))),
        (put(), resolver("b", json!({"DefaultSubset": "gone"}))),
        (
            put(),
            router("web", json!({"Service": "api", "ServiceSubset": "gone"})),
        ),
        (
            put(),
            json!({"Kind": "service-defaults", "Name": "b", "Protocol": "tcp", "ExternalSNI": "b.test"}),
        ),
        (put(), resolver("b", json!({"Subsets": {"v1": {}}}))),
        (put(), redirect("b", json!({"Service": "c"}))),
        (put(), http()),
        (delete(), protocol("web", "http")),
        (delete(), http()),
        (delete(), router("web", api())),
        (delete(), http()),
    ]
}

/// Legate's `service-defaults` without a protocol inherit it; in Consul it is tcp. None of the changes
/// has such an entry.
#[tokio::test]
async fn changes_that_break_a_chain_are_refused_as_by_consul() {
    let Some(binary) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let (_consul, theirs) = consul(&binary, "127.0.77.3", "").await;
    let config = ServerConfig {
        http: Some(SocketAddr::from(([127, 0, 0, 1], 0))),
        grpc: None,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    };
    let server = Server::start(config, Parts::default()).await;
    let server = server.expect("a server starts");
    let ours = server.http_addr().expect("an address");
    let mut refused = 0;
    for (method, entry) in changes() {
        let text = |field: &str| entry[field].as_str().unwrap_or_default();
        let of_entry = format!("/v1/config/{}/{}", text("Kind"), text("Name"));
        let put = method == Method::PUT;
        let path = if put { "/v1/config" } else { &of_entry };
        let ask = async |http| {
            let body = put.then_some(&entry);
            let answer = client::send(method.clone(), http, path, None, body).await;
            answer.expect("an answer")
        };
        let (their_status, their_text) = ask(theirs).await;
        let (status, text) = ask(ours).await;
        let what = format!("{method} {entry}: Consul {their_text:?}, Legate {text:?}");
        assert_eq!(status.is_success(), their_status.is_success(), "{what}");
        if status.is_success() {
            continue;
        }
        refused += 1;
        // Invalid entries are refused with Legate's own texts, which name the field. Consul varies in
        // where a cycle begins and which of several chains it names.
        let in_own_words = text.starts_with("Invalid request: ");
        let kind = text.split([':', ';']).next().unwrap_or_default();
        let chain = kind.strip_prefix("discovery chain \"");
        let kind = chain.map_or(kind, |text| {
            text.split_once("\" ").map_or(text, |(_, kind)| kind)
        });
        assert!(in_own_words || their_text.contains(kind), "{what}");
    }
    assert!(refused > 12, "{refused} were refused");
    server
        .stop(Duration::from_secs(10))
        .await
        .expect("it stops");
}
