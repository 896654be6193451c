//! Memoises encoded resources by their inputs while a proxy holds them.
//!
//! Equal inputs give the same resource. Entries are weak: a resource that no proxy holds any more
//! is freed, including private keys, so that the memory is bounded by the resources of the streams.

use std::any::type_name;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use legate_discovery_chain::Chain;
use legate_model::{Locality, Upstream};
use legate_proxycfg::Instances;
use sha2::{Digest, Sha256};

use crate::encode::EncodedResource;
use crate::error::GenerateError;

/// Dead entries are swept when there are more than this many entries and more than twice the live
/// ones.
const SWEEP_FROM: usize = 1024;

/// Resources by the hash of their input, and by their source.
#[derive(Debug)]
pub(crate) struct Memo {
    inner: Mutex<Inner>,
    by_list: Mutex<BySource<Instances, Vec<MadeOf>>>,
    by_chain: Mutex<BySource<Chain, Vec<MadeOf>>>,
    written: Mutex<BySource<Upstream, Option<Arc<WrittenCluster>>>>,
    encoded: AtomicU64,
}

#[derive(Debug)]
struct Inner {
    known: HashMap<[u8; 32], Weak<EncodedResource>>,
    sweep_at: usize,
}

/// The cluster that a user wrote for an upstream, or the error in it.
pub(crate) type WrittenCluster = Result<Cluster, GenerateError>;

/// Results by source (a list of instances, a chain or an upstream), found by its address. Hashing a
/// source takes time proportional to its size, and all callers of a service share one.
#[derive(Debug)]
struct BySource<S, M> {
    /// By the address of the source. The weak reference prevents reuse of the address.
    known: HashMap<usize, (Weak<S>, M)>,
    sweep_at: usize,
}

/// A resource made from a source, with its warnings.
#[derive(Clone, Debug)]
struct MadeOf {
    /// All inputs besides the source.
    key: Box<str>,
    resource: Weak<EncodedResource>,
    warnings: Arc<[String]>,
}

impl<S, M: Default> BySource<S, M> {
    fn new() -> Self {
        Self {
            known: HashMap::new(),
            sweep_at: SWEEP_FROM,
        }
    }

    fn get(&self, source: &Arc<S>) -> Option<&M> {
        let known = self.known.get(&Arc::as_ptr(source).addr());
        known.map(|(_, made)| made)
    }

    fn change(&mut self, source: &Arc<S>, change: impl FnOnce(&mut M)) {
        let known = self.known.entry(Arc::as_ptr(source).addr());
        let empty = || (Arc::downgrade(source), M::default());
        change(&mut known.or_insert_with(empty).1);
        if self.known.len() > self.sweep_at {
            self.known
                .retain(|_, (source, _)| source.strong_count() > 0);
            self.sweep_at = SWEEP_FROM.max(2 * self.known.len());
        }
    }
}

impl Memo {
    pub(crate) fn new() -> Self {
        Self {
            inner: Mutex::new(Inner {
                known: HashMap::new(),
                sweep_at: SWEEP_FROM,
            }),
            by_list: Mutex::new(BySource::new()),
            by_chain: Mutex::new(BySource::new()),
            written: Mutex::new(BySource::new()),
            encoded: AtomicU64::new(0),
        }
    }

    /// The assignment of a cluster with this list of instances for callers at `near`; calls `make`
    /// if it is not held.
    pub(crate) fn assignment(
        &self,
        list: &Arc<Instances>,
        (cluster, near): (&str, Option<&Locality>),
        warnings: &mut Vec<String>,
        make: impl FnOnce(&mut Vec<String>) -> Result<Arc<EncodedResource>, GenerateError>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        // A cluster name from a user may contain anything: it comes last, and the other parts are
        // quoted.
        let key = match near {
            None => format!(" {cluster}"),
            Some(near) => format!("{:?} {:?} {cluster}", near.region, near.zone),
        };
        of_source(&self.by_list, list, &key, warnings, make)
    }

    /// The routes of this name for this chain; calls `make` if they are not held.
    pub(crate) fn routes(
        &self,
        chain: &Arc<Chain>,
        (name, validate_clusters): (&str, bool),
        make: impl FnOnce() -> Result<Arc<EncodedResource>, GenerateError>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        let key = format!("{validate_clusters}/{name}");
        let mut warnings = Vec::new();
        of_source(&self.by_chain, chain, &key, &mut warnings, |_| make())
    }

    /// The cluster that a user wrote for this upstream; calls `read` once.
    pub(crate) fn written(
        &self,
        upstream: &Arc<Upstream>,
        read: impl FnOnce() -> WrittenCluster,
    ) -> Arc<WrittenCluster> {
        if let Some(Some(known)) = lock(&self.written).get(upstream) {
            return Arc::clone(known);
        }
        let written = Arc::new(read());
        let keep = |known: &mut Option<_>| *known = Some(Arc::clone(&written));
        lock(&self.written).change(upstream, keep);
        written
    }

    /// The resource made from `input`; calls `build` if it is not held. `build` must depend only on
    /// the input.
    pub(crate) fn get<I: Hash>(
        &self,
        input: &I,
        build: impl FnOnce(&I) -> Result<EncodedResource, GenerateError>,
    ) -> Result<Arc<EncodedResource>, GenerateError> {
        if let Some(held) = self.find(input) {
            return Ok(held);
        }
        // Built without the lock, so that other calls do not wait.
        Ok(self.keep(input, build(input)?))
    }

    /// The resource made from `input`, if it is held.
    pub(crate) fn find<I: Hash>(&self, input: &I) -> Option<Arc<EncodedResource>> {
        self.lock()
            .known
            .get(&digest(input))
            .and_then(Weak::upgrade)
    }

