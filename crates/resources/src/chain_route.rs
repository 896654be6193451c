//! The routes of an upstream with a router or a splitter: matches, weighted clusters and the
//! settings of each route.
//!
//! Routes without retry settings of their own use the default policy of all upstreams, which only
//! retries requests that no application has seen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::config::route::v3::{
    HeaderMatcher, QueryParameterMatcher, RetryPolicy, Route, RouteAction, RouteConfiguration,
    RouteMatch, VirtualHost, WeightedCluster, header_matcher, query_parameter_matcher, route,
    route_action, route_match, weighted_cluster,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{
    RegexMatcher, StringMatcher, string_matcher::MatchPattern,
};
use envoy_types::pb::google::protobuf::{BoolValue, UInt32Value};
use legate_discovery_chain::{Chain, Node, NodeKind, Resolver, RouteStep, SplitStep};
use legate_model::duration::GoDuration;
use legate_model::{HeaderMatch, HeaderModifiers, HttpMatch, QueryParamMatch, RouteDestination};

use crate::balancing;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;
use crate::retry;
use crate::upstream::cluster_name;

/// Envoy's default request timeout.
const USUAL_TIMEOUT: Duration = Duration::from_secs(15);

/// The routes of a chain, named after the upstream.
pub(crate) fn routes(
    memo: &Memo,
    name: &str,
    chain: &Arc<Chain>,
    validate_clusters: bool,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.routes(chain, (name, validate_clusters), || {
        let configuration = build(name, chain, validate_clusters);
        memo.get(&encode::any(&configuration), |encoded| {
            Ok(encode::resource_of(name, encoded, &[]))
        })
    })
}

fn build(name: &str, chain: &Chain, validate_clusters: bool) -> RouteConfiguration {
    let everything = vec!["*".to_owned()];
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![virtual_host(name, everything, chain)],
        validate_clusters: validate_clusters.then_some(BoolValue { value: true }),
        ..RouteConfiguration::default()
    }
}

/// The routes of a chain for requests to these domains.
pub(crate) fn virtual_host(name: &str, domains: Vec<String>, chain: &Chain) -> VirtualHost {
    let start = chain.start();
    let routes: Vec<Route> = match start.map(|start| &start.kind) {
        Some(NodeKind::Router(steps)) => steps.iter().map(|step| routed(chain, step)).collect(),
        Some(_) => vec![to_node(chain, start)],
        None => Vec::new(),
    };
    host(name, domains, routes)
}

/// A virtual host with these routes.
pub(crate) fn host(name: &str, domains: Vec<String>, mut routes: Vec<Route>) -> VirtualHost {
    VirtualHost {
        name: name.to_owned(),
        domains,
        retry_policy: common_policy(&mut routes),
        routes,
        // The header is for the proxy itself, which has evaluated it by then.
        response_headers_to_remove: vec![retry::NOT_SENT.to_owned()],
        ..VirtualHost::default()
    }
}

/// The most common retry policy of the routes. It is removed from them, because Envoy applies the
/// virtual host's policy instead. Most routers have no retry settings, and the policy is longer
/// than the rest of a route. `None` if all policies differ.
fn common_policy(routes: &mut [Route]) -> Option<RetryPolicy> {
    /// The number of distinct policies that are counted; further ones are ignored.
    const DIFFERENT: usize = 16;
    let mut counts: Vec<(usize, RetryPolicy)> = Vec::new();
    for policy in routes.iter_mut().filter_map(|one| policy(one)?.as_ref()) {
        match counts.iter().position(|(_, known)| known == policy) {
            Some(at) => counts[at].0 += 1,
            None if counts.len() == DIFFERENT => {}
            None => counts.push((1, policy.clone())),
        }
    }
    let (count, common) = counts.into_iter().rev().max_by_key(|(count, _)| *count)?;
    if count == 1 {
        return None;
    }
    for own in routes.iter_mut().filter_map(policy) {
        own.take_if(|own| *own == common);
    }
    Some(common)
}

fn policy(route: &mut Route) -> Option<&mut Option<RetryPolicy>> {
    match &mut route.action {
        Some(route::Action::Route(action)) => Some(&mut action.retry_policy),
        _ => None,
    }
}

