//! Validation of config entries before a write, on their own and together with existing entries. Consul's rules
//! and texts. Each rule is a function of the resulting state, independent of the caller and its permissions.

pub(crate) mod change;
mod exports;
mod gateways;
pub(crate) mod graph;
pub(crate) mod jwt_providers;
mod permissive;
pub(crate) mod protocol;
