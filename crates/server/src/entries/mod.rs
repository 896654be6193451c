//! What a config entry has to be before it is written: by itself, and together with the others that are
//! there. Consul's rules and texts. A rule is a function of a state, the one as it would be; who may write,
//! and where the entry came from, is not known here.

pub(crate) mod change;
mod gateways;
pub(crate) mod graph;
pub(crate) mod jwt_providers;
mod permissive;
pub(crate) mod protocol;
