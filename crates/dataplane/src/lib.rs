//! The sidecar: configuration, session, bootstrap, Envoy, xDS relay, lifecycle, metrics.

pub mod bootstrap;
pub mod dns;
mod http_server;
pub mod l4;
pub mod leave;
pub mod lifecycle;
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

pub use self::run::run;
