//! Requests of which nothing was sent: callers try them again at another instance, at most twice. What
//! an application may have seen a byte of is never sent again.
//!
//! A caller sees by itself that it cannot connect to a proxy, and that a proxy has refused a stream.
//! That a proxy in turn could not connect to its application, which has ended before its pod is gone
//! from the callers' endpoints, is said in the proxy's answer by a header.

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

/// The header by which a proxy says that its application has seen nothing of the request.
pub(crate) const NOT_SENT: &str = "x-legate-not-sent";

/// How often a request is tried again.
const RETRIES: u32 = 2;

/// Envoy's name for "no connection to the upstream could be made".
const CONNECTION_FAILURE: &str = "UF";

/// What callers do.
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
        num_retries: Some(UInt32Value { value: RETRIES }),
        retriable_headers: vec![said],
        retry_host_predicate: vec![another],
        // How often another instance is looked for; after that the same one is asked.
        host_selection_retry_max_attempts: 5,
        ..RetryPolicy::default()
    }
}

/// What a proxy says in its own answers.
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
