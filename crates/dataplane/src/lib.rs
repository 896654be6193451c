//! The sidecar: configuration, session, bootstrap, Envoy, xDS relay, lifecycle, metrics.

mod ask;
pub mod bootstrap;
pub mod dns;
mod http_server;
pub mod leave;
pub mod lifecycle;
pub mod probe;
mod reaper;
pub mod relay;
pub mod restart;
pub mod run;
pub mod running;
pub mod session_ready;
pub mod settings;
pub mod signals;
pub mod status;
pub mod telemetry;

pub use self::run::{RunError, run};
