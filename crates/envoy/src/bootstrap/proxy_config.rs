//! The proxy configuration keys that affect the bootstrap document. They are decoded weakly, as in
//! Consul: numbers and booleans are converted to text, and a single value counts as a list of one.
//! Keys for the server are ignored.

use std::net::SocketAddr;

use serde_json::{Map, Value};

use super::error::BootstrapError;
use super::object::parse_object;
use super::sink_address::SinkAddress;

/// The keys of a proxy's `Config` that the bootstrap document depends on. Absent, empty and `null`
/// are equivalent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `envoy_prometheus_bind_addr`: address of the Prometheus listener.
    pub prometheus_bind_addr: Option<SocketAddr>,
    /// `envoy_stats_bind_addr`: address of the listener for Envoy's `/stats`.
    pub stats_bind_addr: Option<SocketAddr>,
    /// `envoy_statsd_url`, with variables expanded.
    pub statsd: Option<SinkAddress>,
    /// `envoy_dogstatsd_url`, likewise.
    pub dogstatsd: Option<SinkAddress>,
    /// `envoy_stats_tags`: `name=value` each.
    pub stats_tags: Vec<String>,
    /// `envoy_extra_stats_sinks_json`.
    pub extra_stats_sinks: Vec<Value>,
    /// `envoy_stats_config_json`: replaces the whole `stats_config`.
    pub stats_config: Option<Value>,
    /// `envoy_stats_flush_interval`: a duration in Envoy's JSON format.
    pub stats_flush_interval: Option<String>,
    /// `envoy_tracing_json`.
    pub tracing: Option<Value>,
    /// `envoy_extra_static_clusters_json`.
    pub extra_static_clusters: Vec<Value>,
    /// `envoy_extra_static_listeners_json`.
    pub extra_static_listeners: Vec<Value>,
    /// `envoy_bootstrap_json_tpl`: a Go template for the whole document.
    pub bootstrap_json_tpl: Option<String>,
    /// `envoy_telemetry_collector_bind_socket_dir`.
    pub telemetry_collector_bind_socket_dir: Option<String>,
}

impl ProxyConfig {
    /// Decodes the keys of a proxy's configuration. `variable` looks up environment variables for
    /// sink addresses.
    ///
    /// # Errors
    /// When a key is invalid; the error names it.
    pub fn decode(
        config: &Map<String, Value>,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, BootstrapError> {
        let text = |key| text(config, key);
        let address = |key| read(config, key, bind_address);
        let sink = |key| read(config, key, |url| SinkAddress::read(url, variable));
        let object = |key| read(config, key, object);
        let objects = |key| read(config, key, objects).map(Option::unwrap_or_default);
        Ok(Self {
            prometheus_bind_addr: address("envoy_prometheus_bind_addr")?,
            stats_bind_addr: address("envoy_stats_bind_addr")?,
            statsd: sink("envoy_statsd_url")?,
            dogstatsd: sink("envoy_dogstatsd_url")?,
            stats_tags: list(config, "envoy_stats_tags")?,
            extra_stats_sinks: objects("envoy_extra_stats_sinks_json")?,
            stats_config: object("envoy_stats_config_json")?,
            stats_flush_interval: read(config, "envoy_stats_flush_interval", flush_interval)?,
            tracing: object("envoy_tracing_json")?,
            extra_static_clusters: objects("envoy_extra_static_clusters_json")?,
            extra_static_listeners: objects("envoy_extra_static_listeners_json")?,
            bootstrap_json_tpl: text("envoy_bootstrap_json_tpl")?,
            telemetry_collector_bind_socket_dir: text("envoy_telemetry_collector_bind_socket_dir")?,
        })
    }

    /// Problems that users should fix.
    pub(super) fn warnings(&self) -> Vec<String> {
        let sinks = [
            ("envoy_statsd_url", &self.statsd),
            ("envoy_dogstatsd_url", &self.dogstatsd),
        ];
        let warnings = sinks.into_iter().filter_map(|(key, sink)| {
            let warning = sink.as_ref()?.warning()?;
            Some(format!("proxy config key {key}: {warning}"))
        });
        warnings.collect()
    }
}

/// The value of `key`. An exact match takes precedence over one that differs in case.
fn find<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let other = || {
        config
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
    };
    config.get(key).or_else(|| other().map(|(_, value)| value))
}

/// Parses the text of `key`.
fn read<T>(
    config: &Map<String, Value>,
    key: &str,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Option<T>, BootstrapError> {
    let parsed = text(config, key)?.map(|text| parse(&text)).transpose();
    parsed.map_err(|reason| BootstrapError::key(key, reason))
}

fn text(config: &Map<String, Value>, key: &str) -> Result<Option<String>, BootstrapError> {
    let value = find(config, key)
        .map(|value| weak_text(key, value))
        .transpose()?;
    Ok(value.filter(|text| !text.is_empty()))
}

fn list(config: &Map<String, Value>, key: &str) -> Result<Vec<String>, BootstrapError> {
    let items = match find(config, key) {
        None => &[],
        Some(Value::Object(none)) if none.is_empty() => &[],
        Some(Value::Array(items)) => items.as_slice(),
        Some(scalar) => std::slice::from_ref(scalar),
    };
    let texts = items.iter().map(|item| weak_text(key, item));
    let mut texts = texts.collect::<Result<Vec<String>, _>>()?;
    texts.retain(|text| !text.is_empty());
    Ok(texts)
}

fn weak_text(key: &str, value: &Value) -> Result<String, BootstrapError> {
    let wrong = |found| {
        BootstrapError(format!(
            "proxy config key {key} takes text, not {found}: change it in the proxy's registration or in proxy-defaults"
        ))
    };
    match value {
        Value::Null => Ok(String::new()),
        Value::Bool(set) => Ok(u8::from(*set).to_string()),
        // Numbers arrive as floats in the server's protobuf; 60.0 has to become 60.
        Value::Number(number) => Ok(match number.as_f64() {
            Some(float) if number.is_f64() => float.to_string(),
            _ => number.to_string(),
        }),
        Value::String(text) => Ok(text.clone()),
        Value::Array(_) => Err(wrong("a list")),
        Value::Object(_) => Err(wrong("an object")),
    }
}

fn bind_address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        format!("{text:?} is not an IP address with a port (like 0.0.0.0:9102 or [::]:9102)")
    })
}

