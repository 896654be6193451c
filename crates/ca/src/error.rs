//! What can go wrong when certificates are made.

use std::time::SystemTime;

use legate_identity::IdentityError;
use legate_model::InvalidSpiffeId;
use legate_store::Unavailable;

/// The CA cannot start or cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The configuration contradicts itself, or says what is not served.
    #[error("{reason}")]
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
    /// Too much is signed already.
    #[error("Rate limit reached, try again later")]
    RateLimited,
    /// The CA is being changed by somebody else.
    #[error("CA is already in state \"RECONFIGURING\"")]
    Busy,
    /// What the provider keeps cannot be written.
    #[error("Provider State is read-only. It must be omitted or identical to the current value")]
    StateReadOnly,
    /// The provider cannot link another root to its own.
    #[error(
        "The current CA Provider does not support cross-signing. You can try again with \
         ForceWithoutCrossSigningSet but this may cause disruption - see documentation for more."
    )]
    NoCrossSigning,
    /// Another server has changed the CA in the meantime.
    #[error("could not atomically update roots and config")]
    Changed,
    /// A new configuration does not work. Nothing has changed.
    #[error("error configuring provider: {0}")]
    Configure(Box<CaError>),
    /// Vault does not do what is asked of it.
    #[error("{reason}")]
    Vault {
        /// What it answers.
        reason: String,
    },
    /// There is no certificate, and the server's log says why.
    #[error("no certificate could be issued for service {service:?}: see the server's log")]
    NotIssued {
        /// The service.
        service: String,
    },
    /// The process ends.
    #[error("the server is stopping")]
    Stopping,
    /// The store could not keep a write.
    #[error("the CA cannot write to the store: {0}")]
    Store(#[from] Unavailable),
}

impl CaError {
    /// Whether the request was at fault and not the CA.
    #[must_use]
    pub fn is_invalid_request(&self) -> bool {
        matches!(
            self,
            CaError::InvalidCsr(_) | CaError::NoIdentity(_) | CaError::Identity { .. }
        )
    }

    pub(crate) fn configure(error: CaError) -> CaError {
        CaError::Configure(Box::new(error))
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
