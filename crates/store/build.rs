//! Compiles etcd's messages with protox, so that `protoc` is not required.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    // `compile_fds` does not emit the paths of the sources.
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
