//! Resolves host names of checks. The system's resolver blocks a thread, possibly for minutes. The
//! number of concurrent lookups is bounded, so that slow DNS leaves threads for files and the store.
//! Results are not cached.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// The maximum number of concurrent lookups, including abandoned ones. Tokio has 512 blocking
/// threads.
const MAX_LOOKUPS: usize = 32;

/// Resolves one name to addresses with port 0. Errors are texts, so that all waiting callers can
/// share them.
type Resolve = fn(&str) -> Result<Vec<SocketAddr>, String>;
type Lookup = Shared<BoxFuture<'static, Result<Vec<SocketAddr>, String>>>;

/// The lookups in progress.
pub(crate) struct Names {
    slots: Arc<Semaphore>,
    /// Lookups by name. There is at most one lookup per name, so a name whose servers do not respond
    /// uses one thread, however often it is checked.
    running: Arc<Mutex<HashMap<String, Lookup>>>,
    resolve: Resolve,
}

impl Default for Names {
    fn default() -> Self {
        Self::with(resolve)
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.slots.available_permits();
        f.debug_struct("Names").field("free", &free).finish()
    }
}

impl Names {
    pub(crate) fn with(resolve: Resolve) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(MAX_LOOKUPS)),
            running: Arc::default(),
            resolve,
        }
    }

    /// Resolves `host:port`. A lookup in progress continues when the future is dropped.
    pub(crate) async fn addresses(&self, address: &str) -> io::Result<Vec<SocketAddr>> {
        if let Ok(address) = address.parse::<SocketAddr>() {
            return Ok(vec![address]);
        }
        let split = address.rsplit_once(':');
        let (host, port) = split
            .and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)))
            .ok_or_else(|| io::Error::other(format!("{address:?} is not host:port")))?;
        let mut found = self.lookup(host).await.map_err(io::Error::other)?;
        found.iter_mut().for_each(|address| address.set_port(port));
        Ok(found)
    }

    async fn lookup(&self, host: &str) -> Result<Vec<SocketAddr>, String> {
        let running = lock(&self.running).get(host).cloned();
        if let Some(running) = running {
            return running.await;
        }
        // The semaphore is never closed.
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let slot = slot.map_err(|error| error.to_string())?;
        let lookup = lock(&self.running)
            .entry(host.to_owned())
            .or_insert_with(|| self.start(host.to_owned(), slot))
            .clone();
        lookup.await
    }

    fn start(&self, host: String, slot: OwnedSemaphorePermit) -> Lookup {
        let (running, resolve) = (Arc::clone(&self.running), self.resolve);
        let work = spawn_blocking(move || {
            let found = resolve(&host);
            lock(&running).remove(&host);
            drop(slot);
            found
        });
        let found = async { work.await.unwrap_or_else(|error| Err(error.to_string())) };
        found.boxed().shared()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The system's resolver, which also uses `/etc/hosts`.
fn resolve(host: &str) -> Result<Vec<SocketAddr>, String> {
    let found = (host, 0).to_socket_addrs();
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.collect())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// A resolver that blocks until the test releases it.
    struct Slow {
        lookups: AtomicUsize,
        answers: Mutex<()>,
    }

    static SLOW: Slow = Slow {
        lookups: AtomicUsize::new(0),
        answers: Mutex::new(()),
    };

    fn slow(_host: &str) -> Result<Vec<SocketAddr>, String> {
        SLOW.lookups.fetch_add(1, Ordering::SeqCst);
        drop(lock(&SLOW.answers));
        Ok(vec![SocketAddr::from(([127, 0, 0, 9], 0))])
    }

    #[tokio::test]
    async fn only_names_are_resolved() {
        let names = Names::with(|_| Err("no such name".to_owned()));
        for address in ["127.0.0.1:80", "[::1]:80"] {
            let found = names.addresses(address).await.unwrap();
            assert_eq!(found, [address.parse().unwrap()]);
        }
        for (address, says) in [("web.example:80", "no such name"), ("web", "host:port")] {
            let error = names.addresses(address).await.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        let local = Names::default().addresses("localhost:7").await.unwrap();
        assert!(
            local
                .iter()
                .all(|at| at.ip().is_loopback() && at.port() == 7)
        );
    }

    #[test]
    fn slow_lookups_leave_threads_for_other_work() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_LOOKUPS + 1)
            .build()
            .unwrap();
        let names = Names::with(slow);
        let held = lock(&SLOW.answers);
        runtime.block_on(async {
            // Repeated lookups of one name, and of more names than there are slots; no caller waits
            // for them.
            let one = || "same.example:1".to_owned();
            let many = (0..MAX_LOOKUPS + 8).map(|i| format!("name-{i}.example:1"));
            for address in std::iter::repeat_with(one)
                .take(MAX_LOOKUPS * 2)
                .chain(many)
            {
                let lookup = names.addresses(&address);
                assert!(timeout(Duration::ZERO, lookup).await.is_err());
            }
            // Other blocking work is not delayed, and addresses need no lookup.
            let other = timeout(Duration::from_secs(10), spawn_blocking(|| 7)).await;
            assert_eq!(other.expect("a thread is free").unwrap(), 7);
            names.addresses("127.0.0.1:1").await.unwrap();
        });
        drop(held);
        let found = runtime.block_on(names.addresses("same.example:2"));
        assert_eq!(found.unwrap(), ["127.0.0.9:2".parse().unwrap()]);
        // One per slot, and the last one.
        assert!(SLOW.lookups.load(Ordering::SeqCst) <= MAX_LOOKUPS + 1);
    }
}
