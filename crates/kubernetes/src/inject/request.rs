//! What admission is asked, and how it refuses: what decision and patch start from.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, Service};

use crate::annotations::InvalidAnnotation;

/// User and group of the sidecar, as in consul-k8s: its traffic is not redirected.
pub(super) const SIDECAR_USER: u32 = 5995;
/// Port of the proxy for connections from outside.
pub(super) const INBOUND_PORT: u16 = 20000;
/// Port at which the sidecar answers DNS.
pub(super) const DNS_PORT: u16 = 8600;

/// Why a pod is not admitted: one sentence that says what to do.
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

/// A pod that somebody wants to create, and what is known around it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The pod's namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub namespace_labels: &'a BTreeMap<String, String>,
    /// Services; those of other namespaces are passed over.
    pub services: &'a [Arc<Service>],
    /// The pod.
    pub pod: &'a Pod,
}
