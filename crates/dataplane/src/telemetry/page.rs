//! Streams the merged page while its sources are being read: the IO around [`legate_metrics_page`].
//!
//! All sources are requested concurrently and copied in the order of their responses, each within its share of
//! the time, so that a slow or endless source leaves time for the others. A failed source is cut at its last
//! complete line without affecting the others; a comment gives the reason, and
//! `consul_dataplane_metrics_source_up` at the end of the page and
//! `consul_dataplane_metrics_source_failures_total` name the source.
//!
//! The reader of a page drives it: at most one chunk waits to be read. Few pages are generated concurrently, and
//! stalled readers must not block others.

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

/// Minimum size of a chunk, in bytes.
const PIECE: usize = 16 * 1024;

/// Maximum number of concurrent pages.
const PAGES: usize = 4;

/// How long a page waits for its reader before it can be evicted.
const UNREAD: Duration = Duration::from_secs(1);

/// A source of metrics other than the dataplane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The label value in `metrics_source_up`.
    pub name: &'static str,
    /// Its URL.
    pub target: Target,
    /// Whether the query of the scrape is passed on to it.
    pub takes_query: bool,
}

/// A source and its state over several scrapes.
#[derive(Debug)]
struct Watched {
    source: Source,
    failures: IntCounter,
    /// Whether its failure was logged: once per outage, however many scrapes fail.
    logged: AtomicBool,
}

/// A page, locked while it waits for its sources; `None` after it was evicted.
type SharedPage = tokio::sync::Mutex<Option<Page>>;

/// Generates merged pages. Clones share the limit on concurrent pages.
#[derive(Debug, Clone)]
pub struct Merger {
    telemetry: Telemetry,
    sources: Arc<[Watched]>,
    places: Arc<Mutex<Vec<Weak<SharedPage>>>>,
    dialer: Dialer,
    stop: CancellationToken,
}

impl Merger {
    /// Merges the dataplane's own metrics and those of `sources`, until the scope of `spawner` stops.
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

    /// A page for a scrape with this query, with a time limit for all sources together. The stream ends with an error
    /// if the page is evicted or this process stops, so that it is never mistaken for a complete one.
    ///
    /// `None` if too many pages are being generated and all of them are being read.
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
        let place = Arc::new(SharedPage::new(Some(page)));
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

/// If all places are taken, evicts the page that has waited longest for its reader; `None` if all readers are
/// reading.
fn make_room(places: &mut Vec<Weak<SharedPage>>) -> Option<()> {
    places.retain(|place| place.strong_count() > 0);
    if places.len() >= PAGES {
        let unread =
            |place: &Weak<SharedPage>| Some(place.upgrade()?.try_lock().ok()?.as_ref()?.unread);
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

/// A page that is being generated.
struct Page {
    sources: Arc<[Watched]>,
    /// The sources that have not responded yet, with their indexes.
    asked: FuturesUnordered<BoxFuture<'static, (usize, Result<Answer, String>)>>,
    deadline: Instant,
    /// The source that is being copied, and its deadline.
    copied: Option<(usize, Answer, Instant)>,
    /// 1 for each source that was copied completely, otherwise 0.
    ups: Vec<f64>,
    merge: Merge,
    ready: Vec<u8>,
    /// When the last chunk was handed to the reader.
    unread: Instant,
    whole: bool,
}

impl Page {
    /// The next chunk; `None` at the end.
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

    /// Writes families of the dataplane.
    fn own(&mut self, families: &[MetricFamily]) {
        let page = families::page(families, Format::Text);
        self.merge.begin(Format::Text);
        if let Err(broken) = self.merge.push(page.as_bytes(), &mut self.ready) {
            tracing::warn!(target: "metrics", error = %broken, "own metrics are not whole");
        }
    }

    /// Copies one chunk of a source; false at its end.
    async fn copy(&mut self, answer: &mut Answer, until: Instant) -> anyhow::Result<bool> {
        let piece = answer.reply.piece(until).await?;
        match &piece {
            Some(piece) => self.merge.push(piece, &mut self.ready)?,
            None => self.merge.end(&mut self.ready)?,
        }
        Ok(piece.is_some())
    }

    /// Writes a comment, logs and counts that a source failed.
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
