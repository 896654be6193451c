//! `builtin/otel-access-logging`: sends access logs with the OpenTelemetry protocol.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::direction::{Direction, validate_proxy_type};
use super::target::GrpcService;
use crate::duration::GoDuration;
use crate::format_string;
use crate::invalid::Invalid;

/// Arguments of the extension.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OtelAccessLogging {
    /// `connect-proxy` or empty.
    pub proxy_type: String,
    /// Listeners that it applies to; the default is inbound.
    pub listener_type: Direction,
    /// Settings of the log.
    pub config: OtelAccessLog,
}

/// Settings of the log.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OtelAccessLog {
    /// Name of the log; empty means that of the direction.
    pub log_name: String,
    /// The service that receives the log.
    pub grpc_service: Option<GrpcService>,
    /// Interval at which entries are sent; `None` means Envoy's 1 s.
    pub buffer_flush_interval: Option<GoDuration>,
    /// Size of the buffer in bytes; 0 sends each entry at once.
    pub buffer_size_bytes: u32,
    /// Filter state objects that are added to entries.
    pub filter_state_objects_to_log: Vec<String>,
    /// Retry policy of the stream.
    pub retry_policy: Option<RetryPolicy>,
    /// The body of an entry, with Envoy's command operators.
    pub body: Value,
    /// Attributes of an entry.
    pub attributes: BTreeMap<String, Value>,
    /// Attributes of the proxy.
    pub resource_attributes: BTreeMap<String, Value>,
}

/// Retry policy of the stream.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RetryPolicy {
    /// Backoff between attempts.
    pub retry_back_off: Option<RetryBackOff>,
    /// The maximum number of retries.
    pub num_retries: u32,
}

/// Backoff between attempts.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RetryBackOff {
    /// Initial backoff; `None` means 1 s.
    pub base_interval: Option<GoDuration>,
    /// Maximum backoff; `None` means 30 s.
    pub max_interval: Option<GoDuration>,
}

impl RetryBackOff {
    /// The effective initial backoff.
    pub fn base(&self) -> Duration {
        self.base_interval
            .map_or(Duration::from_secs(1), GoDuration::to_duration)
    }

    /// The effective maximum backoff.
    pub fn max(&self) -> Duration {
        self.max_interval
            .map_or(Duration::from_secs(30), GoDuration::to_duration)
    }
}

impl OtelAccessLogging {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        validate_proxy_type(&self.proxy_type)?;
        self.config
            .validate()
            .map_err(|error| error.within("Config"))
    }
}

impl OtelAccessLog {
    fn validate(&self) -> Result<(), Invalid> {
        let Some(service) = &self.grpc_service else {
            return Err(Invalid::new("GrpcService", "missing GrpcService"));
        };
        service
            .validate()
            .map_err(|error| error.within("GrpcService"))?;
        let is_positive = |one: &GoDuration| !one.is_zero() && !one.is_negative();
        if self
            .buffer_flush_interval
            .is_some_and(|one| !is_positive(&one))
        {
            let reason = "it must be longer than zero";
            return Err(Invalid::new("BufferFlushInterval", reason));
        }
        if let Some(back_off) = self
            .retry_policy
            .as_ref()
            .and_then(|policy| policy.retry_back_off.as_ref())
        {
            let at = |field: &str, reason: &str| {
                Invalid::new(field, reason).within("RetryPolicy.RetryBackOff")
            };
            if back_off.base_interval.is_some_and(|one| !is_positive(&one)) {
                return Err(at("BaseInterval", "it must be longer than zero"));
            }
            if back_off.max() < back_off.base() {
                return Err(at("MaxInterval", "it must not be less than BaseInterval"));
            }
        }
        if !self.body.is_null() {
            validate_format(&self.body).map_err(|reason| Invalid::new("Body", reason))?;
        }
        for (key, value) in &self.attributes {
            validate_format(value)
                .map_err(|reason| Invalid::new(format!("Attributes.{key}"), reason))?;
        }
        let mut resource = self.resource_attributes.iter();
        match resource.find(|(_, value)| !is_scalar(value)) {
            Some((key, _)) => Err(Invalid::new(format!("ResourceAttributes.{key}"), SCALAR)),
            None => Ok(()),
        }
    }
}

/// Envoy logs only texts here, which may contain command operators.
fn validate_format(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => format_string::validate(text),
        _ => Err("it must be a text: Envoy logs nothing else here; put it in quotes".to_owned()),
    }
}

const SCALAR: &str = "it must be a text, a number or a truth value";

fn is_scalar(value: &Value) -> bool {
    !matches!(value, Value::Array(_) | Value::Object(_))
}
