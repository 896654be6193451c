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
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use legate_runtime::Spawner;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::families::{Family, Kind};
use super::fetch::{Dialer, FetchError, Page, Target};
use super::merge::{Broken, Merge};
use super::render::render;
use super::slots::{Slot, Slots};
use super::{Format, Telemetry};

/// Pieces that wait for whoever asked.
const PIECES: usize = 4;

/// Size from which a piece is passed on, in bytes.
const PIECE: usize = 16 * 1024;

/// How long after its time a page may wait for whoever asked to read it.
const LINGER: Duration = Duration::from_secs(20);

/// How long to wait for the formats that sources speak, at most; a quarter of the page's time.
const FORMATS: Duration = Duration::from_secs(2);

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

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageRequest {
    /// The query, as it came.
    pub query: Option<String>,
    /// What the reader prefers. Text is served unless all sources speak that.
    pub format: Format,
    /// How long all sources together may take.
    pub time: Duration,
}

/// A page that is being put together.
#[derive(Debug)]
pub struct Merged {
    /// What it is written in.
    pub format: Format,
    /// Its pieces, until it ends.
    pub pieces: mpsc::Receiver<Bytes>,
    /// Whether the last piece was the page's end, once there are no more. A page that waits too
    /// long for its reader is cut off.
    pub whole: Arc<AtomicBool>,
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
}

/// Why a source was cut off.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("{0}: {1}")]
    Broken(Target, Broken),
    /// Whoever asked for the page is gone.
    #[error("nobody reads the page any more")]
    Abandoned,
}

type Answer = (usize, Result<Page, FetchError>);
type Asked = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// The sources of one page on their way.
struct Sources {
    asked: Vec<Asked>,
    answered: Vec<Answer>,
    deadline: Instant,
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
            dialer: Dialer::new(spawner),
        }
    }

    /// Starts a page; `None` when too many are being put together already, and all are being read.
    /// A page that nobody reads any more ends.
    pub async fn page(&self, request: &PageRequest) -> Option<Merged> {
        let slot = self.slots.take()?;
        let mut sources = self.ask(request);
        let format = match request.format {
            Format::Text => Format::Text,
            Format::OpenMetrics => sources.common_format(request.time).await,
        };
        let (sender, pieces) = mpsc::channel(PIECES);
        let whole = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            merge: Merge::new(format),
            ready: Vec::new(),
            page: sender.clone(),
            slot,
            whole: Arc::clone(&whole),
        };
        let (merger, stop) = (self.clone(), self.dialer.spawner().token());
        self.dialer.spawner().spawn("merged metrics", async move {
            let (end, ended) = (sources.deadline + LINGER, writer.slot.end());
            tokio::select! {
                () = sleep_until(end) => {}
                () = stop.cancelled() => {}
                () = ended.cancelled() => {}
                () = sender.closed() => {}
                () = merger.write(sources, format, writer) => {}
            }
            Ok::<_, Infallible>(())
        });
        Some(Merged {
            format,
            pieces,
            whole,
        })
    }

    fn ask(&self, request: &PageRequest) -> Sources {
        let deadline = Instant::now() + request.time;
        let ask = |(index, source): (usize, &Source)| -> Asked {
            let query = request.query.as_deref().filter(|_| source.takes_query);
            let target = source.target.with_query(query);
            let page = Page::open(target, request.format, self.dialer.clone(), deadline);
            Box::pin(async move { (index, page.await) })
        };
        Sources {
            asked: self.sources.iter().enumerate().map(ask).collect(),
            answered: Vec::new(),
            deadline,
        }
    }

    async fn write(&self, mut sources: Sources, format: Format, mut writer: Writer) {
        let mut verdict = Family::new(
            "metrics_source_up",
            "1 when the source's metrics are on this page, else 0.",
            Kind::Gauge,
        );
        if writer
            .own(&self.telemetry.families(), format)
            .await
            .is_err()
        {
            return;
        }
        let mut ups = vec![0.0; self.sources.len()];
        while let Some((index, answer)) = sources.next().await {
            let (name, share) = (self.sources[index].name, sources.share());
            let copied = match answer {
                Ok(page) => writer.copy(page, &self.sources[index].target, share).await,
                Err(error) => Err(error.into()),
            };
            match copied {
                Ok(()) => {
                    ups[index] = 1.0;
                    self.logged[index].store(false, Ordering::Relaxed);
                }
                Err(SourceError::Abandoned) => return,
                Err(error) => {
                    match self.logged[index].swap(true, Ordering::Relaxed) {
                        false => {
                            tracing::warn!(target: "metrics", source = name, %error, "metrics of a source are missing");
                        }
                        true => {
                            tracing::debug!(target: "metrics", source = name, %error, "metrics of a source are still missing");
                        }
                    }
                    self.telemetry.source_failures(name).inc();
                    let remark = format!("metrics of {name} are missing: {error}");
                    writer.merge.remark(&remark, &mut writer.ready);
                }
            }
        }
        for (source, up) in self.sources.iter().zip(ups) {
            verdict.with(&[("source", source.name)], up);
        }
        if writer.own(&[verdict], format).await.is_ok() {
            writer.finish().await;
        }
    }
}

