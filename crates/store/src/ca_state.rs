//! What is stored of the CA.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_model::{CaRoots, Secret};
use serde::{Deserialize, Serialize};

/// The CA's state: what is public, and the key that signs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaState {
    /// The root certificates, of which one is active. Their indexes are ignored.
    pub roots: Arc<CaRoots>,
    /// The PEM of the active root's private key.
    pub signing_key: Secret,
    /// The UUID at the front of the trust domain, chosen once.
    pub cluster_id: String,
    /// By id, what has to be known about roots until nobody needs them any more. A root that is not
    /// here became active before this was kept.
    #[serde(default)]
    pub lives: BTreeMap<String, RootLife>,
}

/// How long a root is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RootLife {
    /// When another root became active instead.
    #[serde(default)]
    pub rotated_out: Option<SystemTime>,
    /// The longest lifetime of any leaf that it may have signed.
    pub longest_leaf: Duration,
}
