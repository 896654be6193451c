//! A fake Kubernetes API server for custom resources and Services: lists, watches, patches,
//! finalizers. It can be unreachable or slow, expire watches, and refuse patches.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use kube::core::DynamicObject;
use legate_runtime::Scope;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::http::{Answer, serve};

#[derive(Default)]
struct State {
    version: u64,
    objects: Vec<Value>,
    /// Events for watchers, with the version of each.
    events: Vec<(u64, Value)>,
    /// Watches from older versions are answered with 410.
    oldest: u64,
    away: bool,
    /// Number of requests that came during an outage.
    unanswered: usize,
    delay: Duration,
    refuse_patches: u32,
    /// Path and body of every accepted patch.
    patches: Vec<(String, Value)>,
}

#[derive(Clone)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

impl FakeApi {
    pub(super) async fn start(scope: &Scope) -> (FakeApi, kube::Client) {
        let fake = FakeApi {
            state: Arc::default(),
            changed: watch::channel(()).0,
        };
        let served = fake.clone();
        let address = serve(scope, move |request| served.clone().answer(request)).await;
        let url = format!("http://{address}").parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
        (fake, client)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let done = change(&mut self.state.lock().unwrap());
        self.changed.send_replace(());
        done
    }

    /// Creates an object, or replaces its spec as a user does.
    pub(super) fn apply(&self, object: DynamicObject) {
        let new = serde_json::to_value(object).unwrap();
        self.change(|state| match state.find(&identity(&new)) {
            None => state.store("ADDED", new),
            Some(mut old) => {
                let generation = old["metadata"]["generation"].as_i64().unwrap();
                old["metadata"]["generation"] = json!(generation + 1);
                old["spec"] = new["spec"].clone();
                state.store("MODIFIED", old);
            }
        });
    }

