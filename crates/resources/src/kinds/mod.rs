//! What each kind of proxy is made of: one function a kind, from its snapshot to its parts. A new
//! kind is a file with such a function and an arm in [`compose`].

pub(crate) mod sidecar;

use legate_proxycfg::Snapshot;

use crate::part::Composer;

/// Adds the parts of a proxy. `last` is the snapshot that the composer's previous set was made
/// from.
pub(crate) fn compose(composer: &mut Composer<'_>, snapshot: &Snapshot, last: Option<&Snapshot>) {
    sidecar::compose(composer, snapshot, last);
}
