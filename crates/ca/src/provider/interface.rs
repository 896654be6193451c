//! The interface of providers. Independent of the individual providers.

use std::time::Duration;

use async_trait::async_trait;
use legate_identity::{CsrProfile, IssuedCertificate, LeafRequest};
use legate_model::Secret;

use crate::CaError;
use crate::settings::Settings;

/// Signs under one root.
#[async_trait]
pub(crate) trait Provider: Send + Sync {
    /// Returns the root, created now if there was none. Does not change the intermediate.
    async fn find_root(&self) -> Result<String, CaError>;

    /// Returns the root and its intermediate, created now if there were none.
    async fn establish(&self) -> Result<Established, CaError>;

    /// Issues a certificate for a new key.
    async fn issue(&self, request: LeafRequest) -> Result<Issued, CaError>;

    /// Signs a request whose names have been checked.
    async fn sign(&self, csr_pem: &str, profile: CsrProfile) -> Result<Signed, CaError>;

    /// Signs a request for the intermediate of another datacenter with the root. The request has been checked.
    async fn sign_intermediate(
        &self,
        csr_pem: &str,
        profile: CsrProfile,
    ) -> Result<String, CaError>;

    /// Whether it can cross-sign another root.
    fn cross_signs(&self) -> bool;

    /// Cross-signs another root, for peers that trust only this provider's root.
    async fn cross_sign(&self, root_pem: &str, profile: CsrProfile) -> Result<String, CaError>;

    /// Whether leaves that it signs now chain to the active root.
    async fn is_ready(&self) -> Result<bool, CaError> {
        Ok(true)
    }

    /// Renews the intermediate under the same root; `None` if the root itself signs leaves.
    async fn renew_intermediate(&self) -> Result<Option<String>, CaError> {
        Ok(None)
    }

    /// Renews the access to the provider. Returns the time until the next call, if one is required.
    async fn keep(&self) -> Option<Duration> {
        None
    }

    /// Removes what is no longer needed when `next` replaces this provider.
    async fn clean_up(&self, _next: &Settings) -> Result<(), CaError> {
        Ok(())
    }
}

/// A root and intermediate that a provider has created or found.
#[derive(Debug)]
pub(crate) struct Established {
    /// PEM of the root, possibly followed by certificates that link it to further roots.
    pub(crate) root_pem: String,
    /// The intermediate that signs leaves; `None` if the root signs them.
    pub(crate) intermediate: Option<String>,
    /// The root's key if the store has to contain it, otherwise empty.
    pub(crate) key: Secret,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) certificate: IssuedCertificate,
    /// The intermediate that signed it; `None` if the root did.
    pub(crate) issuer: Option<String>,
}

/// A signed certificate.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) cert_pem: String,
    /// The intermediate that signed it; `None` if the root did.
    pub(crate) issuer: Option<String>,
}
