//! Access logs of a proxy's own listeners, as JSON for its Envoy bootstrap. Access logs of mesh listeners are
//! configured over xDS.

use legate_model::{AccessLogs, AccessLogsType, LogFormat};
use serde_json::json;

/// The name of the access logger. Consul's.
const NAME: &str = "Consul Listener Filter Log";

/// One document if access logs are enabled, else none. If `JSONFormat` is not a JSON object, a warning is
/// logged and the default format is used.
pub(super) fn of(settings: &AccessLogs) -> Vec<String> {
    if !settings.enabled {
        return Vec::new();
    }
    let format = match settings.format().unwrap_or_else(|error| {
        tracing::warn!(%error, "AccessLogs.JSONFormat is not a JSON object; using the default format");
        LogFormat::default()
    }) {
        LogFormat::Text(line) => json!({"text_format_source": {"inline_string": line}}),
        LogFormat::Json(keys) => json!({"json_format": keys}),
    };
    let mut config = json!({
        "@type": format!("type.googleapis.com/{}", settings.logger()),
        "log_format": format,
    });
    if settings.r#type == AccessLogsType::File {
        config["path"] = settings.path.clone().into();
    }
    vec![json!({"name": NAME, "typed_config": config}).to_string()]
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn document(settings: AccessLogs) -> Value {
        let [document] = &of(&settings)[..] else {
            panic!("{settings:?}");
        };
        serde_json::from_str(document).unwrap()
    }

    fn enabled() -> AccessLogs {
        AccessLogs {
            enabled: true,
            ..AccessLogs::default()
        }
    }

    #[test]
    fn off_by_default() {
        assert!(of(&AccessLogs::default()).is_empty());
    }

    #[test]
    fn json_on_standard_output_by_default() {
        let config = &document(enabled())["typed_config"];
        assert_eq!(
            config["@type"],
            "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog"
        );
        let keys = config["log_format"]["json_format"].as_object().unwrap();
        assert_eq!(keys.len(), 24);
        assert_eq!(keys["method"], "%REQ(:METHOD)%");
    }

    #[test]
    fn text_to_a_file() {
        let config = &document(AccessLogs {
            r#type: AccessLogsType::File,
            path: "/var/log/proxy".to_owned(),
            text_format: "%PROTOCOL%".to_owned(),
            ..enabled()
        })["typed_config"];
        assert_eq!(config["path"], "/var/log/proxy");
        let line = &config["log_format"]["text_format_source"]["inline_string"];
        assert_eq!(line, "%PROTOCOL%\n");
    }

    #[test]
    fn custom_keys_or_the_default_if_invalid() {
        let with = |text: &str| {
            let config = document(AccessLogs {
                r#type: AccessLogsType::Stderr,
                json_format: text.to_owned(),
                ..enabled()
            });
            let keys = config["typed_config"]["log_format"]["json_format"].clone();
            keys.as_object().unwrap().len()
        };
        assert_eq!(with(r#"{"a": "%PROTOCOL%"}"#), 1);
        assert_eq!(with("nonsense"), 24);
    }
}
