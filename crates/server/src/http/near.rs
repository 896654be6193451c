//! `?near=`: lists in the order of the distance from a node.
//!
//! A coordinate that changes wakes no query: agents move theirs all the time.

use super::call::Call;
use crate::distance::{AGENT, sort_from};

/// Puts the items of a list in the order that the caller asked for, if it did.
pub(super) fn sort<T>(call: &Call, items: &mut [T], node: impl Fn(&T) -> &str) {
    let origin = match call.params.get("near").unwrap_or_default() {
        "" => return,
        AGENT => &call.config.node_name,
        other => other,
    };
    sort_from(&call.txn(&call.reader.state()), origin, items, node);
}
