//! Compares the configuration of sidecars with that of a real Consul, for the golden cases of
//! `crates/resources`. The documents of a case are written to Consul, and its resources for the proxy
//! must equal `resources.json`. Intended differences are removed in `intended`, each with its reason;
//! `not_compared.json` lists cases that Consul does not support. No other differences are permitted.

mod client;
#[path = "../../../crates/resources/tests/it/golden_cases/documents.rs"]
#[expect(dead_code, reason = "the tests of that crate use more of it")]
mod documents;
mod intended;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use http::Method;
use legate_api::type_url::{CLUSTER, ENDPOINT, LISTENER, ROUTE};
use legate_tests::client as http_client;
use legate_tests::interop::Pair;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use crate::consul_catalog::consul;
use documents::Documents;
use intended::Field;

/// The resources of a proxy, keyed by `type name`.
pub(crate) type Resources = BTreeMap<String, Value>;

/// The trust domain's placeholder in comparisons.
const TRUST_DOMAIN: &str = "trust.domain";

/// The trust domain in the golden resources.
const GOLDEN_TRUST_DOMAIN: &str = "c1.consul";

/// A golden case.
struct Case {
    name: String,
    documents: Documents,
    /// Legate's resources.
    resources: Resources,
}

fn cases() -> Vec<Case> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/resources/tests/golden"
    );
    let read = |path: &Path| fs::read_to_string(path).expect("a file of a case");
    let entries = fs::read_dir(folder).expect("the golden cases");
    let mut all: Vec<Case> = entries
        .map(|entry| {
            let path = entry.expect("a case").path();
            let documents = read(&path.join("documents.json"));
            let resources = read(&path.join("resources.json"));
            let resources: Value = serde_json::from_str(&resources).expect("JSON");
            Case {
                name: path.file_name().expect("a name").to_string_lossy().into(),
                documents: serde_json::from_str(&documents).expect("documents"),
                resources: rename(golden(&resources), GOLDEN_TRUST_DOMAIN),
            }
        })
        .collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The resources of `resources.json` that Envoy subscribes to, without secrets: Consul has certificates
/// inline in its clusters and listeners.
fn golden(document: &Value) -> Resources {
    let mut named = BTreeMap::new();
    for section in ["Clusters", "Listeners"] {
        client::references(&document[section], &mut named);
    }
    let types = [
        ("Clusters", CLUSTER),
        ("Endpoints", ENDPOINT),
        ("Listeners", LISTENER),
        ("Routes", ROUTE),
    ];
    let mut resources = Resources::new();
    for (section, kind) in types {
        let is_asked_for = |name: &String| match kind {
            CLUSTER | LISTENER => true,
            _ => named.get(kind).is_some_and(|all| all.contains(name)),
        };
        for (name, value) in document[section].as_object().expect("an object") {
            if is_asked_for(name) {
                resources.insert(client::key(kind, name), value.clone());
            }
        }
    }
    resources
}

/// Replaces the trust domain by the placeholder.
fn rename(resources: Resources, trust_domain: &str) -> Resources {
    let escape = |domain: &str| domain.replace('.', "\\\\.");
    let same = |text: &str| {
        text.replace(trust_domain, TRUST_DOMAIN)
            .replace(&escape(trust_domain), &escape(TRUST_DOMAIN))
    };
    let renamed = resources.into_iter().map(|(name, value)| {
        let value = serde_json::from_str(&same(&value.to_string())).expect("JSON");
        (same(&name), value)
    });
    renamed.collect()
}

/// A real Consul.
struct Consul {
    http: SocketAddr,
    grpc: SocketAddr,
    trust_domain: String,
}

impl Consul {
    async fn new(address: &str, http: SocketAddr) -> Self {
        let roots = http_client::get(http, "/v1/connect/ca/roots").await;
        let (_, roots) = roots.expect("an answer");
        let roots: Value = serde_json::from_str(&roots).expect("JSON");
        let trust_domain = roots["TrustDomain"].as_str().expect("a trust domain");
        Self {
            http,
            grpc: format!("{address}:8502").parse().expect("an address"),
            trust_domain: trust_domain.to_owned(),
        }
    }

