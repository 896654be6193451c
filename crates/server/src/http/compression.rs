//! Answers in gzip, for clients that take it.

use axum::body::HttpBody;
use axum::response::Response;
use tower_http::CompressionLevel;
use tower_http::compression::{CompressionLayer, Predicate};

/// Smaller answers are not worth the work, in bytes. Consul's.
const WORTHWHILE: u64 = 1400;

/// Compresses answers that are written at once. What goes on and on, such as a log, is passed on as it
/// comes.
pub(super) fn layer() -> CompressionLayer<Whole> {
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(Whole)
}

/// Answers whose size is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole;

impl Predicate for Whole {
    fn should_compress<B: HttpBody>(&self, response: &Response<B>) -> bool {
        let size = response.body().size_hint().exact();
        size.is_some_and(|size| size >= WORTHWHILE)
    }
}
