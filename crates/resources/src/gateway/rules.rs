//! Virtual hosts from the rules of a gateway, one Envoy route for each rule.

use std::collections::HashMap;

use envoy_types::pb::envoy::config::route::v3::route_action::ClusterNotFoundResponseCode as Code;
use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, Route, RouteAction, VirtualHost, WeightedCluster, route, route_action,
    weighted_cluster,
};
use envoy_types::pb::google::protobuf::{Any, UInt32Value};
use legate_discovery_chain::Chain;
use legate_model::duration::GoDuration;
use legate_model::{HeaderModifiers, JwtRequirement, RouteDestination, ServiceName};
use legate_proxycfg::JwtProviders;
use legate_routes::{
    Action, Backend, Content, Listener, Match, NOT_FOUND, Rewrite, Rule, Target, WeightedBackend,
};

use super::changes;
use super::http;
use super::matching::request;
use crate::chain_route::{self, Share};
use crate::names::{HTTP_CORS, HTTP_RBAC};
use crate::rbac;
use crate::retry;

/// The status of requests to a service that has no clusters.
const UNAVAILABLE: u16 = 503;

/// The cluster of shares that are answered or closed, which does not exist.
pub(crate) const NO_CLUSTER: &str = "no_cluster";

/// What rules refer to.
pub(crate) struct Referred<'a> {
    /// The chain of a service; `None` if it has no clusters.
    pub(crate) chain: &'a dyn Fn(&ServiceName) -> Option<&'a Chain>,
    /// The cluster of a backend; `None` if it has none.
    pub(crate) cluster: &'a dyn Fn(&Backend) -> Option<String>,
    pub(crate) jwt_providers: &'a JwtProviders,
    /// Whether Envoy refuses routes to clusters that it does not have.
    pub(crate) validate_clusters: bool,
}

/// The rules of a port for requests.
pub(crate) fn rules(port: &Listener) -> impl Iterator<Item = &Rule> {
    let hosts = port.contents.iter().flat_map(|content| match content {
        Content::Http(hosts) => &hosts[..],
        Content::Tcp(_) => &[],
    });
    hosts.flat_map(|host| &host.rules)
}

/// Whether a rule of a port answers browsers that ask which requests they may send.
pub(crate) fn has_cors(port: &Listener) -> bool {
    rules(port).any(|rule| rule.cors.is_some())
}

/// The virtual hosts of a port; `None` for one whose hosts may name any.
pub(crate) fn virtual_hosts(
    hosts: &[legate_routes::VirtualHost],
    port: Option<u16>,
    referred: &Referred<'_>,
    warnings: &mut Vec<String>,
) -> Vec<VirtualHost> {
    let names: Vec<_> = hosts.iter().map(|host| host.domains.clone()).collect();
    let domains = http::domains(&names, port, warnings);
    let made = hosts.iter().zip(domains).map(|(host, domains)| {
        let name = host.domains.first().map_or("", String::as_str);
        let routes = host.rules.iter().map(|rule| route(rule, referred));
        // Envoy itself answers this to what no route matches.
        let otherwise = (host.otherwise != NOT_FOUND).then(|| Route {
            r#match: Some(request(&Match::default())),
            action: Some(answer(host.otherwise.into())),
            ..Route::default()
        });
        chain_route::host(name, domains, routes.chain(otherwise).collect())
    });
    made.collect()
}

fn route(rule: &Rule, referred: &Referred<'_>) -> Route {
    let access = rule.token.iter().map(|token| access(token, referred));
    let cors = rule
        .cors
        .iter()
        .map(|cors| (HTTP_CORS.to_owned(), changes::cors(cors)));
    Route {
        r#match: Some(request(&rule.matched)),
        action: Some(action(rule, referred)),
        request_headers_to_add: chain_route::added(Some(&rule.request)),
        request_headers_to_remove: chain_route::removed(Some(&rule.request)),
        response_headers_to_add: chain_route::added(Some(&rule.response)),
        response_headers_to_remove: chain_route::removed(Some(&rule.response)),
        typed_per_filter_config: access.chain(cors).collect(),
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
        Action::Redirect(redirect) => {
            return route::Action::Redirect(changes::redirect(redirect, &rule.matched.path));
        }
        Action::Forward(backends) => backends,
    };
    let forwarded = match backends.as_slice() {
        [only] if is_plain(only) => to_one(only, referred),
        several => to_several(several, referred),
    };
    match forwarded {
        Ok(mut action) => {
            chain_route::direct(&mut action, &settings(rule));
            changes::apply(rule, &mut action);
            action.request_mirror_policies = mirrors(rule, referred);
            route::Action::Route(action)
        }
        Err(status) => answer(status.into()),
    }
}

