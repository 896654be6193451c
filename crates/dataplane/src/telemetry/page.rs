//! Puts the merged page together from its sources while it is being read: the IO around
//! [`legate_metrics_page`].
//!
//! All sources are asked at once and copied as they answer, each within its share of the time, so
//! that one that is slow or has no end leaves time for the others. A source that fails is cut at
//! its last whole line and leaves the others alone; a remark says why, and
//! `consul_dataplane_metrics_source_up` at the end of the page and
//! `consul_dataplane_metrics_source_failures_total` say which.
//!
//! Whoever reads a page drives it: of what is not read, one piece waits. Few pages are put together
//! at one time, and readers that do not read must not keep out those that do.

use std::fmt::Display;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, try_unfold};
use futures_util::{FutureExt, Stream, StreamExt};
use legate_metrics_page::{Format, Merge, remark};
use legate_runtime::metrics::IntCounter;
use legate_runtime::metrics::proto::MetricFamily;
use legate_runtime::{CancellationToken, Spawner};
use tokio::time::Instant;

use super::families::{self, family};
use super::fetch::{Answer, Dialer, Target};
use super::registry::Telemetry;

/// Size from which a piece is passed on, in bytes.
const PIECE: usize = 16 * 1024;

/// Pages that are put together at one time.
const PAGES: usize = 4;

/// How long a page waits for its reader before it may have to make room.
const UNREAD: Duration = Duration::from_secs(1);

/// Where metrics come from, besides the dataplane itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// What it is called in `metrics_source_up`.
    pub name: &'static str,
    /// Where it is.
    pub target: Target,
    /// Whether the query of the request is passed on to it.
    pub takes_query: bool,
}

/// A source, and what became of it on earlier pages.
#[derive(Debug)]
struct Watched {
    source: Source,
    failures: IntCounter,
    /// Whether its failure was logged: once is enough, however many scrapes fail.
    logged: AtomicBool,
}

/// A page, locked while it waits for its sources; `None` when it had to make room.
type Place = tokio::sync::Mutex<Option<Page>>;

/// Puts pages together. Copies share the limit on how many at one time.
#[derive(Debug, Clone)]
pub struct Merger {
    telemetry: Telemetry,
    sources: Arc<[Watched]>,
    places: Arc<Mutex<Vec<Weak<Place>>>>,
    dialer: Dialer,
    stop: CancellationToken,
}

impl Merger {
    /// The dataplane's own metrics, then those of `sources`, until the scope of `spawner` stops.
    pub fn new(telemetry: Telemetry, sources: Vec<Source>, spawner: Spawner) -> Merger {
        let watched = |source: Source| Watched {
            failures: telemetry.failures.with_label_values(&[source.name]),
            logged: AtomicBool::new(false),
            source,
        };
        Merger {
            sources: sources.into_iter().map(watched).collect(),
            telemetry,
            places: Arc::default(),
            dialer: Dialer::default(),
            stop: spawner.token(),
        }
    }

    /// A page, with this query of the request, whose sources may take that long together. It ends
    /// with an error when it had to make room or this process stops, so that nobody takes it for
    /// whole.
    ///
    /// `None` when too many are being put together already, and all are being read.
    pub(super) fn page(
        &self,
        query: Option<&str>,
        time: Duration,
    ) -> Option<impl Stream<Item = io::Result<Bytes>> + use<>> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut places)?;
        let deadline = Instant::now() + time;
        let ask = |(index, watched): (usize, &Watched)| {
            let source = &watched.source;
            let query = query.filter(|_| source.takes_query);
            let target = source.target.with_query(query);
            let answer = self.dialer.clone().open(target, deadline);
            async move { (index, answer.await) }.boxed()
        };
        let mut page = Page {
            asked: self.sources.iter().enumerate().map(ask).collect(),
            sources: Arc::clone(&self.sources),
            deadline,
            copied: None,
            ups: vec![0.0; self.sources.len()],
            merge: Merge::default(),
            ready: Vec::new(),
            unread: Instant::now(),
            whole: false,
        };
        page.own(&self.telemetry.families());
        let place = Arc::new(Place::new(Some(page)));
        places.push(Arc::downgrade(&place));
        let parts = (place, self.stop.clone());
        Some(try_unfold(parts, async |(place, stop)| {
            let piece = match &mut *place.lock().await {
                Some(page) => stop.run_until_cancelled(page.next()).await,
                None => None,
            };
            let piece = piece.ok_or_else(|| io::Error::other("the page was cut off"))?;
            Ok(piece.map(|piece| (piece, (place, stop))))
        }))
    }
}

