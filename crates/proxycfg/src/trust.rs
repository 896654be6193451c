//! The peers whose proxies may call a service, with the roots that issue their certificates.
//!
//! What a peer sends about itself is not trusted here: a bundle with the own trust domain, or that of an older bundle,
//! is left out, so that no peer replaces the roots of another mesh. So is a bundle whose roots cannot be parsed, because
//! Envoy would refuse it together with the own roots.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use legate_identity::split_certificates;
use legate_model::{DEFAULT_TENANCY, PeerTrustBundle, ServiceName, TrustDomain};
use legate_store::ReadTxn;
use tracing::warn;

use crate::exports;
use crate::value::queried;

/// The maximum number of roots of a peer. Each proxy that the peer calls gets all of them.
const MAX_ROOTS: usize = 64;

/// How services of a peer are recognized.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerTrust {
    /// Its trust domain, which is neither the own one nor that of another peer in a list.
    pub trust_domain: TrustDomain,
    /// Its partition that is peered.
    pub partition: Arc<str>,
    /// The certificates of its roots, at least one, in PEM form.
    pub roots: Arc<str>,
}

/// Peers by their local names.
pub type Peers = BTreeMap<Arc<str>, Arc<PeerTrust>>;

/// The peers that call a service. A peer whose roots are not known is in neither list: its certificates are not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerCallers {
    /// All of them.
    pub all: Peers,
    /// Those whose proxies connect end to end, so that the service's own proxy verifies their certificates.
    pub connecting: Peers,
}

queried! {
    PeerCallers, |callers| callers.all.len() + callers.connecting.len();
}

/// One `Arc` for all services without such peers, because snapshots of one store are compared by address.
static NONE: LazyLock<Arc<PeerCallers>> = LazyLock::new(Arc::default);

/// The peers that call a service by mesh gateways, with their roots.
pub(crate) fn callers(
    txn: &ReadTxn<'_>,
    service: &ServiceName,
    datacenter: &str,
    trust_domain: &TrustDomain,
) -> Arc<PeerCallers> {
    // Most meshes have none, and this runs for every service.
    let has_peers = |txn: &ReadTxn<'_>| !exports::peers(txn).is_empty();
    if !txn.in_tenancy(&service.tenancy, has_peers) {
        return Arc::clone(&NONE);
    }
    let argument = format!("{}/{datacenter}/{trust_domain}", service.name);
    let found = txn.in_tenancy(&service.tenancy, |txn| {
        txn.shared("trusted peers of a service", &argument, |txn| {
            let all = exports::peers_of(txn, service, datacenter, trust_domain);
            let connecting = exports::peers_connecting_to(txn, service, datacenter, trust_domain);
            PeerCallers {
                all: trusted(txn, all.iter(), trust_domain),
                connecting: trusted(txn, connecting.iter(), trust_domain),
            }
        })
    });
    match found.all.is_empty() {
        true => Arc::clone(&NONE),
        false => found,
    }
}

/// Those of these peers of the current partition whose roots are known.
pub(crate) fn trusted<'a>(
    txn: &ReadTxn<'_>,
    peers: impl Iterator<Item = &'a Arc<str>>,
    own: &TrustDomain,
) -> Peers {
    let known = known(txn, own);
    let known = peers.filter_map(|peer| Some((Arc::clone(peer), Arc::clone(known.get(peer)?))));
    known.collect()
}

/// The peers of the current partition whose roots are known.
pub(crate) fn known(txn: &ReadTxn<'_>, own: &TrustDomain) -> Arc<Peers> {
    txn.in_tenancy(&txn.tenancy().of_peer("").of_partition(), |txn| {
        txn.shared("trusted peers", own.as_str(), |txn| {
            let active = exports::peers(txn);
            let mut bundles = txn.trust_bundles();
            bundles.retain(|bundle| active.contains(bundle.peer_name.as_str()));
            // The one that was known first keeps its trust domain.
            bundles.sort_by(|a, b| {
                let age = |one: &PeerTrustBundle| one.create_index;
                (age(a), &a.peer_name).cmp(&(age(b), &b.peer_name))
            });
            let mut peers = Peers::new();
            for bundle in &bundles {
                match usable(bundle, own, &peers) {
                    Ok(trust) => drop(peers.insert(bundle.peer_name.as_str().into(), trust.into())),
                    Err(reason) => {
                        let peer = &bundle.peer_name;
                        warn!(peer, reason, "the peer's certificates are not accepted");
                    }
                }
            }
            peers
        })
    })
}

fn usable(
    bundle: &PeerTrustBundle,
    own: &TrustDomain,
    others: &Peers,
) -> Result<PeerTrust, String> {
    let trust_domain: TrustDomain = bundle
        .trust_domain
        .parse()
        .map_err(|error: legate_model::InvalidSpiffeId| error.to_string())?;
    if trust_domain == *own {
        return Err(format!("{trust_domain} is the trust domain of this mesh"));
    }
    let mut others = others.iter();
    if let Some((other, _)) = others.find(|(_, other)| other.trust_domain == trust_domain) {
        return Err(format!(
            "{trust_domain} is the trust domain of peer {other}, which was peered before"
        ));
    }
    let mut roots = Vec::new();
    for pem in bundle.root_pems.iter().filter(|pem| !pem.trim().is_empty()) {
        // Written again, so that it contains certificates alone.
        roots.extend(split_certificates(pem).map_err(|error| error.to_string())?);
    }
    if roots.is_empty() || roots.len() > MAX_ROOTS {
        let count = roots.len();
        return Err(format!(
            "it has {count} roots: 1 to {MAX_ROOTS} are accepted"
        ));
    }
    Ok(PeerTrust {
        trust_domain,
        partition: match bundle.exported_partition.as_str() {
            "" => DEFAULT_TENANCY.into(),
            partition => partition.to_ascii_lowercase().into(),
        },
        roots: roots.concat().into(),
    })
}

#[cfg(test)]
mod tests;