    /// Sends a request; fails for an error status.
    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<(), String> {
        let answer = http_client::send(method, self.http, path, None, body).await;
        let (status, text) = answer.expect("an answer");
        let body = body.map(Value::to_string).unwrap_or_default();
        match status.is_success() {
            true => Ok(()),
            false => Err(format!("Consul refuses {path} {body}: {status}: {text}")),
        }
    }

    async fn put(&self, path: &str, body: &Value) -> Result<(), String> {
        self.send(Method::PUT, path, Some(body)).await
    }

    async fn write(&self, documents: &Documents) -> Result<(), String> {
        if documents.of_cluster.is_some() {
            return Err("Consul has no gateways of clusters".to_owned());
        }
        for registration in documents.all_registrations() {
            self.put("/v1/catalog/register", &registration).await?;
        }
        for entry in &documents.entries {
            self.put("/v1/config", entry).await?;
        }
        for intention in &documents.intentions {
            self.put(&intention_path(intention), intention).await?;
        }
        for query in &documents.prepared_queries {
            self.send(Method::POST, "/v1/query", Some(query)).await?;
        }
        for addresses in &documents.virtual_ips {
            let path = "/v1/internal/service-virtual-ip";
            self.put(path, addresses).await?;
        }
        Ok(())
    }

    /// Removes everything that the case wrote.
    async fn clean(&self, documents: &Documents) {
        if !documents.prepared_queries.is_empty() {
            let (_, all) = http_client::get(self.http, "/v1/query")
                .await
                .expect("an answer");
            let all: Vec<Value> = serde_json::from_str(&all).expect("JSON");
            for query in all {
                let id = query["ID"].as_str().expect("an ID");
                self.delete(&format!("/v1/query/{id}")).await;
            }
        }
        for intention in &documents.intentions {
            self.delete(&intention_path(intention)).await;
        }
        for entry in documents.entries.iter().rev() {
            let kind = entry["Kind"].as_str().unwrap_or_default();
            // The only kind with a single entry, named like the kind.
            let name = entry["Name"].as_str().unwrap_or("mesh");
            self.delete(&format!("/v1/config/{kind}/{name}")).await;
        }
        for registration in documents.all_registrations() {
            let node = json!({"Node": registration["Node"]});
            let removed = self.put("/v1/catalog/deregister", &node).await;
            removed.expect("a removed node");
        }
    }

    async fn delete(&self, path: &str) {
        let removed = self.send(Method::DELETE, path, None).await;
        removed.expect("a removed document");
    }

    /// The differences between the proxy's resources and the golden ones, for one case at a time.
    async fn differences(&self, case: &Case) -> Vec<Difference> {
        let found = self.compare(case).await;
        self.clean(&case.documents).await;
        found.unwrap_or_else(|refused| {
            vec![Difference {
                at: String::new(),
                text: refused,
            }]
        })
    }

    async fn compare(&self, case: &Case) -> Result<Vec<Difference>, String> {
        self.write(&case.documents).await?;
        let mut ours = case.resources.clone();
        intended::remove_from_ours(&mut ours);
        let differences = |theirs: &Resources| {
            let mut theirs = rename(theirs.clone(), &self.trust_domain);
            intended::remove_from_both(&mut theirs);
            let mut found = Vec::new();
            compare(&ours, &theirs, &mut found);
            found
        };
        let is_expected = |theirs: &Resources| {
            let found = differences(theirs);
            found.iter().all(|one| one.intended(&case.name).is_some())
        };
        let (node, proxy) = case.documents.proxy_id();
        let theirs = client::resources(self.grpc, node, proxy, is_expected).await?;
        Ok(differences(&theirs))
    }
}

/// A value that differs in Consul.
struct Difference {
    /// Resource and field; empty if nothing could be compared.
    at: String,
    text: String,
}

