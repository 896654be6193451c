//! Precedence of intentions, and matching of names with wildcards.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use legate_model::{Intention, ServiceName, WILDCARD, precedence};

/// Sorts intentions by precedence, the highest first, then by source and destination.
pub fn sort(intentions: &mut [Arc<Intention>]) {
    intentions.sort_by_cached_key(|intention| key(intention));
}

/// Sort key. The precedence is computed, since that of a stored object may be outdated.
fn key(intention: &Intention) -> (Reverse<u32>, String, String, ServiceName, ServiceName) {
    let (source, destination) = (intention.source(), intention.destination());
    (
        Reverse(precedence(&source, &destination)),
        intention.source_name.clone(),
        intention.destination_name.clone(),
        source,
        destination,
    )
}

/// Whether a name, possibly with wildcards, includes all services of another name.
pub(crate) fn covers(wider: &ServiceName, other: &ServiceName) -> bool {
    let mut parts = wider.exact().into_iter().zip(other.exact());
    // A peer's services are never those of this cluster.
    wider.tenancy.peer == other.tenancy.peer
        && wider.tenancy.partition == other.tenancy.partition
        && parts.all(|(wider, other)| wider == WILDCARD || wider == other)
}

/// Whether a name has wildcards.
pub(crate) fn is_wide(name: &ServiceName) -> bool {
    name.exact().contains(&WILDCARD)
}

/// The intentions with their sources, sorted by precedence, without those that never apply because an
/// earlier one includes the same sources.
pub(crate) fn deciding(intentions: &[Arc<Intention>]) -> Vec<(ServiceName, Arc<Intention>)> {
    let mut sorted = intentions.to_vec();
    sort(&mut sorted);
    let (mut exact, mut wide) = (HashSet::new(), Vec::new());
    let mut kept = Vec::with_capacity(sorted.len());
    for intention in sorted {
        let source = intention.source();
        if exact.contains(&source) || wide.iter().any(|earlier| covers(earlier, &source)) {
            continue;
        }
        match is_wide(&source) {
            true => wide.push(source.clone()),
            false => drop(exact.insert(source.clone())),
        }
        kept.push((source, intention));
    }
    kept
}
