//! What one stream's proxy is configured with: the last snapshot and the resources made of it, of
//! which the next ones are made. It says in the log and in the metrics what cannot be made.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_proxycfg::Snapshot;
use legate_resources::{Failure, Generator, ResourceSet};
use legate_runtime::metrics::IntGaugeVec;
use tonic::Status;

use crate::ResourceType;

/// The configuration of one proxy, as one stream has it.
pub(crate) struct Configuration {
    generator: Arc<Generator>,
    /// Resources that cannot be made, by type.
    errors: IntGaugeVec,
    current: Option<(Arc<Snapshot>, Arc<ResourceSet>)>,
    counted: BTreeMap<ResourceType, i64>,
}

impl Configuration {
    pub(crate) fn new(generator: Arc<Generator>, errors: IntGaugeVec) -> Self {
        Self {
            generator,
            errors,
            current: None,
            counted: BTreeMap::new(),
        }
    }

    /// The resources of a new snapshot. What cannot be made keeps the version that it had.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` when the proxy could do nothing with what can be made. Another server
    /// would have nothing else for it.
    pub(crate) fn update(&mut self, snapshot: &Arc<Snapshot>) -> Result<Arc<ResourceSet>, Status> {
        let last = self.current.as_ref();
        let last = last.map(|(snapshot, set)| (&**snapshot, &**set));
        let set = Arc::new(self.generator.generate(snapshot, last));
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
