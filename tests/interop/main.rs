//! Scenarios with foreign programs: `legate-dataplane` and the operator on Kubernetes with a real
//! Consul server, a real `consul-dataplane` with Legate's server, and a real Vault as its CA.
//!
//! They use `consul`, `consul-dataplane` and `vault` on `PATH`, or the programs in `LEGATE_CONSUL`,
//! `LEGATE_CONSUL_DATAPLANE` and `LEGATE_VAULT`. If one is missing, the scenarios that need it are left out.

mod builtin;
#[path = "../mesh/captured_traffic.rs"]
mod captured_traffic;
mod chains;
#[path = "../kubernetes/cluster.rs"]
#[expect(
    clippy::unwrap_used,
    dead_code,
    reason = "a helper of other tests, which use more of it, and fail like tests themselves"
)]
mod cluster;
mod commands;
mod consul_catalog;
mod consul_dataplane;
mod consul_server;
mod credentials;
mod dns;
mod from_consul;
mod peer_stream;
mod peering;
mod recorded;
mod replacement;
mod resources;
mod scenario;
mod transparent;
mod vault;

use legate_tests::ServiceSpec;

const API: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api",
    protocol: "http",
    upstreams: &[],
};
const WEB: ServiceSpec = ServiceSpec {
    service: "web",
    instance: "web",
    protocol: "http",
    upstreams: &["api"],
};
/// A second instance of the service `api`.
const SECOND: ServiceSpec = ServiceSpec {
    service: "api",
    instance: "api-2",
    protocol: "http",
    upstreams: &[],
};
const DB: ServiceSpec = ServiceSpec {
    service: "db",
    instance: "db",
    protocol: "tcp",
    upstreams: &[],
};
const SHOP: ServiceSpec = ServiceSpec {
    service: "shop",
    instance: "shop",
    protocol: "tcp",
    upstreams: &["db"],
};
