//! Hands the linker `cold.ld` when the dataplane is built as it is shipped. It makes no code.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=cold.ld");
    // Only the profile `sidecar` optimises for size; in other builds order is worth nothing.
    if told("CARGO_CFG_TARGET_OS") == "linux" && told("OPT_LEVEL") == "s" {
        let script = Path::new(&told("CARGO_MANIFEST_DIR")).join("cold.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", script.display());
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "cargo tells build scripts by the environment what is built"
)]
fn told(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