/// Where all places are taken, drops the page that has waited longest for its reader; `None` when
/// all readers read.
fn make_room(places: &mut Vec<Weak<Place>>) -> Option<()> {
    places.retain(|place| place.strong_count() > 0);
    if places.len() >= PAGES {
        let unread = |place: &Weak<Place>| Some(place.upgrade()?.try_lock().ok()?.as_ref()?.unread);
        let waiting = places.iter().enumerate();
        let waiting = waiting.filter_map(|(at, place)| Some((unread(place)?, at)));
        let (since, at) = waiting.min()?;
        if since.elapsed() < UNREAD {
            return None;
        }
        *places.remove(at).upgrade()?.try_lock().ok()? = None;
    }
    Some(())
}

/// A page that is being put together.
struct Page {
    sources: Arc<[Watched]>,
    /// The sources that have not answered yet, by their place.
    asked: FuturesUnordered<BoxFuture<'static, (usize, Result<Answer, String>)>>,
    deadline: Instant,
    /// The source that is being copied, and how long it may take.
    copied: Option<(usize, Answer, Instant)>,
    /// 1 for each source that is on the page.
    ups: Vec<f64>,
    merge: Merge,
    ready: Vec<u8>,
    /// Since when the reader has what was ready.
    unread: Instant,
    whole: bool,
}

impl Page {
    /// The next piece; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        while self.ready.len() < PIECE && !self.whole {
            if let Some((index, mut answer, until)) = self.copied.take() {
                match self.copy(&mut answer, until).await {
                    Ok(true) => self.copied = Some((index, answer, until)),
                    Ok(false) => {
                        self.ups[index] = 1.0;
                        self.sources[index].logged.store(false, Ordering::Relaxed);
                    }
                    Err(error) => self.failed(index, format!("{}: {error}", answer.target)),
                }
            } else if let Some((index, answer)) = self.asked.next().await {
                match answer {
                    Ok(answer) => {
                        self.merge.begin(answer.format);
                        let now = Instant::now();
                        let left = self.deadline.saturating_duration_since(now);
                        let shares = u32::try_from(self.asked.len() + 1).unwrap_or(u32::MAX);
                        self.copied = Some((index, answer, now + left / shares));
                    }
                    Err(error) => self.failed(index, error),
                }
            } else {
                let names = self.sources.iter().map(|watched| watched.source.name);
                self.own(&[family(
                    "metrics_source_up",
                    "1 when the source's metrics are on this page, else 0.",
                    "source",
                    names.zip(self.ups.iter().copied()),
                )]);
                self.whole = true;
            }
        }
        self.unread = Instant::now();
        let piece = std::mem::take(&mut self.ready);
        (!piece.is_empty()).then(|| piece.into())
    }

    /// Writes metrics of the dataplane.
    fn own(&mut self, families: &[MetricFamily]) {
        let page = families::page(families, Format::Text);
        self.merge.begin(Format::Text);
        if let Err(broken) = self.merge.push(page.as_bytes(), &mut self.ready) {
            tracing::warn!(target: "metrics", error = %broken, "own metrics are not whole");
        }
    }

    /// Copies one piece of a source; false at its end.
    async fn copy(&mut self, answer: &mut Answer, until: Instant) -> anyhow::Result<bool> {
        let piece = answer.reply.piece(until).await?;
        match &piece {
            Some(piece) => self.merge.push(piece, &mut self.ready)?,
            None => self.merge.end(&mut self.ready)?,
        }
        Ok(piece.is_some())
    }

    /// Says, logs and counts that a source's metrics are missing.
    fn failed(&mut self, index: usize, error: impl Display) {
        let watched = &self.sources[index];
        let source = watched.source.name;
        if watched.logged.swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "metrics", source, %error, "metrics of a source are still missing");
        } else {
            tracing::warn!(target: "metrics", source, %error, "metrics of a source are missing");
        }
        watched.failures.inc();
        let text = format!("metrics of {source} are missing: {error}");
        remark(&text, &mut self.ready);
    }
}
