//! Virtual hosts from the rules of a gateway, one Envoy route for each rule.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, HeaderMatcher, QueryParameterMatcher, Route, RouteAction, RouteMatch,
    VirtualHost, WeightedCluster, header_matcher, query_parameter_matcher, route, route_action,
    route_match, weighted_cluster,
};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use legate_discovery_chain::Chain;
use legate_model::duration::GoDuration;
use legate_model::{HeaderModifiers, JwtRequirement, RouteDestination, ServiceName};
use legate_proxycfg::JwtProviders;
use legate_routes::{
    Action, Match, PathMatch, Rewrite, Rule, Target, TextMatch, ValueMatch, WeightedBackend,
};

use super::http;
use crate::chain_route::{self, Share};
use crate::names::HTTP_RBAC;
use crate::rbac;

/// The status of requests to a service that has no clusters.
const UNAVAILABLE: u32 = 503;

/// What rules refer to.
pub(crate) struct Referred<'a> {
    /// The chain of a service; `None` if it has no clusters.
    pub(crate) chain: &'a dyn Fn(&ServiceName) -> Option<&'a Chain>,
    pub(crate) jwt_providers: &'a JwtProviders,
}

/// The virtual hosts of a port.
pub(crate) fn virtual_hosts(
    hosts: &[legate_routes::VirtualHost],
    port: u16,
    referred: &Referred<'_>,
    warnings: &mut Vec<String>,
) -> Vec<VirtualHost> {
    let names: Vec<_> = hosts.iter().map(|host| host.domains.clone()).collect();
    let domains = http::domains(&names, port, warnings);
    let made = hosts.iter().zip(domains).map(|(host, domains)| {
        let name = host.domains.first().map_or("", String::as_str);
        let routes = host.rules.iter().map(|rule| route(rule, referred));
        chain_route::host(name, domains, routes.collect())
    });
    made.collect()
}

fn route(rule: &Rule, referred: &Referred<'_>) -> Route {
    let access = rule.token.iter().map(|token| access(token, referred));
    Route {
        r#match: Some(request(&rule.matched)),
        action: Some(action(rule, referred)),
        request_headers_to_add: chain_route::added(Some(&rule.request)),
        request_headers_to_remove: chain_route::removed(Some(&rule.request)),
        response_headers_to_add: chain_route::added(Some(&rule.response)),
        response_headers_to_remove: chain_route::removed(Some(&rule.response)),
        typed_per_filter_config: access.collect(),
        ..Route::default()
    }
}

/// The rules of a token, for the filter of the listener, which has none.
fn access(token: &JwtRequirement, referred: &Referred<'_>) -> (String, Any) {
    let rules = rbac::with_only(token, referred.jwt_providers);
    (HTTP_RBAC.to_owned(), rules)
}

fn action(rule: &Rule, referred: &Referred<'_>) -> route::Action {
    let backends = match &rule.action {
        Action::Answer(status) => return answer((*status).into()),
        Action::Forward(backends) => backends,
    };
    let forwarded = match backends.as_slice() {
        [only] if only.token.is_none() => to_service(only, referred),
        several => to_services(several, referred),
    };
    match forwarded {
        Ok(mut action) => {
            chain_route::direct(&mut action, &settings(rule));
            route::Action::Route(action)
        }
        Err(status) => answer(status),
    }
}

fn answer(status: u32) -> route::Action {
    route::Action::DirectResponse(DirectResponseAction {
        status,
        ..DirectResponseAction::default()
    })
}

/// The settings of a rule, as those of a route of a service.
fn settings(rule: &Rule) -> RouteDestination {
    let rewrite = rule.rewrite.as_ref();
    let rewrite = rewrite.map(|Rewrite::Matched(path)| path.clone());
    let retry = rule.retry.clone().unwrap_or_default();
    let limit = |time: Option<_>| time.map_or_else(GoDuration::default, GoDuration::from);
    RouteDestination {
        prefix_rewrite: rewrite.unwrap_or_default(),
        request_timeout: limit(rule.timeouts.request),
        idle_timeout: limit(rule.timeouts.idle),
        num_retries: retry.count,
        retry_on: retry.conditions,
        retry_on_status_codes: retry.statuses,
        retry_on_connect_failure: retry.on_connect_failure,
        ..RouteDestination::default()
    }
}

/// The action for the only backend of a rule, or the status of the answer.
fn to_service(backend: &WeightedBackend, referred: &Referred<'_>) -> Result<RouteAction, u32> {
    match &backend.target {
        Target::Answer(status) => Err((*status).into()),
        Target::Service(service) => {
            let chain = (referred.chain)(service).ok_or(UNAVAILABLE)?;
            Ok(chain_route::past_router(chain))
        }
    }
}

