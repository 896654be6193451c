//! What a sidecar is configured with, compared with a real Consul, for the same documents. What
//! differs on purpose is taken out in `intended`, each with its reason; nothing else may differ.

mod cases;
mod client;
mod intended;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use http::Method;
use legate_server::{Parts, Server, ServerConfig};
use legate_tests::client as http_client;
use legate_tests::interop::Pair;
use serde_json::{Value, json};

use crate::consul_catalog::consul;
use cases::Case;

/// The resources of a proxy, as `type name`.
pub(crate) type Resources = BTreeMap<String, Value>;

/// The node that all is registered on.
const NODE: &str = "vm-1";

/// The ID of the proxy that is looked at.
const PROXY: &str = "web-sidecar-proxy";

/// A control plane.
struct Side {
    http: SocketAddr,
    grpc: SocketAddr,
}

impl Side {
    async fn put(&self, path: &str, body: &Value) {
        let answer = http_client::send(Method::PUT, self.http, path, None, Some(body)).await;
        let (status, text) = answer.expect("an answer");
        assert!(status.is_success(), "{path} {body}: {status}: {text}");
    }

    async fn write(&self, case: &Case) {
        for registration in &case.registrations {
            self.put("/v1/catalog/register", registration).await;
        }
        for entry in &case.entries {
            self.put("/v1/config", entry).await;
        }
    }

    /// Everything is gone that the case wrote.
    async fn clean(&self, case: &Case) {
        self.put("/v1/catalog/deregister", &json!({"Node": NODE}))
            .await;
        for entry in case.entries.iter().rev() {
            let kind = entry["Kind"].as_str().unwrap_or_default();
            // The only kind of which there is one entry, with the kind's name.
            let name = entry["Name"].as_str().unwrap_or("mesh");
            let path = format!("/v1/config/{kind}/{name}");
            let answer = http_client::send(Method::DELETE, self.http, &path, None, None).await;
            let (status, text) = answer.expect("an answer");
            assert!(status.is_success(), "{path}: {status}: {text}");
        }
    }

    /// What the proxy has, with the trust domain called the same everywhere.
    async fn resources(&self) -> Resources {
        let (_, roots) = http_client::get(self.http, "/v1/connect/ca/roots")
            .await
            .expect("an answer");
        let roots: Value = serde_json::from_str(&roots).expect("JSON");
        let domain = roots["TrustDomain"].as_str().expect("a trust domain");
        let escaped = domain.replace('.', "\\\\.");
        let same = |text: &str| {
            text.replace(domain, "trust.domain")
                .replace(&escaped, "trust\\\\.domain")
        };
        let found = client::resources(self.grpc, NODE, PROXY).await;
        let renamed = found.into_iter().map(|(name, value)| {
            let value = serde_json::from_str(&same(&value.to_string())).expect("JSON");
            (same(&name), value)
        });
        renamed.collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_are_those_of_consul() {
    let Some(binary) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let address = "127.0.77.4";
    let (_consul, http) = consul(&binary, address).await;
    let grpc = format!("{address}:8502").parse().expect("an address");
    let theirs = Side { http, grpc };
    let local = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let config = ServerConfig {
        http: local,
        grpc: local,
        grpc_tls: None,
        dns: None,
        ..ServerConfig::default()
    };
    let server = Server::start(config, Parts::default()).await;
    let server = server.expect("a server starts");
    let ours = Side {
        http: server.http_addr().expect("an address"),
        grpc: server.grpc_addr().expect("an address"),
    };
    let mut differences = Vec::new();
    for case in cases::all() {
        tokio::join!(ours.write(&case), theirs.write(&case));
        let (mut own, mut other) = tokio::join!(ours.resources(), theirs.resources());
        intended::remove(&mut own, &mut other);
        compare(case.about, &own, &other, &mut differences);
        tokio::join!(ours.clean(&case), theirs.clean(&case));
    }
    server
        .stop(Duration::from_secs(10))
        .await
        .expect("it stops");
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The first differences, by where they are.
fn compare(about: &str, ours: &Resources, theirs: &Resources, found: &mut Vec<String>) {
    for name in ours.keys().filter(|name| !theirs.contains_key(*name)) {
        found.push(format!("{about}: only Legate has {name}"));
    }
    for (name, theirs) in theirs {
        match ours.get(name) {
            Some(ours) => differ(&format!("{about}: {name}"), ours, theirs, found),
            None => found.push(format!("{about}: only Consul has {name}")),
        }
    }
}

fn differ(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let names = a
                .keys()
                .chain(b.keys().filter(|name| !a.contains_key(*name)));
            for name in names {
                let of = |fields: &serde_json::Map<String, Value>| {
                    fields.get(name).cloned().unwrap_or_default()
                };
                differ(&format!("{at}.{name}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (place, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{at}[{place}]"), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push(format!("{at}: Legate {ours}, Consul {theirs}")),
    }
}
