//! Looks up the names in the addresses of checks. The system's resolver blocks a thread and may take
//! minutes: how many lookups run at one time is bounded, so that slow DNS leaves threads for files
//! and for the store. It keeps no answers.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

/// How many names are looked up at one time, those that nobody waits for any more included. Tokio
/// has 512 threads for what blocks.
const MAX_LOOKUPS: usize = 32;

/// Looks up one name; the ports are 0. An error is text, so that all who wait can have it.
type Resolve = fn(&str) -> Result<Vec<SocketAddr>, String>;
type Lookup = Shared<BoxFuture<'static, Result<Vec<SocketAddr>, String>>>;

/// The lookups that are going on.
pub(crate) struct Names {
    slots: Arc<Semaphore>,
    /// By name. A name is looked up once at a time, so that one whose servers do not answer takes
    /// one thread, however often it is checked.
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

    /// The addresses of `host:port`. A lookup that has begun goes on when the future is dropped.
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

/// The system's resolver, which also knows the names in its files.
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

    /// A resolver whose servers do not answer until the test lets them.
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
    async fn addresses_are_not_looked_up_and_names_are() {
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
    fn slow_names_leave_threads_for_others() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(MAX_LOOKUPS + 1)
            .build()
            .unwrap();
        let names = Names::with(slow);
        let held = lock(&SLOW.answers);
        runtime.block_on(async {
            // One name again and again, and more names than there are slots; nobody waits for them.
            let one = || "same.example:1".to_owned();
            let many = (0..MAX_LOOKUPS + 8).map(|i| format!("name-{i}.example:1"));
            for address in std::iter::repeat_with(one)
                .take(MAX_LOOKUPS * 2)
                .chain(many)
            {
                let lookup = names.addresses(&address);
                assert!(timeout(Duration::ZERO, lookup).await.is_err());
            }
            // What else blocks gets its turn, and addresses need none.
            let other = timeout(Duration::from_secs(10), spawn_blocking(|| 7)).await;
            assert_eq!(other.expect("a thread is free").unwrap(), 7);
            names.addresses("127.0.0.1:1").await.unwrap();
        });
        drop(held);
        let found = runtime.block_on(names.addresses("same.example:2"));
        assert_eq!(found.unwrap(), ["127.0.0.9:2".parse().unwrap()]);
        // One for each slot, and the last one.
        assert!(SLOW.lookups.load(Ordering::SeqCst) <= MAX_LOOKUPS + 1);
    }
}
