//! Serves the Gateway API of a Kubernetes cluster.
//!
//! ```text
//! watches ─► Cluster ─► legate_gateway_api::resolve ─┬─► status     conditions of objects
//!                          ▲                         ├─► infrastructure   proxies and Services
//!                          │                         └─► rows       what proxies serve
//!            what proxies have acknowledged ◄─────────── servers ◄──┘
//! ```
//!
//! Consul's servers take config entries instead of rows, and say what has become of these.
//!
//! `core` decides what to do next, from everything that is known of the cluster, and the driver
//! makes the calls. Only the leader runs it. It changes nothing of other controllers, and has no
//! finalizers: what belongs to a Gateway is removed by Kubernetes with it.

mod class_config;
mod cluster;
mod core;
mod disabled;
mod driver;
mod endpoints;
mod entries;
mod fronts;
mod infrastructure;
mod kinds;
mod pods;
mod rights;
mod rows;
mod status;
mod stored;
mod watches;

pub use self::disabled::remove_frontends;
pub use self::driver::{Options, run};
pub(crate) use self::rights::reader;

/// The name of the controller, which GatewayClasses have to name.
pub const CONTROLLER: &str = "legate/gateway-controller";
