//! Fixtures for tests: real Envoys, a real etcd, a fake server with failures, a fake Kubernetes API
//! server, certificates, ports, a network that can be cut, metrics pages, polling, documents whose
//! commands are run, and what tests need from their machine.
//!
//! Everything runs on loopback and, except for Envoy and etcd, in the test process. A helper that
//! fails panics with the reason.

pub mod certs;
pub mod document;
pub mod envoy;
pub mod etcd;
pub mod fake_server;
pub mod jwt;
pub mod kubernetes;
pub mod metrics;
pub mod network;
pub mod requirement;
pub mod state;
pub mod wait;
