//! Compiles the `.proto` files. It never needs `protoc`: protox does its work.

use std::error::Error;

/// Roots of the compilation; what they import is found by itself.
const PROTOS: [&str; 7] = [
    "hashicorp/consul/dataplane/dataplane.proto",
    "hashicorp/consul/serverdiscovery/serverdiscovery.proto",
    "hashicorp/consul/acl/acl.proto",
    "hashicorp/consul/dns/dns.proto",
    "hashicorp/consul/connectca/ca.proto",
    "envoy/service/discovery/v3/ads.proto",
    "envoy/config/core/v3/node.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::codec::Codec")
        .include_file("api.rs")
        .compile_fds(descriptors)?;
    // compile_fds does not know the paths of the sources.
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
