//! What can be wrong with the values a bootstrap document is built from.

use std::path::PathBuf;

use legate_go_template::TemplateError;

/// Why there is no bootstrap document. Each names the key of the proxy's configuration, or the
/// setting, that has to change.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// A key holds a value of another type than it takes.
    #[error(
        "proxy config key {key} takes {expected}, not {found}: change it in the proxy's registration or in proxy-defaults"
    )]
    WrongType {
        /// The key.
        key: String,
        /// What it takes.
        expected: &'static str,
        /// What it holds.
        found: &'static str,
    },
    /// A key that takes JSON text holds something else.
    #[error("proxy config key {key} does not hold valid JSON ({expected}): {source}")]
    Json {
        /// The key.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A listener's address is not an IP address with a port.
    #[error(
        "proxy config key {key}: {value:?} is not an IP address with a port (like 0.0.0.0:9102 or [::]:9102)"
    )]
    BindAddress {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
    },
    /// The address of a statistics sink cannot be used.
    #[error("proxy config key {key}: {value:?} {reason}")]
    Sink {
        /// The key.
        key: &'static str,
        /// The address, after variables were replaced.
        value: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The flush interval is no duration that Envoy takes.
    #[error(
        "proxy config key envoy_stats_flush_interval: {value:?} is not a number of seconds with the unit s, from 0.001s \
         to less than 300s (like 5s or 0.5s)"
    )]
    FlushInterval {
        /// The value.
        value: String,
    },
    /// The template of the document is wrong, or uses what is not supported.
    #[error("proxy config key envoy_bootstrap_json_tpl: {0}")]
    Template(#[from] TemplateError),
    /// The template makes something else than a JSON object.
    #[error(
        "proxy config key envoy_bootstrap_json_tpl: template: bootstrap:{line}:{column}: what the template makes here is \
         no valid JSON: {source} of its output, near {near:?}"
    )]
    TemplateOutput {
        /// The template's line, counted from 1, that made the wrong part.
        line: usize,
        /// The byte within the line, counted from 0.
        column: usize,
        /// What the parser said, with the position in the output.
        source: serde_json::Error,
        /// The output around that position.
        near: String,
    },
    /// An access log that the server sent is not a JSON object.
    #[error(
        "access log {position} of the bootstrap parameters is not a JSON object: {source}; see accessLogs in proxy-defaults"
    )]
    AccessLog {
        /// Counted from 1.
        position: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// The CA of the Prometheus listener cannot be read.
    #[error("-telemetry-prom-ca-certs-path {path:?}: {reason}")]
    PrometheusCa {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}
