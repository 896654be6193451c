//! The Envoy process: its command line, its start, as a child or as one that outlives this program,
//! and how it ended. Decides nothing about when to stop; that is the supervisor's.

mod arguments;
mod child;
mod detached;
mod document;
mod exit;
mod identity;
mod launch;
mod parent_death;
mod running;
mod words;

pub(crate) use arguments::hot_restart_option;
pub(crate) use child::{ValidationError, run_short};
pub(crate) use detached::DetachedProcess;
pub use exit::ExitReason;
pub use identity::Identity;
pub use launch::{DrainStrategy, EnvoyLog, Launch, Place, SpawnError};
pub use parent_death::tie;
pub use running::Process;
