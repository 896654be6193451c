//! The access log of a proxy's own listeners, as a JSON document for its bootstrap. Logs of mesh
//! listeners come over xDS.

use legate_model::{AccessLogs, AccessLogsType};
use serde_json::{Map, Value, json};

/// The name by which the log is known in Envoy. Consul's.
const NAME: &str = "Consul Listener Filter Log";

/// What is logged unless the settings say otherwise: key and Envoy's operator.
const DEFAULT_FORMAT: [(&str, &str); 24] = [
    ("start_time", "%START_TIME%"),
    ("route_name", "%ROUTE_NAME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    (
        "connection_termination_details",
        "%CONNECTION_TERMINATION_DETAILS%",
    ),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    (
        "upstream_transport_failure_reason",
        "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    ),
];

/// One document when logs are on, else none. A JSON format that is no object is logged and
/// replaced by the default.
pub(super) fn of(settings: &AccessLogs) -> Vec<String> {
    if !settings.enabled {
        return Vec::new();
    }
    let logger = match settings.r#type {
        AccessLogsType::Default | AccessLogsType::Stdout => "stream.v3.StdoutAccessLog",
        AccessLogsType::Stderr => "stream.v3.StderrAccessLog",
        AccessLogsType::File => "file.v3.FileAccessLog",
    };
    let mut config = json!({
        "@type": format!("type.googleapis.com/envoy.extensions.access_loggers.{logger}"),
        "log_format": format(settings),
    });
    if settings.r#type == AccessLogsType::File {
        config["path"] = settings.path.clone().into();
    }
    vec![json!({"name": NAME, "typed_config": config}).to_string()]
}

fn format(settings: &AccessLogs) -> Value {
    if !settings.text_format.is_empty() {
        let line = format!("{}\n", settings.text_format.trim_end_matches('\n'));
        return json!({"text_format_source": {"inline_string": line}});
    }
    let default = || {
        let pair = |(key, operator): (&str, &str)| (key.to_owned(), operator.into());
        DEFAULT_FORMAT.map(pair).into_iter().collect()
    };
    let keys: Map<String, Value> = match settings.json_format.as_str() {
        "" => default(),
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            tracing::warn!(%error, "AccessLogs.JSONFormat is not a JSON object: the default is used");
            default()
        }),
    };
    json!({"json_format": keys})
}

#[cfg(test)]
mod tests {
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
    fn json_on_standard_output_when_nothing_is_said() {
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
    fn own_keys_unless_they_cannot_be_read() {
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
