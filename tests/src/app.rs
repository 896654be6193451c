//! Applications that know nothing of the mesh: an HTTP server and a TCP server that say who they
//! are and, over HTTP, who Envoy says is calling.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::{Json, Router, routing};
use http::HeaderMap;
use legate_runtime::{Scope, Spawner};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// Serves HTTP until the scope stops: `{"instance": …, "caller": …}`, and on every other path than `/`
/// also what the request was: `"method"`, `"path"` with its query, and `"headers"`.
///
/// # Panics
///
/// When the address cannot be bound.
pub async fn http(instance: &str, address: SocketAddr, scope: &Scope) {
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    let router = Router::new()
        .route("/", routing::get(answer))
        .fallback(echo)
        .with_state(instance.to_owned());
    let stop = scope.token().cancelled_owned();
    scope.spawn(format!("app {instance}"), async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

async fn echo(State(instance): State<String>, request: Request) -> Json<Value> {
    let (parts, _body) = request.into_parts();
    let texts = parts.headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
        (name.to_string(), Value::from(value))
    });
    let headers: Map<String, Value> = texts.collect();
    Json(json!({
        "instance": instance, "method": parts.method.as_str(), "path": parts.uri.to_string(),
        "headers": headers,
    }))
}

async fn answer(State(instance): State<String>, headers: HeaderMap) -> Json<Value> {
    let header = headers
        .get("x-forwarded-client-cert")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let caller = header
        .split([';', ','])
        .find_map(|part| part.strip_prefix("URI="));
    Json(json!({"instance": instance, "caller": caller}))
}

/// Serves TCP until the scope stops: every line comes back with the instance before it.
///
/// # Panics
///
/// When the address cannot be bound.
pub async fn tcp(instance: &str, address: SocketAddr, scope: &Scope) {
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    let (stop, spawner, instance) = (scope.token(), scope.spawner(), instance.to_owned());
    scope.spawn(format!("app {instance}"), async move {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok::<(), std::io::Error>(()),
                accepted = listener.accept() => serve_lines(accepted?.0, instance.clone(), &spawner),
            }
        }
    });
}

fn serve_lines(stream: TcpStream, instance: String, spawner: &Spawner) {
    let stop = spawner.token();
    spawner.spawn(format!("connection of {instance}"), async move {
        let (read, mut write) = stream.into_split();
        let mut lines = BufReader::new(read).lines();
        loop {
            let line = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                line = lines.next_line() => line,
            };
            // A caller that goes away, even by a reset, is no failure of the application.
            let Ok(Some(line)) = line else {
                return Ok::<(), std::io::Error>(());
            };
            if write
                .write_all(format!("{instance}: {line}\n").as_bytes())
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    });
}
