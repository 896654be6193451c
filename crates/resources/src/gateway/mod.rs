//! What gateways for clients outside the mesh share: their listeners, TLS, and routes by host. Each
//! function has narrow inputs; the kinds of gateways compose the parts.

pub(crate) mod backend;
pub(crate) mod bind;
pub(crate) mod certificates;
pub(crate) mod changes;
pub(crate) mod cluster;
pub(crate) mod datagrams;
pub(crate) mod edge;
pub(crate) mod external;
pub(crate) mod http;
pub(crate) mod listener;
mod matching;
pub(crate) mod origination;
pub(crate) mod rules;
pub(crate) mod settings;
pub(crate) mod terminating;
pub(crate) mod tls;
