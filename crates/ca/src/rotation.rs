//! Computes the trusted roots when another root becomes active, and when an old one is no longer
//! needed. Pure: time is passed in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_identity::CertificateInfo;
use legate_model::{CaRoot, Secret};
use legate_store::{CaState, RootLife};

/// How many lifetimes of leaves a root remains trusted after it was rotated out.
const KEPT_LIVES: u32 = 2;

/// Makes `new` the active root. The others remain trusted.
pub(crate) fn rotate(ca: &CaState, new: CaRoot, key: Secret, now: SystemTime) -> CaState {
    let mut next = ca.clone();
    let roots = Arc::make_mut(&mut next.roots);
    // It may have been active before.
    roots.roots.retain(|root| root.id != new.id);
    for root in &mut roots.roots {
        // A datacenter that is not secondary any more trusts the primary's roots as long as its own old ones.
        if std::mem::take(&mut root.active) || ca.secondary.is_some() {
            let life = next.lives.entry(root.id.clone()).or_default();
            life.rotated_out = Some(now);
        }
    }
    let life = next.lives.entry(new.id.clone()).or_default();
    life.rotated_out = None;
    roots.active_root_id.clone_from(&new.id);
    roots.roots.push(CaRoot {
        active: true,
        ..new
    });
    next.signing_key = key;
    next.secondary = None;
    next
}

/// Replaces the active root by `new`, the same certificate with other intermediates.
pub(crate) fn replace_active(ca: &CaState, new: CaRoot, key: Secret) -> CaState {
    let mut next = ca.clone();
    next.signing_key = key;
    let roots = Arc::make_mut(&mut next.roots);
    if let Some(root) = roots.roots.iter_mut().find(|root| root.id == new.id) {
        *root = new;
    }
    next
}

/// Records that the active root signs leaves with this lifetime.
pub(crate) fn signs_leaves(ca: &mut CaState, ttl: Duration) {
    let life = ca.lives.entry(ca.roots.active_root_id.clone());
    let life = life.or_default();
    life.longest_leaf = life.longest_leaf.max(ttl);
}

/// Removes roots whose leaves have expired and that the primary does not have, and expired links; `None` if there are
/// none. `longest` is
/// the assumed lifetime of leaves of a root without records.
pub(crate) fn pruned(ca: &CaState, now: SystemTime, longest: Duration) -> Option<CaState> {
    let unknown = RootLife {
        rotated_out: None,
        longest_leaf: longest,
    };
    let needed = |root: &CaRoot, lives: &BTreeMap<String, RootLife>| {
        let life = lives.get(&root.id).unwrap_or(&unknown);
        let kept = life.longest_leaf.max(longest).saturating_mul(KEPT_LIVES);
        let of_primary = ca.secondary.iter().flat_map(|own| &own.primary.roots);
        root.id == ca.roots.active_root_id
            || of_primary.clone().any(|one| one.id == root.id)
            || life
                .rotated_out
                .is_none_or(|out| now.duration_since(out).is_ok_and(|past| past <= kept))
            // The clock was set back.
            || life.rotated_out.is_some_and(|out| now < out)
    };
    let mut next = ca.clone();
    let roots = Arc::make_mut(&mut next.roots);
    roots.roots.retain(|root| needed(root, &ca.lives));
    for root in &mut roots.roots {
        // The chain of leaves must have what signs them, even if the clock was ahead for a while.
        let signs = |pem: &String| {
            let own = ca.secondary.as_ref();
            own.is_some_and(|own| own.intermediate == *pem)
        };
        let certificates = &mut root.intermediate_certs;
        certificates.retain(|pem| is_alive(pem, now) || signs(pem));
    }
    let ids: Vec<&str> = roots.roots.iter().map(|root| root.id.as_str()).collect();
    next.lives.retain(|id, _| ids.contains(&id.as_str()));
    (next != *ca).then_some(next)
}

/// Whether a certificate has not expired. Unreadable ones are retained.
pub(crate) fn is_alive(pem: &str, now: SystemTime) -> bool {
    CertificateInfo::from_pem(pem).map_or(true, |info| now <= info.not_after)
}

/// Whether half of a certificate's lifetime has passed.
pub(crate) fn half_over(info: &CertificateInfo, now: SystemTime) -> bool {
    let life = info.not_after.duration_since(info.not_before);
    now > info.not_before + life.unwrap_or_default() / 2
}

#[cfg(test)]
mod tests;
