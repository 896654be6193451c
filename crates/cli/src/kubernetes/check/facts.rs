//! The observed facts of a cluster, without judgement: see [`super::findings`].

use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use serde_json::Value;

use super::release::Release;
use crate::kubernetes::sidecar::Leaf;

/// An observation, or why it failed.
pub(super) type Observed<T> = Result<T, String>;

/// All facts.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) now: SystemTime,
    /// Version of the API server.
    pub(super) version: String,
    pub(super) release: Release,
    pub(super) operator_pods: Observed<Vec<OperatorPod>>,
    /// `None` if the object does not exist.
    pub(super) webhook: Observed<Option<Webhook>>,
    /// The result of creating a pod as a dry run.
    pub(super) admission: Admission,
    pub(super) servers: Observed<Servers>,
    pub(super) pods: Observed<Vec<MeshPod>>,
    /// Pods that request a sidecar and have none.
    pub(super) bare_pods: Observed<Vec<BarePod>>,
}

/// A pod of the operator.
#[derive(Debug, Clone)]
pub(super) struct OperatorPod {
    pub(super) name: String,
    pub(super) ready: bool,
    /// Its response to `/readyz`, with the reasons.
    pub(super) readiness: Observed<(bool, String)>,
    /// The certificates on the webhook's port.
    pub(super) chain: Observed<Vec<CertificateDer<'static>>>,
}

/// The webhook's configuration at the API server.
#[derive(Debug, Clone)]
pub(super) struct Webhook {
    /// The MutatingWebhookConfiguration.
    pub(super) configuration: String,
    /// The webhook in it.
    pub(super) name: String,
    pub(super) ca_bundle: Option<String>,
    /// The name that the certificate must have.
    pub(super) host: String,
}

/// The result of creating a pod that the webhook has to refuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// No namespace is known to which the webhook applies.
    NoNamespace,
    /// The API server would have created the pod.
    Created { namespace: String },
    /// The pod was refused with this HTTP status and message.
    Refused {
        namespace: String,
        code: u16,
        words: String,
    },
    /// The request failed.
    Failed(String),
}

/// The servers.
#[derive(Debug, Clone)]
pub(super) enum Servers {
    /// The servers of the release.
    InCluster {
        /// The configured number of servers.
        replicas: i32,
        pods: Vec<ServerPod>,
    },
    /// Servers outside of the release, with the addresses that the operator uses.
    External(String),
}

/// A pod with a server.
#[derive(Debug, Clone)]
pub(super) struct ServerPod {
    pub(super) name: String,
    pub(super) image: String,
    /// Responses of its API; `None` while the pod is not ready.
    pub(super) api: Option<Observed<ServerApi>>,
}

/// Responses of a server's API.
#[derive(Debug, Clone)]
pub(super) struct ServerApi {
    /// Its certificates; empty without TLS.
    pub(super) chain: Vec<CertificateDer<'static>>,
    /// Trust domain of the mesh.
    pub(super) trust_domain: String,
    /// The active root certificate.
    pub(super) active_root: String,
    /// What it says of other datacenters, or why it does not.
    pub(super) status: Result<Value, String>,
}

/// A pod with a sidecar that has not ended.
#[derive(Debug, Clone)]
pub(super) struct MeshPod {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its owner, such as `deployment/web`.
    pub(super) owner: Option<String>,
    /// Image of the sidecar.
    pub(super) image: String,
    pub(super) sidecar_ready: bool,
    /// Why the sidecar's container is not running, if the kubelet reports a reason.
    pub(super) sidecar_waits: Option<String>,
    /// Other containers that are not ready.
    pub(super) unready: Vec<String>,
    /// Whether the pod's condition `Ready` is true.
    pub(super) ready: bool,
    /// The sidecar's status document; `None` if its container is not running.
    pub(super) status: Option<Observed<Value>>,
    /// The certificates that its Envoy presents; `None` without a status.
    pub(super) leaves: Option<Observed<Vec<Leaf>>>,
}

/// A pod that requests a sidecar and has none.
#[derive(Debug, Clone)]
pub(super) struct BarePod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) owner: Option<String>,
}
