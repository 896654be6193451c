//! A fake of the servers' API for config entries. It can be unreachable or slow, and refuse
//! entries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use legate_runtime::Scope;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::http::{Answer, serve};

type EntryKey = (String, String, String);

fn key(kind: &str, name: &str, namespace: Option<&str>) -> EntryKey {
    let namespace = namespace.unwrap_or("default");
    (kind.to_owned(), name.to_owned(), namespace.to_owned())
}

#[derive(Default)]
struct State {
    index: u64,
    /// By kind, name and namespace.
    entries: BTreeMap<EntryKey, Value>,
    namespaces: Vec<Value>,
    away: bool,
    refusal: Option<Refusal>,
    /// Method, path and time of every write, including refused ones.
    writes: Vec<(Instant, String)>,
    /// The number of reads.
    reads: usize,
    virtual_ips: Vec<Value>,
}

/// The text with which writes and removals are refused.
enum Refusal {
    Always(String),
    /// A text that includes the number of the write.
    Changing,
}

#[derive(Clone)]
pub(super) struct FakeServers {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl FakeServers {
    pub(super) async fn start(scope: &Scope) -> FakeServers {
        let state: Arc<Mutex<State>> = Arc::default();
        let served = Arc::clone(&state);
        let address = serve(scope, move |request| {
            let answer = served.lock().unwrap().answer(&request);
            std::future::ready(answer)
        })
        .await;
        FakeServers { address, state }
    }

    pub(super) fn set_away(&self, away: bool) {
        self.state.lock().unwrap().away = away;
    }

    /// Refuses writes and removals with this text from now on.
    pub(super) fn refuse(&self, text: Option<&str>) {
        let refusal = text.map(|text| Refusal::Always(text.to_owned()));
        self.state.lock().unwrap().refusal = refusal;
    }

    /// Refuses each write from now on with a different text.
    pub(super) fn refuse_with_changing_texts(&self) {
        self.state.lock().unwrap().refusal = Some(Refusal::Changing);
    }

    /// Writes an entry as another user.
    pub(super) fn put(&self, entry: Value) {
        self.state.lock().unwrap().store(entry);
    }

    pub(super) fn entry(&self, kind: &str, name: &str) -> Option<Value> {
        self.entry_of(kind, name, "default")
    }

    pub(super) fn entry_of(&self, kind: &str, name: &str, namespace: &str) -> Option<Value> {
        let key = key(kind, name, Some(namespace));
        self.state.lock().unwrap().entries.get(&key).cloned()
    }

    /// The namespaces that were created.
    pub(super) fn namespaces(&self) -> Vec<Value> {
        self.state.lock().unwrap().namespaces.clone()
    }

    pub(super) fn writes(&self) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state
            .writes
            .iter()
            .map(|(_, write)| write.clone())
            .collect()
    }

    /// The times between consecutive writes.
    pub(super) fn pauses(&self) -> Vec<Duration> {
        let state = self.state.lock().unwrap();
        let pairs = state.writes.windows(2);
        pairs.map(|pair| pair[1].0 - pair[0].0).collect()
    }

    pub(super) fn reads(&self) -> usize {
        self.state.lock().unwrap().reads
    }

    pub(super) fn virtual_ips(&self) -> Vec<Value> {
        self.state.lock().unwrap().virtual_ips.clone()
    }
}

impl State {
    fn store(&mut self, mut entry: Value) {
        self.index += 1;
        entry["ModifyIndex"] = json!(self.index);
        let name = entry["Name"].as_str().unwrap_or("mesh").to_owned();
        let key = key(
            entry["Kind"].as_str().unwrap(),
            &name,
            entry["Namespace"].as_str(),
        );
        self.entries.insert(key, entry);
    }

    fn answer(&mut self, request: &Request<Bytes>) -> Option<Answer> {
        if self.away {
            return None;
        }
        let path: Vec<&str> = request.uri().path().trim_matches('/').split('/').collect();
        let query = request.uri().query().unwrap_or_default();
        let parameter = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value)
        };
        let cas: Option<u64> = parameter("cas").map(|it| it.parse().unwrap());
        let ns = parameter("ns");
        let method = request.method();
        if method != Method::GET {
            let write = format!("{method} {}", request.uri());
            self.writes.push((Instant::now(), write));
        }
        let ok = |value: &Value| text(StatusCode::OK, &value.to_string());
        Some(match (method, path.as_slice()) {
            (&Method::GET, ["v1", "config", kind, name]) => {
                self.reads += 1;
                match self.entries.get(&key(kind, name, ns)) {
                    Some(entry) => ok(entry),
                    None => text(StatusCode::NOT_FOUND, "Config entry not found"),
                }
            }
            (&Method::PUT, ["v1", "internal", "service-virtual-ip"]) => {
                self.virtual_ips
                    .push(serde_json::from_slice(request.body()).unwrap());
                ok(&json!({ "Found": true, "UnassignedFrom": [] }))
            }
            (&Method::GET, ["v1", "namespace", name]) => {
                match self.namespaces.iter().find(|it| it["Name"] == *name) {
                    Some(namespace) => ok(namespace),
                    None => text(StatusCode::NOT_FOUND, ""),
                }
            }
            (&Method::PUT, ["v1", "namespace"]) => {
                let namespace: Value = serde_json::from_slice(request.body()).unwrap();
                self.namespaces.push(namespace.clone());
                ok(&namespace)
            }
            _ if self.refusal.is_some() => {
                let said = match self.refusal.as_ref().unwrap() {
                    Refusal::Always(said) => said.clone(),
                    Refusal::Changing => format!("reason {}", self.writes.len()),
                };
                text(StatusCode::BAD_REQUEST, &said)
            }
            (&Method::PUT, ["v1", "config"]) => {
                let entry: Value = serde_json::from_slice(request.body()).unwrap();
                let name = entry["Name"].as_str().unwrap_or("mesh").to_owned();
                let kind = entry["Kind"].as_str().unwrap().to_owned();
                assert_eq!(entry["Namespace"].as_str(), ns, "both name the same");
                let known = ns.is_none_or(|ns| {
                    ns == "default" || self.namespaces.iter().any(|it| it["Name"] == ns)
                });
                assert!(known, "the namespace {ns:?} is there");
                let matches = cas == Some(self.index_of(&key(&kind, &name, ns)));
                if matches {
                    self.store(entry);
                }
                ok(&json!(matches))
            }
            (&Method::DELETE, ["v1", "config", kind, name]) => {
                let key = key(kind, name, ns);
                let matches = cas == Some(self.index_of(&key));
                if matches {
                    self.entries.remove(&key);
                }
                ok(&json!(matches))
            }
            other => panic!("the fake servers were asked for {other:?}"),
        })
    }

    fn index_of(&self, key: &EntryKey) -> u64 {
        let entry = self.entries.get(key);
        entry.map_or(0, |entry| entry["ModifyIndex"].as_u64().unwrap())
    }
}

fn text(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed();
    Response::builder().status(status).body(body).unwrap()
}
