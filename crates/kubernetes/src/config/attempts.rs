//! The retry schedule of resources that could not be written. Pure: time is passed in.
//!
//! A resource's own events do not shorten its backoff: each new reason changes its condition, and
//! that change is an event. A change by the user does.

use std::collections::HashMap;
use std::time::Duration;

use kube::ResourceExt;
use kube::core::DynamicObject;
use tokio::time::Instant;

use super::decision::{may_migrate, retry_after};

/// A resource, by namespace and name.
pub(super) type Key = (String, String);

pub(super) fn key(resource: &DynamicObject) -> Key {
    (
        resource.namespace().unwrap_or_default(),
        resource.name_any(),
    )
}

/// The parts of a resource whose change may change the result of another attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    uid: Option<String>,
    generation: Option<i64>,
    leaving: bool,
    migrate: bool,
}

impl Version {
    pub(super) fn of(resource: &DynamicObject) -> Version {
        Version {
            uid: resource.uid(),
            generation: resource.metadata.generation,
            leaving: resource.metadata.deletion_timestamp.is_some(),
            migrate: may_migrate(resource),
        }
    }
}

/// Failed attempts, one row for each resource that has not succeeded since.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    failed: HashMap<Key, Failed>,
}

#[derive(Debug)]
struct Failed {
    version: Version,
    times: u32,
    due: Instant,
}

impl Attempts {
    /// The remaining wait before this version is tried; `None` if there is none.
    pub(super) fn wait(&self, key: &Key, version: &Version, now: Instant) -> Option<Duration> {
        let failed = self.failed.get(key)?;
        let left = failed.due.saturating_duration_since(now);
        (failed.version == *version && !left.is_zero()).then_some(left)
    }

    /// Records a failure; returns the wait before the next attempt.
    pub(super) fn failed(&mut self, key: Key, version: Version, now: Instant) -> Duration {
        let before = self.failed.get(&key).filter(|it| it.version == version);
        let times = before.map_or(0, |failed| failed.times.saturating_add(1));
        let wait = retry_after(times);
        let due = now + wait;
        self.failed.insert(
            key,
            Failed {
                version,
                times,
                due,
            },
        );
        wait
    }

    /// Records a success or the deletion of the resource.
    pub(super) fn done(&mut self, key: &Key) {
        self.failed.remove(key);
    }

    /// The number of resources that have failed.
    pub(super) fn len(&self) -> usize {
        self.failed.len()
    }

    /// Clears all waits, after a change that may affect every resource.
    pub(super) fn forget(&mut self) {
        self.failed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(generation: i64) -> Version {
        Version {
            uid: Some("u".into()),
            generation: Some(generation),
            leaving: false,
            migrate: false,
        }
    }

    #[test]
    fn the_wait_grows_with_each_failure_and_a_change_resets_it() {
        let mut attempts = Attempts::default();
        let key = ("default".to_owned(), "web".to_owned());
        let now = Instant::now();
        assert_eq!(attempts.wait(&key, &version(1), now), None);
        let waits: Vec<_> = (0..3)
            .map(|_| attempts.failed(key.clone(), version(1), now).as_millis())
            .collect();
        assert_eq!(waits, [200, 400, 800]);
        let left = attempts.wait(&key, &version(1), now + Duration::from_millis(300));
        assert_eq!(left, Some(Duration::from_millis(500)));
        assert_eq!(
            attempts.wait(&key, &version(1), now + Duration::from_millis(800)),
            None
        );
        assert_eq!(attempts.wait(&key, &version(2), now), None);
        assert_eq!(
            attempts.failed(key.clone(), version(2), now).as_millis(),
            200
        );
        attempts.forget();
        assert_eq!(attempts.wait(&key, &version(2), now), None);
        attempts.failed(key.clone(), version(2), now);
        attempts.done(&key);
        assert_eq!(attempts.failed(key, version(2), now).as_millis(), 200);
    }
}
