//! What can go wrong when certificates are made.

use std::time::SystemTime;

use legate_identity::IdentityError;
use legate_model::InvalidSpiffeId;
use legate_store::Unavailable;

/// The CA cannot start or cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The lifetimes contradict each other.
    #[error("CA configuration: {reason}")]
    Config {
        /// Which setting, and what it must be.
        reason: String,
    },
    /// What the store holds as the CA does not work.
    #[error("the CA in the store cannot be used: {reason}")]
    Stored {
        /// What is wrong with it.
        reason: String,
    },
    /// The active root has expired: what it signs would be worthless.
    #[error("the active root {id} has expired: rotate the CA")]
    RootExpired {
        /// Its id.
        id: String,
        /// The end of its validity.
        not_after: SystemTime,
    },
    /// A request that must not be signed. The requester has to change it.
    #[error(transparent)]
    InvalidCsr(IdentityError),
    /// A request for a name that is no identity of this mesh.
    #[error("invalid CSR: {0}")]
    NoIdentity(#[from] InvalidSpiffeId),
    /// A request for an identity that this CA does not give.
    #[error("invalid CSR: {identity} is not signed here: {reason}")]
    Identity {
        /// The identity as a URI.
        identity: String,
        /// Why not.
        reason: String,
    },
    /// A certificate cannot be made.
    #[error(transparent)]
    Certificate(IdentityError),
    /// The store holds no CA.
    #[error("the store has no CA: start the server again, which makes one")]
    Missing,
    /// The store could not keep a write.
    #[error("the CA cannot write to the store: {0}")]
    Store(#[from] Unavailable),
}

impl CaError {
    /// Whether the request was at fault and not the CA.
    #[must_use]
    pub fn is_invalid_request(&self) -> bool {
        match self {
            CaError::InvalidCsr(_) | CaError::NoIdentity(_) | CaError::Identity { .. } => true,
            CaError::Config { .. }
            | CaError::Stored { .. }
            | CaError::RootExpired { .. }
            | CaError::Certificate(_)
            | CaError::Missing
            | CaError::Store(_) => false,
        }
    }
}

impl From<IdentityError> for CaError {
    fn from(error: IdentityError) -> CaError {
        if matches!(error, IdentityError::InvalidRequest { .. }) {
            CaError::InvalidCsr(error)
        } else {
            CaError::Certificate(error)
        }
    }
}

/// The certificate of a service is no longer renewed, because the control plane is stopping.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate of service {service:?} is no longer renewed: the CA has stopped")]
pub struct LeafEnded {
    /// The service.
    pub service: String,
}
