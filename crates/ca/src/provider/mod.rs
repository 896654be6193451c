//! Who has the root and signs under it. A provider stores nothing: what it makes is handed to whoever
//! asked, and a provider of the same configuration can be made again at any time.

mod built_in;
mod vault;

use std::time::Duration;

use async_trait::async_trait;
use legate_identity::{CsrProfile, IssuedCertificate, LeafRequest};
use legate_model::{CaRoot, Secret, SpiffeId, TrustDomain};
use legate_runtime::Clock;

pub(crate) use self::built_in::BuiltIn;
pub(crate) use self::vault::{Vault, VaultError};
use crate::CaError;
use crate::settings::{ProviderSettings, Settings};

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

/// What providers are made from.
#[derive(Debug, Clone)]
pub(crate) struct Mesh {
    pub(crate) cluster_id: String,
    pub(crate) clock: Clock,
}

impl Mesh {
    /// The URI in roots.
    pub(crate) fn uri(&self) -> String {
        let trust_domain = TrustDomain::of_cluster(&self.cluster_id);
        SpiffeId::Signing { trust_domain }.to_string()
    }

    /// `pri-<eight digits to base 36>.<who>.ca.<start of the cluster id>.consul`: tells the roots of a
    /// mesh apart and is short enough for a common name.
    pub(crate) fn common_name(&self, who: &str, mut random: u64) -> String {
        const DIGITS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut unique = String::new();
        for _ in 0..8 {
            // The remainder is below 36.
            let digit = usize::try_from(random % 36).unwrap_or_default();
            unique.push(char::from(DIGITS[digit]));
            random /= 36;
        }
        let cluster: String = self.cluster_id.chars().take(8).collect();
        format!("pri-{unique}.{who}.ca.{cluster}.consul")
    }
}

/// The provider of a root that is active. It reaches nobody yet.
pub(crate) fn of_active(
    settings: &Settings,
    root: &CaRoot,
    key: &Secret,
    mesh: &Mesh,
) -> Result<Box<dyn Provider>, CaError> {
    Ok(match &settings.provider {
        ProviderSettings::BuiltIn(own) => Box::new(BuiltIn::stored(root, key, own)?),
        ProviderSettings::Vault(vault) => {
            let common = settings.common.clone();
            let root = Some(root.root_cert.clone());
            Box::new(Vault::new((**vault).clone(), common, mesh.clone(), root)?)
        }
    })
}

/// The provider of a configuration that is new: it makes a root, or finds that of a Vault.
pub(crate) async fn of_new(
    settings: &Settings,
    first: bool,
    mesh: &Mesh,
) -> Result<Box<dyn Provider>, CaError> {
    Ok(match &settings.provider {
        ProviderSettings::BuiltIn(own) => {
            Box::new(BuiltIn::create(own.clone(), &settings.common, first, mesh).await?)
        }
        ProviderSettings::Vault(vault) => {
            let common = settings.common.clone();
            Box::new(Vault::new((**vault).clone(), common, mesh.clone(), None)?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(cluster_id: &str) -> Mesh {
        Mesh {
            cluster_id: cluster_id.to_owned(),
            clock: Clock::system(),
        }
    }

    #[test]
    fn the_common_name_has_the_documented_shape() {
        let mesh_id = "01234567-89ab-cdef-0123-456789abcdef";
        let name = mesh(mesh_id).common_name("legate", u64::MAX);
        let (unique, rest) = name
            .strip_prefix("pri-")
            .and_then(|name| name.split_once('.'))
            .unwrap();
        assert_eq!(unique.len(), 8);
        assert_eq!(rest, "legate.ca.01234567.consul");
        assert_eq!(
            mesh("0123").common_name("vault", 35),
            "pri-z0000000.vault.ca.0123.consul"
        );
    }
}
