//! What every provider does, and what it hands over. Nothing here knows which providers there are.

use std::time::Duration;

use async_trait::async_trait;
use legate_identity::{CsrProfile, IssuedCertificate, LeafRequest};
use legate_model::Secret;

use crate::CaError;
use crate::settings::Settings;

/// Signs under one root.
#[async_trait]
pub(crate) trait Provider: Send + Sync {
    /// The root, made now if there was none. What signs leaves is not touched.
    async fn find_root(&self) -> Result<String, CaError>;

    /// The root and what signs leaves under it, made now if there was none.
    async fn establish(&self) -> Result<Established, CaError>;

    /// A certificate for a new key.
    async fn issue(&self, request: LeafRequest) -> Result<Issued, CaError>;

    /// A certificate for the key of a request, whose names have been checked.
    async fn sign(&self, csr_pem: &str, profile: CsrProfile) -> Result<Signed, CaError>;

    /// Whether it can sign another root.
    fn cross_signs(&self) -> bool;

    /// Another root, signed by this provider's: a link from it to those who trust only this one.
    async fn cross_sign(&self, root_pem: &str, profile: CsrProfile) -> Result<String, CaError>;

    /// Whether leaves that it signs now are under the active root.
    async fn is_ready(&self) -> Result<bool, CaError> {
        Ok(true)
    }

    /// Another certificate that signs leaves under the same root; `None` where the root itself does.
    async fn renew_intermediate(&self) -> Result<Option<String>, CaError> {
        Ok(None)
    }

    /// Keeps the right to sign. Says when it wants to be asked again, if it does.
    async fn keep(&self) -> Option<Duration> {
        None
    }

    /// Removes what nobody needs once `next` signs instead.
    async fn clean_up(&self, _next: &Settings) -> Result<(), CaError> {
        Ok(())
    }
}

/// What a provider has made or found.
#[derive(Debug)]
pub(crate) struct Established {
    /// The root, PEM; what links it to further roots may follow.
    pub(crate) root_pem: String,
    /// What signs leaves where the root does not.
    pub(crate) intermediate: Option<String>,
    /// The root's key, where the store is to keep it; else empty.
    pub(crate) key: Secret,
}

/// A certificate with its key.
#[derive(Debug)]
pub(crate) struct Issued {
    pub(crate) certificate: IssuedCertificate,
    /// What signed it, where it was not the root.
    pub(crate) issuer: Option<String>,
}

/// A certificate.
#[derive(Debug)]
pub(crate) struct Signed {
    pub(crate) cert_pem: String,
    /// What signed it, where it was not the root.
    pub(crate) issuer: Option<String>,
}
