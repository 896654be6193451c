//! The asynchronous part: recomputes a proxy's snapshot when one of its inputs has changed, and
//! publishes it when the schedule allows.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use legate_ca::{Leaf, LeafId, LeafStore, LeafWatch};
use legate_runtime::CancellationToken;
use legate_store::{Follower, Reader};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};

use crate::config::ManagerConfig;
use crate::error::Ended;
use crate::kinds::leaves::Leaves;
use crate::kinds::{self, Outcome, Parts};
use crate::lease::Published;
use crate::limiter::Limiter;
use crate::same::Compare;
use crate::schedule::Schedule;
use crate::snapshot::{ProxyId, Snapshot};
use crate::value::Value;

/// Dependencies that all proxies of a manager share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) store: Reader,
    pub(crate) leaves: LeafStore,
    pub(crate) config: ManagerConfig,
    pub(crate) limiter: Limiter,
}

/// The task's ends of a source's channels.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) publish: watch::Sender<Published>,
    /// Completes when the last watcher is dropped.
    pub(crate) abandoned: oneshot::Receiver<()>,
    /// Cancelled when the control plane stops.
    pub(crate) stop: CancellationToken,
}

/// Runs the source of one proxy until its last watcher is dropped, the control plane stops or the
/// registration can no longer be served.
pub(crate) async fn run(
    context: Arc<Context>,
    proxy: ProxyId,
    ends: Ends,
) -> Result<(), Infallible> {
    let Ends {
        publish,
        mut abandoned,
        stop,
    } = ends;
    let mut driver = Driver::new(context, proxy);
    let ended = loop {
        if let Some(ended) = driver.ended.take() {
            break ended;
        }
        driver.publish_when_due(&publish);
        if driver.ended.is_some() {
            continue;
        }
        tokio::select! {
            biased;
            _ = &mut abandoned => {
                debug!(proxy = %driver.proxy, "the last watcher of the proxy is gone");
                return Ok(());
            }
            () = stop.cancelled() => break Ended::Stopping,
            () = driver.follower.changed() => driver.schedule.changed(Instant::now()),
            renewed = driver.leaves.renewed() => driver.renewed(renewed),
            () = wake(driver.schedule.wake_at()) => {}
        }
    };
    info!(proxy = %driver.proxy, reason = %ended, "the watch of the proxy has ended");
    publish.send_modify(|published| published.ended = Some(ended));
    Ok(())
}

async fn wake(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => pending().await,
    }
}

struct Driver {
    context: Arc<Context>,
    proxy: ProxyId,
    schedule: Schedule,
    leaves: ProxyLeaves,
    /// Wakes when an input of the last snapshot has changed.
    follower: Follower,
    parts: Parts,
    last: Option<Arc<Snapshot>>,
    ended: Option<Ended>,
}

/// The certificates of the proxy, each watched from the first snapshot that asks for it until one
/// does not.
struct ProxyLeaves {
    leaves: LeafStore,
    watched: HashMap<LeafId, Watched>,
}

struct Watched {
    leaf: LeafWatch,
    /// Whether the current snapshot has asked for it.
    is_asked: bool,
}

impl Leaves for ProxyLeaves {
    fn current(&mut self, id: &LeafId) -> Option<Arc<Leaf>> {
        let watched = match self.watched.get_mut(id) {
            Some(known) => known,
            None => self.watched.entry(id.clone()).or_insert(Watched {
                leaf: self.leaves.watch(id.clone()),
                is_asked: false,
            }),
        };
        watched.is_asked = true;
        watched.leaf.current()
    }
}

impl ProxyLeaves {
    /// Drops the certificates that the complete snapshot has not asked for.
    fn end_others(&mut self) {
        self.watched
            .retain(|_, watched| std::mem::take(&mut watched.is_asked));
    }

    /// Waits for the next certificate. `Err` carries the reason why there will be none.
    async fn renewed(&mut self) -> Result<(), String> {
        let watched = self.watched.values_mut();
        let mut changes: Vec<_> = watched
            .map(|watched| Box::pin(watched.leaf.changed()))
            .collect();
        let first = poll_fn(|context| {
            let mut ready =
                changes
                    .iter_mut()
                    .filter_map(|change| match change.as_mut().poll(context) {
                        Poll::Ready(changed) => Some(changed),
                        Poll::Pending => None,
                    });
            ready.next().map_or(Poll::Pending, Poll::Ready)
        });
        first.await.map_err(|error| error.to_string())
    }
}

impl Driver {
    fn new(context: Arc<Context>, proxy: ProxyId) -> Self {
        let mut schedule = Schedule::new(context.config.coalesce);
        schedule.changed(Instant::now());
        let follower = Follower::default();
        Self {
            schedule,
            leaves: ProxyLeaves {
                leaves: context.leaves.clone(),
                watched: HashMap::new(),
            },
            parts: Parts::of(follower.clone()),
            follower,
            last: None,
            ended: None,
            context,
            proxy,
        }
    }

    /// Publishes a snapshot when one is due and it differs from the last one.
    fn publish_when_due(&mut self, publish: &watch::Sender<Published>) {
        let now = Instant::now();
        let limiter = &self.context.limiter;
        // The first snapshot is not rate-limited.
        let first = self.last.is_none();
        let reserve = |now| if first { now } else { limiter.reserve(now) };
        if !self.schedule.due(now, reserve) {
            return;
        }
        let Some(mut snapshot) = self.compute(now) else {
            return;
        };
        if let Some(last) = self.last.as_deref() {
            if last.is_same(&snapshot, Compare::Addresses) {
                return;
            }
            snapshot.adopt(last, Compare::Addresses);
        }
        debug!(proxy = %self.proxy, "new snapshot");
        self.schedule.published(now);
        let snapshot = Arc::new(snapshot);
        self.last = Some(Arc::clone(&snapshot));
        publish.send_modify(|published| published.snapshot = Some(snapshot));
    }

    fn compute(&mut self, now: Instant) -> Option<Snapshot> {
        self.follower.forget();
        let state = self.context.store.state();
        let (txn, config) = (state.read(), &self.context.config);
        let (leaves, parts) = (&mut self.leaves, &mut self.parts);
        match kinds::snapshot(&txn, &self.proxy, config, leaves, parts) {
            // Published when what other datacenters have is known, or cannot be: that wakes the follower.
            Ok(Outcome::Ready(_)) if txn.is_pending() && !self.schedule.pending(now) => None,
            Ok(Outcome::Ready(snapshot)) => {
                match txn.is_pending() {
                    true => info!(
                        proxy = %self.proxy,
                        "what other datacenters have is not known in time: the proxy is configured without it"
                    ),
                    false => self.schedule.complete(),
                }
                leaves.end_others();
                Some(*snapshot)
            }
            Ok(Outcome::Pending) => None,
            Err(refused) => {
                self.ended = Some(Ended::Registration(refused));
                None
            }
        }
    }

    fn renewed(&mut self, renewed: Result<(), String>) {
        match renewed {
            Ok(()) => self.schedule.changed(Instant::now()),
            Err(reason) => {
                warn!(proxy = %self.proxy, %reason, "the leaf certificate is no longer renewed");
                self.ended = Some(Ended::Leaf { reason });
            }
        }
    }
}
