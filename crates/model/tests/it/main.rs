//! Tests of the data types from outside: JSON decoding, encoding and validation.

mod acl;
mod acl_policies;
mod authorizer;
mod authorizer_tenants;
mod config_entries;
mod decoding;
mod definitions;
mod durations;
mod egress;
mod filters;
mod gateway_entries;
mod jwt;
mod jwt_provider;
mod registration;
mod served;
mod shapes;
