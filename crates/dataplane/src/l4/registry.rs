//! The open connections: who they are, how active they are, and a way to close them.
//!
//! A connection looks at the clock of the registry, which ticks once a second, so that none has a timer of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use legate_l4::chains::ChainId;
use legate_l4::model::Name;
use legate_l4::plan::Fate;
use legate_l4::rbac::Peer;

use super::serving::ServedChain;
use super::stats::{ClusterStats, TcpStats};

/// Why the proxy closes a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Why {
    /// Nothing moved for the idle timeout of its chain.
    Idle = 1,
    /// It has lasted for as long as its chain allows.
    TooLong,
    /// New rules deny it.
    Policy,
    /// Its listener or chain is gone, and it was idle or the drain time is over.
    Drained,
}

impl Why {
    fn from(value: u8) -> Option<Why> {
        let all = [Why::Idle, Why::TooLong, Why::Policy, Why::Drained];
        all.into_iter().find(|why| *why as u8 == value)
    }
}

/// An open connection.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) number: u64,
    pub(super) listener: Name,
    pub(super) id: ChainId,
    /// Who is at the other end; `None` without TLS.
    pub(super) peer: Option<Arc<Peer>>,
    idle_timeout: Option<Duration>,
    max_duration: Option<Duration>,
    /// Seconds on the registry's clock.
    opened: u32,
    active: AtomicU32,
    clock: Arc<AtomicU32>,
    received: Bytes,
    sent: Bytes,
    tcp: Arc<TcpStats>,
    /// Its cluster, once it is connected.
    cluster: OnceLock<Arc<ClusterStats>>,
    half_closed: AtomicBool,
    /// When its drain began, in seconds plus one; 0: it does not drain.
    draining: AtomicU32,
    close: AtomicU8,
    waker: AtomicWaker,
}

/// The bytes of one direction.
#[derive(Debug, Default)]
struct Bytes {
    all: AtomicU64,
    /// How many of them are in the statistics.
    reported: AtomicU64,
}

impl Bytes {
    fn add(&self, count: usize) {
        self.all.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Those that are new to the statistics. Each is returned once, whoever asks at the same time.
    fn take(&self) -> u64 {
        let all = self.get();
        all.saturating_sub(self.reported.fetch_max(all, Ordering::Relaxed))
    }
}

impl Open {
    /// It is connected to a host of the cluster with these statistics.
    pub(super) fn connected(&self, cluster: &Arc<ClusterStats>) {
        // It is connected once.
        let _ = self.cluster.set(Arc::clone(cluster));
    }

    /// Brings the bytes of the statistics up to date: every second, and at its end.
    pub(super) fn report(&self) {
        let (received, sent) = (self.received.take(), self.sent.take());
        if received == 0 && sent == 0 {
            return;
        }
        self.tcp.rx_bytes.add(received);
        self.tcp.tx_bytes.add(sent);
        if let Some(cluster) = self.cluster.get() {
            cluster.tx_bytes.add(received);
            cluster.rx_bytes.add(sent);
        }
    }

    /// Counts bytes from the caller.
    pub(super) fn received(&self, count: usize) {
        self.received.add(count);
        self.touch();
    }

    /// Counts bytes to the caller.
    pub(super) fn sent(&self, count: usize) {
        self.sent.add(count);
        self.touch();
    }

    fn touch(&self) {
        let now = self.clock.load(Ordering::Relaxed);
        self.active.store(now, Ordering::Relaxed);
    }

    /// One of its directions has ended.
    pub(super) fn half_closed(&self) {
        self.half_closed.store(true, Ordering::Relaxed);
    }

    /// Bytes from the caller and to it.
    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.received.get(), self.sent.get())
    }

    /// Ready once it has to close.
    pub(super) fn poll_closed(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.why().is_some() {
            return Poll::Ready(());
        }
        self.waker.register(cx.waker());
        // Between the first look and the registration it may have been closed.
        match self.why() {
            Some(_) => Poll::Ready(()),
            None => Poll::Pending,
        }
    }

    /// Why the proxy closes it.
    pub(super) fn why(&self) -> Option<Why> {
        Why::from(self.close.load(Ordering::Acquire))
    }

    /// Closes it. The first reason counts.
    pub(super) fn close(&self, why: Why) {
        let (order, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let closed = self
            .close
            .compare_exchange(0, why as u8, order, failure)
            .is_ok();
        if closed {
            self.waker.wake();
        }
    }

    /// What has to be done at a time of the clock.
    fn due(&self, now: u32, times: &Times) -> Option<Why> {
        let since = |at: u32| Duration::from_secs(now.saturating_sub(at).into());
        let idle = since(self.active.load(Ordering::Relaxed));
        // A tick is up to a second early.
        let over = |timeout: Duration| idle > timeout;
        let draining = self.draining.load(Ordering::Relaxed);
        if draining > 0 && (over(DRAIN_IDLE) || since(draining - 1) > times.drain) {
            return Some(Why::Drained);
        }
        let half_closed = self.half_closed.load(Ordering::Relaxed);
        if half_closed && times.half_closed.is_some_and(over) {
            return Some(Why::Idle);
        }
        if self.idle_timeout.is_some_and(over) {
            return Some(Why::Idle);
        }
        let long = self
            .max_duration
            .is_some_and(|max| since(self.opened) > max);
        long.then_some(Why::TooLong)
    }
}

