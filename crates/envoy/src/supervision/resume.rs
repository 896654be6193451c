//! Takes over from a former supervisor: decides which processes of its snapshot are adopted, and
//! which are ended.

use super::files::{Entry, Snapshot, Stage};
use super::host::Host;
use crate::process::Process;

/// Adopts processes of a snapshot: the last one serves, earlier ones have handed over. Processes
/// that do not serve yet, or depend on one that is gone, are ended.
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
    // Processes hand over to one another even without a supervisor.
    if let Some((newest, _)) = found.last_mut()
        && newest.stage == Stage::Starting
        && host.serving().await == Some(newest.epoch)
    {
        newest.stage = Stage::Serving;
    }
    let serves = |(entry, _): &(Entry, Box<dyn Process>)| entry.stage == Stage::Serving;
    let adopted = found.iter().rposition(serves).map_or(0, |index| index + 1);
    // Dropping a process ends it.
    found.truncate(adopted);
    if adopted > 0 {
        host.adopted(snapshot.base_id);
    }
    found
}
