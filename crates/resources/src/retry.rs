//! Retries of requests that were not sent: callers retry them at another instance, at most twice.
//! Requests of which an application may have seen a byte are never retried.
//!
//! A caller detects by itself failed connections to a proxy, and streams that a proxy has refused.
//! A proxy that cannot connect to its application (which may end before its pod leaves the callers'
//! endpoints) reports this in its response by a header. The header is removed from the
//! application's own responses, and from those to the caller's application.
//!
//! Envoy buffers up to 1 MiB of a request's body for retries; a request with a longer body fails at
//! that point. TCP connections are tried at another instance if a proxy cannot be reached, but not
//! after a proxy has accepted them.

use envoy_types::pb::envoy::config::accesslog::v3::{
    AccessLogFilter, ResponseFlagFilter, access_log_filter,
};
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, RetryPolicy, header_matcher, retry_policy,
};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    LocalReplyConfig, ResponseMapper,
};
use envoy_types::pb::envoy::extensions::retry::host::previous_hosts::v3::PreviousHostsPredicate;
use envoy_types::pb::google::protobuf::UInt32Value;

use crate::encode;

/// The response header of a proxy whose application has seen nothing of the request.
pub(crate) const NOT_SENT: &str = "x-legate-not-sent";

/// The maximum number of instances to try.
pub(crate) const ATTEMPTS: u32 = 3;

/// The maximum number of concurrent retries to one service. Equals Envoy's default limit of
/// concurrent requests: with its default of 3 retries, requests are lost when an instance ends
/// under load.
pub(crate) const AT_A_TIME: u32 = 1024;

/// Envoy's response flag for a failed upstream connection.
const CONNECTION_FAILURE: &str = "UF";

/// The retry policy of callers.
pub(crate) fn policy() -> RetryPolicy {
    let said = HeaderMatcher {
        name: NOT_SENT.to_owned(),
        header_match_specifier: Some(header_matcher::HeaderMatchSpecifier::PresentMatch(true)),
        ..HeaderMatcher::default()
    };
    let another = retry_policy::RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(retry_policy::retry_host_predicate::ConfigType::TypedConfig(
            encode::any(&PreviousHostsPredicate {}),
        )),
    };
    RetryPolicy {
        retry_on: "connect-failure,refused-stream,retriable-headers".to_owned(),
        num_retries: Some(UInt32Value {
            value: ATTEMPTS - 1,
        }),
        retriable_headers: vec![said],
        retry_host_predicate: vec![another],
        // The maximum number of attempts to select another instance; then the same one is used.
        host_selection_retry_max_attempts: 5,
        ..RetryPolicy::default()
    }
}

/// Adds the header to a proxy's own responses.
pub(crate) fn replies() -> LocalReplyConfig {
    let filter = ResponseFlagFilter {
        flags: vec![CONNECTION_FAILURE.to_owned()],
    };
    let filter = AccessLogFilter {
        filter_specifier: Some(access_log_filter::FilterSpecifier::ResponseFlagFilter(
            filter,
        )),
    };
    let header = HeaderValueOption {
        header: Some(HeaderValue {
            key: NOT_SENT.to_owned(),
            value: "true".to_owned(),
            ..HeaderValue::default()
        }),
        ..HeaderValueOption::default()
    };
    LocalReplyConfig {
        mappers: vec![ResponseMapper {
            filter: Some(filter),
            headers_to_add: vec![header],
            ..ResponseMapper::default()
        }],
        ..LocalReplyConfig::default()
    }
}
