//! Joins the metrics pages of several sources into one page in the Prometheus text format 0.0.4.
//! Bytes in, bytes out: no IO, and nothing of the mesh is known here.
//!
//! A crate of its own because a page may have a million lines, and each is looked at: where the rest
//! of the sidecar is compiled for size, this is compiled for speed.

mod format;
mod merge;
mod metadata;
mod openmetrics;
mod samples;

pub use format::Format;
pub use merge::{Broken, FAMILIES, Merge, SOURCE_LIMIT, remark};
pub use samples::LINE_LIMIT;
