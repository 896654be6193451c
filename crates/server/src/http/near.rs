//! `?near=`: sorts lists by network distance from a node.
//!
//! Changes of coordinates do not wake blocking queries, because agents update them constantly.

use super::call::Call;
use crate::distance::{AGENT, sort_from};

/// Sorts the items if the request contains `?near`.
pub(super) fn sort<T>(call: &Call, items: &mut [T], node: impl Fn(&T) -> &str) {
    let origin = match call.params.get("near").unwrap_or_default() {
        "" => return,
        AGENT => &call.config.node_name,
        other => other,
    };
    sort_from(&call.txn(&call.reader.state()), origin, items, node);
}
