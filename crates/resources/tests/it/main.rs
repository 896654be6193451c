//! Snapshots in, Envoy's messages out: golden files for their contents, and properties of their
//! encoding and sharing.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests fail like the tests that call them"
)]

mod api_gateway;
mod changes;
mod describe;
mod edge_rules;
mod edge_traffic;
mod egress;
mod extensions;
mod frontends;
mod gateway_api;
mod gateway_strategies;
mod generated;
mod golden;
mod golden_cases;
mod ingress;
mod intentions;
mod kept;
mod kept_upstreams;
mod mesh_gateway;
mod peers;
mod refused;
mod settings;
mod shared;
mod strategies;
mod support;
mod tokens;
mod transparent;
