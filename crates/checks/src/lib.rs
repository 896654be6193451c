//! Runs the health checks that services and nodes bring along when they are registered with an
//! agent: HTTP, TCP, UDP, gRPC, HTTP/2 pings and, where the settings permit them, programs here
//! and in Docker's containers at an interval; TTL by what is reported, and alias by the health of another service.
//!
//! When to run what, and what a result means, is a machine without IO (`machine`); one task
//! ([`Runner`]) reads the checks of one node from the store, runs them, and writes what they found.
//! It never registers a check, and never decides who may.

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
