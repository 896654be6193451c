//! Sidecars for pods: the admission webhook. Decision and patch are pure functions of the pod and of
//! what the caches hold; admission asks nobody.

mod decision;
mod dns;
mod installation;
mod patch;
mod probes;
mod redirect;
mod service;
mod settings;
mod sidecar;
mod start;
mod upstreams;
mod webhook;

use std::collections::BTreeMap;
use std::sync::Arc;

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Pod, Service};

use self::decision::Decision;
pub use self::dns::ResolvConf;
pub use self::installation::{Cluster, Installation};
pub use self::start::start;
pub use self::webhook::{AdmissionMetrics, PATH, Webhook};
use crate::annotations::InvalidAnnotation;

/// User and group of the sidecar, as in consul-k8s: its traffic is not redirected.
const SIDECAR_USER: u32 = 5995;
/// Port at which the sidecar answers DNS.
const DNS_PORT: u16 = 8600;

/// Why a pod is not admitted: one sentence that says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(String);

impl Refusal {
    fn new(sentence: String) -> Refusal {
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

/// What becomes of a pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// What is changed; `None` where the pod stays as it is.
    pub patch: Option<Patch>,
    /// What its author should hear.
    pub warnings: Vec<String>,
}

/// Decides about a pod.
///
/// # Errors
/// When the pod asks for what cannot be.
pub fn admit(installation: &Installation, request: &Request<'_>) -> Result<Admitted, Refusal> {
    match decision::decide(installation, request.namespace, request.pod)? {
        Decision::Leave(why) => Ok(Admitted {
            patch: None,
            warnings: why.into_iter().collect(),
        }),
        Decision::Inject => {
            let mut warnings = Vec::new();
            let patch = patch::patch(installation, request, &mut warnings)?;
            Ok(Admitted {
                patch: Some(patch),
                warnings,
            })
        }
    }
}
