//! The servers' certificate of a CA in files (`--ca-certs`, `--ca-key`), which all datacenters of a mesh have.

use std::path::Path;
use std::time::SystemTime;

use legate_identity::{Authority, split_certificates};
use legate_model::Secret;

use super::material::{Pair, Policy};
use super::{Keeper, SigningCa, Validity, authorities, secrets};

impl Keeper {
    /// Keeps the Secret with the servers' certificate. The CA itself is never replaced here.
    pub(super) async fn given(
        &self,
        certificates: &Path,
        key: &Path,
        now: SystemTime,
    ) -> Result<(SigningCa, Validity), String> {
        let (bundle, _) = authorities(certificates, now)?;
        let shown = key.display();
        let text = std::fs::read_to_string(key)
            .map_err(|error| format!("cannot read {shown} (--ca-key): {error}"))?;
        let (ca, valid_until) = signer(&bundle, &text)
            .map_err(|reason| format!("{shown} (--ca-key) cannot be used: {reason}"))?;
        let policy = Policy::servers(&self.full_name, &self.namespace, &self.datacenter);
        let name = format!("{}-server-cert", self.full_name);
        let secrets = self.secrets();
        let due = secrets::ensure_leaf(&secrets, &name, &ca, &policy, now).await;
        let due = due.map_err(|error| error.to_string())?;
        let signing = SigningCa {
            certificates: bundle,
            key: Secret::new(text),
        };
        Ok((signing, Validity { valid_until, due }))
    }
}

/// The CA that the key belongs to, among several, and its expiry. The others are verified with while a CA is replaced.
fn signer(bundle: &str, key: &str) -> Result<(Pair, SystemTime), String> {
    let all = split_certificates(bundle).map_err(|error| error.to_string())?;
    let mut reason = String::new();
    for cert in all {
        match Authority::from_pem(&cert, key) {
            Ok(authority) => {
                let (valid_until, key) = (authority.info().not_after, key.to_owned());
                return Ok((Pair { cert, key }, valid_until));
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}
