//! Whole-mesh scenarios with real Envoys: the behaviour that users rely on, seen from outside.

mod api_gateways;
mod auto;
mod builtin;
mod builtin_life;
mod captured_traffic;
mod chains;
mod cluster_gateways;
mod datacenters;
mod dev;
mod edge;
mod egress;
mod extensions;
mod federation_breaks;
mod federation_document;
mod gateway_end;
mod gateway_streams;
mod generated_routes;
mod grpc;
mod ingress;
mod instances;
mod intentions;
mod key_servers;
mod limits;
mod login;
mod mesh_gateway;
mod metrics;
mod outage;
mod peering;
mod peering_document;
mod permissive;
mod picks;
mod prepared_queries;
mod process;
mod refusals;
mod repeats;
mod requests;
mod restart;
mod rotation;
mod route_settings;
mod service_routes;
mod settings;
mod spans;
mod state_dir;
mod tenants;
mod terminating;
mod tokens;
mod traffic;
mod transparent;
mod unusable;
mod virtual_names;
mod websockets;

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