    /// Stores the resource built from `input`. Returns the existing one if a concurrent call was
    /// faster.
    pub(crate) fn keep<I: Hash>(&self, input: &I, built: EncodedResource) -> Arc<EncodedResource> {
        let (key, built) = (digest(input), Arc::new(built));
        self.encoded.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.lock();
        if let Some(held) = inner.known.get(&key).and_then(Weak::upgrade) {
            return held;
        }
        inner.known.insert(key, Arc::downgrade(&built));
        if inner.known.len() > inner.sweep_at {
            inner.known.retain(|_, held| held.strong_count() > 0);
            inner.sweep_at = SWEEP_FROM.max(2 * inner.known.len());
        }
        built
    }

    /// The number of resources that were built.
    pub(crate) fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.lock().known.len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }
}

fn of_source<S>(
    known: &Mutex<BySource<S, Vec<MadeOf>>>,
    source: &Arc<S>,
    key: &str,
    warnings: &mut Vec<String>,
    make: impl FnOnce(&mut Vec<String>) -> Result<Arc<EncodedResource>, GenerateError>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    if let Some(known) = lock(known)
        .get(source)
        .and_then(|made| made.iter().find(|one| *one.key == *key))
        && let Some(held) = known.resource.upgrade()
    {
        warnings.extend_from_slice(&known.warnings);
        return Ok(held);
    }
    let mut own = Vec::new();
    let resource = make(&mut own)?;
    let made = MadeOf {
        key: key.into(),
        resource: Arc::downgrade(&resource),
        warnings: own.as_slice().into(),
    };
    lock(known).change(source, |all| {
        all.retain(|one| one.resource.strong_count() > 0);
        all.push(made);
    });
    warnings.append(&mut own);
    Ok(resource)
}

/// Safe to ignore poisoning: no operation under the lock leaves partial changes when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A collision-resistant hash: access rules must never be mistaken for others.
fn digest<I: Hash>(input: &I) -> [u8; 32] {
    let mut hasher = Collect(Sha256::new());
    type_name::<I>().hash(&mut hasher);
    input.hash(&mut hasher);
    hasher.0.finalize().into()
}

/// Feeds a value's `Hash` implementation into SHA-256.
struct Collect(Sha256);

impl Hasher for Collect {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Unused: the whole digest is taken instead.
    fn finish(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use envoy_types::pb::google::protobuf::StringValue;

    fn build(text: &&str) -> Result<EncodedResource, GenerateError> {
        let value = (*text).to_owned();
        Ok(crate::encode::resource(text, &StringValue { value }, &[]))
    }

    #[test]
    fn equal_inputs_are_one_resource() {
        let memo = Memo::new();
        let first = memo.get(&"a", build).unwrap();
        let again = memo.get(&"a", |_| panic!("built twice")).unwrap();
        let other = memo.get(&"b", build).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn inputs_of_different_types_do_not_collide() {
        let memo = Memo::new();
        let first = memo.get(&"a", build).unwrap();
        let other = memo.get(&("a", ()), |(text, ())| build(text)).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
    }

    #[test]
    fn unheld_resources_are_dropped() {
        let memo = Memo::new();
        for n in 0..5 * SWEEP_FROM {
            let text = n.to_string();
            memo.get(&text.as_str(), build).unwrap();
        }
        assert!(memo.len() <= SWEEP_FROM + 1);
    }

    #[test]
    fn a_list_is_encoded_once_for_each_cluster() {
        let memo = Memo::new();
        let get = |list: &Arc<Instances>, cluster: &'static str, made: bool| {
            let mut warnings = Vec::new();
            let resource = memo.assignment(list, (cluster, None), &mut warnings, |warnings| {
                assert!(made, "{cluster} was made again");
                warnings.push(format!("something is left out of {cluster}"));
                memo.get(&cluster, build)
            });
            assert_eq!(warnings, [format!("something is left out of {cluster}")]);
            resource.unwrap()
        };
        let (one, other) = (Arc::default(), Arc::default());
        let first = get(&one, "a", true);
        assert!(Arc::ptr_eq(&first, &get(&one, "a", false)));
        let _second = get(&one, "b", true);
        assert!(Arc::ptr_eq(&first, &get(&other, "a", true)));
        drop(first);
        drop(get(&one, "a", true));
    }

    #[test]
    fn unheld_lists_are_dropped() {
        let memo = Memo::new();
        for n in 0..5 * SWEEP_FROM {
            let text = n.to_string();
            let make = |_: &mut Vec<String>| memo.get(&text.as_str(), build);
            memo.assignment(&Arc::default(), (&text, None), &mut Vec::new(), make)
                .unwrap();
        }
        assert!(lock(&memo.by_list).known.len() <= SWEEP_FROM + 1);
    }

    #[test]
    fn a_written_cluster_is_parsed_once() {
        let memo = Memo::new();
        let (one, other) = (Arc::<Upstream>::default(), Arc::default());
        let named = |upstream: &Arc<Upstream>, name: &str| {
            let name = name.to_owned();
            let read = || {
                Ok(Cluster {
                    name,
                    ..Cluster::default()
                })
            };
            let written = memo.written(upstream, read);
            (*written).as_ref().unwrap().name.clone()
        };
        assert_eq!(named(&one, "a"), "a");
        assert_eq!(named(&one, "read twice"), "a");
        assert_eq!(named(&other, "b"), "b");
        for _ in 0..5 * SWEEP_FROM {
            named(&Arc::default(), "c");
        }
        assert!(lock(&memo.written).known.len() <= SWEEP_FROM + 1);
    }

    #[test]
    fn a_failure_is_not_remembered() {
        let memo = Memo::new();
        assert!(memo.get(&"a", |_| Err(GenerateError::NoRoots)).is_err());
        assert!(memo.get(&"a", build).is_ok());
    }
}
