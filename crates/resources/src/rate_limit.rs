//! Rate limits for requests to the application: a filter of the public listener with the limit for
//! all requests, and routes with the limits of single paths.
//!
//! Requests that the access rules deny do not count. Requests over a limit are answered with 429,
//! or RESOURCE_EXHAUSTED for gRPC. Limits are shared by all threads of Envoy.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::config::route::v3::route_match::PathSpecifier;
use envoy_types::pb::envoy::extensions::filters::http::local_ratelimit::v3::LocalRateLimit;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, TokenBucket};
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use legate_model::{InstanceRateLimits, Protocol};

use crate::chain_route;
use crate::duration::proto_duration;
use crate::encode;
use crate::listener;
use crate::names::LOCAL_RATE_LIMIT;
use crate::settings::ProxySettings;

/// The statistics prefix.
const STATS: &str = "rate_limit";

/// The warning if the limits of a proxy have no effect.
pub(crate) fn warning(
    limits: Option<&InstanceRateLimits>,
    protocol: Protocol,
    settings: &ProxySettings,
) -> Option<String> {
    limits?;
    let why = if !protocol.is_http() {
        "the protocol is tcp, which has no requests"
    } else if settings.public_listener.is_some() {
        "envoy_public_listener_json replaces the listener"
    } else {
        return None;
    };
    Some(format!("RateLimits have no effect: {why}"))
}

/// The filter, with the limit for all requests if there is one.
pub(crate) fn filter(limits: &InstanceRateLimits) -> HttpFilter {
    let config = match limits.requests_per_second {
        // A no-op unless a route has a limit.
        0 => LocalRateLimit {
            stat_prefix: STATS.to_owned(),
            ..LocalRateLimit::default()
        },
        per_second => limit(per_second, limits.requests_max_burst),
    };
    listener::http_filter(LOCAL_RATE_LIMIT, encode::any(&config))
}

/// The paths with limits of their own, in order, with the config that overrides the filter's.
pub(crate) fn routes(limits: &InstanceRateLimits) -> impl Iterator<Item = (PathSpecifier, Any)> {
    limits.routes.iter().filter_map(|route| {
        // Exactly one is set; other entries are refused when they are written.
        let path = chain_route::path(&route.path_exact, &route.path_prefix, &route.path_regex)?;
        let limit = limit(route.requests_per_second, route.requests_max_burst);
        Some((path, encode::any(&limit)))
    })
}

fn limit(per_second: u32, burst: u32) -> LocalRateLimit {
    let always = || RuntimeFractionalPercent {
        default_value: Some(FractionalPercent {
            numerator: 100,
            denominator: DenominatorType::Hundred.into(),
        }),
        ..RuntimeFractionalPercent::default()
    };
    LocalRateLimit {
        stat_prefix: STATS.to_owned(),
        token_bucket: Some(TokenBucket {
            max_tokens: if burst == 0 { per_second } else { burst },
            tokens_per_fill: Some(UInt32Value { value: per_second }),
            fill_interval: Some(proto_duration(Duration::from_secs(1))),
        }),
        filter_enabled: Some(always()),
        filter_enforced: Some(always()),
        rate_limited_as_resource_exhausted: true,
        ..LocalRateLimit::default()
    }
}
