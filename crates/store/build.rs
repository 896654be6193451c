//! Compiles the messages of etcd. It never needs `protoc`: protox does its work.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(["etcd.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .build_server(false)
        .compile_fds(descriptors)?;
    // compile_fds does not know the paths of the sources.
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
