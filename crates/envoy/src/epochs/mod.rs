//! Keeps Envoy running: epochs that hand over to one another, restarts with a budget, and
//! processes that outlive their supervisor. `docs/supervision.md` has the picture and the table.
//!
//! [`Machine`] decides and [`run`] does: the machine takes events and gives actions, without a
//! clock or a process; the driver performs the actions against a [`Host`] and feeds back what
//! happens. Nothing here reads settings or speaks to a server.

mod config;
mod connections;
mod detached;
mod drive;
mod envoys;
mod files;
mod handle;
mod host;
mod hot_restart;
mod identity;
mod machine;
mod options;
mod policy;
mod report;
mod resume;
mod room;
mod version;

#[cfg(test)]
mod tests;

pub use config::EnvoyConfig;
pub use connections::{Connections, connections};
pub use detached::{DetachedProcess, Envoy};
pub use drive::run;
pub use envoys::EnvoyHost;
pub use files::{Entry, FileError, Owner, Snapshot, Stage};
pub use handle::{Controls, Handle, Stopped, handle};
pub use host::{Host, Process, Work};
pub use hot_restart::{BaseId, HotRestart, Obstacle, PARENT_MARGIN, SHARED_MEMORY};
pub use identity::{Identity, Mismatch};
pub use machine::{
    Action, Adopted, Epoch, EpochState, Event, Exit, Machine, Outcome, Run, Start, Timer, Verdict,
    Way,
};
pub use options::{Ended, Hooks, Options, StartError};
pub use policy::{
    ABORT_WAIT, CRASH_WAIT_CAP, CleanExit, HEALTHY_AFTER, IMMEDIATE_STARTS, MIN_DRAIN, Policy,
    REAP_WAIT, RETRIES, RETRY_INITIAL, crash_wait, retry_wait,
};
pub use report::{EXITS, EpochReport, ExitRecord, Report};
pub use version::{TESTED, untested, version_in};
