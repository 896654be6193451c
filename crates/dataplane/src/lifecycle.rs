//! The HTTP server for orchestrators and operators: graceful start and stop compatible with
//! Consul's dataplane, plus health, readiness with its reasons, status and metrics. It starts
//! before everything else so that it can report what the rest is waiting for. Only the graceful
//! stop, `POST /restart` and `POST /drain` change anything. No path shows a secret.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{Method, StatusCode, header};
use legate_runtime::metrics::CONTENT_TYPE;
use legate_runtime::{Readiness, Spawner, http_server};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::leave::Drainer;
use crate::restart::Restarter;
use crate::settings;
use crate::settings::lifecycle_paths::{TCP_CHECK, matches};
use crate::signals::{StopSender, Urgency};
use crate::status::{StatusSource, reasons};

/// State behind the server's answers.
#[derive(Debug, Clone)]
pub struct LifecycleParts {
    /// Paths and grace periods.
    pub settings: settings::Lifecycle,
    /// Source of the status document, readiness and metrics.
    pub status: StatusSource,
    /// Requests the end of the dataplane.
    pub stop: StopSender,
    /// Controls Envoy; `None` if this process runs none.
    pub envoy: Option<EnvoyControls>,
}

/// Operations on Envoy that can be requested over HTTP.
#[derive(Debug, Clone)]
pub struct EnvoyControls {
    /// Requests a new Envoy; `None` with the built-in proxy.
    pub restarter: Option<Restarter>,
    /// Drains inbound connections.
    pub drainer: Drainer,
}

/// Binds the configured address.
///
/// # Errors
/// When the address is taken or not allowed; the error names the settings.
pub fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    http_server::bind(address).map_err(|error| {
        anyhow!(
            "cannot listen for lifecycle requests on {address} (-graceful-addr, -graceful-port): {error}"
        )
    })
}

/// Serves requests until the scope of `spawner` stops.
pub fn serve(listener: TcpListener, parts: LifecycleParts, spawner: &Spawner) {
    tracing::info!(
        target: "lifecycle",
        address = %parts.settings.bind,
        shutdown = parts.settings.shutdown_path,
        startup = parts.settings.startup_path,
        "starting proxy lifecycle management server"
    );
    let router = Router::new().fallback(answer).with_state(Arc::new(parts));
    crate::http_server::serve("lifecycle server", listener, router, spawner);
}

/// How long an application may take to accept a connection: the kubelet's default probe timeout.
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
    match (path, &parts.envoy) {
        ("/live" | "/healthz", _) => "alive\n".into_response(),
        ("/ready" | "/readyz" | "/startup", _) => ready(&parts.status.readiness),
        ("/restart" | "/drain", _) if request.method != Method::POST => {
            let allow = [(header::ALLOW, "POST")];
            (StatusCode::METHOD_NOT_ALLOWED, allow, "use POST\n").into_response()
        }
        ("/restart" | "/drain", None) => {
            (StatusCode::CONFLICT, "this process runs no Envoy\n").into_response()
        }
        ("/restart", Some(envoy)) => match &envoy.restarter {
            Some(restarter) => restart(restarter).await.into_response(),
            None => {
                let text = "with -proxy builtin or auto, no Envoy is replaced on request\n";
                (StatusCode::CONFLICT, text).into_response()
            }
        },
        ("/drain", Some(envoy)) => {
            let query = request.uri.query().unwrap_or_default();
            drain(&envoy.drainer, query).await.into_response()
        }
        ("/status", _) => axum::Json(parts.status.document().await).into_response(),
        ("/metrics", _) => {
            let content_type = [(header::CONTENT_TYPE, CONTENT_TYPE)];
            (content_type, parts.status.telemetry.render()).into_response()
        }
        _ => match path.strip_prefix(TCP_CHECK).map(str::parse) {
            Some(Ok(port)) => accepts(port).await.into_response(),
            _ => StatusCode::NOT_FOUND.into_response(),
        },
    }
}

/// Whether the application accepts connections on loopback, which is where the proxy connects to
/// it.
async fn accepts(port: u16) -> (StatusCode, String) {
    let connect = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    let refused = match timeout(TCP_CHECK_TIME, connect).await {
        Ok(Ok(_)) => return (StatusCode::OK, "accepts connections\n".to_owned()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer in time".to_owned(),
    };
    let text = format!("port {port} accepts no connection: {refused}\n");
    (StatusCode::SERVICE_UNAVAILABLE, text)
}

/// `accept_ms` in the query: for how long new inbound connections are still accepted.
async fn drain(drainer: &Drainer, query: &str) -> (StatusCode, String) {
    let accept = match query.strip_prefix("accept_ms=").map(str::parse) {
        None if query.is_empty() => Duration::ZERO,
        Some(Ok(milliseconds)) => Duration::from_millis(milliseconds),
        _ => {
            let text = "the only parameter is accept_ms=NUMBER\n";
            return (StatusCode::BAD_REQUEST, text.to_owned());
        }
    };
    match drainer.drain(accept).await {
        Ok(()) => (
            StatusCode::OK,
            "inbound connections are drained\n".to_owned(),
        ),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// Responds once the new Envoy serves, or with the reason why there is none.
async fn restart(restarter: &Restarter) -> (StatusCode, String) {
    tracing::info!(target: "lifecycle", "restart of Envoy requested");
    let (status, text) = restarter.restart().await;
    (status, text + "\n")
}

fn ready(readiness: &Readiness) -> Response {
    match readiness.is_ready() {
        true => "ready\n".into_response(),
        false => (StatusCode::SERVICE_UNAVAILABLE, reasons(readiness)).into_response(),
    }
}

/// Responds immediately; the stop proceeds in the background. Only the first request is logged,
/// because any client of the port can send many.
fn shut_down(parts: &LifecycleParts) -> Response {
    if parts.stop.request(Urgency::Graceful) {
        tracing::info!(target: "lifecycle", "graceful shutdown requested");
    }
    StatusCode::OK.into_response()
}

/// Always succeeds: the caller starts the application now, whether or not the proxy is ready.
async fn wait_until_ready(parts: &LifecycleParts) -> Response {
    let grace = parts.settings.startup_grace;
    if grace.is_zero() {
        tracing::info!(target: "lifecycle", "no startup grace period, not waiting for the proxy");
    } else if timeout(grace, parts.status.readiness.wait_ready())
        .await
        .is_err()
    {
        let missing = reasons(&parts.status.readiness);
        tracing::warn!(
            target: "lifecycle",
            grace = ?grace,
            missing = missing.trim_end(),
            "grace period elapsed before proxy ready"
        );
    }
    StatusCode::OK.into_response()
}
