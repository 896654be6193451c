//! A fake Kubernetes API server: lists, watches and writes arbitrary objects over HTTP, as far as the
//! clients of this workspace require. It can be unreachable, end all watches, and expire old versions.
//!
//! It validates neither schemas nor permissions. Objects are JSON as sent by clients.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use legate_runtime::Scope;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::network::{Listener, free_port};

/// The server, stopped on drop.
pub struct FakeKubernetes {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// `None` while it is unreachable.
    scope: Mutex<Option<Scope>>,
}

struct Shared {
    state: Mutex<State>,
    /// Counts changes that watches have to process.
    changed: watch::Sender<u64>,
}

/// Plural of the kind, namespace (or empty) and name.
type ObjectKey = (String, String, String);

#[derive(Default)]
struct State {
    version: u64,
    objects: BTreeMap<ObjectKey, Value>,
    /// Every change: version, place, type, and the object after it.
    log: Vec<(u64, ObjectKey, &'static str, Value)>,
    /// Versions up to this one have expired.
    forgotten: u64,
    /// Incremented to end all watches.
    epoch: u64,
    requests: HashMap<String, usize>,
}

impl FakeKubernetes {
    /// Starts on a loopback port, with the namespaces `kube-system` and `default`.
    ///
    /// # Panics
    ///
    /// If there is no port.
    pub async fn start() -> FakeKubernetes {
        // Not an ephemeral port, which a connection could take while it is away.
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, free_port()).into())
            .await
            .expect("a free port");
        let address = listener.address();
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        });
        let scope = serve(listener, Arc::clone(&shared));
        let server = FakeKubernetes {
            address,
            shared,
            scope: Mutex::new(Some(scope)),
        };
        for name in ["kube-system", "default"] {
            server.apply(json!({
                "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name},
            }));
        }
        server
    }

    /// `http://127.0.0.1:port`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Creates or replaces an object, and returns its new state.
    ///
    /// # Panics
    ///
    /// If it has no kind or name.
    pub fn apply(&self, object: Value) -> Value {
        let plural = plural(object["kind"].as_str().expect("a kind"));
        let applied = self.state().put(&plural, object, false);
        self.wake();
        applied.expect("a write without a version is never refused")
    }

    /// Deletes an object; a no-op if it does not exist. One with finalizers stays until these are removed.
    pub fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let place = (plural(kind), namespace.to_owned(), name.to_owned());
        self.state().remove(&place);
        self.wake();
    }

    /// All objects of a kind.
    #[must_use]
    pub fn objects(&self, kind: &str) -> Vec<Value> {
        let (plural, state) = (plural(kind), self.state());
        let own = state.objects.iter().filter(|(place, _)| place.0 == plural);
        own.map(|(_, object)| object.clone()).collect()
    }

    /// The number of requests of a type, such as `GET pods` or `WATCH pods`.
    #[must_use]
    pub fn requests(&self, what: &str) -> usize {
        self.state().requests.get(what).copied().unwrap_or_default()
    }

    /// Ends every watch.
    pub fn end_watches(&self) {
        self.state().epoch += 1;
        self.wake();
    }

    /// Ends every watch, and answers watches from old versions with 410 Gone.
    pub fn forget(&self) {
        let mut state = self.state();
        // A version that occurs in no object.
        state.version += 1;
        state.forgotten = state.version;
        state.epoch += 1;
        drop(state);
        self.wake();
    }

    /// Closes all connections and refuses new ones.
    pub fn go_away(&self) {
        drop(
            self.scope
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    /// Accepts connections again on the same port, with all objects.
    ///
    /// # Panics
    ///
    /// If another process has taken the port.
    pub async fn come_back(&self) {
        let listener = Listener::bind(self.address).await.expect("the same port");
        let scope = serve(listener, Arc::clone(&self.shared));
        *self.scope.lock().unwrap_or_else(PoisonError::into_inner) = Some(scope);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.shared.changed.send_modify(|count| *count += 1);
    }
}

/// The plural in paths, as in Kubernetes for these kinds.
fn plural(kind: &str) -> String {
    format!("{}s", kind.to_ascii_lowercase())
}

impl State {
    fn put(&mut self, plural: &str, mut object: Value, checked: bool) -> Result<Value, Value> {
        let text = |field: &str| {
            let text = object["metadata"][field].as_str();
            text.unwrap_or_default().to_owned()
        };
        let place = (plural.to_owned(), text("namespace"), text("name"));
        assert!(!place.2.is_empty(), "an object without a name: {object}");
        let old = self.objects.get(&place);
        let sent = object["metadata"]["resourceVersion"].as_str();
        if checked && old.map(|old| &old["metadata"]["resourceVersion"]) != Some(&sent.into()) {
            return Err(status(409, "Conflict", "the object has been modified"));
        }
        self.version += 1;
        let uid = match (old, object["metadata"]["uid"].as_str()) {
            (_, Some(uid)) => uid.to_owned(),
            (Some(old), None) => old["metadata"]["uid"].as_str().unwrap_or("").to_owned(),
            (None, None) => format!("00000000-0000-4000-8000-{:012}", self.version),
        };
        let how = if old.is_some() { "MODIFIED" } else { "ADDED" };
        object["metadata"]["uid"] = uid.into();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(place.clone(), object.clone());
        self.log.push((self.version, place, how, object.clone()));
        Ok(object)
    }

    /// Deletes an object, or marks it as deleted if it has finalizers.
    fn remove(&mut self, place: &ObjectKey) -> Option<Value> {
        let object = self.objects.get(place)?;
        if has_finalizers(object) {
            let mut object = object.clone();
            let deleted = &mut object["metadata"]["deletionTimestamp"];
            if deleted.is_null() {
                *deleted = json!("2026-01-01T00:00:00Z");
            }
            return self.put(&place.0, object, false).ok();
        }
        self.remove_now(place)
    }

    /// Changes an object. One that was deleted is removed with its last finalizer.
    fn patch(&mut self, place: &ObjectKey, patch: &Value) -> Option<Value> {
        let mut object = self.objects.get(place)?.clone();
        let based_on = &patch["metadata"]["resourceVersion"];
        if !based_on.is_null() && *based_on != object["metadata"]["resourceVersion"] {
            return Some(status(409, "Conflict", "the object has been modified"));
        }
        merge(&mut object, patch);
        let deleted = !object["metadata"]["deletionTimestamp"].is_null();
        let put = self.put(&place.0, object, false);
        let put = put.unwrap_or_else(|error| error);
        if deleted && !has_finalizers(&put) {
            return self.remove_now(place);
        }
        Some(put)
    }

    fn remove_now(&mut self, place: &ObjectKey) -> Option<Value> {
        let mut object = self.objects.remove(place)?;
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.log
            .push((self.version, place.clone(), "DELETED", object.clone()));
        Some(object)
    }
}

fn has_finalizers(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.is_some_and(|all| !all.is_empty())
}

fn serve(listener: Listener, shared: Arc<Shared>) -> Scope {
    let scope = Scope::new("fake Kubernetes");
    let spawner = scope.spawner();
    scope.spawn("accept", async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                return Ok::<(), Infallible>(());
            };
            let shared = Arc::clone(&shared);
            spawner.spawn("connection", async move {
                let service = service_fn(move |request| {
                    let shared = Arc::clone(&shared);
                    async move { Ok::<_, Infallible>(answer(&shared, request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                let _ = connection.await;
                Ok::<(), Infallible>(())
            });
        }
    });
    scope
}

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The target of a request's path.
struct Target {
    plural: String,
    namespace: String,
    name: String,
    selector: BTreeMap<String, String>,
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let Some(target) = Target::of(parts.uri.path(), parts.uri.query().unwrap_or_default()) else {
        return json_answer(&status(404, "NotFound", "no such path"));
    };
    let parameters = parameters(parts.uri.query().unwrap_or_default());
    let watching = matches!(
        parameters.get("watch").map(String::as_str),
        Some("1" | "true")
    );
    let Ok(body) = body.collect().await else {
        return json_answer(&status(400, "BadRequest", "the body ended early"));
    };
    let sent: Value = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
    let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
    let verb = if watching {
        "WATCH"
    } else {
        parts.method.as_str()
    };
    let count = format!("{verb} {}", target.plural);
    *state.requests.entry(count).or_default() += 1;
    if watching {
        let from = parameters.get("resourceVersion");
        let from = from
            .and_then(|version| version.parse().ok())
            .unwrap_or(state.version);
        return watch_answer(Arc::clone(shared), target, from, &state);
    }
    let answer = change(&mut state, &parts.method, &target, sent);
    drop(state);
    shared.changed.send_modify(|count| *count += 1);
    json_answer(&answer)
}

/// Reads, writes or lists objects.
fn change(state: &mut State, method: &Method, target: &Target, sent: Value) -> Value {
    let place = (
        target.plural.clone(),
        target.namespace.clone(),
        target.name.clone(),
    );
    let found = state.objects.get(&place).cloned();
    let missing = || status(404, "NotFound", &format!("{} not found", place.2));
    match *method {
        Method::GET if target.name.is_empty() => target.list(state),
        Method::GET => found.unwrap_or_else(missing),
        Method::POST => {
            let mut object = sent;
            if object["metadata"]["name"].is_null() {
                let prefix = object["metadata"]["generateName"].as_str().unwrap_or("x-");
                object["metadata"]["name"] = format!("{prefix}{}", state.version).into();
            }
            if !target.namespace.is_empty() {
                object["metadata"]["namespace"] = target.namespace.as_str().into();
            }
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            let place = (place.0.clone(), place.1.clone(), name.to_owned());
            match state.objects.contains_key(&place) {
                true => status(409, "AlreadyExists", "it already exists"),
                false => state
                    .put(&place.0, object, false)
                    .unwrap_or_else(|error| error),
            }
        }
        Method::PUT => {
            let mut object = sent;
            if !target.namespace.is_empty() {
                object["metadata"]["namespace"] = target.namespace.as_str().into();
            }
            state
                .put(&place.0, object, true)
                .unwrap_or_else(|error| error)
        }
        Method::PATCH => state.patch(&place, &sent).unwrap_or_else(missing),
        Method::DELETE => state.remove(&place).unwrap_or_else(missing),
        _ => status(405, "MethodNotAllowed", "no such method"),
    }
}

/// Applies a JSON merge patch (RFC 7396).
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (key, value) in fields {
        match value {
            Value::Null => drop(object.as_object_mut().and_then(|object| object.remove(key))),
            value => merge(&mut object[key.as_str()], value),
        }
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}

fn json_answer(answer: &Value) -> Response<Body> {
    let code = match answer["kind"] == "Status" {
        true => answer["code"]
            .as_u64()
            .and_then(|code| u16::try_from(code).ok()),
        false => None,
    };
    let body = Full::new(Bytes::from(answer.to_string())).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .unwrap_or(StatusCode::OK);
    response
}

fn parameters(query: &str) -> HashMap<String, String> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    pairs
        .map(|(key, value)| (decoded(key), decoded(value)))
        .collect()
}

impl Target {
    fn of(path: &str, query: &str) -> Option<Target> {
        let segments: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let rest = match segments.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => rest,
            _ => return None,
        };
        let (namespace, plural, name) = match rest {
            ["namespaces", namespace, plural] => (*namespace, *plural, ""),
            ["namespaces", namespace, plural, name] => (*namespace, *plural, *name),
            ["namespaces", namespace, plural, name, "status"] => (*namespace, *plural, *name),
            [plural] => ("", *plural, ""),
            [plural, name] => ("", *plural, *name),
            _ => return None,
        };
        let selector = parameters(query)
            .remove("labelSelector")
            .unwrap_or_default();
        let selector = selector.split(',').filter_map(|one| one.split_once('='));
        Some(Target {
            plural: plural.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            selector: selector
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        })
    }

    fn covers(&self, place: &ObjectKey) -> bool {
        place.0 == self.plural && (self.namespace.is_empty() || place.1 == self.namespace)
    }

    fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.selector
            .iter()
            .all(|(key, value)| labels[key] == value.as_str())
    }

    fn list(&self, state: &State) -> Value {
        let items = state.objects.iter().filter(|(place, _)| self.covers(place));
        let items = items.filter(|(_, object)| self.selects(object));
        let items: Vec<&Value> = items.map(|(_, object)| object).collect();
        json!({
            "kind": "List", "apiVersion": "v1",
            "metadata": {"resourceVersion": state.version.to_string()},
            "items": items,
        })
    }
}

