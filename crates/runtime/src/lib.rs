//! What every component runs on: task scopes, the end of a program, readiness, clock, backoff, the
//! limit of open files, a small HTTP client and server, logs and metrics.
//!
//! This crate is the only one that spawns tasks. It never reads the environment, never ends the
//! process and knows nothing of what runs on it.

pub mod scope;

pub mod backoff;
pub mod clock;
pub mod file_limit;
pub mod file_stamp;
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
