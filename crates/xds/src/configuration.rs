//! The configuration of one stream's proxy: the last snapshot and its resources, from which the
//! next ones are generated. Logs and counts resources that cannot be generated.
//!
//! A small configuration is generated synchronously. A large one is generated in a pool, one at a
//! time for each proxy, so that neither this stream nor others are blocked.

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

/// Minimum size of a snapshot ([`Snapshot::size`]) whose resources are generated in the pool. The
/// first configuration of this size takes about half a millisecond and a change of it some ten
/// microseconds, which is the cost of using the pool.
pub(crate) const LARGE: usize = 256;

/// Pending resources. The result is `None` if the server is stopping.
type Making = Pin<Box<dyn Future<Output = Option<ResourceSet>> + Send>>;

/// The configuration of one proxy on one stream.
pub(crate) struct Configuration {
    generator: Arc<Generator>,
    pool: Pool,
    /// Number of resources that cannot be generated, by type.
    errors: IntGaugeVec,
    current: Option<(Arc<Snapshot>, Arc<ResourceSet>)>,
    making: Option<(Arc<Snapshot>, Making)>,
    /// Whether those, or else the last ones, are generated in the pool.
    took_time: bool,
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
            took_time: false,
            counted: BTreeMap::new(),
        }
    }

    /// Starts to generate the resources of a new snapshot. [`Configuration::made`] returns them.
    pub(crate) fn make(&mut self, snapshot: Arc<Snapshot>, share: &Share) {
        let (generator, current) = (Arc::clone(&self.generator), self.current.clone());
        let from = Arc::clone(&snapshot);
        let work = move || {
            let last = current.as_ref().map(|(last, set)| (&**last, &**set));
            generator.generate(&from, last)
        };
        self.took_time = snapshot.size() >= LARGE;
        let making: Making = if self.took_time {
            let (pool, share) = (self.pool.clone(), share.clone());
            let name = format!("configuration of {}", snapshot.proxy.id);
            Box::pin(async move { pool.run(name, &share, work).await })
        } else {
            Box::pin(ready(Some(work())))
        };
        self.making = Some((snapshot, making));
    }

    /// Whether the last resources were generated in the pool, so that something else may have changed
    /// meanwhile.
    pub(crate) fn took_time(&self) -> bool {
        self.took_time
    }

    /// Whether resources are pending.
    pub(crate) fn is_making(&self) -> bool {
        self.making.is_some()
    }

    /// Waits for the pending resources; never completes if there are none. Cancel safe.
    pub(crate) async fn made(&mut self) -> Option<(Arc<Snapshot>, ResourceSet)> {
        let Some((_, making)) = &mut self.making else {
            return pending().await;
        };
        let set = making.await;
        self.making.take().map(|(snapshot, _)| snapshot).zip(set)
    }

    /// Adopts the resources of a new snapshot. A resource that cannot be generated keeps its
    /// previous version.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if the proxy would be useless with the resources that can be
    /// generated. Another server would return the same.
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
                snapshot.proxy.id
            )));
        }
        self.current = Some((Arc::clone(snapshot), Arc::clone(&set)));
        Ok(set)
    }

    /// Logs every failure and every warning once, not with every snapshot.
    fn report(&self, snapshot: &Snapshot, set: &ResourceSet) {
        let proxy = &snapshot.proxy.id;
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
