//! Resources as JSON, and what the decoder makes of them.

use legate_l4::decode::{self, Refused};
use legate_l4::model::{Cluster, Endpoints, Listener, Secret};
use serde_json::Value;

/// The types of resources that the decoder knows, by their names in the golden files.
pub(crate) const TYPES: [(&str, &str); 4] = [
    ("Clusters", "envoy.config.cluster.v3.Cluster"),
    (
        "Endpoints",
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
    ),
    ("Listeners", "envoy.config.listener.v3.Listener"),
    (
        "Secrets",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
    ),
];

pub(crate) fn encode(message: &str, json: &Value) -> Vec<u8> {
    let bytes = legate_envoy_json::decode(message, json);
    bytes.unwrap_or_else(|error| panic!("{error}: {json:#}"))
}

/// Decodes a resource of any of the types; only whether it succeeds is of interest.
pub(crate) fn decode(message: &str, bytes: &[u8]) -> Result<(), Refused> {
    match message {
        "envoy.config.cluster.v3.Cluster" => decode::cluster(bytes).map(drop),
        "envoy.config.endpoint.v3.ClusterLoadAssignment" => decode::endpoints(bytes).map(drop),
        "envoy.config.listener.v3.Listener" => decode::listener(bytes).map(drop),
        _ => decode::secret(bytes).map(drop),
    }
}

pub(crate) fn listener(json: &Value) -> Result<Listener, Refused> {
    decode::listener(&encode("envoy.config.listener.v3.Listener", json))
}

pub(crate) fn cluster(json: &Value) -> Result<Cluster, Refused> {
    decode::cluster(&encode("envoy.config.cluster.v3.Cluster", json))
}

pub(crate) fn endpoints(json: &Value) -> Result<Endpoints, Refused> {
    let bytes = encode("envoy.config.endpoint.v3.ClusterLoadAssignment", json);
    decode::endpoints(&bytes).map(|(_, endpoints)| endpoints)
}

pub(crate) fn secret(json: &Value) -> Result<Secret, Refused> {
    let bytes = encode("envoy.extensions.transport_sockets.tls.v3.Secret", json);
    decode::secret(&bytes).map(|(_, secret)| secret)
}

/// What needs Envoy; fails if it is served or invalid.
pub(crate) fn needs_envoy<T: std::fmt::Debug>(decoded: Result<T, Refused>) -> String {
    match decoded {
        Err(Refused::NeedsEnvoy { what }) => what,
        other => panic!("it does not need Envoy: {other:?}"),
    }
}

/// Why it is invalid; fails if it is served or needs Envoy.
pub(crate) fn invalid<T: std::fmt::Debug>(decoded: Result<T, Refused>) -> String {
    match decoded {
        Err(Refused::Invalid(reason)) => reason,
        other => panic!("it is not invalid: {other:?}"),
    }
}
