//! Admits a pod unchanged, injects a sidecar, or refuses it. Pure.

use json_patch::Patch;

use super::decision::{Decision, decide};
use super::installation::Installation;
use super::patch::patch;
use super::request::{Refusal, Request};

/// The outcome for a pod that is admitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Admitted {
    /// The changes; `None` if the pod is not changed.
    pub patch: Option<Patch>,
    /// Warnings for the client that creates the pod.
    pub warnings: Vec<String>,
}

/// Decides about a pod and makes its patch.
///
/// # Errors
/// If the pod's settings are invalid or cannot be satisfied.
pub fn admit(installation: &Installation, request: &Request<'_>) -> Result<Admitted, Refusal> {
    match decide(installation, request.namespace, request.pod)? {
        Decision::Leave(why) => Ok(Admitted {
            patch: None,
            warnings: why.into_iter().collect(),
        }),
        Decision::Inject => {
            let mut warnings = Vec::new();
            let patch = patch(installation, request, &mut warnings)?;
            Ok(Admitted {
                patch: Some(patch),
                warnings,
            })
        }
    }
}
