//! The input of admission, and the error with which it refuses.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};

use crate::annotations::InvalidAnnotation;

/// User and group of the sidecar, as in consul-k8s: its traffic is not redirected.
pub(super) const SIDECAR_USER: u32 = 5995;
/// The proxy's port for inbound connections.
pub(super) const INBOUND_PORT: u16 = 20000;
/// The sidecar's DNS port.
pub(super) const DNS_PORT: u16 = 8600;

/// The reason why a pod is refused: one sentence with what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

impl Refusal {
    pub(super) fn new(sentence: String) -> Refusal {
        Refusal(sentence)
    }
}

impl From<InvalidAnnotation> for Refusal {
    fn from(invalid: InvalidAnnotation) -> Refusal {
        Refusal(invalid.to_string())
    }
}

/// A pod to be created, with its context.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Services; those of other namespaces are ignored.
    pub services: &'a [Arc<Service>],
    /// The pod.
    pub pod: &'a Pod,
}
