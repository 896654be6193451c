//! The admission webhook that injects sidecars into pods. Decision and patch are pure functions of
//! the pod and of cached objects; admission makes no requests.

mod admission;
mod data;
mod decision;
mod dns;
mod installation;
mod operations;
mod patch;
mod probes;
mod redirect;
mod request;
mod service;
mod settings;
mod sidecar;
mod start;
mod upstreams;
mod webhook;

pub use self::admission::{Admitted, admit};
pub use self::dns::ResolvConf;
pub use self::installation::{Cluster, Installation, mark};
pub use self::request::{Refusal, Request};
pub(crate) use self::sidecar::set_pull_policy;
pub use self::start::{Published, Started, start};
pub use self::webhook::{AdmissionMetrics, PATH, Webhook};
