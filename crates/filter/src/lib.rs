//! Consul's filter language: boolean expressions over the fields of a value, as in
//! `Service.Meta.version == v2 and "web" in Service.Tags`.
//!
//! ```text
//! or         = and { "or" and }
//! and        = not { "and" not }
//! not        = "not" not | "(" or ")" | match
//! match      = selector ("==" | "!=") value
//!            | selector ["not"] ("contains" | "matches") value
//!            | value ["not"] "in" selector
//!            | selector "is" ["not"] "empty"
//! selector   = identifier { "." identifier | "[" string "]" }
//! identifier = letter { letter | digit | "_" }
//! value      = string | word
//! string     = '"' … '"' | "`" … "`"
//! word       = one or more letters, digits and . _ - / : @
//! ```
//!
//! This is the language of go-bexpr 0.1, which Consul uses. Accepted in addition: words that contain
//! `-`, `/`, `:` or `@` or do not begin with a letter, `\"` in a string, and `is empty` for texts. One
//! difference: a pattern never matches a missing key of a map, as in later versions of go-bexpr; in
//! 0.1 it always does.
//!
//! Values are read through [`serde::Serialize`], and only along the selector: nothing is copied, and
//! no JSON is built. The crate is independent of the types of the mesh.

mod condition;
mod error;
mod evaluate;
mod expression;
mod fields;
mod filter;
mod parser;
mod pattern;
pub mod re2;

#[cfg(test)]
mod tests;

pub use error::FilterError;
pub use expression::{Expression, Match, Operator, Selector, Tree};
pub use fields::{AnyFields, Field, FieldPath, Fields, Kind, Shape, Step};
pub use filter::Filter;
pub use pattern::Pattern;

/// The maximum length of a filter, in bytes.
pub const MAX_LENGTH: usize = 8 * 1024;

/// The maximum nesting of parentheses and `not`.
pub const MAX_DEPTH: usize = 64;

/// The maximum number of patterns in a filter; each may take 256 KiB.
pub const MAX_PATTERNS: usize = 16;
