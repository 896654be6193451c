//! Messages of Consul's public gRPC services, of its peered clusters, and the delta-xDS envelope.
//!
//! Generated at build time from the `.proto` files of this crate, with a client and a server for
//! each service. `bytes` fields are [`bytes::Bytes`], so that a decoded message shares its buffer.
//! The crate opens no connections and has no logic except conversions.

pub mod codec;
mod hidden;
pub mod json;
pub mod metadata;
pub mod type_url;

#[allow(
    missing_docs,
    unreachable_pub,
    rustdoc::all,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code; its documentation is in the .proto files"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/api.rs"));
}

/// `hashicorp.consul.dataplane`: requests of a dataplane before it starts a proxy.
pub use generated::hashicorp::consul::dataplane;

/// `hashicorp.consul.serverdiscovery`: discovery of available servers.
pub use generated::hashicorp::consul::serverdiscovery;

/// `hashicorp.consul.acl`: login and logout.
pub use generated::hashicorp::consul::acl;

/// `hashicorp.consul.dns`: DNS over gRPC.
pub use generated::hashicorp::consul::dns;

/// `hashicorp.consul.connectca`: roots and leaf certificates.
pub use generated::hashicorp::consul::connectca;

/// `hashicorp.consul.internal`: messages between peered clusters.
pub use generated::hashicorp::consul::internal;

/// `envoy.service.discovery.v3`: the delta-xDS envelope. Node and resources stay encoded.
pub use generated::envoy::service::discovery::v3 as discovery;

/// `google.rpc`: the error inside a rejected xDS response.
pub use generated::google::rpc;

/// `envoy.config.core.v3`: the parts of Envoy's node message that a server uses.
pub use generated::envoy::config::core::v3 as node;

#[cfg(test)]
mod tests;
