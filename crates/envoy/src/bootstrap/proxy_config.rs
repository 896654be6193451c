//! The proxy-config keys that shape the bootstrap document, decoded weakly as Consul's users
//! know it: numbers and booleans become text, one value stands for a list of one. Keys that
//! belong to the server's side are not looked at.

use serde_json::{Map, Value};

use super::BootstrapError;

/// The keys of a proxy's `Config` that the bootstrap document depends on. Absent, empty and
/// `null` are all `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyConfig {
    /// `envoy_prometheus_bind_addr`: where Prometheus scrapes.
    pub prometheus_bind_addr: Option<String>,
    /// `envoy_stats_bind_addr`: where Envoy's `/stats` is offered.
    pub stats_bind_addr: Option<String>,
    /// `envoy_statsd_url`.
    pub statsd_url: Option<String>,
    /// `envoy_dogstatsd_url`.
    pub dogstatsd_url: Option<String>,
    /// `envoy_stats_tags`: `name=value` each.
    pub stats_tags: Vec<String>,
    /// `envoy_extra_stats_sinks_json`: JSON objects, separated by commas.
    pub extra_stats_sinks_json: Option<String>,
    /// `envoy_stats_config_json`: replaces the whole `stats_config`.
    pub stats_config_json: Option<String>,
    /// `envoy_stats_flush_interval`.
    pub stats_flush_interval: Option<String>,
    /// `envoy_tracing_json`.
    pub tracing_json: Option<String>,
    /// `envoy_extra_static_clusters_json`: JSON objects, separated by commas.
    pub extra_static_clusters_json: Option<String>,
    /// `envoy_extra_static_listeners_json`: JSON objects, separated by commas.
    pub extra_static_listeners_json: Option<String>,
    /// `envoy_bootstrap_json_tpl`: a Go template that makes the whole document.
    pub bootstrap_json_tpl: Option<String>,
    /// `envoy_telemetry_collector_bind_socket_dir`.
    pub telemetry_collector_bind_socket_dir: Option<String>,
}

impl ProxyConfig {
    /// Reads the keys from a proxy's configuration.
    ///
    /// # Errors
    /// When a key holds an object or a list where text belongs.
    pub fn decode(config: &Map<String, Value>) -> Result<Self, BootstrapError> {
        let text = |key| text(config, key);
        Ok(Self {
            prometheus_bind_addr: text("envoy_prometheus_bind_addr")?,
            stats_bind_addr: text("envoy_stats_bind_addr")?,
            statsd_url: text("envoy_statsd_url")?,
            dogstatsd_url: text("envoy_dogstatsd_url")?,
            stats_tags: list(config, "envoy_stats_tags")?,
            extra_stats_sinks_json: text("envoy_extra_stats_sinks_json")?,
            stats_config_json: text("envoy_stats_config_json")?,
            stats_flush_interval: text("envoy_stats_flush_interval")?,
            tracing_json: text("envoy_tracing_json")?,
            extra_static_clusters_json: text("envoy_extra_static_clusters_json")?,
            extra_static_listeners_json: text("envoy_extra_static_listeners_json")?,
            bootstrap_json_tpl: text("envoy_bootstrap_json_tpl")?,
            telemetry_collector_bind_socket_dir: text("envoy_telemetry_collector_bind_socket_dir")?,
        })
    }
}

/// The value under `key`: the exact spelling wins over another one of the same letters.
fn find<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    config.get(key).or_else(|| {
        config
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value)
    })
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
    let mut texts = Vec::new();
    for item in items {
        texts.push(weak_text(key, item)?);
    }
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
        Value::Bool(true) => Ok("1".to_owned()),
        Value::Bool(false) => Ok("0".to_owned()),
        // Numbers arrive as floats from the server's protobuf; 60.0 has to read 60.
        Value::Number(number) => Ok(match number.as_f64() {
            Some(float) if number.is_f64() => float.to_string(),
            _ => number.to_string(),
        }),
        Value::String(text) => Ok(text.clone()),
        Value::Array(_) => Err(wrong("a list")),
        Value::Object(_) => Err(wrong("an object")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn decode(value: Value) -> Result<ProxyConfig, BootstrapError> {
        ProxyConfig::decode(value.as_object().unwrap())
    }

    #[test]
    fn values_are_typed_weakly() {
        let config = decode(json!({
            "envoy_stats_flush_interval": 60.0,
            "envoy_statsd_url": 60.5,
            "envoy_dogstatsd_url": true,
            "envoy_stats_bind_addr": null,
            "envoy_tracing_json": "",
            "envoy_stats_tags": "one=1",
            "envoy_prometheus_bind_addr": 7,
            "protocol": {"ignored": true},
            "logger": "harmless",
        }))
        .unwrap();
        assert_eq!(config.stats_flush_interval.as_deref(), Some("60"));
        assert_eq!(config.statsd_url.as_deref(), Some("60.5"));
        assert_eq!(config.dogstatsd_url.as_deref(), Some("1"));
        assert_eq!(config.prometheus_bind_addr.as_deref(), Some("7"));
        assert_eq!((config.stats_bind_addr, config.tracing_json), (None, None));
        assert_eq!(config.stats_tags, ["one=1"]);
    }

    #[test]
    fn the_exact_key_wins_over_another_case() {
        let config = decode(json!({"ENVOY_STATSD_URL": "b", "envoy_statsd_url": "a"})).unwrap();
        assert_eq!(config.statsd_url.as_deref(), Some("a"));
        let config = decode(json!({"Envoy_Statsd_URL": "b"})).unwrap();
        assert_eq!(config.statsd_url.as_deref(), Some("b"));
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
