//! The admission webhook over HTTPS: decodes requests of the API server and encodes responses.
//! Decisions are made by [`super::admit`]. Any client may reach the port, so everything is bounded,
//! and a response reveals only the result for the pod that was sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use http::StatusCode;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionReview, Operation};
use kube::runtime::reflector::ObjectRef;
use legate_runtime::http_server::{self, Limits};
use legate_runtime::metrics::{Error, Histogram, HistogramOpts, IntCounterVec, Opts, Registry};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

use super::admission::{Admitted, admit};
use super::installation::Installation;
use super::request::{Refusal, Request};
use crate::context::Caches;

/// The path to which the API server sends pods.
pub const PATH: &str = "/mutate";

/// The API server's limit for objects is 3 MiB; the request around the pod is small.
const BODY_LIMIT: usize = 4 * 1024 * 1024;

/// The API server's timeout is 5 s.
const LIMITS: Limits = Limits {
    connections: 256,
    head: Duration::from_secs(4),
    making: Duration::from_secs(4),
    answer: Duration::from_secs(4),
};

/// The state of the webhook.
#[derive(Clone)]
pub struct Webhook {
    /// The installation; `None` until it is known.
    pub installation: watch::Receiver<Option<Arc<Installation>>>,
    /// Services and namespaces.
    pub caches: Caches,
    /// Metrics.
    pub metrics: AdmissionMetrics,
}

/// Metrics of admission.
#[derive(Clone)]
pub struct AdmissionMetrics {
    total: IntCounterVec,
    seconds: Histogram,
}

impl AdmissionMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// If they are registered already.
    pub fn register(registry: &Registry) -> Result<AdmissionMetrics, Error> {
        let total = Opts::new(
            "legate_k8s_admissions_total",
            "Admission decisions, by result: injected, left, refused or invalid.",
        );
        let seconds = HistogramOpts::new(
            "legate_k8s_admission_seconds",
            "Duration of admission decisions.",
        )
        .buckets(vec![0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0]);
        let metrics = AdmissionMetrics {
            total: IntCounterVec::new(total, &["result"])?,
            seconds: Histogram::with_opts(seconds)?,
        };
        registry.register(Box::new(metrics.total.clone()))?;
        registry.register(Box::new(metrics.seconds.clone()))?;
        Ok(metrics)
    }
}

impl Webhook {
    /// Serves on `listener` until the scope of `spawner` stops.
    pub fn serve(
        self,
        listener: TcpListener,
        tls: Arc<rustls::ServerConfig>,
        spawner: &legate_runtime::Spawner,
    ) {
        let router = Router::new().route(PATH, post(mutate)).with_state(self);
        let service = TowerToHyperService::new(router);
        let tls = TlsAcceptor::from(tls);
        let open = move |stream| tls.accept(stream);
        http_server::serve("webhook", listener, open, service, LIMITS, spawner);
    }

    fn count(&self, result: &str) {
        self.metrics.total.with_label_values(&[result]).inc();
    }
}

async fn mutate(State(webhook): State<Webhook>, body: Body) -> Response {
    let body = match axum::body::to_bytes(body, BODY_LIMIT).await {
        Ok(body) => body,
        Err(_) => {
            webhook.count("invalid");
            let text = format!("the request is truncated, or longer than {BODY_LIMIT} bytes\n");
            return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
        }
    };
    let began = Instant::now();
    let review: Result<AdmissionReview<DynamicObject>, _> = serde_json::from_slice(&body);
    let review = review.map(|review| (review.types.api_version.clone(), review.request));
    let (version, request) = match review {
        Ok((version, Some(request))) => (version, request),
        Ok((_, None)) => return invalid(&webhook, "the request is missing"),
        Err(error) => return invalid(&webhook, &error.to_string()),
    };
    let decided = decide(&webhook, &request);
    webhook
        .metrics
        .seconds
        .observe(began.elapsed().as_secs_f64());
    let answer = match &decided {
        Ok(admitted) => {
            let injected = admitted.patch.is_some();
            webhook.count(if injected { "injected" } else { "left" });
            allowed(admitted)
        }
        Err(refusal) => {
            webhook.count("refused");
            tracing::info!(pod = pod_name(&request), %refusal, "a pod was not admitted");
            Ok(denied(refusal))
        }
    };
    match answer {
        Ok(mut answer) => {
            answer["uid"] = json!(request.uid);
            let review =
                json!({ "apiVersion": version, "kind": "AdmissionReview", "response": answer });
            axum::Json(review).into_response()
        }
        Err(error) => {
            tracing::error!(%error, "cannot serialize a patch");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// A body without a request has no uid to respond to, so the answer is a plain HTTP error.
fn invalid(webhook: &Webhook, reason: &str) -> Response {
    webhook.count("invalid");
    let reason: String = reason.chars().take(300).collect();
    let text = format!("this is not an AdmissionReview: {reason}\n");
    (StatusCode::BAD_REQUEST, text).into_response()
}

fn allowed(admitted: &Admitted) -> Result<Value, serde_json::Error> {
    let mut answer = json!({ "allowed": true });
    if let Some(patch) = &admitted.patch {
        answer["patchType"] = json!("JSONPatch");
        answer["patch"] = json!(BASE64_STANDARD.encode(serde_json::to_vec(patch)?));
    }
    if !admitted.warnings.is_empty() {
        answer["warnings"] = json!(admitted.warnings);
    }
    Ok(answer)
}

fn denied(refusal: &Refusal) -> Value {
    json!({ "allowed": false, "status": { "message": refusal.to_string(), "code": 400 } })
}

fn pod_name(request: &AdmissionRequest<DynamicObject>) -> String {
    let object = request.object.as_ref();
    let name = object.map(|object| {
        let generated = object.metadata.generate_name.clone();
        object
            .metadata
            .name
            .clone()
            .or(generated)
            .unwrap_or_default()
    });
    let namespace = request.namespace.as_deref().unwrap_or_default();
    let name = format!("{namespace}/{}", name.unwrap_or_default());
    name.chars().take(300).collect()
}

fn decide(
    webhook: &Webhook,
    request: &AdmissionRequest<DynamicObject>,
) -> Result<Admitted, Refusal> {
    let kind = &request.kind;
    if kind.kind != "Pod" || !kind.group.is_empty() {
        return Err(Refusal::new(format!(
            "this webhook is for pods, but received a {}: correct the rules of the \
             MutatingWebhookConfiguration",
            kind.kind.chars().take(100).collect::<String>()
        )));
    }
    let unchanged = Admitted {
        patch: None,
        warnings: Vec::new(),
    };
    if !matches!(request.operation, Operation::Create) {
        return Ok(unchanged);
    }
    let object = request.object.clone();
    let object = object.ok_or_else(|| Refusal::new("the request has no pod".to_owned()))?;
    let pod: Pod = object.try_parse().map_err(|error| {
        let error: String = error.to_string().chars().take(300).collect();
        Refusal::new(format!("the object is not a pod: {error}"))
    })?;
    let installation = webhook.installation.borrow().clone();
    let installation = installation.ok_or_else(|| {
        Refusal::new("the operator has just started and cannot decide yet: try again".to_owned())
    })?;
    let namespace = request.namespace.as_deref().unwrap_or("default");
    let object = webhook.caches.namespaces.get(&ObjectRef::new(namespace));
    let none = BTreeMap::new();
    let services = webhook.caches.services.state();
    admit(
        &installation,
        &Request {
            namespace,
            namespace_labels: object.as_ref().map_or(&none, |object| object.labels()),
            services: &services,
            pod: &pod,
        },
    )
}
