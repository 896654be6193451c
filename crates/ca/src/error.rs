//! Errors of the CA.

use std::time::SystemTime;

use legate_identity::IdentityError;
use legate_model::InvalidSpiffeId;
use legate_store::Unavailable;

/// The CA cannot start or cannot sign.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The configuration is inconsistent or contains what is not served.
    #[error("{reason}")]
    Config {
        /// The setting and its permitted values.
        reason: String,
    },
    /// The CA in the store is unusable.
    #[error("the CA in the store cannot be used: {reason}")]
    Stored {
        /// The reason.
        reason: String,
    },
    /// The active root has expired, so new certificates would be invalid.
    #[error("the active root {id} has expired: rotate the CA")]
    RootExpired {
        /// Its id.
        id: String,
        /// The end of its validity.
        not_after: SystemTime,
    },
    /// The intermediate of a secondary datacenter has expired, so new certificates would be invalid.
    #[error(
        "the certificate by which this datacenter signs leaves has expired, and the primary datacenter has not signed \
         another one: see the server's log"
    )]
    IntermediateExpired {
        /// The end of its validity.
        not_after: SystemTime,
    },
    /// A secondary datacenter signs no intermediates.
    #[error("this is not the primary datacenter: only the primary signs the CAs of others")]
    NotPrimary,
    /// The primary datacenter cannot be asked, refuses, or returned what cannot be used.
    #[error("the CA of the primary datacenter {datacenter}: {reason}")]
    Primary {
        /// The primary datacenter.
        datacenter: String,
        /// The reason.
        reason: String,
    },
    /// A request that must not be signed and that the requester has to change.
    #[error(transparent)]
    InvalidCsr(IdentityError),
    /// The requested name is not an identity of this mesh.
    #[error("invalid CSR: {0}")]
    NoIdentity(#[from] InvalidSpiffeId),
    /// The requested identity is not issued by this CA.
    #[error("invalid CSR: {identity} is not signed here: {reason}")]
    Identity {
        /// The identity as a URI.
        identity: String,
        /// The reason.
        reason: String,
    },
    /// A certificate cannot be created.
    #[error(transparent)]
    Certificate(IdentityError),
    /// The store has no CA yet. It is created as soon as its provider, or the primary datacenter, can be reached.
    #[error(
        "the mesh has no CA yet: its provider or the primary datacenter has not answered so far; see the server's log"
    )]
    Missing,
    /// The signing limit is exceeded.
    #[error("Rate limit reached, try again later")]
    RateLimited,
    /// Another change of the CA is in progress.
    #[error("CA is already in state \"RECONFIGURING\"")]
    Busy,
    /// The provider's state cannot be written.
    #[error("Provider State is read-only. It must be omitted or identical to the current value")]
    StateReadOnly,
    /// The provider cannot cross-sign another root.
    #[error(
        "The current CA Provider does not support cross-signing. You can try again with \
         ForceWithoutCrossSigningSet but this may cause disruption - see documentation for more."
    )]
    NoCrossSigning,
    /// Another server has changed the CA concurrently.
    #[error("could not atomically update roots and config")]
    Changed,
    /// The new configuration does not work. Nothing has changed.
    #[error("error configuring provider: {0}")]
    Configure(Box<CaError>),
    /// A request to Vault failed.
    #[error("{reason}")]
    Vault {
        /// The reason.
        reason: String,
        /// Whether Vault does not answer or is not ready, so that the same request may succeed later.
        is_away: bool,
    },
    /// No certificate could be issued; the server's log contains the reason.
    #[error("no certificate could be issued for service {service:?}: see the server's log")]
    NotIssued {
        /// The service.
        service: String,
    },
    /// The process is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// A write to the store failed.
    #[error("the CA cannot write to the store: {0}")]
    Store(#[from] Unavailable),
}

impl CaError {
    /// Whether the request was invalid, as opposed to a failure of the CA.
    #[must_use]
    pub fn is_invalid_request(&self) -> bool {
        matches!(
            self,
            CaError::InvalidCsr(_) | CaError::NoIdentity(_) | CaError::Identity { .. }
        )
    }

    /// Whether the provider is away, so that waiting helps.
    #[must_use]
    pub fn is_provider_away(&self) -> bool {
        matches!(
            self,
            CaError::Missing | CaError::Vault { is_away: true, .. }
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

/// A certificate is no longer renewed, because the control plane is stopping.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the certificate of {leaf} is no longer renewed: the CA has stopped")]
pub struct LeafEnded {
    /// Whose certificate it is.
    pub leaf: String,
}
