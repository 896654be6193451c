//! What the driver tells others of its processes: the report, the pid file, the snapshot, and how it
//! all ended. It starts and signals nothing.

use super::super::files::{Entry, FileError, Snapshot, Stage, StateFile};
use super::super::host::{Host, Process};
use super::super::machine::{EpochState, Outcome};
use super::super::options::Ended;
use super::super::report::EpochReport;
use super::Driver;

impl<H: Host> Driver<H> {
    pub(super) fn publish(&mut self) {
        let running = &self.running;
        let epochs = self.machine.epochs().iter().filter_map(|epoch| {
            let running = running.get(&epoch.run)?;
            Some(EpochReport {
                epoch: epoch.epoch,
                pid: running.process.pid(),
                state: epoch.state,
                since: running.since,
                adopted: running.adopted,
            })
        });
        self.state.epochs = epochs.collect();
        self.state.obstacle = self.host.obstacle();
        self.state.stopping = self.machine.stopping();
        if let Some(file) = &mut self.pid_file {
            match self.state.current() {
                Some(current) => file.keep(format!("{}\n", current.pid).into_bytes()),
                // The number may soon be another's, unless the process lives on.
                None if self.machine.outcome().is_none() => file.remove(),
                None => {}
            }
        }
        self.report.send_if_modified(|report| {
            let changed = *report != self.state;
            if changed {
                report.clone_from(&self.state);
            }
            changed
        });
    }

    pub(super) fn write_snapshot(&mut self) -> Result<(), FileError> {
        let content = self.snapshot_content();
        match &mut self.snapshot {
            Some(file) => file.set(content).map(drop),
            None => Ok(()),
        }
    }

    pub(super) fn keep_snapshot(&mut self) {
        if self.snapshot.is_none() {
            return;
        }
        let content = self.snapshot_content();
        if let Some(file) = &mut self.snapshot {
            file.keep(content);
        }
    }

    fn snapshot_content(&self) -> Vec<u8> {
        let entries = self.machine.epochs().iter().filter_map(|epoch| {
            let running = self.running.get(&epoch.run)?;
            Some(Entry {
                epoch: epoch.epoch,
                fingerprint: running.fingerprint.clone(),
                stage: match epoch.state {
                    EpochState::Starting => Stage::Starting,
                    state if state.serves() => Stage::Serving,
                    _ => Stage::Leaving,
                },
                identity: running.process.identity()?,
            })
        });
        let entries = entries.collect();
        let snapshot = Snapshot::new(self.owner.clone(), self.host.base_id(), entries);
        // A snapshot is numbers and short texts, which always have a form.
        serde_json::to_vec_pretty(&snapshot).unwrap_or_default()
    }

    pub(super) fn end(mut self) -> Ended {
        self.publish();
        let outcome = self
            .machine
            .outcome()
            .unwrap_or(Outcome::Stopped { forced: false });
        if outcome != Outcome::Released {
            self.pid_file.iter_mut().for_each(StateFile::remove);
            self.snapshot.iter_mut().for_each(StateFile::remove);
        }
        Ended {
            outcome,
            last: self.state.exits.back().cloned(),
            refused: outcome == Outcome::Spent && self.machine.refused(),
            refusal: self.state.refusal.take(),
        }
    }
}
