//! Compiles the `.proto` files with protox, without `protoc`.

use std::error::Error;

/// The files to compile; their imports are found automatically.
const PROTOS: [&str; 8] = [
    "hashicorp/consul/dataplane/dataplane.proto",
    "hashicorp/consul/serverdiscovery/serverdiscovery.proto",
    "hashicorp/consul/acl/acl.proto",
    "hashicorp/consul/dns/dns.proto",
    "hashicorp/consul/connectca/ca.proto",
    "hashicorp/consul/internal/peerstream/peerstream.proto",
    "envoy/service/discovery/v3/ads.proto",
    "envoy/config/core/v3/node.proto",
];

/// Messages between clusters. Their maps are sorted, so that equal messages have equal bytes.
const BETWEEN_CLUSTERS: &str = ".hashicorp.consul.internal";

/// Messages with secrets, which print them as `***`.
const WITH_SECRETS: [&str; 3] = [
    ".hashicorp.consul.internal.peerstream.ReplicationMessage.Open",
    ".hashicorp.consul.internal.peerstream.ExchangeSecretRequest",
    ".hashicorp.consul.internal.peerstream.ExchangeSecretResponse",
];

fn main() -> Result<(), Box<dyn Error>> {
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(BETWEEN_CLUSTERS)
        .skip_debug(WITH_SECRETS)
        .codec_path("crate::codec::Codec")
        .include_file("api.rs")
        .compile_fds(descriptors)?;
    // compile_fds does not track the source files.
    println!("cargo::rerun-if-changed=proto");
    println!("cargo::rerun-if-changed=build.rs");
    Ok(())
}
