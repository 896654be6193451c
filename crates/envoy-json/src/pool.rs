//! The descriptors of all of Envoy's messages.
//!
//! `envoy.binpb.gz` is the compressed descriptor set of the crate `envoy-types`, without comments
//! and options; `cargo run -p legate-envoy-json --example descriptors` writes it, and a test
//! compares it with the current crate.

use std::io::Read;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use prost_reflect::{DescriptorPool, MessageDescriptor};

static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut set = Vec::new();
    GzDecoder::new(include_bytes!("envoy.binpb.gz").as_slice())
        .read_to_end(&mut set)
        .expect("the descriptors are whole: a test reads them");
    DescriptorPool::decode(set.as_slice()).expect("the descriptors are valid: a test reads them")
});

/// The message with this full name, such as `envoy.config.cluster.v3.Cluster`, or with this type
/// URL. `None` if Envoy has no such message.
pub fn message(name: &str) -> Option<MessageDescriptor> {
    let name = name.rsplit('/').next().unwrap_or(name);
    POOL.get_message_by_name(name)
}
