//! Intermediates of secondary datacenters: the primary signs them, and both sides check what was signed.

use std::time::{Duration, SystemTime};

use legate_identity::{
    Authority, CertificateInfo, IdentityError, LeafRequest, PrivateKey, csr_names, csr_public_key,
    is_issued_by, split_certificates, verify_chain,
};
use legate_model::CaRoot;

use crate::authority::random_serial;
use crate::settings::ProviderSettings;
use crate::{CaError, CaManager};

/// The lifetime of a certificate that is signed to see whether it can be verified.
const PROBE: Duration = Duration::from_secs(60);

impl CaManager {
    /// Signs a request for the intermediate of a secondary datacenter with the active root. It is valid for `ttl`, but
    /// not for longer than `IntermediateCertTTL` and the root.
    ///
    /// Callers must first decide whether the requester may sign for this mesh.
    ///
    /// # Errors
    ///
    /// When this is not the primary datacenter, the request has names other than the URI of the mesh, the CA cannot sign,
    /// or the signing limit is exceeded.
    pub async fn sign_intermediate(&self, csr_pem: &str, ttl: Duration) -> Result<String, CaError> {
        let signer = self.ca.signer()?;
        if self.ca.primary().is_some() || signer.is_of_secondary() {
            return Err(CaError::NotPrimary);
        }
        let uri = signer.mesh_uri();
        let names = csr_names(csr_pem)?;
        if names.uris != [uri.as_str()] || !names.dns_names.is_empty() || !names.ips.is_empty() {
            let reason = format!("an intermediate has the URI {uri}, and no other names");
            return Err(IdentityError::InvalidRequest { reason }.into());
        }
        let _turn = self.ca.limited(&signer).await?;
        let left = signer.root.not_after.duration_since(self.ca.clock().now());
        let ttl = ttl.min(signer.settings.common.intermediate_ttl);
        let profile = self.ca.profile(ttl.min(left.unwrap_or_default()));
        let signed = signer.provider.sign_intermediate(csr_pem, profile).await?;
        let key = csr_public_key(csr_pem)?;
        let checked = checked(&signed, &signer.root.root_cert, &uri, &key);
        checked.map_err(|reason| match signer.settings.provider {
            ProviderSettings::BuiltIn(_) => {
                CaError::Certificate(IdentityError::InvalidChain { reason })
            }
            ProviderSettings::Vault(_) => CaError::Vault {
                reason: format!("Vault signed an intermediate that cannot be used: {reason}"),
                is_away: false,
            },
        })
    }
}

/// The first certificate of a PEM text, if it is an authority for this URI and key that the root has signed.
fn checked(pem: &str, root: &str, uri: &str, public_key: &str) -> Result<String, String> {
    let text = |error: IdentityError| error.to_string();
    let certificates = split_certificates(pem).map_err(text)?;
    let certificate = certificates.into_iter().next().unwrap_or_default();
    let info = CertificateInfo::from_pem(&certificate).map_err(text)?;
    let has_hosts = !info.dns_names.is_empty() || !info.ips.is_empty();
    let wrong = if !info.is_ca {
        "it may not sign others"
    } else if info.uris != [uri] || has_hosts {
        "it has other names than the URI of the mesh"
    } else if info.public_key != public_key {
        "it is for another key"
    } else if !is_issued_by(&certificate, root).map_err(text)? {
        "it is not signed by the active root"
    } else {
        return Ok(certificate);
    };
    Err(wrong.to_owned())
}

/// The first certificate of a PEM text, if leaves that are signed with it and this key can be verified under the root.
pub(crate) fn verified(
    pem: &str,
    key: &PrivateKey,
    root: &CaRoot,
    uri: &str,
    now: SystemTime,
) -> Result<String, String> {
    let text = |error: IdentityError| error.to_string();
    let certificate = checked(pem, &root.root_cert, uri, &key.public_key())?;
    let authority = Authority::from_pem(&certificate, &key.to_pem()).map_err(text)?;
    let probe = authority.issue(LeafRequest {
        uris: vec![uri.to_owned()],
        dns_names: Vec::new(),
        ips: Vec::new(),
        serial: random_serial(),
        now,
        ttl: PROBE,
    });
    let chain = format!("{}{certificate}", probe.map_err(text)?.cert_pem);
    verify_chain(&chain, &root.root_cert, now).map_err(text)?;
    Ok(certificate)
}
