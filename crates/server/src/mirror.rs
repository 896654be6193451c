//! Keeps what this server's readers use of other datacenters up to date: one blocking query to the owner for each range.

use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flate2::read::GzDecoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use legate_model::{CheckServiceNode, Tenancy};
use legate_runtime::{Backoff, BackoffPolicy, BoxError, CancellationToken, Spawner};
use legate_store::{Mirror, Range, RangeKind};
use legate_wan::Wan;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use crate::wan::{self, FOR_SERVERS, LARGEST_ANSWER};

/// The time for an answer that does not wait for a change. Snapshots of proxies wait for the first one.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The time for the rest of an answer.
const WHOLE: Duration = Duration::from_secs(30);
/// How long the owner waits for a change.
const WAIT: Duration = Duration::from_secs(300);
/// The time for an answer that may wait: the owner adds up to a sixteenth of the wait.
const WAITED: Duration = Duration::from_secs(330);
/// After its start a server may not have joined the others yet. Until then, attempts count as one, and a datacenter that
/// is not known may be known soon.
const JOINS: Duration = Duration::from_secs(5);
/// The time between these attempts.
const JOIN_RETRY: Duration = Duration::from_millis(250);
/// The least time between two answers for one range, so that a changing service is not sent with each change.
const PACE: Duration = Duration::from_millis(100);
/// The largest number of requests to a datacenter that do not wait for a change.
const AT_ONCE: usize = 64;
/// A datacenter is clearly nearer than another one if its time is at most this part of the other's.
const CLEARLY_NEARER: f64 = 0.8;
/// Readers of a datacenter wait for it to be known, after the start of this server and when it joins later.
const LOOK_FOR_DATACENTERS: Duration = Duration::from_millis(250);
const LOOK_FOR_UNUSED: Duration = Duration::from_secs(10);

/// Answers are lists of similar objects, so they are compressed.
const GZIP: &str = "gzip";
/// The header with the index of an answer.
const INDEX: &str = "x-consul-index";

/// What a server asks the owner of a range. The partition and namespace are in the URL.
#[derive(Serialize, Deserialize)]
pub(crate) struct RemoteRange {
    /// The service whose instances are wanted. `None`: the mesh gateways of the partition.
    pub(crate) service: Option<String>,
    /// The prepared query whose instances are wanted instead. The index of an answer then stands for what it has, and has
    /// no order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) query: Option<String>,
}

impl RemoteRange {
    /// The question for a range, with the partition and namespace of the URL.
    fn of(what: &RangeKind) -> (Tenancy, Self) {
        let within = |partition: &Arc<str>| Tenancy {
            partition: Arc::clone(partition),
            ..Tenancy::default()
        };
        let question = |service: Option<&str>, query: Option<&str>| Self {
            service: service.map(str::to_owned),
            query: query.map(str::to_owned),
        };
        match what {
            RangeKind::Instances(service) => {
                (service.tenancy.clone(), question(Some(&service.name), None))
            }
            RangeKind::MeshGateways(partition) => (within(partition), question(None, None)),
            RangeKind::Query { partition, query } => {
                (within(partition), question(None, Some(query)))
            }
        }
    }
}

/// Keeps the ranges of `mirror` until the scope stops.
pub(crate) fn keep(mirror: Mirror, wan: Wan, spawner: &Spawner) {
    let keeper = Keeper {
        asker: Asker {
            mirror,
            wan,
            joined: Arc::default(),
            joins_until: Instant::now() + JOINS,
        },
        spawner: spawner.clone(),
        ranges: HashMap::new(),
        permits: HashMap::new(),
        datacenters: Vec::new(),
        nearest: Vec::new(),
    };
    spawner.spawn_until_stop("services of other datacenters", keeper.run());
}

/// Limits the requests to a datacenter that do not wait for a change.
struct Permits {
    free: Semaphore,
    /// When one was answered last.
    answered: Mutex<Option<Instant>>,
}

impl Default for Permits {
    fn default() -> Self {
        Self {
            free: Semaphore::new(AT_ONCE),
            answered: Mutex::default(),
        }
    }
}

impl Permits {
    /// Waits as long as others are answered. `None`: they are not.
    async fn permit(&self) -> Option<SemaphorePermit<'_>> {
        loop {
            if let Ok(permit) = timeout(ATTEMPT, self.free.acquire()).await {
                return permit.ok();
            }
            let answered = *self.answered.lock().unwrap_or_else(PoisonError::into_inner);
            if answered.is_none_or(|at| at.elapsed() > ATTEMPT) {
                return None;
            }
        }
    }

    fn answered(&self) {
        let mut answered = self.answered.lock().unwrap_or_else(PoisonError::into_inner);
        *answered = Some(Instant::now());
    }
}

