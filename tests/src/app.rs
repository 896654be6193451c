//! Applications without knowledge of the mesh: an HTTP and a TCP server that return their name and,
//! over HTTP, the caller's identity from Envoy.

use std::net::{Ipv4Addr, SocketAddr};

use axum::extract::State;
use axum::{Json, Router};
use http::{HeaderMap, StatusCode, Uri};
use legate_runtime::{Scope, Spawner};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::client;
use crate::sites::Namespace;

/// Serves HTTP until the scope ends: `{"instance": …, "caller": …, "path": …, "headers": {…}}`, with
/// path and headers as received.
///
/// # Panics
///
/// If the address cannot be bound.
pub async fn http(instance: &str, address: SocketAddr, scope: &Scope) {
    let listener = TcpListener::bind(address)
        .await
        .expect("the address is free");
    let router = Router::new()
        .fallback(answer)
        .with_state(instance.to_owned());
    let stop = scope.token().cancelled_owned();
    scope.spawn(format!("app {instance}"), async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

async fn answer(State(instance): State<String>, uri: Uri, headers: HeaderMap) -> Json<Value> {
    let header = headers
        .get("x-forwarded-client-cert")
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let caller = header
        .split([';', ','])
        .find_map(|part| part.strip_prefix("URI="));
    let all: Value = headers
        .iter()
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), Value::from(value))
        })
        .collect();
    let path = uri.to_string();
    Json(json!({"instance": instance, "caller": caller, "path": path, "headers": all}))
}

/// Serves HTTP on all addresses of a site until the scope ends. The answer is the name and, if it calls another one, `>`
/// and the answer from there, with its status; 502 without one.
///
/// # Panics
///
/// If the port cannot be bound.
pub async fn chained(
    name: &str,
    network: &Namespace,
    port: u16,
    calls: Option<SocketAddr>,
    scope: &Scope,
) {
    let listener = network.within(TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)));
    let listener = listener.await.expect("the port is free");
    let (network, own) = (network.clone(), name.to_owned());
    let router = Router::new().fallback(move || async move {
        let Some(next) = calls else {
            return (StatusCode::OK, own);
        };
        match network.within(client::get(next, "/")).await {
            Ok((status, text)) => (status, format!("{own} > {text}")),
            Err(error) => (StatusCode::BAD_GATEWAY, format!("{own}: {next}: {error}")),
        }
    });
    let stop = scope.token().cancelled_owned();
    scope.spawn(format!("app {name}"), async move {
        axum::serve(listener, router)
            .with_graceful_shutdown(stop)
            .await
    });
}

/// Serves TCP until the scope ends: echoes every line, prefixed with the instance's name.
///
/// # Panics
///
/// If the address cannot be bound.
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
            // A disconnected or reset caller is not a failure of the application.
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
