//! Integration tests: running servers and real clients.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of tests fails like the tests themselves: with a panic at the place"
)]

mod acl;
mod acl_model;
mod auth_methods;
mod ca;
mod connections;
mod datacenters;
mod datacenters_ca;
mod datacenters_cuts;
mod datacenters_gateways;
mod datacenters_mesh;
mod datacenters_replication;
mod dns;
mod durable;
mod fake_vault;
mod filter_model;
mod foreign;
mod full_disk;
mod go_client;
mod grpc;
mod grpc_xds;
mod grpc_xds_gateways;
mod http;
mod http_acl;
mod http_acl_policies;
mod http_acl_questions;
mod http_acl_tenants;
mod http_agent;
mod http_agent_control;
mod http_api_gateways;
mod http_bad_input;
mod http_browsers;
mod http_chain;
mod http_client;
mod http_cluster_gateways;
mod http_entries;
mod http_events;
mod http_existence;
mod http_filters;
mod http_gateways;
mod http_graph;
mod http_intention_ids;
mod http_jwt;
mod http_kv;
mod http_lists;
mod http_mesh;
mod http_nesting;
mod http_noise;
mod http_not_served;
mod http_operator;
mod http_paths;
mod http_peering;
mod http_permissive;
mod http_prepared_query;
mod http_proxies;
mod http_rights;
mod http_sessions;
mod http_tenant_rights;
mod http_tenants;
mod http_transactions;
mod http_ui;
mod http_virtual_ips;
mod https;
mod kubernetes_logins;
mod lifecycle;
mod many_queries;
mod operations;
mod peering;
mod running;
mod tenant_mesh;
mod vault;
