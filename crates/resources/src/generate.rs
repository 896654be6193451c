//! From a snapshot to everything that its proxy should have.

use std::sync::atomic::{AtomicU64, Ordering};

use legate_proxycfg::Snapshot;

use crate::composer::Composer;
use crate::extension::Extensions;
use crate::kinds;
use crate::memo::Memo;
use crate::set::ResourceSet;

/// Makes resources, and remembers those that proxies hold. Shared by all streams.
#[derive(Debug)]
pub struct Generator {
    memo: Memo,
    computed: AtomicU64,
}

/// How much a [`Generator`] has done since it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Parts of proxies that were looked at because something that they are made from was changed.
    pub computed: u64,
    /// Resources that were encoded, because nobody had them yet.
    pub encoded: u64,
}

impl Generator {
    /// One that remembers nothing yet.
    pub fn new() -> Self {
        Self {
            memo: Memo::new(),
            computed: AtomicU64::new(0),
        }
    }

    /// Everything that the proxy of this snapshot should have.
    ///
    /// `previous` is the snapshot before this one of the same proxy, with what was made from it:
    /// parts that are made from the same values (the same `Arc`s) are taken from there. What
    /// cannot be made keeps the version that it has there, or is left out, and is one of
    /// [`ResourceSet::failures`].
    pub fn generate(
        &self,
        snapshot: &Snapshot,
        previous: Option<(&Snapshot, &ResourceSet)>,
    ) -> ResourceSet {
        let set = previous.map(|(_, set)| set);
        let before = set.and_then(|set| set.extensions.as_ref());
        let extensions = Extensions::of(&self.memo, snapshot, before);
        let mut composer = Composer::new(&self.memo, &self.computed, set, extensions);
        kinds::compose(&mut composer, snapshot, previous.map(|(last, _)| last));
        composer.finish()
    }

    /// How much was done until now.
    pub fn work(&self) -> Work {
        Work {
            computed: self.computed.load(Ordering::Relaxed),
            encoded: self.memo.encoded(),
        }
    }
}

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}
