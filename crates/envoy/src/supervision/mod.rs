//! Keeps Envoy running: epochs that hand over to one another, restarts with a budget, and
//! processes that outlive their supervisor. `README.md` in this folder has the rules, and
//! `docs/supervision.md` what operators see.
//!
//! A machine decides and [`run`] does: the machine takes events and gives actions, without a
//! clock or a process; the driver performs the actions against a host and feeds back what
//! happens. Nothing here reads settings or speaks to a server.

mod config;
mod connections;
mod drive;
mod envoys;
mod files;
mod handle;
mod headroom;
mod host;
mod hot_restart;
mod machine;
mod options;
mod report;
mod resume;
mod version;

#[cfg(test)]
mod tests;

pub use config::EnvoyConfig;
pub use connections::connections_by_port;
pub use drive::run;
pub use envoys::EnvoyHost;
pub use files::{FileError, Owner, Snapshot};
pub use handle::{Controls, Handle, handle};
pub use hot_restart::{HotRestart, SHARED_MEMORY};
pub use machine::{EpochState, Outcome};
pub use options::{MIN_DRAIN, Options, Policy, RestartKind};
pub use report::{Ended, EpochReport, ExitRecord, Report};