/// How long a connection that drains has to be idle before it is closed.
const DRAIN_IDLE: Duration = Duration::from_secs(1);

/// Limits on the time of connections that their chains do not decide.
#[derive(Debug, Clone)]
pub(crate) struct Times {
    /// How long a connection may be idle after one of its directions has ended; `None`: as an open one.
    pub(crate) half_closed: Option<Duration>,
    /// How long a connection may last once its listener or chain is gone.
    pub(crate) drain: Duration,
}

/// The open connections.
#[derive(Debug)]
pub(super) struct Registry {
    clock: Arc<AtomicU32>,
    numbers: AtomicU64,
    times: Times,
    open: Mutex<BTreeMap<u64, Arc<Open>>>,
}

impl Registry {
    pub(super) fn new(times: Times) -> Registry {
        Registry {
            clock: Arc::default(),
            numbers: AtomicU64::new(0),
            times,
            open: Mutex::default(),
        }
    }

    /// A number for a new connection.
    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a connection that was authorised. It stays until the result is dropped.
    pub(super) fn add(
        self: &Arc<Self>,
        number: u64,
        listener: &Name,
        served: &ServedChain,
        peer: Option<Arc<Peer>>,
    ) -> Entry {
        let now = self.clock.load(Ordering::Relaxed);
        let open = Arc::new(Open {
            number,
            listener: listener.clone(),
            id: served.id.clone(),
            peer,
            idle_timeout: served.chain.tcp.idle_timeout,
            max_duration: served.chain.tcp.max_duration,
            opened: now,
            active: AtomicU32::new(now),
            clock: Arc::clone(&self.clock),
            received: Bytes::default(),
            sent: Bytes::default(),
            tcp: Arc::clone(&served.tcp),
            cluster: OnceLock::new(),
            half_closed: AtomicBool::new(false),
            draining: AtomicU32::new(0),
            close: AtomicU8::new(0),
            waker: AtomicWaker::new(),
        });
        self.lock().insert(number, Arc::clone(&open));
        Entry {
            registry: Arc::clone(self),
            open,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of connections.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// A second has passed. Closes the connections whose time is over.
    pub(super) fn tick(&self) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        for open in self.lock().values() {
            open.report();
            if let Some(why) = open.due(now, &self.times) {
                open.close(why);
            }
        }
    }

    /// Judges the open connections by a new configuration, and returns how many are closed by it. The lock is held for
    /// one batch at a time, so that new connections are not delayed.
    pub(super) async fn judge(&self, fate: impl Fn(&Open) -> Fate) -> u64 {
        let (mut next, mut closed) = (0, 0);
        loop {
            let batch: Vec<Arc<Open>> = {
                let open = self.lock();
                open.range(next..)
                    .take(BATCH)
                    .map(|(_, one)| Arc::clone(one))
                    .collect()
            };
            let Some(last) = batch.last() else {
                return closed;
            };
            next = last.number + 1;
            for open in batch {
                match fate(&open) {
                    Fate::Keep(_) => open.draining.store(0, Ordering::Relaxed),
                    Fate::Denied => {
                        closed += 1;
                        open.close(Why::Policy);
                    }
                    Fate::Drain => {
                        let now = self.clock.load(Ordering::Relaxed) + 1;
                        let order = Ordering::Relaxed;
                        // One that drains already keeps the time at which that began.
                        let _ = open.draining.compare_exchange(0, now, order, order);
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }
}

/// How many connections are judged at a time.
const BATCH: usize = 1_000;

/// A connection in the registry.
#[derive(Debug)]
pub(super) struct Entry {
    registry: Arc<Registry>,
    pub(super) open: Arc<Open>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.registry.lock().remove(&self.open.number);
    }
}
