//! Joins the metrics pages of several sources into one page in the Prometheus text format 0.0.4.
//! Pure: bytes in, bytes out.
//!
//! A crate of its own because pages may have a million lines, each of which is checked: the sidecar is compiled
//! for size, and this crate for speed.

mod format;
mod merge;
mod metadata;
mod openmetrics;
mod samples;

pub use format::Format;
pub use merge::{Broken, FAMILIES, Merge, SOURCE_LIMIT, remark};
pub use samples::LINE_LIMIT;
