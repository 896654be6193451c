//! Where answers come from: the cache while it is fresh, a server, and the cache again while
//! servers are away.
//!
//! When that is the case is not decided here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::cache::{Cache, CacheLimits, Key};
use super::calls::{Call, Calls};
use super::forward::{ForwardError, Forwarder};
use super::message::{Query, Transport};

/// Answers of now and before.
#[derive(Debug)]
pub(super) struct Source {
    forwarder: Forwarder,
    cache: Mutex<Cache>,
    calls: Arc<Calls>,
}

impl Source {
    pub(super) fn new(forwarder: Forwarder, limits: CacheLimits) -> Self {
        Self {
            forwarder,
            cache: Mutex::new(Cache::new(limits)),
            calls: Arc::default(),
        }
    }

    /// What asks servers.
    pub(super) fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// An answer of a moment ago, if servers allow to give it again.
    pub(super) fn fresh(&self, query: &Query, key: Option<&Key>) -> Option<Bytes> {
        self.cache().fresh(query, key?, Instant::now())
    }

    /// The last answer there was.
    pub(super) fn stale(&self, query: &Query, key: Option<&Key>) -> Option<Bytes> {
        self.cache().stale(query, key?, Instant::now())
    }

    /// Asks a server, together with those who ask the same now. The answer is kept.
    pub(super) fn ask(
        self: &Arc<Self>,
        query: &Query,
        key: Option<&Key>,
        transport: Transport,
    ) -> Call {
        self.calls.join(query, transport, || {
            Arc::clone(self).call(query.clone(), key.cloned(), transport)
        })
    }

    async fn call(
        self: Arc<Self>,
        query: Query,
        key: Option<Key>,
        transport: Transport,
    ) -> Result<Bytes, ForwardError> {
        let answer = self.forwarder.forward(query.bytes(), transport).await?;
        if let Some(key) = key
            && answer.len() <= transport.largest()
        {
            self.cache().store(&query, &key, &answer, Instant::now());
        }
        Ok(answer)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
