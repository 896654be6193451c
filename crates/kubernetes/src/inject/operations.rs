//! Builds a JSON patch (RFC 6902) step by step. Pure.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, ReplaceOperation};
use serde_json::{Value, json};

/// Steps of a patch, in order.
#[derive(Debug, Default)]
pub(super) struct Operations(Vec<PatchOperation>);

impl Operations {
    /// The finished patch.
    pub(super) fn patch(self) -> Patch {
        Patch(self.0)
    }

    /// Adds a value or replaces an existing one; in a list it is inserted before the existing one.
    pub(super) fn add(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0
            .push(PatchOperation::Add(AddOperation { path, value }));
    }

    /// Replaces an existing value.
    pub(super) fn replace(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0
            .push(PatchOperation::Replace(ReplaceOperation { path, value }));
    }

    /// Removes an existing value.
    pub(super) fn remove(&mut self, path: &[&str]) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.0
            .push(PatchOperation::Remove(RemoveOperation { path }));
    }

    /// Adds entries to a map that may be absent.
    pub(super) fn add_to_map(
        &mut self,
        path: &[&str],
        map_is_there: bool,
        entries: &BTreeMap<String, String>,
    ) {
        if entries.is_empty() {
            return;
        }
        if !map_is_there {
            return self.add(path, json!(entries));
        }
        for (key, value) in entries {
            self.add(&[path, &[key.as_str()]].concat(), json!(value));
        }
    }

    /// Adds items to a list that may be absent, before `at` or at the end.
    pub(super) fn add_to_list(
        &mut self,
        path: &[&str],
        list: Option<usize>,
        at: Option<usize>,
        items: Vec<Value>,
    ) {
        if items.is_empty() {
            return;
        }
        if list.is_none_or(|length| length == 0) {
            return self.add(path, Value::Array(items));
        }
        for (offset, item) in items.into_iter().enumerate() {
            let at = at.map_or_else(|| "-".to_owned(), |at| (at + offset).to_string());
            self.add(&[path, &[at.as_str()]].concat(), item);
        }
    }
}
