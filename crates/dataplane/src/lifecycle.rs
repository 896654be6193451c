//! The HTTP server for orchestrators and people: graceful start and stop as Consul's dataplane has
//! them, and health, readiness with its reasons, status and metrics. It starts before anything
//! else, so that it can say what the rest waits for. No path changes anything but the graceful
//! stop, `POST /restart` and `POST /drain`, and none shows a secret.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderName, Method, StatusCode, header};
use legate_runtime::http_server::bind;
use legate_runtime::metrics::CONTENT_TYPE;
use legate_runtime::{Readiness, Spawner};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::http_server;
use crate::leave::Drainer;
use crate::restart::{Outcome, Restarter};
use crate::settings;
use crate::settings::lifecycle_paths::{TCP_CHECK, matches};
use crate::signals::{StopSender, Urgency};
use crate::status::{StatusSource, reasons};
use crate::telemetry::Telemetry;

/// The server cannot listen.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen for lifecycle requests on {address} (-graceful-addr, -graceful-port): {source}"
)]
pub struct LifecycleError {
    address: SocketAddr,
    source: io::Error,
}

/// A bound server that does not answer yet.
#[derive(Debug)]
pub struct LifecycleListener {
    listener: TcpListener,
    address: SocketAddr,
}

/// What the server answers from.
#[derive(Debug, Clone)]
pub struct LifecycleParts {
    /// Paths and times.
    pub settings: settings::Lifecycle,
    /// Whether everything is ready.
    pub readiness: Readiness,
    /// The status document.
    pub status: StatusSource,
    /// The dataplane's own metrics.
    pub telemetry: Telemetry,
    /// Requests the end of the dataplane.
    pub stop: StopSender,
    /// Requests a new Envoy; absent where no Envoy is run.
    pub restarter: Option<Restarter>,
    /// Drains inbound connections; absent where no Envoy is run.
    pub drainer: Option<Drainer>,
}

impl LifecycleListener {
    /// Binds the configured address.
    ///
    /// # Errors
    /// When it is taken or not allowed; the error names the settings.
    pub fn bind(address: SocketAddr) -> Result<LifecycleListener, LifecycleError> {
        let failed = |source| LifecycleError { address, source };
        let listener = bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(LifecycleListener { listener, address })
    }

    /// Where it listens: the real port, when an ephemeral one was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the scope of `spawner` stops.
    pub fn serve(self, parts: LifecycleParts, spawner: &Spawner) {
        tracing::info!(
            target: "lifecycle",
            address = %self.address,
            shutdown = parts.settings.shutdown_path,
            startup = parts.settings.startup_path,
            "starting proxy lifecycle management server"
        );
        let router = Router::new().fallback(answer).with_state(Arc::new(parts));
        http_server::serve("lifecycle server", self.listener, router, spawner);
    }
}

/// How long an application may take to accept: as long as the kubelet waits for a probe.
const TCP_CHECK_TIME: Duration = Duration::from_secs(1);

async fn answer(State(parts): State<Arc<LifecycleParts>>, request: Request) -> Response {
    let (request, _) = request.into_parts();
    let path = request.uri.path();
    if matches(&parts.settings.shutdown_path, path) {
        return shut_down(&parts);
    }
    if matches(&parts.settings.startup_path, path) {
        return wait_until_ready(&parts).await;
    }
    match path {
        "/live" | "/healthz" => "alive\n".into_response(),
        "/ready" | "/readyz" | "/startup" => ready(&parts.readiness),
        "/restart" => restart(&parts, &request.method).await.into_response(),
        "/drain" => drain(&parts, &request).await.into_response(),
        "/status" => axum::Json(parts.status.document().await).into_response(),
        "/metrics" => (
            [(header::CONTENT_TYPE, CONTENT_TYPE)],
            parts.telemetry.render(),
        )
            .into_response(),
        _ => match path.strip_prefix(TCP_CHECK).map(str::parse) {
            Some(Ok(port)) => accepts(port).await,
            _ => StatusCode::NOT_FOUND.into_response(),
        },
    }
}

/// The application listens on loopback for the proxy, and this asks as the proxy does.
async fn accepts(port: u16) -> Response {
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let refused = match timeout(TCP_CHECK_TIME, connect).await {
        Ok(Ok(_)) => return "accepts connections\n".into_response(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let text = format!("port {port} accepts no connection: {refused}\n");
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

/// Status, allowed method and text.
type Refusal = (
    StatusCode,
    Option<[(HeaderName, &'static str); 1]>,
    &'static str,
);

/// What changes Envoy is asked for by POST, and only where there is one.
fn for_envoy<'a, T>(method: &Method, part: &'a Option<T>) -> Result<&'a T, Refusal> {
    if method != Method::POST {
        let allow = Some([(header::ALLOW, "POST")]);
        return Err((StatusCode::METHOD_NOT_ALLOWED, allow, "use POST\n"));
    }
    let none = (StatusCode::CONFLICT, None, "this process runs no Envoy\n");
    part.as_ref().ok_or(none)
}

/// `accept_ms` in the query: for how long new inbound connections are still accepted.
async fn drain(parts: &LifecycleParts, request: &Parts) -> Result<Response, Refusal> {
    let drainer = for_envoy(&request.method, &parts.drainer)?;
    let query = request.uri.query().unwrap_or_default();
    let accept = match query.strip_prefix("accept_ms=").map(str::parse) {
        None if query.is_empty() => Duration::ZERO,
        Some(Ok(milliseconds)) => Duration::from_millis(milliseconds),
        _ => {
            let text = "accept_ms=NUMBER is all there is\n";
            return Err((StatusCode::BAD_REQUEST, None, text));
        }
    };
    Ok(match drainer.drain(accept).await {
        Ok(()) => "inbound connections are drained\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    })
}

fn ready(readiness: &Readiness) -> Response {
    match readiness.is_ready() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons(readiness)).into_response(),
    }
}

/// Answers at once: the stop takes its time. Only the first request is logged: anybody who reaches
/// the port may send any number.
fn shut_down(parts: &LifecycleParts) -> Response {
    if parts.stop.raise(Urgency::Graceful) {
        tracing::info!(target: "lifecycle", "asked for a graceful shutdown");
    }
    StatusCode::OK.into_response()
}

/// Answers when the new Envoy serves, or why there is none.
async fn restart(parts: &LifecycleParts, method: &Method) -> Result<Response, Refusal> {
    let restarter = for_envoy(method, &parts.restarter)?;
    tracing::info!(target: "lifecycle", "asked for a restart of Envoy");
    let (status, text) = match restarter.restart().await {
        Outcome::Serves(text) => (StatusCode::OK, text),
        Outcome::UnderWay(text) => (StatusCode::ACCEPTED, text),
        Outcome::Refused(text) => (StatusCode::CONFLICT, text),
        Outcome::Unavailable(text) => (StatusCode::SERVICE_UNAVAILABLE, text),
    };
    Ok((status, text + "\n").into_response())
}

/// Success in any case: whoever waits starts the application now, with or without the proxy.
async fn wait_until_ready(parts: &LifecycleParts) -> Response {
    let grace = parts.settings.startup_grace;
    if grace.is_zero() {
        tracing::info!(target: "lifecycle", "no startup grace period, not waiting for the proxy");
    } else if timeout(grace, parts.readiness.wait_ready()).await.is_err() {
        let missing = reasons(&parts.readiness);
        tracing::warn!(
            target: "lifecycle",
            grace = ?grace,
            missing = missing.trim_end(),
            "grace period elapsed before proxy ready"
        );
    }
    StatusCode::OK.into_response()
}
