//! The roots of peers, against which their services are verified: a secret for each peer that an upstream leads to. So a
//! rotation changes one secret, and no cluster and no connection.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::PeerTrustBundle;
use legate_proxycfg::UpstreamSnapshot;

use crate::composer::Composer;
use crate::names;
use crate::part::made;
use crate::resource_type::Type;
use crate::secret;
use crate::section::Section;

/// The roots of all peers, one unit.
const SECTION: Section = Section("roots of peers");

/// Adds the roots of the peers that these upstreams lead to. `last` are those of the last snapshot.
pub(super) fn add_roots<'u>(
    composer: &mut Composer<'_>,
    now: impl IntoIterator<Item = &'u UpstreamSnapshot>,
    last: impl Iterator<Item = &'u UpstreamSnapshot>,
) {
    let now = by_peer(now.into_iter());
    if now.is_empty() {
        return;
    }
    let last: Vec<_> = by_peer(last).into_values().collect();
    let mut unit = composer.unit(SECTION, Some(0));
    for (at, (peer, bundle)) in now.into_iter().enumerate() {
        let before = last.get(at);
        let unchanged = before.is_some_and(|before| Arc::ptr_eq(before, bundle));
        let name = || names::peer_roots(peer);
        unit.part(Type::Secret, name, unchanged, |_| {
            made(secret::peer_roots(composer.memo, peer, bundle))
        });
    }
    composer.add(SECTION, unit);
}

fn by_peer<'u>(
    upstreams: impl Iterator<Item = &'u UpstreamSnapshot>,
) -> BTreeMap<&'u str, &'u Arc<PeerTrustBundle>> {
    let bundles = upstreams.flat_map(|one| one.resolved.trust_bundles());
    bundles.map(|one| (one.peer_name.as_str(), one)).collect()
}
