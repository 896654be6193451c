//! Sends requests continuously while a scenario changes the mesh, and records the results.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::{Json, Router, routing};
use clap::Args;
use serde_json::{Value, json};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use crate::client::Client;

/// The interval between requests of one client.
const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of recorded failures; further ones are only counted.
const KEPT: usize = 20;

#[derive(Args)]
pub(crate) struct Options {
    /// URL of the requests
    url: String,
    /// Number of concurrent clients
    #[arg(long, default_value_t = 2)]
    clients: usize,
    /// Number of requests on a connection; 0 means until the server closes it
    #[arg(long, default_value_t = 1)]
    per_connection: u64,
    /// Port for the results: `GET /` returns them, `GET /reset` clears them
    #[arg(long, default_value_t = 8090)]
    port: u16,
}

#[derive(Default)]
struct LoadResults {
    /// Number of responses by instance.
    answers: BTreeMap<String, u64>,
    failed: u64,
    failures: Vec<String>,
}

type Shared = Arc<Mutex<LoadResults>>;

/// Sends requests until SIGTERM.
pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let seen = Shared::default();
    let router = Router::new()
        .route("/", routing::get(tell))
        .route("/reset", routing::get(reset))
        .with_state(Arc::clone(&seen));
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, options.port)).await?;
    let clients = (0..options.clients).map(|_| ask(&options, &seen));
    let clients = futures_util::future::join_all(clients);
    tokio::select! {
        result = async { axum::serve(listener, router).await } => Ok(result?),
        _ = clients => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}

async fn ask(options: &Options, seen: &Shared) {
    let mut client = Client::default();
    let mut ticks = interval(PAUSE);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for count in 1_u64.. {
        ticks.tick().await;
        let answer = client.get(&options.url).await;
        lock(seen).record(answer);
        if count.checked_rem(options.per_connection) == Some(0) {
            client = Client::default();
        }
    }
}

impl LoadResults {
    fn record(&mut self, answer: anyhow::Result<String>) {
        match answer {
            Ok(body) => {
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                let instance = body["instance"].as_str().unwrap_or("?").to_owned();
                *self.answers.entry(instance).or_default() += 1;
            }
            Err(error) => {
                self.failed += 1;
                if self.failures.len() < KEPT {
                    self.failures.push(format!("{error:#}"));
                }
            }
        }
    }
}

async fn tell(State(seen): State<Shared>) -> Json<Value> {
    let seen = lock(&seen);
    Json(json!({
        "answers": seen.answers,
        "failed": seen.failed,
        "failures": seen.failures,
    }))
}

/// Clears the results.
async fn reset(State(seen): State<Shared>) {
    *lock(&seen) = LoadResults::default();
}

fn lock(seen: &Shared) -> std::sync::MutexGuard<'_, LoadResults> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
