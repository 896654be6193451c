//! Runs of checks in progress. They make progress only while [`Runs::next`] or
//! [`Runs::while_waiting`] is polled.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::{AbortHandle, abortable};
use futures_util::stream::FuturesUnordered;
use legate_model::CheckType;

use crate::machine::Run;
use crate::probe::Prober;
use crate::probe::output::RunResult;
use crate::settings::Settings;

/// An aborted run has no result.
type Running = Pin<Box<dyn Future<Output = (Run, Option<RunResult>)> + Send>>;

#[derive(Debug, Default)]
pub(crate) struct Runs {
    prober: Arc<Prober>,
    running: FuturesUnordered<Running>,
    handles: HashMap<Run, AbortHandle>,
}

impl Runs {
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            prober: Arc::new(Prober::new(settings)),
            ..Self::default()
        }
    }

    pub(crate) fn start(&mut self, run: Run, target: Arc<CheckType>) {
        let prober = Arc::clone(&self.prober);
        let (probe, handle) = abortable(async move { prober.run(&target).await });
        self.handles.insert(run, handle);
        self.running
            .push(Box::pin(async move { (run, probe.await.ok()) }));
    }

    pub(crate) fn cancel(&mut self, run: Run) {
        if let Some(handle) = self.handles.remove(&run) {
            handle.abort();
        }
    }

    /// The next result; pending while there are no runs. Cancel safe.
    pub(crate) async fn next(&mut self) -> (Run, RunResult) {
        loop {
            match self.running.next().await {
                Some((run, Some(found))) => {
                    self.handles.remove(&run);
                    return (run, found);
                }
                Some((_, None)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Waits for another future, and passes on results that arrive meanwhile.
    pub(crate) async fn while_waiting<T>(
        &mut self,
        other: impl Future<Output = T>,
        mut result: impl FnMut(Run, RunResult),
    ) -> T {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                done = &mut other => return done,
                (run, found) = self.next() => result(run, found),
            }
        }
    }
}
