//! Counts the connections of each Envoy for the status. The kernel then produces a table of all
//! connections of the machine or pod, which can take seconds. So only one count runs at a time,
//! callers wait briefly, and there is a pause between counts.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use legate_envoy::supervision::connections_by_port;
use tokio::time::{Instant, timeout};

/// How long the status waits for a count.
const PATIENCE: Duration = Duration::from_secs(1);

/// Maximum age of a count that is shown while a newer one takes longer.
const FRESH: Duration = Duration::from_secs(10);

/// Shortest pause between the end of a count and the start of the next.
const PAUSE: Duration = Duration::from_millis(500);

/// Counts connections. Clones share the results.
#[derive(Debug, Clone, Default)]
pub struct ConnectionCounter {
    last: Arc<Mutex<Option<Counted>>>,
    /// Locked while a count runs.
    running: Arc<tokio::sync::Mutex<()>>,
}

/// Time of the count, and the number of connections by process.
type Counted = (Instant, BTreeMap<u32, u64>);

impl ConnectionCounter {
    /// The number of connections of each process to its listeners, except the one on port `admin`. A
    /// process is missing if the kernel denies access or takes too long.
    pub(super) async fn count(&self, processes: Vec<u32>, admin: u16) -> BTreeMap<u32, u64> {
        let rested = self.last(PAUSE).is_none();
        if let Ok(turn) = Arc::clone(&self.running).try_lock_owned()
            && rested
        {
            let last = Arc::clone(&self.last);
            let count = tokio::task::spawn_blocking(move || {
                let counted = processes.into_iter().filter_map(|process| {
                    let mut by_port = connections_by_port(process).ok()?;
                    by_port.remove(&admin);
                    Some((process, by_port.values().sum()))
                });
                let counted = counted.collect();
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                *last = Some((Instant::now(), counted));
                drop(turn);
            });
            // The count continues for the next caller.
            let _ = timeout(PATIENCE, count).await;
        }
        self.last(FRESH).unwrap_or_default()
    }

    /// The last count, unless it is older than `age`.
    fn last(&self, age: Duration) -> Option<BTreeMap<u32, u64>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = last.as_ref().filter(|(at, _)| at.elapsed() < age);
        fresh.map(|(_, counted)| counted.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_count_runs_at_a_time_and_its_result_is_shared() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
        let _served = listener.accept().await.unwrap();
        let (counter, own) = (ConnectionCounter::default(), std::process::id());
        // Other tests in this process may have connections, too.
        let turn = Arc::clone(&counter.running).lock_owned().await;
        assert!(
            counter.count(vec![own], 0).await.is_empty(),
            "another one runs"
        );
        drop(turn);
        let counted = counter.count(vec![own, u32::MAX], 0).await;
        assert!(counted[&own] >= 1 && counted.len() == 1, "{counted:?}");
        let again = counter.count(vec![u32::MAX], 0).await;
        assert_eq!(again, counted, "none follows another at once");
    }
}
