//! Joins the metrics of several sources into one page while they are being read.
//!
//! Memory is bounded whatever the sources send: pieces are passed on as they arrive. A source that
//! fails is cut at its last complete line, leaves the others alone, and is named by
//! `consul_dataplane_metrics_source_up` at the end of the page.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use legate_runtime::Spawner;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::fetch::{FetchError, Page, Target};
use super::{PREFIX, Telemetry};

/// Largest page that is taken from one source, 64 MiB.
const SOURCE_LIMIT: usize = 64 * 1024 * 1024;

/// Longest line that is taken, 64 KiB.
const LINE_LIMIT: usize = 64 * 1024;

/// Pages that are put together at one time.
const PAGES: usize = 4;

/// Pieces that wait for whoever asked.
const PIECES: usize = 4;

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
    pages: Arc<Semaphore>,
    spawner: Spawner,
}

/// Why a source was cut off.
#[derive(Debug, thiserror::Error)]
enum SourceError {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error("more than {SOURCE_LIMIT} bytes")]
    TooLarge,
    #[error("a line of more than {LINE_LIMIT} bytes")]
    LongLine,
    /// Whoever asked for the page is gone.
    #[error("nobody reads the page any more")]
    Abandoned,
}

impl Merger {
    /// The dataplane's own metrics, then those of `sources` in this order.
    pub fn new(telemetry: Telemetry, sources: Vec<Source>, spawner: Spawner) -> Merger {
        Merger {
            telemetry,
            sources: sources.into(),
            pages: Arc::new(Semaphore::new(PAGES)),
            spawner,
        }
    }

    /// Starts a page; `None` when too many are being put together already. A page that nobody
    /// reads any more ends.
    pub fn page(&self, query: Option<&str>) -> Option<mpsc::Receiver<Bytes>> {
        let permit = Arc::clone(&self.pages).try_acquire_owned().ok()?;
        let (sender, receiver) = mpsc::channel(PIECES);
        let (merger, query) = (self.clone(), query.map(str::to_owned));
        let stop = self.spawner.token();
        self.spawner.spawn("merged metrics", async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = merger.write(query, &sender, permit) => {}
            }
            Ok::<_, Infallible>(())
        });
        Some(receiver)
    }

    async fn write(
        &self,
        query: Option<String>,
        page: &mpsc::Sender<Bytes>,
        _permit: OwnedSemaphorePermit,
    ) {
        if page.send(self.telemetry.render().into()).await.is_err() {
            return;
        }
        let name = format!("{PREFIX}_metrics_source_up");
        let mut verdict = format!(
            "# HELP {name} 1 when the source's metrics are on this page, else 0.\n# TYPE {name} gauge\n"
        );
        for source in self.sources.iter() {
            let query = query.as_deref().filter(|_| source.takes_query);
            let copied = self.copy(&source.target.with_query(query), page).await;
            let up = match copied {
                Ok(()) => 1,
                Err(SourceError::Abandoned) => return,
                Err(error) => {
                    tracing::warn!(source = source.name, %error, "metrics of a source are missing");
                    0
                }
            };
            verdict.push_str(&format!("{name}{{source=\"{}\"}} {up}\n", source.name));
        }
        // Whoever asked may be gone by now.
        let _ = page.send(verdict.into()).await;
    }

    async fn copy(&self, target: &Target, page: &mpsc::Sender<Bytes>) -> Result<(), SourceError> {
        let mut source = Page::open(target, &self.spawner).await?;
        let mut lines = Lines::default();
        let mut total = 0;
        while let Some(piece) = source.next().await? {
            total += piece.len();
            if total > SOURCE_LIMIT {
                return Err(SourceError::TooLarge);
            }
            for piece in lines.complete(piece)? {
                page.send(piece).await.map_err(|_| SourceError::Abandoned)?;
            }
        }
        if let Some(piece) = lines.rest() {
            page.send(piece).await.map_err(|_| SourceError::Abandoned)?;
        }
        Ok(())
    }
}

/// Holds back the beginning of a line until its end arrives.
#[derive(Debug, Default)]
struct Lines {
    begun: BytesMut,
}

impl Lines {
    /// What can be passed on now.
    fn complete(&mut self, mut piece: Bytes) -> Result<Vec<Bytes>, SourceError> {
        let mut out = Vec::with_capacity(2);
        match piece.iter().rposition(|byte| *byte == b'\n') {
            None => self.begun.extend_from_slice(&piece),
            Some(end) => {
                let whole = piece.split_to(end + 1);
                if !self.begun.is_empty() {
                    out.push(self.begun.split().freeze());
                }
                out.push(whole);
                self.begun.extend_from_slice(&piece);
            }
        }
        match self.begun.len() {
            0..=LINE_LIMIT => Ok(out),
            _ => Err(SourceError::LongLine),
        }
    }

    /// The last line, when it has no end.
    fn rest(mut self) -> Option<Bytes> {
        if self.begun.is_empty() {
            return None;
        }
        self.begun.extend_from_slice(b"\n");
        Some(self.begun.freeze())
    }
}