/// Whether a backend has nothing of its own that only a share can have.
fn is_plain(backend: &WeightedBackend) -> bool {
    let changes = [&backend.request, &backend.response];
    backend.token.is_none()
        && changes
            .iter()
            .all(|one| **one == HeaderModifiers::default())
}

fn answer(status: u32) -> route::Action {
    route::Action::DirectResponse(DirectResponseAction {
        status,
        ..DirectResponseAction::default()
    })
}

/// The settings of a rule, as those of a route of a service.
fn settings(rule: &Rule) -> RouteDestination {
    let rewrite = match &rule.rewrite {
        Some(Rewrite::Matched(path)) => path.clone(),
        _ => String::new(),
    };
    let retry = rule.retry.clone().unwrap_or_default();
    let limit = |time: Option<_>| time.map_or_else(GoDuration::default, GoDuration::from);
    RouteDestination {
        prefix_rewrite: rewrite,
        request_timeout: limit(rule.timeouts.request),
        idle_timeout: limit(rule.timeouts.idle),
        num_retries: retry.count.unwrap_or_default(),
        retry_on: retry.conditions,
        retry_on_status_codes: retry.statuses,
        retry_on_connect_failure: retry.on_connect_failure,
        ..RouteDestination::default()
    }
}

/// What gets copies. Only one cluster can get them: of a service that splits its requests, the one
/// with the largest share.
fn mirrors(rule: &Rule, referred: &Referred<'_>) -> Vec<route_action::RequestMirrorPolicy> {
    let all = rule.mirrors.iter().filter_map(|mirror| {
        let cluster = match &mirror.target {
            Target::Service(service) => {
                let shares = chain_route::shares((referred.chain)(service)?);
                shares.into_iter().max_by_key(|share| share.weight)?.cluster
            }
            Target::Backend(backend) => (referred.cluster)(backend)?,
            Target::Answer(_) => return None,
        };
        Some(changes::mirror(cluster, mirror.per_million))
    });
    all.collect()
}

/// The action for the only backend of a rule, or the status of the answer.
fn to_one(backend: &WeightedBackend, referred: &Referred<'_>) -> Result<RouteAction, u16> {
    match &backend.target {
        Target::Answer(status) => Err(*status),
        Target::Service(service) => {
            let chain = (referred.chain)(service).ok_or(UNAVAILABLE)?;
            Ok(chain_route::past_router(chain))
        }
        Target::Backend(backend) => {
            let cluster = (referred.cluster)(backend).ok_or(UNAVAILABLE)?;
            Ok(RouteAction {
                cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(cluster)),
                retry_policy: Some(retry::policy()),
                ..RouteAction::default()
            })
        }
    }
}

/// The shares of a backend, or the status of the answer to its requests.
fn shares<'a>(target: &Target, referred: &Referred<'a>) -> Result<Vec<Share<'a>>, u16> {
    match target {
        Target::Answer(status) => Err(*status),
        Target::Service(service) => {
            let chain = (referred.chain)(service).ok_or(UNAVAILABLE)?;
            Ok(chain_route::shares(chain))
        }
        Target::Backend(backend) => {
            let cluster = (referred.cluster)(backend).ok_or(UNAVAILABLE)?;
            Ok(vec![Share::whole(cluster)])
        }
    }
}

/// The action for several backends. A share that is answered goes to a cluster that does not exist:
/// Envoy has one answer for all of these. Where it refuses such routes, all requests are answered.
fn to_several(backends: &[WeightedBackend], referred: &Referred<'_>) -> Result<RouteAction, u16> {
    let mut shares = Vec::new();
    let mut answered = None;
    for backend in backends {
        let own = match self::shares(&backend.target, referred) {
            Ok(own) => own,
            Err(status) if referred.validate_clusters || backends.len() == 1 => return Err(status),
            Err(status) => {
                answered = answered.or(Some(status));
                vec![Share::whole(NO_CLUSTER.to_owned())]
            }
        };
        for share in own {
            let weight = u64::from(backend.weight) * u64::from(share.weight);
            shares.push((weight, backend, share));
        }
    }
    if let Some(status) = answered.filter(|_| shares.iter().all(|one| one.2.cluster == NO_CLUSTER))
    {
        return Err(status);
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
    let code = match answered {
        Some(500) => Code::InternalServerError,
        Some(_) | None => Code::ServiceUnavailable,
    };
    Ok(RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::WeightedClusters(weighted)),
        cluster_not_found_response_code: code.into(),
        retry_policy: Some(retry::policy()),
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
