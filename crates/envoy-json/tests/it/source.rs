//! Extracts the descriptors from the crate `envoy-types`.

use std::path::Path;
use std::process::Command;

use prost::Message;
use prost_types::FileDescriptorSet;
use serde_json::Value;

/// The descriptor set in the sources of the crate `envoy-types`, without comments and options.
pub(crate) fn descriptors() -> Vec<u8> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--locked", "--format-version=1"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo writes JSON");
    let manifest = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|package| package["name"] == "envoy-types")
        .and_then(|package| package["manifest_path"].as_str())
        .expect("envoy-types is a dependency");
    let path = Path::new(manifest).with_file_name("src/generated/types.bin");
    let bytes = std::fs::read(&path).expect("envoy-types has its descriptors");
    // prost drops Envoy's own options, which are annotations for validation and documentation.
    let mut set = FileDescriptorSet::decode(bytes.as_slice()).expect("they are descriptors");
    for file in &mut set.file {
        file.source_code_info = None;
    }
    set.encode_to_vec()
}
