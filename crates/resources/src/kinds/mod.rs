//! Composes the parts of each kind of proxy from its snapshot, with one function per kind. A new
//! kind is a file with such a function and a line in [`compose`].

mod change;
mod egress;
mod sidecar;
mod transparent;
mod upstream;

use legate_model::ServiceKind;
use legate_proxycfg::Snapshot;

use crate::composer::Composer;

/// Adds the parts of a proxy. `last` is the snapshot that the composer's previous set was made
/// from.
pub(crate) fn compose(composer: &mut Composer<'_>, snapshot: &Snapshot, last: Option<&Snapshot>) {
    match snapshot.instance.kind {
        ServiceKind::ConnectProxy => sidecar::compose(composer, snapshot, last),
        // These kinds have no snapshots.
        ServiceKind::Typical
        | ServiceKind::MeshGateway
        | ServiceKind::TerminatingGateway
        | ServiceKind::IngressGateway
        | ServiceKind::ApiGateway => {}
    }
}
