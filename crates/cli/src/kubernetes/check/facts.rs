//! What was seen in the cluster. No judgement: see [`super::findings`].

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use serde_json::Value;

use super::release::Release;
use crate::kubernetes::sidecar::Leaf;

/// Something that was seen, or why it could not be.
pub(super) type Seen<T> = Result<T, String>;

/// Everything.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) now: SystemTime,
    /// Version of the API server.
    pub(super) version: String,
    pub(super) release: Release,
    pub(super) operator_pods: Seen<Vec<OperatorPod>>,
    /// `None`: there is no such object.
    pub(super) webhook: Seen<Option<Webhook>>,
    /// What became of a pod that was created as a dry run.
    pub(super) admission: Admission,
    pub(super) servers: Seen<Servers>,
    pub(super) pods: Seen<Vec<MeshPod>>,
    /// Pods that ask for a sidecar and have none.
    pub(super) bare_pods: Seen<Vec<BarePod>>,
}

/// A pod of the operator.
#[derive(Debug, Clone)]
pub(super) struct OperatorPod {
    pub(super) name: String,
    pub(super) ready: bool,
    /// What it answers at `/readyz`; the text says what is missing.
    pub(super) readiness: Seen<(bool, String)>,
    /// What it shows at the webhook's port.
    pub(super) chain: Seen<Vec<CertificateDer<'static>>>,
}

/// The webhook as the API server has it.
#[derive(Debug, Clone)]
pub(super) struct Webhook {
    /// The MutatingWebhookConfiguration.
    pub(super) configuration: String,
    /// The webhook in it.
    pub(super) name: String,
    pub(super) ca_bundle: Option<String>,
    /// The name that the API server expects in the certificate.
    pub(super) host: String,
}

/// What became of the pod that the webhook has to refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// No namespace whose pods the webhook is asked about is known.
    NoNamespace,
    /// The API server would have created it.
    Created { namespace: String },
    /// It was refused, with this HTTP status and in these words.
    Refused {
        namespace: String,
        code: u16,
        words: String,
    },
    /// The API server could not be asked.
    Failed(String),
}

/// The servers.
#[derive(Debug, Clone)]
pub(super) enum Servers {
    /// Those of the release.
    InCluster {
        /// How many there should be.
        replicas: i32,
        pods: Vec<ServerPod>,
    },
    /// Outside of the release: the addresses that the operator has for them.
    External(String),
}

/// A pod with a server.
#[derive(Debug, Clone)]
pub(super) struct ServerPod {
    pub(super) name: String,
    pub(super) image: String,
    /// What its API answered; `None` while the pod is not ready.
    pub(super) api: Option<Seen<ServerApi>>,
}

/// What a server's API answered.
#[derive(Debug, Clone)]
pub(super) struct ServerApi {
    /// Its certificates; empty without TLS.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// Trust domain of the mesh.
    pub(super) trust_domain: String,
    /// The root that signs.
    pub(super) active_root: String,
}

/// A pod with a sidecar that has not ended.
#[derive(Debug, Clone)]
pub(super) struct MeshPod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// What makes it: `deployment/web`.
    pub(super) owner: Option<String>,
    /// Image of the sidecar.
    pub(super) image: String,
    pub(super) sidecar_ready: bool,
    /// Why the sidecar's container does not run, where the kubelet says so.
    pub(super) sidecar_waits: Option<String>,
    /// Other containers that are not ready.
    pub(super) unready: Vec<String>,
    /// The pod's own condition `Ready`.
    pub(super) ready: bool,
    /// The sidecar's own status; `None` where its container does not run.
    pub(super) status: Option<Seen<Value>>,
    /// The certificates that its Envoy shows; `None` where there was no status.
    pub(super) leaves: Option<Seen<Vec<Leaf>>>,
}

/// A pod that asks for a sidecar and has none.
#[derive(Debug, Clone)]
pub(super) struct BarePod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) owner: Option<String>,
}
