//! Envoy's telemetry: access logs of every listener and terminal filter, and tracing of requests.
//! Names and filters of logs are Consul's.
//!
//! The messages that contain a log's JSON object are declared here, because the map in Envoy's
//! generated types has no order, so that two encodings could differ.

use envoy_types::pb::envoy::config::accesslog::v3::{
    AccessLog, AccessLogFilter, ResponseFlagFilter, access_log, access_log_filter,
};
use envoy_types::pb::envoy::config::core::v3::{DataSource, data_source};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing;
use envoy_types::pb::envoy::r#type::v3::Percent;
use envoy_types::pb::google::protobuf::Any;
use legate_model::{AccessLogs, AccessLogsType, LogFormat, Opaque, ServiceInstance};
use legate_proxycfg::opaque;
use prost::Message;
use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};

use crate::custom;

/// The log of connections that match no filter chain.
const LISTENER_LOG: &str = "Consul Listener Log";
/// The log of connections and requests that a filter handles.
const FILTER_LOG: &str = "Consul Listener Filter Log";
/// Envoy's response flag for connections and requests without a route.
const NO_ROUTE: &str = "NR";

/// The key of the proxy's config with the tracing settings, as Envoy's JSON.
const TRACING_JSON: &str = "envoy_listener_tracing_json";

/// The telemetry of a proxy's listeners. The default reports nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Telemetry {
    /// The sink and format of access logs.
    logger: Option<Any>,
    /// Whether connections that match no filter chain are logged.
    logs_refused_connections: bool,
    /// The encoded tracing settings that a user wrote.
    tracing: Option<Vec<u8>>,
}

impl Telemetry {
    pub(crate) fn read(instance: &ServiceInstance, warnings: &mut Vec<String>) -> Self {
        let logs = &instance.proxy.access_logs;
        Self {
            logger: logs.enabled.then(|| logger(logs, warnings)),
            logs_refused_connections: !logs.disable_listener_logs,
            tracing: tracing(&instance.proxy.config, warnings),
        }
    }

    /// The tracing settings. By default callers decide whether a request is traced.
    pub(crate) fn tracing(&self) -> Tracing {
        let written = self.tracing.as_ref();
        // Encoded above, so that decoding succeeds.
        let written = written.and_then(|bytes| Tracing::decode(bytes.as_slice()).ok());
        written.unwrap_or_else(|| Tracing {
            random_sampling: Some(Percent { value: 0.0 }),
            ..Tracing::default()
        })
    }

    /// The same without the tracing settings that a user wrote.
    pub(crate) fn without_tracing(&self) -> Self {
        Self {
            tracing: None,
            ..self.clone()
        }
    }

    /// Whether two registrations have the same telemetry settings.
    pub(crate) fn is_same(a: &ServiceInstance, b: &ServiceInstance) -> bool {
        let tracing =
            |one: &ServiceInstance| opaque::lookup(&one.proxy.config, TRACING_JSON).cloned();
        a.proxy.access_logs == b.proxy.access_logs && tracing(a) == tracing(b)
    }

    /// The logs of a listener.
    pub(crate) fn listener_logs(&self) -> Vec<AccessLog> {
        let filter = AccessLogFilter {
            filter_specifier: Some(access_log_filter::FilterSpecifier::ResponseFlagFilter(
                ResponseFlagFilter {
                    flags: vec![NO_ROUTE.to_owned()],
                },
            )),
        };
        let logger = self.logger.as_ref();
        let logger = logger.filter(|_| self.logs_refused_connections);
        let log = logger.map(|logger| log_as(LISTENER_LOG, logger, Some(filter)));
        log.into_iter().collect()
    }

    /// The logs of a terminal filter.
    pub(crate) fn filter_logs(&self) -> Vec<AccessLog> {
        let log = self.logger.iter();
        log.map(|logger| log_as(FILTER_LOG, logger, None)).collect()
    }
}

fn tracing(config: &Opaque, warnings: &mut Vec<String>) -> Option<Vec<u8>> {
    let text = match opaque::text(config, TRACING_JSON) {
        Ok(text) => text.filter(|text| !text.is_empty())?,
        Err(error) => {
            warnings.push(format!("Proxy.Config: {error}; requests are not traced"));
            return None;
        }
    };
    match custom::read::<Tracing>(TRACING_JSON, &text) {
        Ok(tracing) => Some(tracing.encode_to_vec()),
        Err(error) => {
            warnings.push(format!("Proxy.Config: {error}; requests are not traced"));
            None
        }
    }
}

fn log_as(name: &str, logger: &Any, filter: Option<AccessLogFilter>) -> AccessLog {
    AccessLog {
        name: name.to_owned(),
        filter,
        config_type: Some(access_log::ConfigType::TypedConfig(logger.clone())),
    }
}

/// `envoy.extensions.access_loggers.stream.v3.StdoutAccessLog` and `StderrAccessLog`.
#[derive(Clone, PartialEq, Message)]
struct StreamLog {
    #[prost(message, optional, tag = "1")]
    log_format: Option<Format>,
}

/// `envoy.extensions.access_loggers.file.v3.FileAccessLog`.
#[derive(Clone, PartialEq, Message)]
struct FileLog {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(message, optional, tag = "5")]
    log_format: Option<Format>,
}

/// `envoy.config.core.v3.SubstitutionFormatString` with sorted keys.
#[derive(Clone, PartialEq, Message)]
struct Format {
    #[prost(message, optional, tag = "2")]
    json_format: Option<Struct>,
    #[prost(message, optional, tag = "5")]
    text_format_source: Option<DataSource>,
}

fn logger(logs: &AccessLogs, warnings: &mut Vec<String>) -> Any {
    let log_format = Some(format(logs, warnings));
    let value = match logs.r#type {
        AccessLogsType::Default | AccessLogsType::Stdout | AccessLogsType::Stderr => {
            StreamLog { log_format }.encode_to_vec()
        }
        AccessLogsType::File => {
            let path = logs.path.clone();
            FileLog { path, log_format }.encode_to_vec()
        }
    };
    Any {
        type_url: format!("type.googleapis.com/{}", logs.logger()),
        value,
    }
}

fn format(logs: &AccessLogs, warnings: &mut Vec<String>) -> Format {
    let chosen = logs.format().unwrap_or_else(|error| {
        warnings.push(format!(
            "AccessLogs.JSONFormat is not a JSON object: {error}; the default is used"
        ));
        LogFormat::default()
    });
    match chosen {
        LogFormat::Text(line) => Format {
            json_format: None,
            text_format_source: Some(DataSource {
                specifier: Some(data_source::Specifier::InlineString(line)),
                ..DataSource::default()
            }),
        },
        LogFormat::Json(keys) => Format {
            json_format: Some(structure(keys)),
            text_format_source: None,
        },
    }
}

fn structure(object: serde_json::Map<String, serde_json::Value>) -> Struct {
    let fields = object.into_iter();
    Struct {
        fields: fields.map(|(key, inner)| (key, value(inner))).collect(),
    }
}

fn value(json: serde_json::Value) -> Value {
    use serde_json::Value as Json;
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(value).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(structure(fields)),
    };
    Value { kind: Some(kind) }
}
