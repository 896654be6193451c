//! Who may call whom: intentions, their precedence, and the rules that a proxy enforces.
//!
//! Pure functions over values: nothing here reads the store, renders Envoy configuration, or knows
//! of peers, which are not served. The name `*` stands for every service of its namespace, and together
//! with the namespace `*` for every service of its partition. [`check()`] answers one question; [`policy()`] turns
//! all intentions of a destination into rules that do not overlap, so that a filter may apply them
//! in any order; [`Reach`] is about all destinations of a source. All give the same answers.

mod check;
mod policy;
mod reach;

use std::cmp::Reverse;
use std::collections::HashSet;
use std::sync::Arc;

use legate_model::{Intention, ServiceName, WILDCARD};

pub use check::{Decision, check};
pub use legate_model::{IntentionAction as Action, precedence};
pub use policy::{
    Layer, PermissionRule, Permissions, Policy, Rule, Shape, SourceMatch, Token, policy,
};
pub use reach::Reach;

/// Brings intentions into the order in which they decide: higher precedence first, then by source
/// and destination.
pub fn sort(intentions: &mut [Arc<Intention>]) {
    intentions.sort_by_cached_key(|intention| key(intention));
}

/// What intentions are ordered by. Precedence is computed: what a stored object says may be stale.
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

/// Whether a name, which may stand for several services, stands for all that another one does.
fn covers(wider: &ServiceName, other: &ServiceName) -> bool {
    let mut parts = wider.exact().into_iter().zip(other.exact());
    wider.tenancy.partition == other.tenancy.partition
        && parts.all(|(wider, other)| wider == WILDCARD || wider == other)
}

/// Whether a name stands for several services.
fn is_wide(name: &ServiceName) -> bool {
    name.exact().contains(&WILDCARD)
}

/// The intentions with their sources, in the order in which they decide, without those that can never
/// decide because an earlier one is for the same source or for more.
fn deciding(intentions: &[Arc<Intention>]) -> Vec<(ServiceName, Arc<Intention>)> {
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

#[cfg(test)]
mod tests;