/// The action for several backends. Envoy can answer all requests of a rule or none by itself: if a
/// backend has no clusters, all are answered.
fn to_services(backends: &[WeightedBackend], referred: &Referred<'_>) -> Result<RouteAction, u32> {
    let mut shares = Vec::new();
    for backend in backends {
        let service = match &backend.target {
            Target::Answer(status) => return Err((*status).into()),
            Target::Service(service) => service,
        };
        let chain = (referred.chain)(service).ok_or(UNAVAILABLE)?;
        for share in chain_route::shares(chain) {
            shares.push((
                u64::from(backend.weight) * u64::from(share.weight),
                backend,
                share,
            ));
        }
    }
    let divisor = divisor(shares.iter().map(|(weight, ..)| *weight));
    let clusters = shares.into_iter().map(|(weight, backend, share)| {
        let weight = u32::try_from(weight.div_ceil(divisor)).unwrap_or(u32::MAX);
        cluster(backend, share, weight, referred)
    });
    let weighted = WeightedCluster {
        clusters: clusters.collect(),
        ..WeightedCluster::default()
    };
    Ok(RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::WeightedClusters(weighted)),
        retry_policy: Some(crate::retry::policy()),
        ..RouteAction::default()
    })
}

/// A number that makes weights small: divided by it and rounded up, their sum fits in 32 bits, which
/// Envoy requires.
fn divisor(weights: impl Iterator<Item = u64>) -> u64 {
    let common = |mut a: u64, mut b: u64| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let (mut count, mut sum, mut divisor) = (0, 0_u64, 0);
    for weight in weights {
        count += 1;
        sum = sum.saturating_add(weight);
        divisor = common(divisor, weight);
    }
    // Rounding up adds at most one for each.
    let least = sum.div_ceil(u64::from(u32::MAX) - count);
    divisor.max(least).max(1)
}

fn cluster(
    backend: &WeightedBackend,
    share: Share<'_>,
    weight: u32,
    referred: &Referred<'_>,
) -> weighted_cluster::ClusterWeight {
    let then = |own: &HeaderModifiers, of_chain: Option<&HeaderModifiers>| match of_chain {
        Some(of_chain) => own.then(of_chain),
        None => own.clone(),
    };
    let request = then(&backend.request, share.request);
    let response = then(&backend.response, share.response);
    let access = backend.token.iter().map(|token| access(token, referred));
    weighted_cluster::ClusterWeight {
        name: share.cluster,
        weight: Some(UInt32Value { value: weight }),
        request_headers_to_add: chain_route::added(Some(&request)),
        request_headers_to_remove: chain_route::removed(Some(&request)),
        response_headers_to_add: chain_route::added(Some(&response)),
        response_headers_to_remove: chain_route::removed(Some(&response)),
        typed_per_filter_config: access.collect::<HashMap<_, _>>(),
        ..weighted_cluster::ClusterWeight::default()
    }
}

fn request(matched: &Match) -> RouteMatch {
    use route_match::PathSpecifier;
    let path = match &matched.path {
        PathMatch::Exact(path) => PathSpecifier::Path(path.clone()),
        PathMatch::Prefix(path) => PathSpecifier::Prefix(path.clone()),
        PathMatch::Regex(regex) => PathSpecifier::SafeRegex(chain_route::regex(regex)),
    };
    let mut headers: Vec<_> = matched.headers.iter().map(header).collect();
    if let Some(method) = &matched.method {
        let exactly = pattern(&TextMatch::Regex(method.clone()));
        headers.push(HeaderMatcher {
            name: ":method".to_owned(),
            header_match_specifier: exactly.map(chain_route::text),
            ..HeaderMatcher::default()
        });
    }
    RouteMatch {
        path_specifier: Some(path),
        headers,
        query_parameters: matched.query.iter().map(parameter).collect(),
        ..RouteMatch::default()
    }
}

/// `None` for any text.
fn pattern(value: &TextMatch) -> Option<MatchPattern> {
    Some(match value {
        TextMatch::Present => return None,
        TextMatch::Exact(text) => MatchPattern::Exact(text.clone()),
        TextMatch::Prefix(text) => MatchPattern::Prefix(text.clone()),
        TextMatch::Suffix(text) => MatchPattern::Suffix(text.clone()),
        TextMatch::Regex(text) => MatchPattern::SafeRegex(chain_route::regex(text)),
    })
}

fn header(matched: &ValueMatch) -> HeaderMatcher {
    let present = header_matcher::HeaderMatchSpecifier::PresentMatch(true);
    let specifier = pattern(&matched.value).map_or(present, chain_route::text);
    HeaderMatcher {
        name: matched.name.clone(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

fn parameter(matched: &ValueMatch) -> QueryParameterMatcher {
    use query_parameter_matcher::QueryParameterMatchSpecifier::{PresentMatch, StringMatch};
    let specifier = pattern(&matched.value).map_or(PresentMatch(true), |pattern| {
        StringMatch(chain_route::string(pattern))
    });
    QueryParameterMatcher {
        name: matched.name.clone(),
        query_parameter_match_specifier: Some(specifier),
    }
}
