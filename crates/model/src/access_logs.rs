//! Translates access-log settings for Envoy: which logger writes the log, and the format of a line.
//! Used for a proxy's bootstrap and its mesh listeners.

use serde_json::{Map, Value};

use crate::proxy::{AccessLogs, AccessLogsType};

/// Keys and Envoy operators of the default JSON format, as in Consul.
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

/// Format of a log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogFormat {
    /// Envoy's format string, including the line break.
    Text(String),
    /// A JSON object whose values are Envoy's format strings.
    Json(Map<String, Value>),
}

impl Default for LogFormat {
    /// Consul's default keys as JSON.
    fn default() -> Self {
        let pair = |(key, operator): (&str, &str)| (key.to_owned(), operator.into());
        Self::Json(DEFAULT_FORMAT.map(pair).into_iter().collect())
    }
}

impl AccessLogs {
    /// The full name of the Envoy message that configures the logger.
    pub fn logger(&self) -> &'static str {
        match self.r#type {
            AccessLogsType::Default | AccessLogsType::Stdout => {
                "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog"
            }
            AccessLogsType::Stderr => "envoy.extensions.access_loggers.stream.v3.StderrAccessLog",
            AccessLogsType::File => "envoy.extensions.access_loggers.file.v3.FileAccessLog",
        }
    }

    /// The format of a line. If both formats are set, which writes refuse, JSON takes precedence.
    ///
    /// # Errors
    ///
    /// When `JSONFormat` is not a JSON object. Writes refuse such values, but proxies that were
    /// registered earlier may have one; callers then use the default.
    pub fn format(&self) -> Result<LogFormat, serde_json::Error> {
        if !self.json_format.is_empty() {
            return serde_json::from_str(&self.json_format).map(LogFormat::Json);
        }
        Ok(match self.text_format.as_str() {
            "" => LogFormat::default(),
            text => LogFormat::Text(format!("{}\n", text.strip_suffix('\n').unwrap_or(text))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let text = |text: &str| AccessLogs {
            text_format: text.to_owned(),
            ..AccessLogs::default()
        };
        for line in ["%PROTOCOL%", "%PROTOCOL%\n"] {
            let format = text(line).format().unwrap();
            assert_eq!(format, LogFormat::Text("%PROTOCOL%\n".to_owned()));
        }
        let Ok(LogFormat::Json(keys)) = text("").format() else {
            panic!("the default is JSON");
        };
        assert_eq!(
            (keys.len(), &keys["method"]),
            (24, &"%REQ(:METHOD)%".into())
        );
        let json = |json: &str| AccessLogs {
            json_format: json.to_owned(),
            ..text("not this")
        };
        let own = json(r#"{"a": "%PROTOCOL%"}"#).format().unwrap();
        assert!(matches!(own, LogFormat::Json(keys) if keys.len() == 1));
        assert!(json("[]").format().is_err());
    }
}
