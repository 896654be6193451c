//! Gzip compression of responses.

use axum::body::HttpBody;
use axum::response::Response;
use tower_http::CompressionLevel;
use tower_http::compression::{CompressionLayer, Predicate};

/// Minimum size of a compressed response, in bytes. Consul's.
const WORTHWHILE: u64 = 1400;

/// Compresses responses of known size. Streams, such as the log, are not compressed.
pub(super) fn layer() -> CompressionLayer<Whole> {
    CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(Whole)
}

/// Selects responses of known size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole;

impl Predicate for Whole {
    fn should_compress<B: HttpBody>(&self, response: &Response<B>) -> bool {
        let size = response.body().size_hint().exact();
        size.is_some_and(|size| size >= WORTHWHILE)
    }
}
