//! Continuous requests, each on a new connection, while a scenario changes the mesh.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use legate_runtime::Scope;
use serde_json::Value;
use tokio::time::{MissedTickBehavior, interval};

use crate::client;
use crate::sites::Namespace;

const PAUSE: Duration = Duration::from_millis(5);

/// The results of a load so far.
#[derive(Debug, Default, Clone)]
pub struct LoadResults {
    /// Number of responses with status 200 by instance, or by the text of [`crate::app::chained`].
    pub answers: BTreeMap<String, usize>,
    /// Every request without a response or with another status.
    pub failures: Vec<String>,
}

/// A running load; stopped by [`Load::finish`].
pub struct Load {
    scope: Scope,
    seen: Arc<Mutex<LoadResults>>,
}

impl Load {
    /// Sends `GET /` to the address, one request after the other.
    #[must_use]
    pub fn start(address: SocketAddr) -> Self {
        Self::run(address, None)
    }

    /// The same in the network of a site.
    #[must_use]
    pub fn start_within(network: &Namespace, address: SocketAddr) -> Self {
        Self::run(address, Some(network.clone()))
    }

    fn run(address: SocketAddr, network: Option<Namespace>) -> Self {
        let scope = Scope::new("load");
        let seen = Arc::new(Mutex::new(LoadResults::default()));
        let (stop, record) = (scope.token(), Arc::clone(&seen));
        scope.spawn("requests", async move {
            let mut ticks = interval(PAUSE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while !stop.is_cancelled() {
                ticks.tick().await;
                let answer = client::get(address, "/");
                let answer = match &network {
                    Some(network) => network.within(answer).await,
                    None => answer.await,
                };
                record.lock().expect("no holder panics").record(answer);
            }
            Ok::<(), std::io::Error>(())
        });
        Self { scope, seen }
    }

    /// The results so far.
    ///
    /// # Panics
    ///
    /// Never in practice: the lock is not held across a panic.
    #[must_use]
    pub fn seen(&self) -> LoadResults {
        self.seen.lock().expect("no holder panics").clone()
    }

    /// Stops the load and returns all results.
    ///
    /// # Panics
    ///
    /// If the requests do not end.
    pub async fn finish(self) -> LoadResults {
        self.scope
            .stop(crate::wait::LIMIT)
            .await
            .expect("the load ends");
        self.seen.lock().expect("no holder panics").clone()
    }
}

impl LoadResults {
    /// The number of responses of an instance.
    #[must_use]
    pub fn of(&self, instance: &str) -> usize {
        self.answers.get(instance).copied().unwrap_or_default()
    }

    fn record(&mut self, answer: Result<client::Answer, legate_runtime::BoxError>) {
        match answer {
            Ok((status, body)) if status.is_success() => {
                let instance = match serde_json::from_str::<Value>(&body) {
                    Ok(body) => body["instance"].as_str().unwrap_or("?").to_owned(),
                    Err(_) => body.trim().to_owned(),
                };
                *self.answers.entry(instance).or_default() += 1;
            }
            Ok((status, body)) => self.failures.push(format!("{status}: {body}")),
            Err(error) => self.failures.push(error.to_string()),
        }
    }
}
