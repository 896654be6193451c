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
//! It is the language of go-bexpr 0.1, which Consul uses. What that refuses and is taken here:
//! words that begin with no letter or hold `-`, `/`, `:` or `@`, `\"` in a string, and `is empty` for
//! texts. A pattern never matches what is missing from a map, as in later versions of go-bexpr; in 0.1
//! it always does.
//!
//! Values are looked at through their [`serde::Serialize`], and only where a selector leads: nothing
//! is copied, and no JSON is made. This crate knows no type of the mesh.

mod error;
mod evaluate;
mod expression;
mod fields;
mod filter;
mod parser;
mod pattern;
mod question;
pub mod re2;

#[cfg(test)]
mod tests;

pub use error::FilterError;
pub use expression::{Expression, Match, Operator, Selector, Tree};
pub use fields::{AnyFields, Field, Fields, Kind, Place, Shape, Step};
pub use filter::Filter;
pub use pattern::Pattern;

/// Longest filter, in bytes.
pub const MAX_LENGTH: usize = 8 * 1024;

/// Deepest nesting of parentheses and `not`.
pub const MAX_DEPTH: usize = 64;

/// Most patterns of one filter; each may take 256 KiB.
pub const MAX_PATTERNS: usize = 16;
