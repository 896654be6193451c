//! What becomes of a pod: it is left as it is, gets a sidecar, or is refused. Pure.

use json_patch::Patch;

use super::decision::{Decision, decide};
use super::installation::Installation;
use super::patch::patch;
use super::request::{Refusal, Request};

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
