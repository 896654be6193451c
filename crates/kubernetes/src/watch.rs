//! Watches at the API server as streams of changes, with a delay between attempts.

use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher;
use legate_runtime::{Backoff, BackoffPolicy};

use crate::sync::objects::Change;

/// The duration of one watch in seconds, after which a silently broken connection is noticed.
pub(crate) const WATCH: u32 = 60;

/// The delays while the API server does not answer.
pub(crate) const API_SERVER: BackoffPolicy = BackoffPolicy {
    initial: Duration::from_millis(200),
    multiplier: 2.0,
    jitter: 0.3,
    cap: Duration::from_secs(5),
};

/// The changes of a watch, which is tried again after an error for ever.
pub(crate) fn changes<K, T>(
    watch: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    of: impl Fn(K) -> T + Send + 'static,
) -> impl Stream<Item = watcher::Result<Change<T>>> + Send + 'static
where
    K: Send + 'static,
    T: 'static,
{
    let watch = watch.backoff(WatchBackoff(Backoff::new(API_SERVER)));
    watch.map(move |event| {
        event.map(|event| match event {
            watcher::Event::Init => Change::Begin,
            watcher::Event::InitApply(it) => Change::Listed(of(it)),
            watcher::Event::InitDone => Change::Complete,
            watcher::Event::Apply(it) => Change::Applied(of(it)),
            watcher::Event::Delete(it) => Change::Gone(of(it)),
        })
    })
}

/// The backoff between attempts to watch.
#[derive(Debug)]
struct WatchBackoff(Backoff);

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.next(rand::random()))
    }
}

impl kube::runtime::utils::Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.0.reset();
    }
}
