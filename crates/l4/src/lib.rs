//! The decisions of the built-in L4 proxy: which of Envoy's resources it can serve, which filter chain a connection
//! gets, who may connect, which host is dialled, and what a change of configuration means for open connections.
//!
//! Pure: values in, decisions out. It has no sockets, no tasks and no clock; `legate-dataplane` has those. It never
//! serves a resource of which it does not understand every field.

pub mod access_log;
pub mod balance;
pub mod chains;
pub mod client_hello;
pub mod config;
pub mod decode;
pub mod model;
pub mod outlier;
pub mod plan;
pub mod rbac;
pub mod wire;