/// A route for all requests to one node.
fn to_node(chain: &Chain, node: Option<&Node>) -> Route {
    let mut action = action(chain, node);
    action.retry_policy = Some(retry::policy());
    Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(everything()),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(action)),
        ..Route::default()
    }
}

/// The action for all requests to a service behind a gateway, whose rules take the place of the
/// service's router.
pub(crate) fn past_router(chain: &Chain) -> RouteAction {
    let mut action = action(chain, end_of_router(chain));
    action.retry_policy = Some(retry::policy());
    action
}

/// The first node after the router, if there is one: its last route is for all requests.
fn end_of_router(chain: &Chain) -> Option<&Node> {
    let start = chain.start()?;
    match &start.kind {
        NodeKind::Router(steps) => chain.node(&steps.last()?.next_node),
        NodeKind::Splitter(_) | NodeKind::Resolver(_) => Some(start),
    }
}

/// A part of the requests to a service.
pub(crate) struct Share<'a> {
    pub(crate) cluster: String,
    /// In hundredths of a percent.
    pub(crate) weight: u32,
    pub(crate) request: Option<&'a HeaderModifiers>,
    pub(crate) response: Option<&'a HeaderModifiers>,
}

impl Share<'_> {
    /// All requests, without changes.
    pub(crate) fn whole(cluster: String) -> Self {
        Self {
            cluster,
            weight: 10_000,
            request: None,
            response: None,
        }
    }
}

/// The parts into which a service behind a gateway splits its requests.
pub(crate) fn shares(chain: &Chain) -> Vec<Share<'_>> {
    match end_of_router(chain).map(|node| &node.kind) {
        Some(NodeKind::Resolver(resolver)) => {
            vec![Share::whole(cluster_name(chain, resolver))]
        }
        Some(NodeKind::Splitter(splits)) => {
            let share = |split| {
                Some(Share {
                    cluster: cluster_name(chain, resolver(chain, split)?),
                    weight: hundredths(split),
                    request: split.definition.request_headers.as_ref(),
                    response: split.definition.response_headers.as_ref(),
                })
            };
            splits.iter().filter_map(share).collect()
        }
        Some(NodeKind::Router(_)) | None => Vec::new(),
    }
}

/// The weight of a split in hundredths of a percent. Weights out of range are refused when they are
/// written.
fn hundredths(split: &SplitStep) -> u32 {
    (split.weight * 100.0).round() as u32
}

/// The route for one route of a router.
fn routed(chain: &Chain, step: &RouteStep) -> Route {
    let matched = step.definition.matched.as_ref();
    let http = matched.and_then(|matched| matched.http.as_ref());
    let mut route = to_node(chain, chain.node(&step.next_node));
    route.r#match = Some(http.map_or_else(
        || RouteMatch {
            path_specifier: Some(everything()),
            ..RouteMatch::default()
        },
        request_match,
    ));
    let Some(destination) = &step.definition.destination else {
        return route;
    };
    if let Some(route::Action::Route(action)) = &mut route.action {
        direct(action, destination);
    }
    let (request, response) = (
        destination.request_headers.as_ref(),
        destination.response_headers.as_ref(),
    );
    route.request_headers_to_add = added(request);
    route.request_headers_to_remove = removed(request);
    route.response_headers_to_add = added(response);
    route.response_headers_to_remove = removed(response);
    route
}

/// Applies a route's destination over the settings of its node.
pub(crate) fn direct(action: &mut RouteAction, destination: &RouteDestination) {
    action
        .prefix_rewrite
        .clone_from(&destination.prefix_rewrite);
    // Zero disables a timeout in Envoy. Negative durations become zero here.
    let limit = |given: GoDuration| (!given.is_zero()).then(|| proto_duration(given.to_duration()));
    if let Some(timeout) = limit(destination.request_timeout) {
        action.timeout = Some(timeout);
    }
    if let Some(timeout) = limit(destination.idle_timeout) {
        action.idle_timeout = Some(timeout);
    }
    if let Some(policy) = repeats(destination) {
        action.retry_policy = Some(policy);
    }
}

