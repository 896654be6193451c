//! Foundations of every program: task scopes, termination, readiness, clock, backoff, the limit on
//! open files, limits of connections, a minimal HTTP client and server, logs and metrics.
//!
//! The only crate that spawns tasks. Never reads the environment, never ends the process, and
//! contains no application logic.

pub mod scope;

pub mod admission;
pub mod backoff;
pub mod clock;
pub mod file_limit;
pub mod file_stamp;
pub mod heap;
pub mod http_client;
pub mod http_server;
pub mod logging;
pub mod metrics;
pub mod net;
pub mod pool;
pub mod program;
pub mod readiness;
pub mod rotating_file;
pub mod throttle;

pub use backoff::{Backoff, BackoffPolicy};
pub use clock::Clock;
pub use pool::{Pool, Share};
pub use program::block_on;
pub use readiness::{Component, Readiness, ReadyHandle, ReadyState};
pub use scope::{BoxError, Scope, Spawner, StopError, TaskCause, TaskError};
pub use throttle::Throttle;
pub use tokio_util::sync::CancellationToken;
