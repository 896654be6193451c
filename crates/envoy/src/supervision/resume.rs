//! Taking over from a former supervisor: which processes of its snapshot go on, and which end.

use super::files::{Entry, Snapshot, Stage};
use super::host::Host;
use crate::process::Process;

/// The processes of a snapshot that are taken over: the last one serves, those before it have handed
/// over. What does not serve yet, or cannot serve without another that is gone, is ended.
pub(super) async fn adopt(
    host: &mut impl Host,
    snapshot: Snapshot,
) -> Vec<(Entry, Box<dyn Process>)> {
    let mut found: Vec<(Entry, Box<dyn Process>)> = Vec::new();
    for entry in snapshot.processes {
        match host.adopt(&entry) {
            Ok(process) => found.push((entry, process)),
            Err(reason) if entry.stage == Stage::Serving => {
                tracing::warn!(epoch = entry.epoch, %reason, "the envoy of the snapshot is not adopted");
            }
            Err(reason) => tracing::debug!(epoch = entry.epoch, %reason, "not adopted"),
        }
    }
    // Processes hand over to one another also when nobody looks.
    if let Some((newest, _)) = found.last_mut()
        && newest.stage == Stage::Starting
        && host.serving().await == Some(newest.epoch)
    {
        newest.stage = Stage::Serving;
    }
    let serves = |(entry, _): &(Entry, Box<dyn Process>)| entry.stage == Stage::Serving;
    let adopted = found.iter().rposition(serves).map_or(0, |index| index + 1);
    // Dropped processes are ended.
    found.truncate(adopted);
    if adopted > 0 {
        host.adopted(snapshot.base_id);
    }
    found
}