/// The retry policy of a destination, if it has one.
fn repeats(destination: &RouteDestination) -> Option<RetryPolicy> {
    const CONNECT_FAILURE: &str = "connect-failure";
    let codes = &destination.retry_on_status_codes;
    let mut conditions: Vec<&str> = destination.retry_on.iter().map(String::as_str).collect();
    if destination.retry_on_connect_failure && !conditions.contains(&CONNECT_FAILURE) {
        conditions.push(CONNECT_FAILURE);
    }
    if !codes.is_empty() {
        conditions.push("retriable-status-codes");
    }
    let count = destination.num_retries;
    let number = (count > 0).then_some(UInt32Value { value: count });
    if conditions.is_empty() {
        // The configured number of retries, with the default conditions.
        return number.map(|number| RetryPolicy {
            num_retries: Some(number),
            ..retry::policy()
        });
    }
    Some(RetryPolicy {
        retry_on: conditions.join(","),
        num_retries: number,
        retriable_status_codes: codes.clone(),
        retriable_headers: Vec::new(),
        ..retry::policy()
    })
}

fn action(chain: &Chain, node: Option<&Node>) -> RouteAction {
    let specifier = match node.map(|node| &node.kind) {
        Some(NodeKind::Resolver(resolver)) => {
            route_action::ClusterSpecifier::Cluster(cluster_name(chain, resolver))
        }
        Some(NodeKind::Splitter(splits)) => {
            route_action::ClusterSpecifier::WeightedClusters(weighted(chain, splits))
        }
        // A router is never the next node.
        Some(NodeKind::Router(_)) | None => return RouteAction::default(),
    };
    RouteAction {
        cluster_specifier: Some(specifier),
        timeout: timeout(chain, node).map(proto_duration),
        hash_policy: balancing::hash_policies(node.and_then(|node| node.load_balancer.as_ref())),
        ..RouteAction::default()
    }
}

/// The request timeout of a node. For a split the longest, because a split has a single timeout.
fn timeout(chain: &Chain, node: Option<&Node>) -> Option<Duration> {
    let of = |resolver: &Resolver| resolver.request_timeout;
    let longest = match &node?.kind {
        NodeKind::Resolver(resolver) => of(resolver),
        NodeKind::Splitter(splits) => {
            let resolvers = splits.iter().filter_map(|split| resolver(chain, split));
            let timeouts: Vec<Duration> = resolvers.map(of).collect();
            if timeouts.iter().all(Duration::is_zero) {
                return None;
            }
            let limit = |one: Duration| if one.is_zero() { USUAL_TIMEOUT } else { one };
            timeouts.into_iter().map(limit).max()?
        }
        NodeKind::Router(_) => return None,
    };
    (!longest.is_zero()).then_some(longest)
}

fn resolver<'a>(chain: &'a Chain, split: &SplitStep) -> Option<&'a Resolver> {
    match &chain.nodes.get(&split.next_node)?.kind {
        NodeKind::Resolver(resolver) => Some(resolver),
        // Nested splits were flattened by the compiler.
        NodeKind::Splitter(_) | NodeKind::Router(_) => None,
    }
}

fn weighted(chain: &Chain, splits: &[SplitStep]) -> WeightedCluster {
    let cluster = |split: &SplitStep| {
        let (request, response) = (
            split.definition.request_headers.as_ref(),
            split.definition.response_headers.as_ref(),
        );
        let resolver = resolver(chain, split)?;
        Some(weighted_cluster::ClusterWeight {
            name: cluster_name(chain, resolver),
            weight: Some(UInt32Value {
                value: hundredths(split),
            }),
            request_headers_to_add: added(request),
            request_headers_to_remove: removed(request),
            response_headers_to_add: added(response),
            response_headers_to_remove: removed(response),
            ..weighted_cluster::ClusterWeight::default()
        })
    };
    WeightedCluster {
        clusters: splits.iter().filter_map(cluster).collect(),
        ..WeightedCluster::default()
    }
}

fn everything() -> route_match::PathSpecifier {
    route_match::PathSpecifier::Prefix("/".to_owned())
}

/// A condition on the path: the first that is set.
pub(crate) fn path(exact: &str, prefix: &str, regex: &str) -> Option<route_match::PathSpecifier> {
    use route_match::PathSpecifier;
    if !exact.is_empty() {
        Some(PathSpecifier::Path(exact.to_owned()))
    } else if !prefix.is_empty() {
        Some(PathSpecifier::Prefix(prefix.to_owned()))
    } else if !regex.is_empty() {
        Some(PathSpecifier::SafeRegex(self::regex(regex)))
    } else {
        None
    }
}