impl Sources {
    /// OpenMetrics when all sources that answer in time speak it. Those that fail say nothing.
    async fn common_format(&mut self, time: Duration) -> Format {
        let patience = Instant::now() + FORMATS.min(time / 4);
        while !self.asked.is_empty() {
            match timeout_at(patience, self.answer()).await {
                Ok(answer) => self.answered.push(answer),
                Err(_) => return Format::Text,
            }
        }
        let mut pages = self
            .answered
            .iter()
            .filter_map(|(_, page)| page.as_ref().ok());
        match pages.all(|page| page.format() == Format::OpenMetrics) {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }

    /// The next source that answers or fails. Cancelling it loses none. Not for nobody asked.
    async fn answer(&mut self) -> Answer {
        let (answer, at, _) = select_all(&mut self.asked).await;
        // The others keep their order: of several that have answered the first comes first.
        drop(self.asked.remove(at));
        answer
    }

    async fn next(&mut self) -> Option<Answer> {
        if !self.answered.is_empty() {
            let first = (0..self.answered.len()).min_by_key(|at| self.answered[*at].0)?;
            return Some(self.answered.remove(first));
        }
        match self.asked.is_empty() {
            true => None,
            false => Some(self.answer().await),
        }
    }

    /// Until when the source may be read whose turn it is: its part of the time that is left.
    fn share(&self) -> Instant {
        let now = Instant::now();
        let waiting = u32::try_from(self.asked.len() + self.answered.len()).unwrap_or(u32::MAX);
        let left = self.deadline.saturating_duration_since(now);
        now + left / waiting.saturating_add(1)
    }
}

/// Writes a page, piece by piece.
struct Writer {
    merge: Merge,
    ready: Vec<u8>,
    page: mpsc::Sender<Bytes>,
    slot: Slot,
    whole: Arc<AtomicBool>,
}

impl Writer {
    /// Metrics that are known to be sound.
    async fn own(&mut self, families: &[Family], format: Format) -> Result<(), SourceError> {
        self.merge.begin(format);
        let page = render(families, format);
        let pushed = self.merge.push(page.as_bytes(), &mut self.ready);
        if let Err(broken) = pushed.and_then(|()| self.merge.end(&mut self.ready)) {
            tracing::warn!(target: "metrics", error = %broken, "own metrics are not whole");
        }
        self.send(0).await
    }

    async fn copy(
        &mut self,
        mut page: Page,
        target: &Target,
        deadline: Instant,
    ) -> Result<(), SourceError> {
        let broken = |broken| SourceError::Broken(target.clone(), broken);
        self.merge.begin(page.format());
        while let Some(piece) = page.next(deadline).await? {
            let pushed = self.merge.push(&piece, &mut self.ready);
            self.send(PIECE).await?;
            pushed.map_err(broken)?;
        }
        self.merge.end(&mut self.ready).map_err(broken)?;
        self.send(0).await
    }

    /// Passes on what is ready, when it is more than that.
    async fn send(&mut self, least: usize) -> Result<(), SourceError> {
        if self.ready.len() <= least {
            return Ok(());
        }
        let piece = std::mem::take(&mut self.ready).into();
        let sent = self.slot.unread(self.page.send(piece)).await;
        sent.map_err(|_| SourceError::Abandoned)
    }

    async fn finish(mut self) {
        let merge = std::mem::replace(&mut self.merge, Merge::new(Format::Text));
        merge.finish(&mut self.ready);
        // Whoever asked may be gone by now.
        let sent = self.send(0).await;
        self.whole.store(sent.is_ok(), Ordering::Release);
    }
}
