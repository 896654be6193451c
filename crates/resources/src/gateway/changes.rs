//! Changes to requests, and answers that name another place.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::RuntimeFractionalPercent;
use envoy_types::pb::envoy::config::route::v3::retry_policy::RetryBackOff;
use envoy_types::pb::envoy::config::route::v3::route_action::{
    HostRewriteSpecifier, RequestMirrorPolicy,
};
use envoy_types::pb::envoy::config::route::v3::{
    RedirectAction, RetryPolicy, RouteAction, redirect_action,
};
use envoy_types::pb::envoy::extensions::filters::http::cors::v3::{Cors as Filter, CorsPolicy};
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, StringMatcher};
use envoy_types::pb::envoy::r#type::v3::{FractionalPercent, fractional_percent};
use envoy_types::pb::google::protobuf::{Any, BoolValue, UInt32Value};
use legate_routes::{Cors, PathMatch, Redirect, Retry, Rewrite, Rule, quoted};

use super::matching::pattern;
use crate::chain_route;
use crate::duration::proto_duration;
use crate::encode;
use crate::retry;

/// What takes the place of a path.
enum NewPath {
    /// In place of what the condition matches.
    Prefix(String),
    /// In place of what an expression matches.
    Regex(RegexMatchAndSubstitute),
}

/// Applies the changes of a rule that the routes of services do not have.
pub(super) fn apply(rule: &Rule, action: &mut RouteAction) {
    match rule
        .rewrite
        .as_ref()
        .and_then(|one| path(one, &rule.matched.path))
    {
        Some(NewPath::Prefix(prefix)) => action.prefix_rewrite = prefix,
        Some(NewPath::Regex(regex)) => action.regex_rewrite = Some(regex),
        None => {}
    }
    if let Some(host) = &rule.host_rewrite {
        let host = HostRewriteSpecifier::HostRewriteLiteral(host.clone());
        action.host_rewrite_specifier = Some(host);
    }
    // Zero is no limit, and for the routes of services the same as none given.
    if let Some(time) = rule.timeouts.request.filter(|time| time.is_zero()) {
        action.timeout = Some(proto_duration(time));
    }
    if let Some(own) = &rule.retry {
        repeat(own, action);
    }
    if let (Some(time), Some(policy)) = (rule.timeouts.one_try, &mut action.retry_policy) {
        policy.per_try_timeout = Some(proto_duration(time));
    }
}

fn repeat(own: &Retry, action: &mut RouteAction) {
    if own.count == Some(0) {
        action.retry_policy = Some(RetryPolicy {
            num_retries: Some(UInt32Value { value: 0 }),
            ..RetryPolicy::default()
        });
        return;
    }
    let Some(policy) = &mut action.retry_policy else {
        return;
    };
    if own.of_unseen {
        let usual = retry::policy();
        for condition in usual.retry_on.split(',') {
            let known = policy.retry_on.split(',').any(|known| known == condition);
            if !known {
                policy.retry_on = format!("{},{condition}", policy.retry_on);
            }
        }
        policy.retriable_headers = usual.retriable_headers;
        policy.retry_host_predicate = usual.retry_host_predicate;
        policy.host_selection_retry_max_attempts = usual.host_selection_retry_max_attempts;
    }
    if let Some(pause) = own.pause.filter(|pause| !pause.is_zero()) {
        policy.retry_back_off = Some(RetryBackOff {
            base_interval: Some(proto_duration(pause)),
            ..RetryBackOff::default()
        });
    }
}

/// What takes the place of the path of requests with this condition; `None` if nothing does.
fn path(rewrite: &Rewrite, matched: &PathMatch) -> Option<NewPath> {
    match rewrite {
        // As that of a route of a service.
        Rewrite::Matched(_) => None,
        Rewrite::Whole(path) => Some(replaced("^.*$".to_owned(), path)),
        Rewrite::Segments(path) => {
            let path = path.trim_end_matches('/');
            match (matched.text(), path) {
                // What follows begins with a slash, or there is nothing.
                ("/", "") => None,
                ("/", path) => Some(NewPath::Prefix(format!("{path}/"))),
                (prefix, "") => {
                    let prefix = quoted(prefix);
                    Some(replaced(format!("^{prefix}/*"), "/"))
                }
                (_, path) => Some(NewPath::Prefix(path.to_owned())),
            }
        }
    }
}

/// What an expression matches, replaced by a text.
fn replaced(regex: String, text: &str) -> NewPath {
    NewPath::Regex(RegexMatchAndSubstitute {
        pattern: Some(chain_route::regex(&regex)),
        // A backslash would begin a reference to what was matched.
        substitution: text.replace('\\', r"\\"),
    })
}

/// An answer that names another place.
pub(super) fn redirect(redirect: &Redirect, matched: &PathMatch) -> RedirectAction {
    use redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier};
    let status = match redirect.status {
        301 => RedirectResponseCode::MovedPermanently,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => RedirectResponseCode::Found,
    };
    let scheme = redirect.scheme.clone();
    let new_path = match &redirect.path {
        None => None,
        Some(Rewrite::Matched(path)) => Some(PathRewriteSpecifier::PrefixRewrite(path.clone())),
        Some(Rewrite::Whole(path)) => Some(PathRewriteSpecifier::PathRedirect(path.clone())),
        Some(segments) => path(segments, matched).map(|path| match path {
            NewPath::Prefix(prefix) => PathRewriteSpecifier::PrefixRewrite(prefix),
            NewPath::Regex(regex) => PathRewriteSpecifier::RegexRewrite(regex),
        }),
    };
    RedirectAction {
        host_redirect: redirect.host.clone().unwrap_or_default(),
        port_redirect: redirect.port.unwrap_or_default().into(),
        response_code: status.into(),
        scheme_rewrite_specifier: scheme.map(SchemeRewriteSpecifier::SchemeRedirect),
        path_rewrite_specifier: new_path,
        ..RedirectAction::default()
    }
}

/// Copies for a cluster.
pub(super) fn mirror(cluster: String, per_million: u32) -> RequestMirrorPolicy {
    let part = FractionalPercent {
        numerator: per_million,
        denominator: fractional_percent::DenominatorType::Million.into(),
    };
    RequestMirrorPolicy {
        cluster,
        runtime_fraction: Some(RuntimeFractionalPercent {
            default_value: Some(part),
            ..RuntimeFractionalPercent::default()
        }),
        // The copy is for the same host as the request.
        disable_shadow_host_suffix_append: true,
        ..RequestMirrorPolicy::default()
    }
}

/// The filter that answers browsers for rules that say which pages may send requests.
pub(crate) fn cors_filter() -> Any {
    encode::any(&Filter {})
}

/// Which pages may send requests.
pub(super) fn cors(cors: &Arc<Cors>) -> Any {
    let origins = cors.origins.iter().map(|origin| StringMatcher {
        match_pattern: pattern(origin),
        ..StringMatcher::default()
    });
    encode::any(&CorsPolicy {
        allow_origin_string_match: origins.collect(),
        allow_methods: cors.methods.join(", "),
        allow_headers: cors.headers.join(", "),
        expose_headers: cors.exposed.join(", "),
        max_age: cors.max_age.as_secs().to_string(),
        allow_credentials: Some(BoolValue {
            value: cors.credentials,
        }),
        // A page that may not send requests learns that before any backend does.
        forward_not_matching_preflights: Some(BoolValue { value: false }),
        ..CorsPolicy::default()
    })
}