/// Streams changes after `from`, until watches are ended.
fn watch_answer(shared: Arc<Shared>, target: Target, from: u64, state: &State) -> Response<Body> {
    let mut waiting = VecDeque::new();
    let mut next = Some(state.epoch);
    if from < state.forgotten {
        let gone = status(410, "Expired", "too old resource version");
        waiting.push_back(json!({"type": "ERROR", "object": gone}));
        next = None;
    }
    let changed = shared.changed.subscribe();
    let start = (shared, target, from, waiting, next, changed);
    let events = stream::unfold(start, |mut watch| async move {
        loop {
            let (shared, target, from, waiting, epoch, changed) = &mut watch;
            if let Some(event) = waiting.pop_front() {
                let frame = Frame::data(Bytes::from(format!("{event}\n")));
                return Some((Ok::<_, Infallible>(frame), watch));
            }
            let epoch = (*epoch)?;
            changed.borrow_and_update();
            {
                let state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
                if state.epoch != epoch {
                    return None;
                }
                for (version, place, how, object) in &state.log {
                    if version <= from || !target.covers(place) {
                        continue;
                    }
                    let how = match target.selects(object) {
                        true => *how,
                        // It no longer matches the selector, or never did.
                        false => "DELETED",
                    };
                    waiting.push_back(json!({"type": how, "object": object}));
                }
                *from = state.version;
            }
            if waiting.is_empty() && changed.changed().await.is_err() {
                return None;
            }
        }
    });
    Response::new(BodyExt::boxed_unsync(StreamBody::new(events)))
}
