//! The frontend and the backend. A backend returns its name and its caller's identity; a frontend
//! requests its backend for every request and returns the response.

use std::net::Ipv6Addr;

use axum::extract::State;
use axum::{Router, routing};
use clap::Args;
use http::{HeaderMap, StatusCode};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::client;

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// HTTP port, on all addresses
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Name in responses; in a pod its name
    #[arg(long, env = "HOSTNAME", default_value = "localhost")]
    name: String,
    /// URL of a frontend's backend, such as http://backend/; without it this is a backend
    #[arg(long)]
    backend: Option<String>,
}

/// Serves until SIGTERM, then until requests in flight are answered.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, options.port)).await?;
    let router = Router::new()
        .route("/", routing::get(answer))
        .route("/healthz", routing::get(|| async { "ok" }))
        .with_state(options);
    let end = async move {
        terminate.recv().await;
    };
    Ok(axum::serve(listener, router)
        .with_graceful_shutdown(end)
        .await?)
}

async fn answer(State(options): State<Options>, headers: HeaderMap) -> (StatusCode, String) {
    let name = &options.name;
    let Some(backend) = &options.backend else {
        let caller = caller(&headers).unwrap_or("somebody unknown");
        return (StatusCode::OK, format!("{name} was asked by {caller}"));
    };
    let answer = client::get(backend).await;
    let status = match &answer {
        Ok((StatusCode::OK, _)) => StatusCode::OK,
        _ => StatusCode::BAD_GATEWAY,
    };
    let answer = client::describe(answer);
    (status, format!("{name} asked {backend}: {answer}"))
}

/// The caller's verified identity: the URI in the certificate of the caller's sidecar.
fn caller(headers: &HeaderMap) -> Option<&str> {
    let certificate = headers.get("x-forwarded-client-cert")?.to_str().ok()?;
    let mut parts = certificate.split([';', ',']);
    parts.find_map(|part| part.strip_prefix("URI="))
}
