//! Lists read from the store, shared by every proxy that reads the same ones.
//!
//! A thousand proxies with one upstream would otherwise hold a thousand copies of its instances.
//! Nothing is kept for its own sake: a list that no proxy holds any more is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use legate_model::{CheckServiceNode, Intention};

/// Dead entries are looked for when there are more entries than this, and than twice the live ones.
const SWEEP_FROM: usize = 256;

/// The lists that proxies share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Instances reachable in the mesh, by destination.
    pub(crate) instances: Pool<CheckServiceNode>,
    /// Intentions in order of precedence, by destination.
    pub(crate) intentions: Pool<Arc<Intention>>,
}

/// Lists of one kind, by key and version.
#[derive(Debug)]
pub(crate) struct Pool<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    lists: HashMap<Arc<str>, (u64, Weak<[T]>)>,
    sweep_at: usize,
}

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self {
            inner: Mutex::new(Inner {
                lists: HashMap::new(),
                sweep_at: SWEEP_FROM,
            }),
        }
    }
}

impl<T> Pool<T> {
    /// The list of `key` as of `version`, read by `read` when nobody holds it.
    ///
    /// The same key and version must always mean the same list.
    pub(crate) fn get(
        &self,
        key: &Arc<str>,
        version: u64,
        read: impl FnOnce() -> Vec<T>,
    ) -> Arc<[T]> {
        if let Some(held) = self.held(key, version) {
            return held;
        }
        // Read without the lock: others need not wait for a long list.
        let fresh: Arc<[T]> = read().into();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((held, list)) = inner.lists.get(key) {
            if *held == version
                && let Some(list) = list.upgrade()
            {
                return list;
            }
            // A proxy that is behind keeps what it read to itself.
            if *held > version {
                return fresh;
            }
        }
        inner
            .lists
            .insert(Arc::clone(key), (version, Arc::downgrade(&fresh)));
        if inner.lists.len() > inner.sweep_at {
            inner.lists.retain(|_, (_, list)| list.strong_count() > 0);
            inner.sweep_at = SWEEP_FROM.max(2 * inner.lists.len());
        }
        fresh
    }

    fn held(&self, key: &str, version: u64) -> Option<Arc<[T]>> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, list) = inner.lists.get(key)?;
        (*held == version).then(|| list.upgrade()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_version_is_read_once_and_shared() {
        let pool = Pool::<u32>::default();
        let key: Arc<str> = "api".into();
        let first = pool.get(&key, 1, || vec![1, 2]);
        let second = pool.get(&key, 1, || panic!("read twice"));
        assert!(Arc::ptr_eq(&first, &second));
        let newer = pool.get(&key, 2, || vec![3]);
        assert_eq!(&*newer, [3]);
    }

    #[test]
    fn who_is_behind_does_not_take_the_newer_list_away() {
        let pool = Pool::<u32>::default();
        let key: Arc<str> = "api".into();
        let newer = pool.get(&key, 2, || vec![2]);
        assert_eq!(&*pool.get(&key, 1, || vec![1]), [1]);
        assert!(Arc::ptr_eq(
            &newer,
            &pool.get(&key, 2, || panic!("read twice"))
        ));
    }

    #[test]
    fn what_nobody_holds_is_swept() {
        let pool = Pool::<u32>::default();
        for n in 0..10 * SWEEP_FROM {
            pool.get(&n.to_string().into(), 1, Vec::new);
        }
        let inner = pool.inner.lock().unwrap();
        assert!(inner.lists.len() <= SWEEP_FROM + 1);
    }
}
