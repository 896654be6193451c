//! What the importing cluster has, seen by its clients.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::Method;
use legate_runtime::BoxError;
use tokio::time::{Instant, sleep, timeout_at};

use super::mesh::{self, Query};
use crate::servers::Server;

/// The number of concurrent clients that wait for the import.
const READERS: usize = 4;

/// The time until such a client asks again after an incomplete answer.
const AGAIN: Duration = Duration::from_millis(50);

/// The time after which a server answers a query that waits, in any case: shorter than the client's own deadline.
const WAIT: &str = "5s";

/// Reads until all services are complete, for proxies and for other clients, or the limit is reached. Returns how many
/// are. Each complete one is read once, so that the server has little work; `on_complete` gets how many are by then.
pub(super) async fn imported(
    server: &Server,
    count: usize,
    limit: Duration,
    on_complete: impl FnMut(usize, Instant),
) -> usize {
    let end = Instant::now() + limit;
    let queries: VecDeque<_> = Query::all(count).collect();
    let progress = RefCell::new(Progress {
        queries,
        complete: vec![0; count],
        imported: 0,
        on_complete,
    });
    let readers = futures_util::stream::iter(0..READERS);
    let read = readers.for_each_concurrent(None, async |_| {
        loop {
            // Nothing is borrowed while a reader waits.
            let Some(query) = progress.borrow_mut().queries.pop_front() else {
                return;
            };
            let answer = server.call(Method::GET, &query.path(), Bytes::new()).await;
            let at = Instant::now();
            let healthy = answer.ok().and_then(|answer| mesh::healthy(&answer));
            if healthy == Some(query.expected()) {
                progress.borrow_mut().note(query, at);
                continue;
            }
            progress.borrow_mut().queries.push_back(query);
            sleep(AGAIN).await;
        }
    });
    // What is missing at the end shows in the result.
    let _ = timeout_at(end, read).await;
    progress.into_inner().imported
}

struct Progress<F> {
    /// What is not known to be complete.
    queries: VecDeque<Query>,
    /// The number of complete queries of each service.
    complete: Vec<u8>,
    imported: usize,
    on_complete: F,
}

impl<F: FnMut(usize, Instant)> Progress<F> {
    fn note(&mut self, query: Query, at: Instant) {
        let complete = &mut self.complete[query.service];
        *complete += 1;
        if *complete == 2 {
            self.imported += 1;
            (self.on_complete)(self.imported, at);
        }
    }
}

/// A client that waits for changes of a service. It asks again after [`WAIT`].
pub(super) struct Watch<'a> {
    server: &'a Server,
    query: Query,
    index: u64,
}

impl<'a> Watch<'a> {
    /// Reads the current index.
    ///
    /// # Errors
    /// The server's error.
    pub(super) async fn start(server: &'a Server, query: Query) -> Result<Self, BoxError> {
        let (index, _) = server.indexed(&query.path()).await?;
        Ok(Self {
            server,
            query,
            index,
        })
    }

    /// Waits until this number of instances is healthy. Returns the moment at which the answer had arrived.
    ///
    /// # Errors
    /// The server's error, or if that does not happen in time.
    pub(super) async fn has(mut self, healthy: usize, end: Instant) -> Result<Instant, BoxError> {
        let wait = async {
            loop {
                let path = format!("{}&index={}&wait={WAIT}", self.query.path(), self.index);
                let (index, answer) = self.server.indexed(&path).await?;
                let at = Instant::now();
                if mesh::healthy(&answer) == Some(healthy) {
                    return Ok::<_, BoxError>(at);
                }
                self.index = index;
            }
        };
        match timeout_at(end, wait).await {
            Ok(found) => found,
            Err(_) => Err(format!("service {} did not change", self.query.service).into()),
        }
    }
}
