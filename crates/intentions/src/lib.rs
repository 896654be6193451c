//! Evaluates intentions: precedence, decisions, and the rules that a proxy enforces.
//!
//! Pure functions over values: nothing here reads the store, renders Envoy configuration, or handles
//! peers, which are not served. The name `*` denotes every service of its namespace; with the
//! namespace `*`, every service of its partition. [`check()`] decides about one connection.
//! [`policy()`] converts all intentions of a destination into rules that do not overlap, so that a
//! filter may apply them in any order. [`Reach`] covers all destinations of a source. The three
//! always agree.

mod check;
mod order;
mod policy;
mod reach;

pub use check::{Decision, check};
pub use legate_model::{IntentionAction as Action, precedence};
pub use order::sort;
pub use policy::{
    Layer, PermissionRule, Permissions, Policy, Rule, Shape, SourceMatch, Token, policy,
};
pub use reach::Reach;

#[cfg(test)]
mod tests;