    /// Deletes an object as a user does: it remains until its finalizers are removed.
    pub(super) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.change(|state| {
            let id = (kind.to_owned(), namespace.to_owned(), name.to_owned());
            let mut object = state.find(&id).unwrap();
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T01:00:00Z");
            let generation = object["metadata"]["generation"].as_i64().unwrap();
            object["metadata"]["generation"] = json!(generation + 1);
            state.store("MODIFIED", object);
        });
    }

    pub(super) fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let id = (kind.to_owned(), namespace.to_owned(), name.to_owned());
        self.state.lock().unwrap().find(&id)
    }

    /// Starts or ends an outage, which cuts every connection including watches.
    pub(super) fn set_away(&self, away: bool) {
        self.change(|state| state.away = away);
    }

    pub(super) fn unanswered(&self) -> usize {
        self.state.lock().unwrap().unanswered
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        self.change(|state| state.delay = delay);
    }

    /// Refuses the next patches with a conflict.
    pub(super) fn refuse_patches(&self, count: u32) {
        self.change(|state| state.refuse_patches = count);
    }

    /// Ends every watch, and answers those from old versions with 410.
    pub(super) fn forget_history(&self) {
        self.change(|state| {
            state.version += 1;
            state.oldest = state.version;
        });
    }

    pub(super) fn patches(&self) -> Vec<(String, Value)> {
        self.state.lock().unwrap().patches.clone()
    }

    async fn answer(self, request: Request<Bytes>) -> Option<Answer> {
        let (away, delay) = {
            let mut state = self.state.lock().unwrap();
            state.unanswered += usize::from(state.away);
            (state.away, state.delay)
        };
        if away {
            return None;
        }
        tokio::time::sleep(delay).await;
        let uri = request.uri().clone();
        let path: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let query = uri.query().unwrap_or_default();
        match (request.method(), path.as_slice()) {
            (&Method::GET, ["apis", _, _, plural]) if query.contains("watch=true") => {
                Some(self.watch(plural, query))
            }
            (&Method::GET, ["apis", _, _, plural]) => Some(self.list(plural)),
            (&Method::GET, ["api", "v1", "namespaces", namespace, "services", name]) => {
                Some(match self.get("Service", namespace, name) {
                    Some(service) => json_answer(StatusCode::OK, &service),
                    None => failure(StatusCode::NOT_FOUND, "NotFound"),
                })
            }
            (
                &Method::PATCH,
                [
                    "apis",
                    _,
                    _,
                    "namespaces",
                    namespace,
                    plural,
                    name,
                    rest @ ..,
                ],
            ) => {
                let status = *rest == ["status"];
                let body = serde_json::from_slice(request.body()).unwrap();
                let id = (kind_of(plural), (*namespace).to_owned(), (*name).to_owned());
                Some(self.patch(uri.path(), &id, status, body))
            }
            other => panic!("the fake API server was asked for {other:?}"),
        }
    }

    fn list(&self, plural: &str) -> Answer {
        let state = self.state.lock().unwrap();
        let kind = kind_of(plural);
        let items: Vec<_> = state
            .objects
            .iter()
            .filter(|it| it["kind"] == kind)
            .collect();
        let list = json!({
            "apiVersion": "consul.hashicorp.com/v1alpha1",
            "kind": format!("{kind}List"),
            "metadata": { "resourceVersion": state.version.to_string() },
            "items": items,
        });
        json_answer(StatusCode::OK, &list)
    }

    fn watch(&self, plural: &str, query: &str) -> Answer {
        let since = query
            .split('&')
            .find_map(|it| it.strip_prefix("resourceVersion="))
            .and_then(|it| it.parse().ok())
            .unwrap_or_default();
        if since < self.state.lock().unwrap().oldest {
            // Like the real one: the watch starts, and its only event is an error.
            let event = json!({ "type": "ERROR", "object": status(StatusCode::GONE, "Expired") });
            return json_answer(StatusCode::OK, &event);
        }
        let (fake, changed) = (self.clone(), self.changed.subscribe());
        let start = (fake, changed, since, since, kind_of(plural));
        let lines = stream::unfold(
            start,
            |(fake, mut changed, begin, mut since, kind)| async move {
                loop {
                    changed.borrow_and_update();
                    let (ended, next) = {
                        let state = fake.state.lock().unwrap();
                        let mut events = state.events.iter();
                        let next =
                            events.find(|(at, it)| *at > since && it["object"]["kind"] == kind);
                        (state.away || begin < state.oldest, next.cloned())
                    };
                    if ended {
                        return None;
                    }
                    if let Some((version, event)) = next {
                        since = version;
                        let frame = Frame::data(Bytes::from(format!("{event}\n")));
                        let rest = (fake, changed, begin, since, kind);
                        return Some((Ok::<_, Infallible>(frame), rest));
                    }
                    changed.changed().await.ok()?;
                }
            },
        );
        Response::new(StreamBody::new(lines).boxed())
    }

    fn patch(
        &self,
        path: &str,
        id: &(String, String, String),
        status: bool,
        body: Value,
    ) -> Answer {
        self.change(|state| {
            if state.refuse_patches > 0 {
                state.refuse_patches -= 1;
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            let Some(mut object) = state.find(id) else {
                return failure(StatusCode::NOT_FOUND, "NotFound");
            };
            let before = object.clone();
            match body.is_array() {
                true => {
                    let mut operations = body.clone();
                    // The API server treats a missing field as null.
                    operations.as_array_mut().unwrap().retain(|it| {
                        let absent = object.pointer(it["path"].as_str().unwrap()).is_none();
                        !(it["op"] == "test" && it["value"].is_null() && absent)
                    });
                    let patch: json_patch::Patch = serde_json::from_value(operations).unwrap();
                    if json_patch::patch(&mut object, &patch).is_err() {
                        return failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid");
                    }
                }
                false => json_patch::merge(&mut object, &body),
            }
            // Each endpoint writes its own part only.
            match status {
                true => {
                    let status = object["status"].take();
                    object = before;
                    object["status"] = status;
                }
                false => object["status"] = before["status"].clone(),
            }
            state.patches.push((path.to_owned(), body));
            let finalizers = object["metadata"]["finalizers"].as_array();
            let kept = finalizers.is_some_and(|it| !it.is_empty());
            let gone = !kept && object["metadata"].get("deletionTimestamp").is_some();
            state.store(if gone { "DELETED" } else { "MODIFIED" }, object.clone());
            json_answer(StatusCode::OK, &object)
        })
    }
}

impl State {
    fn find(&self, id: &(String, String, String)) -> Option<Value> {
        self.objects.iter().find(|it| identity(it) == *id).cloned()
    }

    fn store(&mut self, event: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["finalizers"] == json!([]) {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("finalizers");
        }
        let id = identity(&object);
        self.objects.retain(|it| identity(it) != id);
        let sent = json!({ "type": event, "object": object });
        self.events.push((self.version, sent));
        if event != "DELETED" {
            self.objects.push(object);
        }
    }
}

fn identity(object: &Value) -> (String, String, String) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let metadata = &object["metadata"];
    (
        text(&object["kind"]),
        text(&metadata["namespace"]),
        text(&metadata["name"]),
    )
}

fn kind_of(plural: &str) -> String {
    let kinds = &legate_kubernetes::config::kinds::KINDS;
    let kind = kinds.iter().find(|kind| kind.plural == plural);
    kind.unwrap_or_else(|| panic!("{plural}")).name.to_owned()
}

fn json_answer(status: StatusCode, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string())).boxed();
    Response::builder()
        .status(status)
        .header("content-type", "application/json")
        .body(body)
        .unwrap()
}

fn failure(code: StatusCode, reason: &str) -> Answer {
    json_answer(code, &status(code, reason))
}

fn status(code: StatusCode, reason: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16(),
    })
}
