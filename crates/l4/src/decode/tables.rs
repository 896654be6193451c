//! The tables: all messages that the proxy can serve, with the fields of each.
//!
//! A comment above a harmless row says why the field makes no difference. A test compares every table with Envoy's
//! schema.

pub(super) mod access_log;
pub(super) mod cluster;
pub(super) mod core;
pub(super) mod listener;
pub(super) mod rbac;
pub(super) mod tls;
