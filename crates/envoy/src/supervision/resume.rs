//! Taking over from a former supervisor: which processes of its snapshot go on, and which end.

use super::files::{Entry, Snapshot, Stage};
use super::host::Host;
use crate::process::Process;

/// The processes of a snapshot that are taken over, the one that serves last. What does not
/// serve yet, or cannot serve without another that is gone, is ended.
pub(super) async fn adopt(
    host: &mut impl Host,
    snapshot: Option<Snapshot>,
) -> Vec<(Entry, Box<dyn Process>)> {
    let Some(snapshot) = snapshot else {
        return Vec::new();
    };
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
    let starting = found
        .last()
        .filter(|(entry, _)| entry.stage == Stage::Starting);
    if let Some(epoch) = starting.map(|(entry, _)| entry.epoch)
        && host.serving().await == Some(epoch)
    {
        for (entry, _) in &mut found {
            entry.stage = match entry.epoch == epoch {
                true => Stage::Serving,
                false => Stage::Leaving,
            };
        }
    }
    let serving = found
        .iter()
        .rposition(|(entry, _)| entry.stage == Stage::Serving);
    // Dropped processes are ended.
    found.truncate(serving.map_or(0, |index| index + 1));
    if serving.is_some() {
        host.adopted(snapshot.base_id);
    }
    found
}
