//! The demo services: HTTP servers without knowledge of the mesh.
//!
//! `api` returns its caller's identity; `web` calls its upstream on a local port and returns the
//! response.

use std::net::SocketAddr;

use anyhow::Context;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing};
use http::{HeaderMap, Method, StatusCode};
use legate_runtime::Scope;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::http_client;

/// A running demo service.
pub(crate) struct Service {
    /// Its name in the catalog.
    pub(crate) name: &'static str,
    /// The listening address, for its own sidecar only.
    pub(crate) address: SocketAddr,
}

#[derive(Clone, Copy)]
struct App {
    name: &'static str,
    upstream: Option<SocketAddr>,
}

impl Service {
    /// Starts the service on a free loopback port.
    pub(crate) async fn start(
        name: &'static str,
        upstream: Option<SocketAddr>,
        scope: &Scope,
    ) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("cannot listen on 127.0.0.1")?;
        let address = listener.local_addr()?;
        let router = Router::new()
            .route("/", routing::get(answer))
            .with_state(App { name, upstream });
        let stop = scope.token();
        scope.spawn(name, async move {
            axum::serve(listener, router)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
        });
        Ok(Self { name, address })
    }

    /// The URL of its page.
    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }
}

async fn answer(State(app): State<App>, headers: HeaderMap) -> Response {
    let Some(upstream) = app.upstream else {
        return Json(json!({"service": app.name, "caller": caller(&headers)})).into_response();
    };
    match http_client::request(Method::GET, upstream, "/", None).await {
        Ok((status, body)) => {
            let body = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
            (status, Json(json!({"service": app.name, "upstream": body}))).into_response()
        }
        Err(error) => (
            StatusCode::BAD_GATEWAY,
            Json(json!({"service": app.name, "error": format!("{error:#}")})),
        )
            .into_response(),
    }
}

/// The caller's identity as verified by Envoy: the URI of the client certificate.
fn caller(headers: &HeaderMap) -> Option<&str> {
    let header = headers.get("x-forwarded-client-cert")?.to_str().ok()?;
    header
        .split([';', ','])
        .find_map(|part| part.strip_prefix("URI="))
}
