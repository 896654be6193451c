//! A fake API server for certificates and the webhook: versioned objects over HTTP, optimistic
//! concurrency, lists and long-lived watches. It can be made to fail.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode};
use kube::Client;
use legate_runtime::Spawner;
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const CONFIGURATION: &str = "/apis/admissionregistration.k8s.io/v1/\
     mutatingwebhookconfigurations/legate-operator";
pub(crate) const SECRETS: &str = "/api/v1/namespaces/mesh/secrets";

#[derive(Default)]
pub(crate) struct ApiServer {
    objects: Mutex<BTreeMap<String, Value>>,
    version: Mutex<u64>,
    /// Every request is answered with 500.
    pub(crate) broken: AtomicBool,
}

impl ApiServer {
    /// Starts it with the objects that the chart installs.
    pub(crate) async fn start(spawner: &Spawner) -> (Arc<ApiServer>, Client) {
        let server = Arc::new(ApiServer::default());
        let webhook = |name: &str| {
            let service =
                json!({ "name": "legate-operator", "namespace": "mesh", "path": "/mutate" });
            json!({
                "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "clientConfig": { "service": service },
            })
        };
        server.put(
            CONFIGURATION,
            json!({ "metadata": { "name": "legate-operator" },
                    "webhooks": [webhook("pods.legate.example"), webhook("more.legate.example")] }),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&server));
        let stop = spawner.token();
        spawner.spawn("API server", async move {
            // Watches do not end by themselves.
            let served = axum::serve(listener, router).into_future();
            stop.run_until_cancelled(served).await;
            Ok::<_, std::convert::Infallible>(())
        });
        let url = format!("http://{address}").parse().unwrap();
        let client = Client::try_from(kube::Config::new(url)).unwrap();
        (server, client)
    }

    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().get(path).cloned()
    }

    /// Stores an object with a new version.
    pub(crate) fn put(&self, path: &str, mut object: Value) -> Value {
        let mut version = self.version.lock().unwrap();
        *version += 1;
        object["metadata"]["resourceVersion"] = json!(version.to_string());
        let mut objects = self.objects.lock().unwrap();
        objects.insert(path.to_owned(), object.clone());
        object
    }

    /// The decoded text of a Secret.
    pub(crate) fn secret(&self, name: &str, key: &str) -> String {
        let secret = self.get(&format!("{SECRETS}/{name}")).unwrap();
        decoded(&secret["data"][key])
    }
}

pub(crate) fn decoded(text: &Value) -> String {
    use base64::Engine;
    let engine = base64::prelude::BASE64_STANDARD;
    String::from_utf8(engine.decode(text.as_str().unwrap()).unwrap()).unwrap()
}

fn failure(code: StatusCode, reason: &str) -> Response {
    let status = json!({ "kind": "Status", "status": "Failure", "message": reason,
                         "reason": reason, "code": code.as_u16() });
    (code, axum::Json(status)).into_response()
}

async fn answer(State(server): State<Arc<ApiServer>>, request: Request) -> Response {
    if server.broken.load(Ordering::Relaxed) {
        return failure(StatusCode::INTERNAL_SERVER_ERROR, "etcd is away");
    }
    let (head, body) = request.into_parts();
    let body = axum::body::to_bytes(body, 1 << 20).await.unwrap();
    let path = head.uri.path();
    let query = head.uri.query().unwrap_or_default();
    match head.method {
        Method::GET if path == "/version" => axum::Json(json!({
            "major": "1", "minor": "33", "gitVersion": "v1.33.0", "gitCommit": "", "gitTreeState": "",
            "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        }))
        .into_response(),
        Method::GET if query.contains("watch=true") => {
            Body::from_stream(futures_util::stream::pending::<Result<Bytes, std::io::Error>>())
                .into_response()
        }
        Method::GET if ["/api/v1/services", "/api/v1/namespaces"].contains(&path) => {
            let objects = server.objects.lock().unwrap();
            let wanted = path.trim_start_matches("/api/v1");
            let items: Vec<&Value> = objects
                .iter()
                .filter(|(key, _)| key.starts_with(wanted))
                .map(|(_, object)| object)
                .collect();
            let metadata = json!({ "resourceVersion": "1" });
            axum::Json(json!({ "metadata": metadata, "items": items })).into_response()
        }
        Method::GET => match server.get(path) {
            Some(object) => axum::Json(object).into_response(),
            None => failure(StatusCode::NOT_FOUND, "NotFound"),
        },
        Method::POST => {
            let object: Value = serde_json::from_slice(&body).unwrap();
            let name = object["metadata"]["name"].as_str().unwrap();
            let path = format!("{path}/{name}");
            // Concurrent creation is not simulated here.
            if server.get(&path).is_some() {
                return failure(StatusCode::CONFLICT, "AlreadyExists");
            }
            axum::Json(server.put(&path, object)).into_response()
        }
        Method::PUT | Method::PATCH => change(&server, &head.method, path, &body),
        _ => failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
    }
}

fn change(server: &ApiServer, method: &Method, path: &str, body: &[u8]) -> Response {
    let change: Value = serde_json::from_slice(body).unwrap();
    let Some(mut object) = server.get(path) else {
        return failure(StatusCode::NOT_FOUND, "NotFound");
    };
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    if version(&change) != version(&object) {
        return failure(StatusCode::CONFLICT, "Conflict");
    }
    if method == Method::PUT {
        return axum::Json(server.put(path, change)).into_response();
    }
    // A strategic merge patch merges webhooks by name.
    for webhook in change["webhooks"].as_array().unwrap() {
        let webhooks = object["webhooks"].as_array_mut().unwrap();
        let own = webhooks
            .iter_mut()
            .find(|own| own["name"] == webhook["name"]);
        json_patch::merge(own.unwrap(), webhook);
    }
    axum::Json(server.put(path, object)).into_response()
}
