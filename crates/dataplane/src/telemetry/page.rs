//! Puts the merged page together from its sources while they are being read: the IO around
//! [`super::merge`].
//!
//! All sources are asked at once and written as they answer, each within its share of the time, so
//! that one that is slow or has no end leaves time for the others. A source that fails is cut at
//! its last whole line and leaves the others alone; a remark says why, and
//! `consul_dataplane_metrics_source_up` at the end of the page and
//! `consul_dataplane_metrics_source_failures_total` say which. Pieces wait in buffers of a fixed
//! size.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use legate_runtime::Spawner;
use legate_runtime::metrics::proto::MetricFamily;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::families::{self, family};
use super::fetch::{Dialer, Page, Target};
use super::merge::{Merge, remark};
use super::slots::{Slot, Slots};
use super::{Format, Telemetry};

/// Pieces that wait for whoever asked.
const PIECES: usize = 4;

/// Size from which a piece is passed on, in bytes.
const PIECE: usize = 16 * 1024;

/// How long after its time a page may wait for whoever asked to read it.
const LINGER: Duration = Duration::from_secs(20);

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

/// Puts pages together. Copies share the limit on how many at one time.
#[derive(Debug, Clone)]
pub struct Merger {
    telemetry: Telemetry,
    sources: Arc<[Source]>,
    /// Whether a source's failure was logged: once is enough, however many scrapes fail.
    logged: Arc<[AtomicBool]>,
    slots: Slots,
    dialer: Dialer,
    spawner: Spawner,
}

/// Why a source was cut off.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error("{0}")]
    Missing(String),
    /// Whoever asked for the page is gone.
    #[error("nobody reads the page any more")]
    Abandoned,
}

impl Merger {
    /// The dataplane's own metrics, then those of `sources`.
    pub fn new(telemetry: Telemetry, sources: Vec<Source>, spawner: Spawner) -> Merger {
        for source in &sources {
            telemetry.source_failures(source.name);
        }
        Merger {
            telemetry,
            logged: sources.iter().map(|_| AtomicBool::new(false)).collect(),
            sources: sources.into(),
            slots: Slots::default(),
            dialer: Dialer::default(),
            spawner,
        }
    }

    /// Starts a page, with this query of the request, whose sources may take that long together.
    /// Its pieces follow, and an empty one at its end: without that the page was cut off, because
    /// it waited too long for its reader. A page that nobody reads any more ends.
    ///
    /// `None` when too many are being put together already, and all are being read.
    pub(super) fn page(
        &self,
        query: Option<String>,
        time: Duration,
    ) -> Option<mpsc::Receiver<Bytes>> {
        let slot = self.slots.take()?;
        let deadline = Instant::now() + time;
        let (page, pieces) = mpsc::channel(PIECES);
        let (reader, ended) = (page.clone(), slot.end());
        let writer = Writer {
            merge: Merge::default(),
            ready: Vec::new(),
            page,
            slot,
        };
        let (merger, stop) = (self.clone(), self.spawner.token());
        self.spawner.spawn("merged metrics", async move {
            tokio::select! {
                () = sleep_until(deadline + LINGER) => {}
                () = stop.cancelled() => {}
                () = ended.cancelled() => {}
                () = reader.closed() => {}
                // A reader who is gone hears nothing.
                _ = merger.write(query.as_deref(), deadline, writer) => {}
            }
            Ok::<_, Infallible>(())
        });
        Some(pieces)
    }

    async fn write(
        &self,
        query: Option<&str>,
        deadline: Instant,
        mut writer: Writer,
    ) -> Result<(), SourceError> {
        let ask = |(index, source): (usize, &Source)| {
            let target = source
                .target
                .with_query(query.filter(|_| source.takes_query));
            let page = Page::open(target, self.dialer.clone(), deadline);
            async move { (index, page.await) }
        };
        let mut asked: FuturesUnordered<_> = self.sources.iter().enumerate().map(ask).collect();
        writer.own(&self.telemetry.families()).await?;
        let mut ups = vec![0.0; self.sources.len()];
        while let Some((index, answer)) = asked.next().await {
            let now = Instant::now();
            let left = deadline.saturating_duration_since(now);
            let share = now + left / u32::try_from(asked.len() + 1).unwrap_or(u32::MAX);
            let copied = match answer {
                Ok(page) => writer.copy(page, &self.sources[index].target, share).await,
                Err(error) => Err(SourceError::Missing(error)),
            };
            match copied {
                Ok(()) => {
                    ups[index] = 1.0;
                    self.logged[index].store(false, Ordering::Relaxed);
                }
                Err(SourceError::Abandoned) => return Err(SourceError::Abandoned),
                Err(error) => {
                    let name = self.failed(index, &error);
                    let text = format!("metrics of {name} are missing: {error}");
                    remark(&text, &mut writer.ready);
                }
            }
        }
        let names = self.sources.iter().map(|source| source.name);
        let verdict = family(
            "metrics_source_up",
            "1 when the source's metrics are on this page, else 0.",
            "source",
            names.zip(ups),
        );
        writer.own(&[verdict]).await?;
        writer.send(Bytes::new()).await
    }

    /// Logs and counts that a source's metrics are missing; its name.
    fn failed(&self, index: usize, error: &SourceError) -> &'static str {
        let name = self.sources[index].name;
        if self.logged[index].swap(true, Ordering::Relaxed) {
            tracing::debug!(target: "metrics", source = name, %error, "metrics of a source are still missing");
        } else {
            tracing::warn!(target: "metrics", source = name, %error, "metrics of a source are missing");
        }
        self.telemetry.source_failures(name).inc();
        name
    }
}

/// Writes a page, piece by piece.
struct Writer {
    merge: Merge,
    ready: Vec<u8>,
    page: mpsc::Sender<Bytes>,
    slot: Slot,
}

impl Writer {
    /// The dataplane's metrics.
    async fn own(&mut self, families: &[MetricFamily]) -> Result<(), SourceError> {
        self.merge.begin(Format::Text);
        let page = families::page(families, Format::Text);
        let pushed = self.merge.push(page.as_bytes(), &mut self.ready);
        if let Err(broken) = pushed.and_then(|()| self.merge.end(&mut self.ready)) {
            tracing::warn!(target: "metrics", error = %broken, "own metrics are not whole");
        }
        self.pass_on(0).await
    }

    async fn copy(
        &mut self,
        mut page: Page,
        target: &Target,
        deadline: Instant,
    ) -> Result<(), SourceError> {
        let broken = |broken| SourceError::Missing(format!("{target}: {broken}"));
        self.merge.begin(page.format());
        while let Some(piece) = page.next(deadline).await.map_err(SourceError::Missing)? {
            let pushed = self.merge.push(&piece, &mut self.ready);
            self.pass_on(PIECE).await?;
            pushed.map_err(broken)?;
        }
        self.merge.end(&mut self.ready).map_err(broken)?;
        self.pass_on(0).await
    }

    /// Passes on what is ready, when it is more than that.
    async fn pass_on(&mut self, least: usize) -> Result<(), SourceError> {
        if self.ready.len() <= least {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.ready);
        self.send(piece.into()).await
    }

    async fn send(&mut self, piece: Bytes) -> Result<(), SourceError> {
        let sent = self.slot.unread(self.page.send(piece)).await;
        sent.map_err(|_| SourceError::Abandoned)
    }
}
