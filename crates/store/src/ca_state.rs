//! The stored state of the CA.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_model::{CaRoots, Secret};
use serde::{Deserialize, Serialize};

/// The CA's public state and its signing key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaState {
    /// The root certificates, of which one is active. Their indexes are ignored.
    pub roots: Arc<CaRoots>,
    /// The PEM of the private key that signs leaves: the active root's, or the intermediate's of `secondary`.
    pub signing_key: Secret,
    /// The UUID in the trust domain, generated once.
    pub cluster_id: String,
    /// Data of roots by id, until they are no longer needed. Roots that became active before this
    /// field existed are missing.
    #[serde(default)]
    pub lives: BTreeMap<String, RootLife>,
    /// In a secondary datacenter: whose key `signing_key` is. `None`: it is that of the active root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secondary: Option<SecondaryCa>,
}

/// The CA of a secondary datacenter, whose leaves are signed by an intermediate of the primary's CA.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SecondaryCa {
    /// The primary's roots, as it returned them last. [`CaState::roots`] has all of them, and those that this datacenter
    /// still needs; its active root is the one that signed the intermediate.
    pub primary: CaRoots,
    /// The PEM of the certificate for `signing_key`, which signs leaves.
    pub intermediate: String,
}

/// How long a root is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RootLife {
    /// When another root replaced it as the active one.
    #[serde(default)]
    pub rotated_out: Option<SystemTime>,
    /// The longest TTL of the leaves that it may have signed.
    pub longest_leaf: Duration,
}
