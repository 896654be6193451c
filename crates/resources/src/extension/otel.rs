//! `builtin/otel-access-logging`: sends access logs to an OpenTelemetry collector.

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::accesslog::v3::{AccessLog, access_log};
use envoy_types::pb::envoy::config::core::v3::{ApiVersion, BackoffStrategy, RetryPolicy};
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::access_loggers::grpc::v3::CommonGrpcAccessLogConfig;
use envoy_types::pb::envoy::extensions::access_loggers::open_telemetry::v3::OpenTelemetryAccessLogConfig;
use envoy_types::pb::google::protobuf::UInt32Value;
use envoy_types::pb::opentelemetry::proto::common::v1::{
    AnyValue, KeyValue, KeyValueList, any_value,
};
use legate_model::duration::GoDuration;
use legate_model::extension::{
    Direction, GrpcService, OtelAccessLog, OtelAccessLogging, RetryPolicy as Retry,
};
use serde_json::Value;

use super::{ext_authz, filters};
use crate::duration::proto_duration;
use crate::encode;

/// Adds the access log to HTTP connection managers; other connections are not logged.
pub(super) fn change(
    log: &OtelAccessLogging,
    service: &GrpcService,
    cluster: &str,
    listener: &mut Listener,
) -> Result<(), String> {
    let name = match (log.config.log_name.as_str(), log.listener_type.or_inbound()) {
        ("", Direction::Outbound) => "outbound",
        ("", _) => "inbound",
        (name, _) => name,
    };
    let logger = AccessLog {
        name: "envoy.access_loggers.open_telemetry".to_owned(),
        config_type: Some(access_log::ConfigType::TypedConfig(encode::any(&config(
            &log.config,
            name,
            service,
            cluster,
        )))),
        ..AccessLog::default()
    };
    filters::each_manager(listener, |manager| {
        manager.access_log.push(logger.clone());
        Ok(())
    })?;
    Ok(())
}

#[expect(
    deprecated,
    reason = "supported by all Envoy versions that Consul supports, unlike its successors"
)]
fn config(
    log: &OtelAccessLog,
    name: &str,
    service: &GrpcService,
    cluster: &str,
) -> OpenTelemetryAccessLogConfig {
    let flush = log.buffer_flush_interval.map(GoDuration::to_duration);
    let common = CommonGrpcAccessLogConfig {
        log_name: name.to_owned(),
        grpc_service: Some(ext_authz::grpc(service, cluster)),
        transport_api_version: ApiVersion::V3.into(),
        buffer_flush_interval: flush.map(proto_duration),
        buffer_size_bytes: Some(UInt32Value {
            value: log.buffer_size_bytes,
        }),
        filter_state_objects_to_log: log.filter_state_objects_to_log.clone(),
        grpc_stream_retry_policy: log.retry_policy.as_ref().map(retry),
        ..CommonGrpcAccessLogConfig::default()
    };
    OpenTelemetryAccessLogConfig {
        common_config: Some(common),
        body: any(&log.body),
        attributes: Some(attributes(&log.attributes)),
        resource_attributes: Some(attributes(&log.resource_attributes)),
        ..OpenTelemetryAccessLogConfig::default()
    }
}

fn retry(policy: &Retry) -> RetryPolicy {
    let back_off = policy.retry_back_off.as_ref();
    RetryPolicy {
        retry_back_off: back_off.map(|back_off| BackoffStrategy {
            base_interval: Some(proto_duration(back_off.base())),
            max_interval: Some(proto_duration(back_off.max())),
        }),
        num_retries: Some(UInt32Value {
            value: policy.num_retries,
        }),
        ..RetryPolicy::default()
    }
}

fn attributes(values: &BTreeMap<String, Value>) -> KeyValueList {
    let one = |(key, value): (&String, &Value)| KeyValue {
        key: key.clone(),
        value: any(value),
        ..KeyValue::default()
    };
    KeyValueList {
        values: values.iter().map(one).collect(),
    }
}

fn any(value: &Value) -> Option<AnyValue> {
    use any_value::Value as Any;
    let value = match value {
        Value::String(text) => Any::StringValue(text.clone()),
        Value::Bool(flag) => Any::BoolValue(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => Any::IntValue(whole),
            None => Any::DoubleValue(number.as_f64()?),
        },
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    Some(AnyValue { value: Some(value) })
}
