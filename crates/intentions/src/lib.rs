//! Who may call whom: intentions, their precedence, and the rules that a proxy enforces.
//!
//! Pure functions over values: nothing here reads the store, renders Envoy configuration, or knows
//! of peers, which are not served. The name `*` stands for every service of its namespace, and together
//! with the namespace `*` for every service of its partition. [`check()`] answers one question; [`policy()`] turns
//! all intentions of a destination into rules that do not overlap, so that a filter may apply them
//! in any order; [`Reach`] is about all destinations of a source. All give the same answers.

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