struct Keeper {
    asker: Asker,
    spawner: Spawner,
    /// Ends the task of a range.
    ranges: HashMap<Range, CancellationToken>,
    /// Limits requests to each datacenter.
    permits: HashMap<Arc<str>, Arc<Permits>>,
    /// The other datacenters, sorted.
    datacenters: Vec<Arc<str>>,
    /// The same, the nearest first.
    nearest: Vec<Arc<str>>,
}

impl Keeper {
    async fn run(mut self) {
        let [mut joins, mut uses] = [LOOK_FOR_DATACENTERS, LOOK_FOR_UNUSED].map(interval);
        joins.set_missed_tick_behavior(MissedTickBehavior::Delay);
        uses.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                wanted = self.asker.mirror.wanted() => {
                    wanted.into_iter().for_each(|range| self.start(range));
                }
                _ = joins.tick() => self.note_datacenters(),
                _ = uses.tick() => {
                    for range in self.asker.mirror.drop_unused(Instant::now()) {
                        if let Some(end) = self.ranges.remove(&range) {
                            end.cancel();
                        }
                    }
                    self.permits.retain(|_, permits| Arc::strong_count(permits) > 1);
                }
            }
        }
    }

    fn start(&mut self, range: Range) {
        let permits = self.permits.entry(Arc::clone(&range.datacenter));
        let permits = Arc::clone(permits.or_default());
        let end = self.spawner.token().child_token();
        self.ranges.insert(range.clone(), end.clone());
        let asker = self.asker.clone();
        self.spawner
            .spawn("range of another datacenter", async move {
                end.run_until_cancelled(asker.keep(range, permits)).await;
                Ok::<_, std::convert::Infallible>(())
            });
    }

    fn note_datacenters(&mut self) {
        let others = by_distance(&self.nearest, self.asker.wan.distances());
        self.nearest.clone_from(&others);
        let mut sorted = others.clone();
        sorted.sort();
        if sorted != self.datacenters {
            self.datacenters = sorted;
            self.asker.joined.notify_waiters();
        }
        self.asker.mirror.set_datacenters(others);
        if Instant::now() >= self.asker.joins_until {
            self.asker.mirror.set_joined();
        }
    }
}

/// The names of datacenters, the nearest first. The order is the one before unless one is clearly nearer: prepared queries
/// choose by it, and two that are equally far away would take turns.
fn by_distance(before: &[Arc<str>], now: Vec<(String, Option<Duration>)>) -> Vec<Arc<str>> {
    let position = |name: &str| before.iter().position(|known| **known == *name);
    let mut ordered: Vec<(String, Option<Duration>)> = Vec::new();
    let mut known = now;
    // Those that are new come last, by their distance.
    known.sort_by_key(|(name, _)| position(name).unwrap_or(usize::MAX));
    for (name, time) in known {
        let is_nearer = |(_, other): &(String, Option<Duration>)| match (time, other) {
            (Some(time), Some(other)) => time.as_secs_f64() < other.as_secs_f64() * CLEARLY_NEARER,
            (Some(_), None) => true,
            (None, _) => false,
        };
        let at = ordered.iter().position(is_nearer).unwrap_or(ordered.len());
        ordered.insert(at, (name, time));
    }
    ordered.into_iter().map(|(name, _)| name.into()).collect()
}

/// Asks the owners of ranges.
#[derive(Clone)]
struct Asker {
    mirror: Mirror,
    wan: Wan,
    /// Notified when there are other datacenters than before.
    joined: Arc<Notify>,
    joins_until: Instant,
}

impl Asker {
    /// Keeps one range.
    async fn keep(self, range: Range, permits: Arc<Permits>) {
        let mut backoff = Backoff::new(BackoffPolicy::DATACENTER);
        let mut known = None;
        let mut is_first = true;
        loop {
            let answered = match known {
                Some(index) => self.ask(&range, index, WAITED).await,
                None => match permits.permit().await {
                    Some(_permit) => self.ask(&range, 0, ATTEMPT).await,
                    None => Err("none of the requests before it was answered in time".into()),
                },
            };
            match answered {
                Ok((index, value)) => {
                    permits.answered();
                    // Not after the first answer alone: a server may refuse to wait.
                    if known.is_some() {
                        backoff.reset();
                    }
                    is_first = false;
                    known = Some(index);
                    self.mirror.set(&range, value);
                    sleep(PACE).await;
                }
                Err(_) if is_first && Instant::now() < self.joins_until => sleep(JOIN_RETRY).await,
                Err(error) => {
                    is_first = false;
                    known = None;
                    tracing::debug!(%error, %range, "what another datacenter has is not known");
                    self.mirror.fail(&range, &error.to_string(), Instant::now());
                    tokio::select! {
                        () = sleep(backoff.next(rand::random())) => {}
                        () = self.joined.notified() => {}
                    }
                }
            }
        }
    }

