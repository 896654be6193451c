//! The Envoy process: its command line, its start as a child or as a detached process, and how it
//! ended. The supervisor decides when to stop it.

mod arguments;
mod child;
mod detached;
mod document;
mod exit;
mod identity;
mod launch;
mod messages;
mod parent_death;
mod running;

pub(crate) use arguments::hot_restart_option;
pub(crate) use child::{ValidationError, run_short};
pub(crate) use detached::DetachedProcess;
pub use exit::ExitReason;
pub use identity::Identity;
pub use launch::{DrainStrategy, EnvoyLog, HotRestartRole, Launch, SpawnError};
pub use parent_death::tie;
pub use running::Process;
