//! Runs the health checks of services and nodes that are registered with an agent. At an interval:
//! HTTP, TCP, UDP, gRPC, HTTP/2 pings and, if the settings permit it, programs on this machine and in
//! Docker containers. TTL checks depend on reports, alias checks on the health of another service.
//!
//! A state machine without IO (`machine`) schedules runs and evaluates results. One task ([`Runner`])
//! reads the checks of one node from the store, runs them, and writes the results. Never registers
//! checks and never authorizes callers.

mod alias;
mod count;
mod expose;
mod machine;
mod probe;
mod runner;
mod runs;
mod settings;

pub use probe::output::shortened;
pub use runner::{ExposesChecks, Gone, Reports, Runner};
pub use settings::{Scripts, Settings};
