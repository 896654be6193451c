//! A server that returns its own name and the caller's identity from Envoy.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::{Json, Router, routing};
use clap::{Args, ValueEnum};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::client;

#[derive(Args)]
pub(crate) struct Options {
    /// HTTP port
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Port of the line protocol over TCP
    #[arg(long)]
    lines: Option<u16>,
    /// gRPC port, which serves only a health check
    #[arg(long)]
    grpc: Option<u16>,
    /// Name in responses; the pod's name by default
    #[arg(long, env = "HOSTNAME", default_value = "app")]
    name: String,
    /// Behaviour on SIGTERM
    #[arg(long, value_enum, default_value_t = End::AtOnce)]
    end: End,
    /// URL to request every second after SIGTERM, with `--end linger`; each response is printed
    #[arg(long, default_value = "")]
    upstream: String,
    /// Seconds to linger
    #[arg(long, default_value_t = 5)]
    seconds: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum End {
    /// The process exits with all its connections
    AtOnce,
    /// It continues to serve for some seconds, and requests its upstream
    Linger,
}

/// Serves until SIGTERM.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    // Process 1 has no default signal handlers.
    let mut terminate = signal(SignalKind::terminate())?;
    let address = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let listener = TcpListener::bind(address(options.port)).await?;
    let router = Router::new()
        .route("/", routing::get(answer))
        .route("/fetch", routing::get(fetch))
        .with_state(options.name.clone());
    let http = async { axum::serve(listener, router).await };
    let lines = async {
        match options.lines {
            Some(port) => lines(&options.name, TcpListener::bind(address(port)).await?).await,
            None => std::future::pending().await,
        }
    };
    let grpc = async {
        match options.grpc {
            Some(port) => health(address(port)).await,
            None => std::future::pending().await,
        }
    };
    let end = async {
        terminate.recv().await;
        if matches!(options.end, End::Linger) {
            linger(&options).await;
        }
    };
    tokio::select! {
        result = http => Ok(result?),
        result = lines => Ok(result?),
        result = grpc => Ok(result?),
        () = end => Ok(()),
    }
}

async fn answer(State(name): State<String>, headers: HeaderMap) -> Json<Value> {
    let header = headers.get("x-forwarded-client-cert");
    let header = header.and_then(|value| value.to_str().ok());
    let mut parts = header.unwrap_or_default().split([';', ',']);
    let caller = parts.find_map(|part| part.strip_prefix("URI="));
    Json(json!({"instance": name, "caller": caller}))
}

/// Requests a URL and returns its response: `/fetch?url=…`.
async fn fetch(Query(query): Query<Vec<(String, String)>>) -> (StatusCode, String) {
    let url = query.iter().find(|(name, _)| name == "url");
    let Some((_, url)) = url else {
        return (StatusCode::BAD_REQUEST, "which url?".to_owned());
    };
    match client::get(url).await {
        Ok(body) => (StatusCode::OK, body),
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")),
    }
}

/// The work of an application after SIGTERM.
async fn linger(options: &Options) {
    for second in 1..=options.seconds {
        match client::get(&options.upstream).await {
            Ok(body) => println!("second {second}: {body}"),
            Err(error) => println!("second {second}: failed: {error:#}"),
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Echoes every line, prefixed with the name.
async fn lines(name: &str, listener: TcpListener) -> std::io::Result<()> {
    let mut connections = FuturesUnordered::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => connections.push(echo(name, accepted?.0)),
            // A disconnected or reset caller is not a failure of the application.
            Some(_) = connections.next() => {}
        }
    }
}

async fn echo(name: &str, stream: TcpStream) -> std::io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Some(line) = lines.next_line().await? {
        write
            .write_all(format!("{name}: {line}\n").as_bytes())
            .await?;
    }
    Ok(())
}

/// `grpc.health.v1.Health`, always serving.
async fn health(address: SocketAddr) -> Result<(), tonic::transport::Error> {
    let (_, service) = tonic_health::server::health_reporter();
    let server = tonic::transport::Server::builder().add_service(service);
    server.serve(address).await
}
