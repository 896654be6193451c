//! Settings that are understood and not served. One that would silently do nothing where someone
//! relies on it is refused; one that does no harm is named in a warning.

use super::table::Item;
use super::types::{Mode, Settings};
use super::values::Values;

/// A setting that asks for what this version does not do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// DNS alone.
    #[error(
        "-mode=dns-proxy is not served by this version of legate-dataplane: run consul-dataplane for it, or use -mode=sidecar"
    )]
    DnsProxyMode,
    /// DNS in a sidecar.
    #[error(
        "-consul-dns-bind-port {0} asks for DNS, which this version of legate-dataplane does not answer: leave it out or set it to -1"
    )]
    Dns(u16),
}

/// Refuses what nobody would notice missing until it hurts.
pub(super) fn refuse(settings: &Settings) -> Result<(), Unserved> {
    if settings.mode == Mode::DnsProxy {
        return Err(Unserved::DnsProxyMode);
    }
    match settings.dns {
        Some(address) => Err(Unserved::Dns(address.port())),
        None => Ok(()),
    }
}

/// What was set and has no effect.
const WITHOUT_EFFECT: [(Item, &str); 2] = [
    (
        Item::PromRetentionTime,
        "metrics stay visible as long as the process runs",
    ),
    (
        Item::PromServiceMetricsUrl,
        "the application's metrics are not merged, scrape them directly",
    ),
];

/// One warning for each setting that was given and has no effect.
pub(super) fn warnings(values: &Values) -> Vec<String> {
    WITHOUT_EFFECT
        .iter()
        .filter(|(key, _)| values.given(*key))
        .map(|(key, instead)| {
            format!(
                "-{} has no effect in this version: {instead}",
                key.setting().flag
            )
        })
        .collect()
}
