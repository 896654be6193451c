//! Cached values for the services and backends of a gateway.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use legate_store::Kept;

/// One cached value for each item of a list. Those of items that stay are kept when the list
/// changes: a value that nobody holds would be computed again for all of them.
#[derive(Debug)]
pub(super) struct KeptList<I, T> {
    list: Option<Arc<Vec<I>>>,
    values: Vec<Kept<T>>,
}

impl<I, T> Default for KeptList<I, T> {
    fn default() -> Self {
        Self {
            list: None,
            values: Vec::new(),
        }
    }
}

impl<I, T> KeptList<I, T> {
    /// The values for the items of `list`, in its order. `name` identifies an item.
    pub(super) fn values<K: Eq + Hash>(
        &mut self,
        list: &Arc<Vec<I>>,
        name: impl Fn(&I) -> &K,
    ) -> &mut [Kept<T>] {
        let is_same = self
            .list
            .as_ref()
            .is_some_and(|last| Arc::ptr_eq(last, list));
        if !is_same {
            let last = self.list.replace(Arc::clone(list));
            let names = last.iter().flat_map(|last| last.iter()).map(&name);
            let mut known: HashMap<_, _> = names.zip(self.values.drain(..)).collect();
            let values = list.iter().map(|item| known.remove(name(item)));
            self.values = values.map(Option::unwrap_or_default).collect();
        }
        &mut self.values
    }
}
