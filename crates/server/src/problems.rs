//! What does not work at present and is retried: a record for operators. The parts themselves log and retry.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use legate_model::timestamp;
use legate_runtime::Clock;
use serde::Serialize;

/// The present problems of a server, by what fails. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Problems {
    clock: Clock,
    all: Arc<Mutex<BTreeMap<String, Problem>>>,
}

/// A problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Problem {
    /// What fails.
    what: String,
    /// Why the last attempt failed.
    reason: String,
    /// When the first attempt failed.
    #[serde(with = "timestamp")]
    since: SystemTime,
}

impl Problems {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            all: Arc::default(),
        }
    }

    /// Records a failed attempt.
    pub(crate) fn report(&self, what: &str, reason: impl Display) {
        let new = || Problem {
            what: what.to_owned(),
            reason: String::new(),
            since: self.clock.now(),
        };
        let mut all = self.lock();
        let problem = all.entry(what.to_owned()).or_insert_with(new);
        problem.reason = reason.to_string();
    }

    /// Records a success.
    pub(crate) fn solved(&self, what: &str) {
        self.lock().remove(what);
    }

    /// All problems, ordered by what fails.
    pub(crate) fn all(&self) -> Vec<Problem> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Problem>> {
        // No code under the lock can panic halfway through a change.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
