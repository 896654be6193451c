//! Writers of keys. Every write creates a key of its own, so that each one is found afterwards, and a
//! write that was applied twice is noticed: the second time, the key exists.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use legate_runtime::{BoxError, Scope};
use tokio::sync::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::client::Client;

/// The deadline of a request, above those of servers.
const LIMIT: Duration = Duration::from_secs(15);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_millis(20);
/// The deadline for stopping writers.
const STOP: Duration = Duration::from_secs(60);

/// Running writers.
pub(crate) struct Load {
    scope: Scope,
    seen: Arc<Mutex<Seen>>,
    started: Instant,
}

/// What the writers observed.
#[derive(Default)]
pub(crate) struct Seen {
    /// The latency of each acknowledged write, and when it was acknowledged.
    pub(crate) acknowledged: Vec<(Instant, Duration)>,
    /// Their keys.
    pub(crate) keys: Vec<String>,
    /// Writes that found their key: they were applied twice.
    pub(crate) doubled: Vec<String>,
    /// Failed requests, and the last reason.
    pub(crate) failed: usize,
    pub(crate) reason: Option<String>,
}

impl Load {
    /// Starts a writer for each address. With `every`, each writes at this interval, otherwise
    /// without pause.
    pub(crate) fn start(writers: &[SocketAddr], every: Option<Duration>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let scope = Scope::new("writers");
        let seen = Arc::new(Mutex::new(Seen::default()));
        for (n, http) in writers.iter().enumerate() {
            let name = NEXT.fetch_add(1, Ordering::Relaxed);
            // Paced writers do not all write at the same time.
            let share = u32::try_from(writers.len()).unwrap_or(1);
            let offset = every.map(|every| every * u32::try_from(n).unwrap_or(0) / share);
            let (http, seen, token) = (*http, Arc::clone(&seen), scope.token());
            scope.spawn("writer", async move {
                sleep(offset.unwrap_or_default()).await;
                let mut writer = Writer::new(name, http, every);
                while !token.is_cancelled() {
                    writer.write(&seen).await;
                }
                Ok::<_, BoxError>(())
            });
        }
        Self {
            scope,
            seen,
            started: Instant::now(),
        }
    }

    /// The longest time without an acknowledged write since then.
    pub(crate) async fn gap(&self, since: Instant) -> Duration {
        let seen = self.seen.lock().await;
        let times = seen.acknowledged.iter().map(|(at, _)| *at);
        let mut times: Vec<_> = times.filter(|at| *at >= since).collect();
        times.sort_unstable();
        times.insert(0, since);
        times.push(Instant::now());
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        gaps.max().unwrap_or_default()
    }

    /// Waits until a write that was sent after `since` is acknowledged.
    pub(crate) async fn resumed(&self, since: Instant, limit: Duration) -> bool {
        let waiting = async {
            loop {
                let seen = self.seen.lock().await;
                let newer = |(at, took): &(Instant, Duration)| *at - *took > since;
                if seen.acknowledged.iter().rev().take(200).any(newer) {
                    return;
                }
                drop(seen);
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(limit, waiting).await.is_ok()
    }

    /// Stops, and returns what was observed and the duration.
    pub(crate) async fn finish(self) -> (Seen, Duration) {
        let took = self.started.elapsed();
        self.scope.stop(STOP).await.expect("writers stop");
        (std::mem::take(&mut *self.seen.lock().await), took)
    }
}

struct Writer {
    name: u64,
    http: SocketAddr,
    client: Option<Client>,
    next: u64,
    pace: Option<tokio::time::Interval>,
}

impl Writer {
    fn new(name: u64, http: SocketAddr, every: Option<Duration>) -> Self {
        let pace = every.map(|every| {
            let mut pace = interval(every);
            pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
            pace
        });
        Self {
            name,
            http,
            client: None,
            next: 0,
            pace,
        }
    }

    async fn write(&mut self, seen: &Mutex<Seen>) {
        if let Some(pace) = &mut self.pace {
            pace.tick().await;
        }
        self.next += 1;
        let key = format!("writer-{}/{}", self.name, self.next);
        let sent = Instant::now();
        let created = match timeout(LIMIT, self.create(&key)).await {
            Ok(created) => created.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {LIMIT:?}")),
        };
        let mut seen = seen.lock().await;
        match created {
            Ok(true) => {
                let now = Instant::now();
                seen.acknowledged.push((now, now - sent));
                seen.keys.push(key);
            }
            Ok(false) => seen.doubled.push(key),
            Err(reason) => {
                seen.failed += 1;
                seen.reason = Some(reason);
                drop(seen);
                self.client = None;
                sleep(PAUSE).await;
            }
        }
    }

    /// Creates a key. Returns whether it did not exist.
    async fn create(&mut self, key: &str) -> Result<bool, BoxError> {
        let client = match &mut self.client {
            Some(client) => client,
            None => self.client.insert(Client::connect(self.http).await?),
        };
        let path = format!("/v1/kv/{key}?cas=0");
        let answer = client.ask(Method::PUT, &path, Bytes::from_static(b"1"));
        Ok(&answer.await?.into_body()[..] == b"true")
    }
}

/// The keys among these that a server does not have.
pub(crate) async fn missing(http: SocketAddr, keys: &[String]) -> Vec<String> {
    let mut client = Client::connect(http).await.expect("it serves");
    let all = client.get("/v1/kv/writer-?keys").await.expect("it serves");
    let stored: std::collections::HashSet<String> =
        serde_json::from_slice(&all).expect("a list of keys");
    let keys = keys.iter().filter(|key| !stored.contains(*key));
    keys.cloned().collect()
}
