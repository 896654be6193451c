//! Counts the writes that the backend did not store, and logs the first and the last of a series.

use std::sync::{Mutex, MutexGuard, PoisonError};

use legate_runtime::metrics::IntCounter;

use crate::outcome::Unavailable;

/// The refused writes of a store.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    series: Mutex<Series>,
}

#[derive(Debug, Default)]
struct Series {
    /// The number of writes that were refused since the last one that was stored.
    refused: u64,
    counters: Vec<IntCounter>,
}

impl Refusals {
    /// Adds a counter of refused writes.
    pub(crate) fn count(&self, counter: IntCounter) {
        self.lock().counters.push(counter);
    }

    /// Records that some writes were stored or refused together.
    pub(crate) fn note(&self, stored: &Result<(), Unavailable>, writes: u64) {
        let mut series = self.lock();
        match stored {
            Ok(()) => {
                let refused = std::mem::take(&mut series.refused);
                if refused > 0 {
                    tracing::info!(refused, "writes are stored again");
                }
            }
            Err(Unavailable { reason }) => {
                if series.refused == 0 {
                    tracing::error!(
                        %reason,
                        "a write was refused because it cannot be stored; further ones are counted \
                         in legate_store_writes_refused_total"
                    );
                }
                series.refused += writes;
                for counter in &series.counters {
                    counter.inc_by(writes);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Series> {
        // Nothing panics between dependent changes.
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