fn request_match(http: &HttpMatch) -> RouteMatch {
    let path = path(&http.path_exact, &http.path_prefix, &http.path_regex);
    let mut headers: Vec<HeaderMatcher> = http.header.iter().map(header).collect();
    if !http.methods.is_empty() {
        headers.push(HeaderMatcher {
            name: ":method".to_owned(),
            header_match_specifier: Some(text(MatchPattern::SafeRegex(regex(
                &http.methods.join("|"),
            )))),
            ..HeaderMatcher::default()
        });
    }
    RouteMatch {
        path_specifier: Some(path.unwrap_or_else(everything)),
        case_sensitive: http.case_insensitive.then_some(BoolValue { value: false }),
        headers,
        query_parameters: http.query_param.iter().map(query).collect(),
        ..RouteMatch::default()
    }
}

/// A matcher for the whole text.
pub(crate) fn regex(regex: &str) -> RegexMatcher {
    RegexMatcher {
        regex: regex.to_owned(),
        ..RegexMatcher::default()
    }
}

/// A matcher for texts.
pub(crate) fn string(pattern: MatchPattern) -> StringMatcher {
    StringMatcher {
        match_pattern: Some(pattern),
        ..StringMatcher::default()
    }
}

/// A condition on the value of a header.
pub(crate) fn text(pattern: MatchPattern) -> header_matcher::HeaderMatchSpecifier {
    header_matcher::HeaderMatchSpecifier::StringMatch(string(pattern))
}

fn header(matched: &HeaderMatch) -> HeaderMatcher {
    let specifier = if !matched.exact.is_empty() {
        text(MatchPattern::Exact(matched.exact.clone()))
    } else if !matched.regex.is_empty() {
        text(MatchPattern::SafeRegex(regex(&matched.regex)))
    } else if !matched.prefix.is_empty() {
        text(MatchPattern::Prefix(matched.prefix.clone()))
    } else if !matched.suffix.is_empty() {
        text(MatchPattern::Suffix(matched.suffix.clone()))
    } else {
        header_matcher::HeaderMatchSpecifier::PresentMatch(true)
    };
    HeaderMatcher {
        name: matched.name.clone(),
        invert_match: matched.invert,
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

fn query(matched: &QueryParamMatch) -> QueryParameterMatcher {
    use query_parameter_matcher::QueryParameterMatchSpecifier::{PresentMatch, StringMatch};
    let matcher = |pattern| StringMatch(string(pattern));
    let specifier = if !matched.exact.is_empty() {
        matcher(MatchPattern::Exact(matched.exact.clone()))
    } else if !matched.regex.is_empty() {
        matcher(MatchPattern::SafeRegex(regex(&matched.regex)))
    } else {
        PresentMatch(true)
    };
    QueryParameterMatcher {
        name: matched.name.clone(),
        query_parameter_match_specifier: Some(specifier),
    }
}

/// Headers to append, then headers to overwrite.
pub(crate) fn added(modifiers: Option<&HeaderModifiers>) -> Vec<HeaderValueOption> {
    let Some(modifiers) = modifiers else {
        return Vec::new();
    };
    let all = |pairs: &BTreeMap<String, String>, action: HeaderAppendAction| {
        let option = |(key, value): (&String, &String)| HeaderValueOption {
            header: Some(HeaderValue {
                key: key.clone(),
                value: value.clone(),
                ..HeaderValue::default()
            }),
            append_action: action.into(),
            // Without it, Envoy would not add a header with an empty value.
            keep_empty_value: value.is_empty(),
            ..HeaderValueOption::default()
        };
        pairs.iter().map(option).collect::<Vec<_>>()
    };
    let mut options = all(&modifiers.add, HeaderAppendAction::AppendIfExistsOrAdd);
    let set = HeaderAppendAction::OverwriteIfExistsOrAdd;
    options.extend(all(&modifiers.set, set));
    options
}

/// Headers to remove.
pub(crate) fn removed(modifiers: Option<&HeaderModifiers>) -> Vec<String> {
    modifiers.map_or_else(Vec::new, |modifiers| modifiers.remove.clone())
}
