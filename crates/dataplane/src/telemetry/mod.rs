//! The dataplane's own metrics, and the merged metrics of dataplane, Envoy and application.
//!
//! Names are those of Consul's dataplane for metrics with the same meaning. Prometheus scrapes them; statsd and
//! dogstatsd sinks receive them. Envoy sends its own metrics to its sinks itself.

mod families;
mod fetch;
mod observed;
mod page;
mod process;
mod push;
mod registry;
mod serve;
mod sinks;
mod stages;

pub(crate) use self::families::PREFIX;
pub use self::fetch::Target;
pub use self::page::{Merger, Source};
pub use self::push::Dialect;
pub use self::registry::Telemetry;
pub use self::serve::{Endpoints, OWN_METRICS_PORT, start};
pub use self::sinks::{Sink, push};
pub use self::stages::{Stage, Stages};

#[cfg(test)]
mod tests;
