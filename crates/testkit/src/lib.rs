//! What tests share: real Envoys, a real etcd, a fake server that misbehaves, a fake Kubernetes API
//! server, certificates, ports, a cuttable network, metrics pages, waiting.
//!
//! Everything here runs on loopback and inside the test's own process (Envoy and etcd apart). A
//! helper that cannot do its work panics and says why: a test has nobody else to tell.

pub mod certs;
pub mod envoy;
pub mod etcd;
pub mod fake_server;
pub mod jwt;
pub mod kubernetes;
pub mod metrics;
pub mod network;
pub mod state;
pub mod wait;
