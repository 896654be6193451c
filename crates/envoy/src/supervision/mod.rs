//! Keeps Envoy running: epochs that hand over to one another, restarts with a retry budget, and
//! processes that outlive their supervisor. `README.md` in this folder has the rules, and
//! `docs/supervision.md` what operators see.
//!
//! A state machine takes events and returns actions, without a clock or processes. Its driver,
//! [`run`], performs the actions on a host and feeds back events. Independent of settings and
//! servers.

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