    /// The value of a range with its index, once the index is higher than `index`. The answer must begin within `limit`.
    async fn ask(
        &self,
        range: &Range,
        index: u64,
        limit: Duration,
    ) -> Result<(u64, Vec<CheckServiceNode>), BoxError> {
        let (tenancy, question) = RemoteRange::of(&range.what);
        let (partition, namespace) = (&tenancy.partition, &tenancy.namespace);
        let path = format!(
            "{FOR_SERVERS}range?partition={partition}&ns={namespace}&index={index}&wait={}s",
            WAIT.as_secs()
        );
        let question = serde_json::to_vec(&question)?;
        let datacenter = &range.datacenter;
        let mut request = wan::request(Method::POST, datacenter, &path, "", question)?;
        let gzip = HeaderValue::from_static(GZIP);
        request.headers_mut().insert(ACCEPT_ENCODING, gzip);
        let late = |_| "it does not answer in time";
        let answer = timeout(limit, self.wan.request(datacenter, request)).await;
        let (head, body) = answer.map_err(late)??.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect();
        let body = timeout(WHOLE, body).await.map_err(late)??.to_bytes();
        if head.status != StatusCode::OK {
            let text = String::from_utf8_lossy(&body);
            return Err(format!("{}: {text}", head.status).into());
        }
        let index = index_in(&head.headers).ok_or("the answer has no index")?;
        let encoding = head.headers.get(CONTENT_ENCODING);
        let list = match encoding.is_some_and(|encoding| encoding == GZIP) {
            true => serde_json::from_slice(&unpacked(&body)?)?,
            false => serde_json::from_slice(&body)?,
        };
        Ok((index, list))
    }
}

/// A compressed answer, which must not be larger than one that is not.
fn unpacked(body: &[u8]) -> io::Result<Vec<u8>> {
    let mut unpacked = Vec::new();
    let most = u64::try_from(LARGEST_ANSWER).unwrap_or(u64::MAX);
    let mut reader = GzDecoder::new(body).take(most + 1);
    reader.read_to_end(&mut unpacked)?;
    if unpacked.len() > LARGEST_ANSWER {
        return Err(io::Error::other("the answer is too large"));
    }
    Ok(unpacked)
}

fn index_in(headers: &HeaderMap) -> Option<u64> {
    headers.get(INDEX)?.to_str().ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    #[test]
    fn a_compressed_answer_is_as_limited_as_another() {
        let packed = |size: usize| {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&vec![0; size]).unwrap();
            packed.finish().unwrap()
        };
        assert_eq!(unpacked(&packed(7)).unwrap(), [0; 7]);
        assert!(unpacked(&packed(LARGEST_ANSWER)).is_ok());
        let bomb = packed(LARGEST_ANSWER + 1);
        assert!(bomb.len() < LARGEST_ANSWER / 100);
        assert!(unpacked(&bomb).is_err());
    }

    #[test]
    fn datacenters_change_places_only_if_one_is_clearly_nearer() {
        let order = |before: &str, now: &[(&str, u64)]| {
            let before: Vec<Arc<str>> = before.split_whitespace().map(Into::into).collect();
            let now = now.iter().map(|(name, time)| {
                let time = (*time > 0).then(|| Duration::from_millis(*time));
                ((*name).to_owned(), time)
            });
            by_distance(&before, now.collect()).join(" ")
        };
        assert_eq!(order("", &[("a", 10), ("b", 20)]), "a b");
        assert_eq!(order("a b", &[("b", 19), ("a", 20)]), "a b");
        assert_eq!(order("a b", &[("b", 15), ("a", 20)]), "b a");
        assert_eq!(order("a b", &[("c", 1), ("a", 10), ("b", 10)]), "c a b");
        assert_eq!(
            order("a b", &[("b", 10), ("a", 0)]),
            "b a",
            "it is not known"
        );
        assert_eq!(order("a b c", &[("c", 5)]), "c");
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_turn_gives_up_only_if_nobody_is_answered() {
        let permits = Permits::default();
        let mut all = Vec::new();
        for _ in 0..AT_ONCE {
            all.push(permits.permit().await.unwrap());
        }
        let began = Instant::now();
        assert!(permits.permit().await.is_none());
        assert_eq!(began.elapsed(), ATTEMPT);
        // Others are answered every second, and one of them is the last before this one.
        let others = async {
            for _ in 0..60 {
                sleep(Duration::from_secs(1)).await;
                permits.answered();
            }
            all.pop();
        };
        let (permit, ()) = tokio::join!(permits.permit(), others);
        assert!(permit.is_some());
    }
}
