//! How long series that come and go stay visible: for a while after they last changed, as in
//! Consul's dataplane. Everything else stays as long as the process runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::families::{Family, SeriesKey, Value};

/// Families, without prefix, whose labelled series come with an event.
const DYNAMIC: [&str; 1] = ["connection_errors"];

/// Default of `-telemetry-prom-retention-time`.
const USUAL: Duration = Duration::from_secs(60);

/// Remembers when series changed. A change is noticed when somebody looks.
pub(super) struct Retention {
    seen: Mutex<Seen>,
}

struct Seen {
    time: Duration,
    /// By family and labels. As many as the registry has.
    series: BTreeMap<SeriesKey, (Value, Instant)>,
}

impl Retention {
    pub(super) fn new() -> Retention {
        let seen = Seen {
            time: USUAL,
            series: BTreeMap::new(),
        };
        Retention {
            seen: Mutex::new(seen),
        }
    }

    pub(super) fn set(&self, time: Duration) {
        self.seen().time = time;
    }

    /// Takes out the series that did not change for too long.
    pub(super) fn apply(&self, families: &mut [Family]) {
        let (mut seen, now) = (self.seen(), Instant::now());
        let time = seen.time;
        for family in families {
            let name = family.name.strip_prefix(super::PREFIX).unwrap_or_default();
            if !DYNAMIC.contains(&name.trim_start_matches('_')) {
                continue;
            }
            let name = family.name.clone();
            family.series.retain(|series| {
                if series.labels.is_empty() {
                    return true;
                }
                let key = (name.clone(), series.labels.clone());
                let fresh = || (series.value.clone(), now);
                let known = seen.series.entry(key).or_insert_with(fresh);
                if known.0 != series.value {
                    *known = fresh();
                }
                now.duration_since(known.1) < time
            });
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retention").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::families::Kind;

    fn errors(unavailable: f64) -> Vec<Family> {
        let mut errors = Family::new("connection_errors", "", Kind::Counter);
        errors.with(&[], unavailable);
        errors.with(&[("error_code", "Unavailable")], unavailable);
        let mut other = Family::new("dns_queries_total", "", Kind::Counter);
        other.with(&[("outcome", "answered")], 0.0);
        vec![errors, other]
    }

    #[tokio::test(start_paused = true)]
    async fn series_of_events_leave_when_nothing_happens_and_come_back() {
        let retention = Retention::new();
        retention.set(Duration::from_secs(30));
        let shown = |value| {
            let mut families = errors(value);
            retention.apply(&mut families);
            assert_eq!(families[1].series.len(), 1);
            families[0].series.len()
        };
        assert_eq!(shown(1.0), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(1.0), 2);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(shown(1.0), 1, "the sum of all stays");
        assert_eq!(shown(2.0), 2);
        tokio::time::advance(Duration::from_secs(29)).await;
        assert_eq!(shown(2.0), 2);
    }
}
