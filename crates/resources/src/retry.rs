//! Requests of which nothing was sent: callers try them again at another instance, at most twice. What
//! an application may have seen a byte of is never sent again.
//!
//! A caller sees by itself that it cannot connect to a proxy, and that a proxy has refused a stream.
//! That a proxy in turn could not connect to its application, which has ended before its pod is gone
//! from the callers' endpoints, is said in the proxy's answer by a header. Neither the application's
//! own answers nor those that the caller's application gets have that header.
//!
//! Envoy keeps up to 1 MiB of a request's body to send it again; a request whose body is longer by
//! then fails. Connections that are not HTTP are made to another instance where a proxy cannot be
//! connected to; what a proxy has accepted is not tried again.

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

/// How many instances are tried at most.
pub(crate) const ATTEMPTS: u32 = 3;

/// Requests to one service that may be tried again at a time. As many as Envoy sends at a time by
/// default: with its default of 3, an instance that ends under load loses requests.
pub(crate) const AT_A_TIME: u32 = 1024;

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
        num_retries: Some(UInt32Value {
            value: ATTEMPTS - 1,
        }),
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