fn object(text: &str) -> Result<Value, String> {
    parse_object(text).map_err(|error| format!("not valid JSON (one object): {error}"))
}

/// JSON objects separated by commas.
fn objects(text: &str) -> Result<Vec<Value>, String> {
    let objects: Vec<Map<String, Value>> = serde_json::from_str(&format!("[{text}]"))
        .map_err(|error| format!("not valid JSON (objects separated by commas): {error}"))?;
    Ok(objects.into_iter().map(Value::Object).collect())
}

/// A duration in Envoy's JSON format, within Envoy's limits.
fn flush_interval(text: &str) -> Result<String, String> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let valid = text.strip_suffix('s').is_some_and(|seconds| {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
        // Envoy accepts at most nanoseconds.
        digits(whole)
            && digits(fraction)
            && fraction.len() <= 9
            && (seconds.parse()).is_ok_and(|seconds: f64| (0.001..300.0).contains(&seconds))
    });
    valid.then(|| text.to_owned()).ok_or_else(|| {
        format!(
            "{text:?} is not a number of seconds with the unit s, from 0.001s to less than 300s (like 5s or 0.5s)"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(value: Value) -> Result<ProxyConfig, BootstrapError> {
        let variable = |name: &str| (name == "DSD").then(|| "unix:///run/dsd.socket".to_owned());
        ProxyConfig::decode(value.as_object().unwrap(), &variable)
    }

    const TEXT: &str = "envoy_telemetry_collector_bind_socket_dir";

    #[test]
    fn values_are_typed_weakly() {
        for (value, expected) in [
            (json!(60.0), Some("60")),
            (json!(60.5), Some("60.5")),
            (json!(7), Some("7")),
            (json!(true), Some("1")),
            (json!("text"), Some("text")),
            (json!(null), None),
            (json!(""), None),
        ] {
            let keys = json!({ TEXT: value, "protocol": {"ignored": true}, "logger": "harmless" });
            let config = decode(keys).unwrap();
            let text = config.telemetry_collector_bind_socket_dir.as_deref();
            assert_eq!(text, expected, "{value}");
        }
    }

    #[test]
    fn the_exact_key_wins_over_another_case() {
        let upper = TEXT.to_uppercase();
        let text = |keys| decode(keys).unwrap().telemetry_collector_bind_socket_dir;
        let both = json!({ upper.clone(): "b", TEXT: "a" });
        assert_eq!(text(both).as_deref(), Some("a"));
        assert_eq!(text(json!({ upper: "b" })).as_deref(), Some("b"));
    }

    #[test]
    fn sinks_have_plain_addresses_and_are_warned_of() {
        let url = "unix:///run/$POD/dsd";
        let keys = json!({ "envoy_statsd_url": "$DSD", "envoy_dogstatsd_url": url });
        let config = decode(keys).unwrap();
        assert_eq!(
            config.statsd.as_ref().unwrap().to_string(),
            "unix:///run/dsd.socket"
        );
        let warnings = config.warnings();
        assert_eq!(warnings.len(), 1);
        assert!(
            warnings[0].contains("envoy_dogstatsd_url") && warnings[0].contains("${POD}"),
            "{warnings:?}"
        );
    }

    #[test]
    fn structures_where_text_belongs_are_refused_by_name() {
        let error = decode(json!({"envoy_statsd_url": {}}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("envoy_statsd_url") && error.contains("an object"),
            "{error}"
        );
        let error = decode(json!({"envoy_stats_tags": [["a"]]}))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("envoy_stats_tags") && error.contains("a list"),
            "{error}"
        );
    }

    #[test]
    fn lists_take_one_value_and_drop_empty_ones() {
        for (value, expected) in [
            (json!("a"), vec!["a"]),
            (json!(7), vec!["7"]),
            (json!(["a", null, true, "", 1.5]), vec!["a", "1", "1.5"]),
            (json!(null), vec![]),
            (json!(""), vec![]),
            (json!({}), vec![]),
        ] {
            let config = decode(json!({ "envoy_stats_tags": value })).unwrap();
            assert_eq!(config.stats_tags, expected, "{value}");
        }
        assert!(decode(json!({ "envoy_stats_tags": { "a": "b" } })).is_err());
    }

    #[test]
    fn a_template_is_text_too() {
        let config = decode(json!({ "Envoy_Bootstrap_JSON_tpl": "{}" })).unwrap();
        assert_eq!(config.bootstrap_json_tpl.as_deref(), Some("{}"));
        assert!(decode(json!({ "envoy_bootstrap_json_tpl": {} })).is_err());
    }
}
