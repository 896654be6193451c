//! Writes `src/envoy.binpb.gz` from the descriptors of the crate `envoy-types`.

use std::fs;
use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

#[path = "../tests/it/source.rs"]
mod source;

fn main() {
    let mut out = GzEncoder::new(Vec::new(), Compression::best());
    out.write_all(&source::descriptors())
        .expect("memory can be written");
    let out = out.finish().expect("memory can be written");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/envoy.binpb.gz");
    fs::write(path, out).expect("the file can be written");
}