impl Difference {
    /// The index of the case's intended difference that matches.
    fn intended(&self, case: &str) -> Option<usize> {
        intended::FIELDS
            .iter()
            .position(|field| field.cases.contains(&case) && self.at.contains(field.at))
    }
}

fn intention_path(intention: &Value) -> String {
    let name = |field: &str| intention[field].as_str().unwrap_or_default();
    let (source, destination) = (name("SourceName"), name("DestinationName"));
    format!("/v1/connect/intentions/exact?source={source}&destination={destination}")
}

/// The Consul servers that cases share: address, and default for intentions.
const CONSULS: [(&str, &str); 3] = [
    ("127.0.77.4", "deny"),
    ("127.0.77.5", "deny"),
    ("127.0.77.6", "allow"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resources_are_those_of_consul() {
    let Some(binary) = Pair::legate_dataplane().and_then(|pair| pair.consul) else {
        return;
    };
    let not_compared: BTreeMap<String, String> =
        serde_json::from_str(include_str!("not_compared.json")).expect("JSON");
    let mut shares = CONSULS.map(|_| Vec::new());
    for (place, case) in cases().into_iter().enumerate() {
        let of = |(_, default): &(&str, &str)| *default == case.documents.default_intention;
        let of: Vec<usize> = (0..CONSULS.len()).filter(|at| of(&CONSULS[*at])).collect();
        shares[of[place % of.len()]].push(case);
    }
    let mut running = JoinSet::new();
    for ((address, default), share) in CONSULS.into_iter().zip(shares) {
        let binary = binary.clone();
        running.spawn(async move {
            let settings = format!("default_intention_policy = \"{default}\"");
            let (_process, http) = consul(&binary, address, &settings).await;
            let consul = Consul::new(address, http).await;
            let mut found = Vec::new();
            for case in share {
                let differences = consul.differences(&case).await;
                found.push((case.name, differences));
            }
            found
        });
    }
    let found: BTreeMap<_, _> = running.join_all().await.into_iter().flatten().collect();
    let wrong = not_intended(&not_compared, &found);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Differences that are not listed, and listed ones that do not occur.
fn not_intended(
    not_compared: &BTreeMap<String, String>,
    found: &BTreeMap<String, Vec<Difference>>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (case, differences) in found
        .iter()
        .filter(|(case, _)| !not_compared.contains_key(*case))
    {
        for difference in differences {
            match difference.intended(case) {
                Some(field) => _ = seen.insert((field, case.as_str())),
                None => wrong.push(format!("{case}: {}: {}", difference.at, difference.text)),
            }
        }
    }
    for (place, field) in intended::FIELDS.iter().enumerate() {
        let vain = field
            .cases
            .iter()
            .filter(|case| !seen.contains(&(place, **case)));
        wrong.extend(vain.map(|case| {
            let Field { at, reason, .. } = field;
            format!("{case}: {at} does not differ, and is listed because {reason}")
        }));
    }
    for case in not_compared.keys() {
        if found.get(case).is_none_or(Vec::is_empty) {
            wrong.push(format!("{case}: not_compared.json lists it in vain"));
        }
    }
    wrong
}

/// The first differences, by path.
fn compare(ours: &Resources, theirs: &Resources, found: &mut Vec<Difference>) {
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    for name in names {
        let of = |side: &Resources| side.get(name).cloned().unwrap_or_default();
        match (ours.contains_key(name), theirs.contains_key(name)) {
            (true, true) => differ(name, &of(ours), &of(theirs), found),
            (legate, _) => found.push(Difference {
                at: name.clone(),
                text: format!("only {} has it", if legate { "Legate" } else { "Consul" }),
            }),
        }
    }
}

fn differ(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<Difference>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for name in names {
                let of =
                    |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                differ(&format!("{at}.{name}"), &of(a), &of(b), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (place, (a, b)) in a.iter().zip(b).enumerate() {
                differ(&format!("{at}[{place}]"), a, b, found);
            }
        }
        _ if ours == theirs => {}
        _ => found.push(Difference {
            at: at.to_owned(),
            text: format!("Legate {ours}, Consul {theirs}"),
        }),
    }
}
