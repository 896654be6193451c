//! The built-in provider: a root with its key in the store. Sends no requests.

use async_trait::async_trait;
use legate_identity::{
    Authority, CsrProfile, IdentityError, KeyKind, LeafRequest, PrivateKey, RootRequest,
    is_issued_by,
};
use legate_model::Secret;
use tokio::task::spawn_blocking;

use super::interface::{Established, Issued, Provider, Signed};
use super::mesh::Mesh;
use crate::CaError;
use crate::settings::{BuiltInSettings, Common};

/// The serial number of the first root. All others are random.
const FIRST_SERIAL: u128 = 1;

/// A root with its key.
pub(crate) struct BuiltIn {
    authority: Authority,
    cross_signs: bool,
}

impl BuiltIn {
    /// The provider that signs with a certificate of the store: the root, or an intermediate.
    pub(crate) fn stored(
        certificate: &str,
        key: &Secret,
        settings: &BuiltInSettings,
    ) -> Result<Self, CaError> {
        let authority = Authority::from_pem(certificate, key.expose());
        let authority = authority.map_err(|error| CaError::Stored {
            reason: format!("the certificate that signs leaves: {error}"),
        })?;
        // An intermediate must not sign authorities.
        let is_root = authority.info().is_self_issued;
        Ok(Self {
            authority,
            cross_signs: is_root && !settings.disable_cross_signing,
        })
    }

    /// The root of these settings, or a new one.
    pub(crate) async fn create(
        settings: BuiltInSettings,
        common: &Common,
        first: bool,
        mesh: &Mesh,
    ) -> Result<Self, CaError> {
        let key = match settings.private_key.is_empty() {
            true => generate(common.key).await?,
            false => {
                let key = PrivateKey::from_pem(settings.private_key.expose());
                key.map_err(|error| unusable("PrivateKey", &error))?
            }
        };
        let authority = if settings.root_cert.is_empty() {
            Authority::root_of(
                RootRequest {
                    common_name: mesh.common_name("legate", rand::random()),
                    uri: mesh.uri(),
                    serial: match first {
                        true => FIRST_SERIAL,
                        false => u128::from(rand::random::<u64>() >> 1),
                    },
                    now: mesh.clock.now(),
                    ttl: common.root_ttl,
                },
                key,
            )?
        } else {
            given_root(&settings, mesh)?
        };
        Ok(Self {
            authority,
            cross_signs: !settings.disable_cross_signing,
        })
    }
}

/// Generating an RSA key takes long enough to block other tasks, so it runs on another thread.
pub(crate) async fn generate(kind: KeyKind) -> Result<PrivateKey, CaError> {
    if kind.algorithm() == "ec" {
        return Ok(PrivateKey::generate_kind(kind)?);
    }
    let key = spawn_blocking(move || PrivateKey::generate_kind(kind));
    let key = key.await.map_err(|_| CaError::Stopping)?;
    Ok(key?)
}

/// A root from the settings, if certificates that it signs can be verified.
fn given_root(settings: &BuiltInSettings, mesh: &Mesh) -> Result<Authority, CaError> {
    let (root, key) = (&settings.root_cert, settings.private_key.expose());
    let authority = Authority::from_pem(root, key);
    let authority = authority.map_err(|error| unusable("RootCert", &error))?;
    let refuse = |reason: &str| CaError::Config {
        reason: format!("RootCert cannot be used: {reason}"),
    };
    let info = authority.info();
    if !info.is_self_issued {
        return Err(refuse("it must be a root, which is issued by itself"));
    }
    if info.key_bits == 0 {
        return Err(refuse("its key must be one of RSA or ECDSA"));
    }
    let now = mesh.clock.now();
    if now < info.not_before || now > info.not_after {
        return Err(refuse("it is not valid now"));
    }
    let probe = authority.issue(LeafRequest {
        uris: vec![mesh.uri()],
        dns_names: Vec::new(),
        ips: Vec::new(),
        serial: FIRST_SERIAL,
        now,
        ttl: std::time::Duration::from_secs(60),
    })?;
    match is_issued_by(&probe.cert_pem, root)? {
        true => Ok(authority),
        false => Err(refuse("its subject cannot be encoded identically")),
    }
}

fn unusable(key: &str, error: &IdentityError) -> CaError {
    CaError::Config {
        reason: format!("{key} cannot be used: {error}"),
    }
}

#[async_trait]
impl Provider for BuiltIn {
    async fn find_root(&self) -> Result<String, CaError> {
        Ok(self.authority.cert_pem().to_owned())
    }

    async fn establish(&self) -> Result<Established, CaError> {
        Ok(Established {
            root_pem: self.authority.cert_pem().to_owned(),
            intermediate: None,
            key: Secret::new(self.authority.key_pem()),
        })
    }

    async fn issue(&self, request: LeafRequest) -> Result<Issued, CaError> {
        Ok(Issued {
            certificate: self.authority.issue(request)?,
            issuer: None,
        })
    }

    async fn sign(&self, csr_pem: &str, profile: CsrProfile) -> Result<Signed, CaError> {
        Ok(Signed {
            cert_pem: self.authority.sign_csr(csr_pem, profile)?,
            issuer: None,
        })
    }

    async fn sign_intermediate(
        &self,
        csr_pem: &str,
        profile: CsrProfile,
    ) -> Result<String, CaError> {
        Ok(self.authority.sign_intermediate(csr_pem, profile)?)
    }

    fn cross_signs(&self) -> bool {
        self.cross_signs
    }

    async fn cross_sign(&self, root_pem: &str, profile: CsrProfile) -> Result<String, CaError> {
        Ok(self.authority.cross_sign(root_pem, profile)?)
    }
}
