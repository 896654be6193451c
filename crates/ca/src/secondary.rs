//! The CA of a secondary datacenter: what is next for it, and what follows from the primary's roots. Pure: time is
//! passed in.
//!
//! The active root is always the one whose intermediate signs leaves. So after a rotation in the primary, the new root is
//! trusted at once, and becomes active when it has signed another intermediate.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_identity::{CertificateInfo, KeyKind, PrivateKey, split_certificates};
use legate_model::{CaRoot, CaRoots, Secret, TrustDomain};
use legate_store::{CaState, SecondaryCa};

use crate::rotation;

/// The largest number of roots that are taken from the primary. Each change there adds one.
const MOST_ROOTS: usize = 64;

/// What is next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing until the primary's roots change, or time passes.
    Nothing,
    /// Trust the primary's roots.
    Adopt,
    /// Have the primary's active root sign an intermediate.
    Request,
}

/// The next step, given the stored CA, the roots that the primary has now, and the kind of key for intermediates.
pub(crate) fn next_step(
    stored: Option<&CaState>,
    primary: &CaRoots,
    key: KeyKind,
    now: SystemTime,
) -> Step {
    let Some((ca, own)) = stored.and_then(|ca| Some((ca, ca.secondary.as_ref()?))) else {
        return Step::Request;
    };
    // Roots of another mesh are trusted together with its trust domain.
    if ca.roots.trust_domain != primary.trust_domain {
        return Step::Request;
    }
    if own.primary != *primary {
        return Step::Adopt;
    }
    let (info, signing_key) = (
        CertificateInfo::from_pem(&own.intermediate),
        PrivateKey::from_pem(ca.signing_key.expose()),
    );
    let (Ok(info), Ok(signing_key)) = (info, signing_key) else {
        return Step::Request;
    };
    let serves = ca.roots.active_root_id == primary.active_root_id
        && info.public_key == signing_key.public_key()
        && (info.key_type, info.key_bits) == (key.algorithm(), key.bits())
        // The clock may have been set back.
        && now >= info.not_before
        && !rotation::half_over(&info, now);
    match serves {
        true => Step::Nothing,
        false => Step::Request,
    }
}

/// The primary's roots, if they are what a CA has.
pub(crate) fn consistent(roots: CaRoots) -> Result<CaRoots, String> {
    let domain: Result<TrustDomain, _> = roots.trust_domain.parse();
    let domain = domain.map_err(|error| error.to_string())?;
    if TrustDomain::of_cluster(domain.cluster_id()).as_str() != roots.trust_domain {
        return Err(format!("{domain} is not <cluster id>.consul"));
    }
    if roots.roots.len() > MOST_ROOTS {
        return Err(format!("it has more than {MOST_ROOTS} roots"));
    }
    for root in &roots.roots {
        let certificates = split_certificates(&root.root_cert);
        let certificates = certificates.map_err(|error| error.to_string())?;
        let infos = certificates
            .iter()
            .map(|one| CertificateInfo::from_pem(one));
        let infos: Result<Vec<_>, _> = infos.collect();
        let infos = infos.map_err(|error| error.to_string())?;
        if infos.iter().any(|info| !info.is_ca)
            || infos.first().is_none_or(|info| info.id != root.id)
        {
            return Err(format!("root {:?} is not a root of this id", root.id));
        }
        if root.active != (root.id == roots.active_root_id) {
            return Err(format!(
                "it is not clear whether root {} is active",
                root.id
            ));
        }
    }
    match roots.active() {
        Some(_) => Ok(roots),
        None => Err("it has no active root".to_owned()),
    }
}

/// The CA that also trusts the primary's roots, and signs with its intermediate as before.
pub(crate) fn adopted(
    ca: &CaState,
    own: &SecondaryCa,
    primary: &CaRoots,
    now: SystemTime,
) -> CaState {
    let active = &ca.roots.active_root_id;
    let intermediate = own.intermediate.clone();
    with_roots(
        Some(ca),
        primary,
        active,
        (intermediate, ca.signing_key.clone()),
        now,
    )
}

/// The CA that signs leaves of this lifetime with an intermediate of the primary's active root.
pub(crate) fn installed(
    before: Option<&CaState>,
    primary: &CaRoots,
    (intermediate, key): (String, Secret),
    leaf_ttl: Duration,
    now: SystemTime,
) -> CaState {
    let active = &primary.active_root_id;
    let mut ca = with_roots(before, primary, active, (intermediate, key), now);
    rotation::signs_leaves(&mut ca, leaf_ttl);
    ca
}

/// The CA with the primary's roots, of which `active` has signed the intermediate. Others that have signed for this
/// datacenter remain trusted until their leaves have expired, those of its own old mesh included.
fn with_roots(
    before: Option<&CaState>,
    primary: &CaRoots,
    active: &str,
    (intermediate, key): (String, Secret),
    now: SystemTime,
) -> CaState {
    let mut lives = before.map_or_else(BTreeMap::new, |ca| ca.lives.clone());
    if let Some(before) = before {
        let was_own = before.secondary.is_none();
        for root in before
            .roots
            .roots
            .iter()
            .filter(|root| root.active || was_own)
        {
            lives.entry(root.id.clone()).or_default();
        }
    }
    lives.entry(active.to_owned()).or_default();
    let of_primary = |root: &CaRoot| primary.roots.iter().any(|one| one.id == root.id);
    let old = before.iter().flat_map(|ca| &ca.roots.roots);
    let old = old.filter(|root| lives.contains_key(&root.id) && !of_primary(root));
    let mut roots: Vec<CaRoot> = old.chain(&primary.roots).cloned().collect();
    for root in &mut roots {
        root.active = root.id == active;
        if root.active {
            sign_with(root, &intermediate);
        }
        if let Some(life) = lives.get_mut(&root.id) {
            life.rotated_out = match root.active {
                true => None,
                false => life.rotated_out.or(Some(now)),
            };
        }
    }
    CaState {
        roots: Arc::new(CaRoots {
            active_root_id: active.to_owned(),
            trust_domain: primary.trust_domain.clone(),
            roots,
        }),
        signing_key: key,
        cluster_id: cluster_id(primary),
        lives,
        secondary: Some(SecondaryCa {
            primary: primary.clone(),
            intermediate,
        }),
    }
}

pub(crate) fn cluster_id(roots: &CaRoots) -> String {
    let id = roots.trust_domain.split('.').next();
    id.unwrap_or_default().to_owned()
}

/// Makes an intermediate the one that signs leaves under a root. Of the others only those remain that link the root to
/// older ones: an intermediate of the primary signs nothing here.
fn sign_with(root: &mut CaRoot, intermediate: &str) {
    let info = |pem: &str| CertificateInfo::from_pem(pem).ok();
    let own = info(&root.root_cert).map(|info| info.public_key);
    let is_link = |pem: &String| info(pem).map(|info| info.public_key) == own;
    root.intermediate_certs.retain(is_link);
    root.intermediate_certs.push(intermediate.to_owned());
    if let Some(info) = info(intermediate) {
        root.signing_key_id = info.subject_key_id;
    }
}

#[cfg(test)]
mod tests;
