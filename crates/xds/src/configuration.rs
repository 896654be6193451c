//! What one stream's proxy is configured with: the last snapshot and the resources made of it, of
//! which the next ones are made. It says in the log and in the metrics what cannot be made.
//!
//! A small configuration is made at once. A large one is made in a pool, one at a time for a proxy:
//! the stream goes on meanwhile, and so do all others.

use std::collections::BTreeMap;
use std::future::{pending, ready};
use std::pin::Pin;
use std::sync::Arc;

use legate_proxycfg::Snapshot;
use legate_resources::{Failure, Generator, ResourceSet};
use legate_runtime::metrics::IntGaugeVec;
use legate_runtime::{Pool, Share};
use tonic::Status;

use crate::ResourceType;

/// The size of a snapshot ([`Snapshot::size`]) from which on its resources are made in the pool. A
/// first configuration of this size takes about half a millisecond and a change of it some ten
/// microseconds, which is what handing over takes.
pub(crate) const LARGE: usize = 256;

/// Resources in the making, with the snapshot that they are made from. None when the server stops.
type Making = Pin<Box<dyn Future<Output = Option<ResourceSet>> + Send>>;

/// The configuration of one proxy, as one stream has it.
pub(crate) struct Configuration {
    generator: Arc<Generator>,
    pool: Pool,
    /// Resources that cannot be made, by type.
    errors: IntGaugeVec,
    current: Option<(Arc<Snapshot>, Arc<ResourceSet>)>,
    making: Option<(Arc<Snapshot>, Making)>,
    counted: BTreeMap<ResourceType, i64>,
}

impl Configuration {
    pub(crate) fn new(generator: Arc<Generator>, pool: Pool, errors: IntGaugeVec) -> Self {
        Self {
            generator,
            pool,
            errors,
            current: None,
            making: None,
            counted: BTreeMap::new(),
        }
    }

    /// Begins to make the resources of a new snapshot. [`Configuration::made`] has them.
    pub(crate) fn make(&mut self, snapshot: Arc<Snapshot>, share: &Share) {
        let (generator, current) = (Arc::clone(&self.generator), self.current.clone());
        let from = Arc::clone(&snapshot);
        let work = move || {
            let last = current.as_ref().map(|(last, set)| (&**last, &**set));
            generator.generate(&from, last)
        };
        let making: Making = if Self::is_large(&snapshot) {
            let (pool, share) = (self.pool.clone(), share.clone());
            let name = format!("configuration of {}", snapshot.proxy);
            Box::pin(async move { pool.run(name, &share, work).await })
        } else {
            Box::pin(ready(Some(work())))
        };
        self.making = Some((snapshot, making));
    }

    /// Whether the resources of a snapshot are made in the pool.
    pub(crate) fn is_large(snapshot: &Snapshot) -> bool {
        snapshot.size() >= LARGE
    }

    /// Whether resources are being made.
    pub(crate) fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// The resources that were begun; waits for ever when there are none. Cancel safe.
    pub(crate) async fn made(&mut self) -> Option<(Arc<Snapshot>, ResourceSet)> {
        let Some((_, making)) = &mut self.making else {
            return pending().await;
        };
        let set = making.await;
        self.making.take().map(|(snapshot, _)| snapshot).zip(set)
    }

    /// Takes the resources of a new snapshot. What cannot be made keeps the version that it had.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when the proxy could do nothing with what can be made. Another server
    /// would have nothing else for it.
    pub(crate) fn adopt(
        &mut self,
        snapshot: &Arc<Snapshot>,
        set: ResourceSet,
    ) -> Result<Arc<ResourceSet>, Status> {
        let set = Arc::new(set);
        self.report(snapshot, &set);
        self.count(set.failures());
        if let Some(reason) = set.unusable() {
            return Err(Status::failed_precondition(format!(
                "no configuration can be made for the proxy {}: {reason}",
                snapshot.proxy
            )));
        }
        self.current = Some((Arc::clone(snapshot), Arc::clone(&set)));
        Ok(set)
    }

    /// Every failure and every warning once, not with every snapshot.
    fn report(&self, snapshot: &Snapshot, set: &ResourceSet) {
        let proxy = &snapshot.proxy;
        let before = self.current.as_ref().map(|(_, set)| &**set);
        let failed = before.map_or(&[][..], ResourceSet::failures);
        let new = set.failures().iter().filter(|one| !failed.contains(one));
        for failure in new {
            let Failure {
                resource, reason, ..
            } = failure;
            let now = match failure.kept {
                true => "the last good version stays in use",
                false => "no version of it is served",
            };
            let kind = kind(failure).map_or("", ResourceType::short);
            tracing::error!(%proxy, r#type = kind, resource, error = %reason, now, "a resource of the proxy cannot be made");
        }
        if !failed.is_empty() && set.failures().is_empty() {
            tracing::info!(%proxy, "all resources of the proxy can be made again");
        }
        let warned = before.map_or(&[][..], ResourceSet::warnings);
        for warning in set.warnings().iter().filter(|one| !warned.contains(one)) {
            tracing::warn!(%proxy, warning, "a part of the proxy's settings cannot be used");
        }
    }

    fn count(&mut self, failures: &[Failure]) {
        let mut counts = BTreeMap::new();
        for kind in failures.iter().filter_map(kind) {
            *counts.entry(kind).or_default() += 1;
        }
        let before = std::mem::replace(&mut self.counted, counts);
        for (kind, count) in before {
            self.errors.with_label_values(&[kind.short()]).sub(count);
        }
        for (kind, count) in &self.counted {
            self.errors.with_label_values(&[kind.short()]).add(*count);
        }
    }
}

fn kind(failure: &Failure) -> Option<ResourceType> {
    ResourceType::from_url(failure.type_url())
}

impl Drop for Configuration {
    fn drop(&mut self) {
        self.count(&[]);
    }
}
