//! The name of the mesh, and lifetimes of the CA's certificates.

use std::time::Duration;

use uuid::Uuid;

use crate::CaError;

const HOUR: Duration = Duration::from_secs(3600);

/// Certificates hold whole seconds, and a leaf needs some of them for its renewal.
const SHORTEST_LEAF: Duration = Duration::from_secs(10);

/// What can be chosen about the CA.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaConfig {
    /// Lifetime of leaf certificates, at least 10 s. Default 72 h, Consul's `LeafCertTTL`.
    pub leaf_ttl: Duration,
    /// Lifetime of a new root. Default ten years (87600 h), Consul's `RootCertTTL`.
    pub root_ttl: Duration,
    /// What the trust domain of a new mesh begins with, before `.consul`. Default: a random one.
    /// Consul's `connect.ca_config.cluster_id`.
    pub cluster_id: Option<Uuid>,
}

impl Default for CaConfig {
    fn default() -> Self {
        Self {
            leaf_ttl: 72 * HOUR,
            root_ttl: 87_600 * HOUR,
            cluster_id: None,
        }
    }
}

impl CaConfig {
    pub(crate) fn validate(&self) -> Result<(), CaError> {
        let fail = |reason| Err(CaError::Config { reason });
        if self.leaf_ttl < SHORTEST_LEAF {
            return fail(format!(
                "leaf_ttl is {:?}, it must be at least {SHORTEST_LEAF:?}",
                self.leaf_ttl
            ));
        }
        if self.root_ttl < self.leaf_ttl {
            return fail(format!(
                "root_ttl is {:?}, it must not be shorter than leaf_ttl, which is {:?}",
                self.root_ttl, self.leaf_ttl
            ));
        }
        Ok(())
    }
}
