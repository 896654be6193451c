//! Routes: the cluster of a request and, for requests from the mesh, its authorization.
//!
//! The routes of an HTTP service's public listener are a separate resource that contains the
//! intentions. Envoy evaluates routes for every request, so that new ones apply to the next request
//! on each open connection, and no connection is closed. Rules in the listener would do neither,
//! because a connection keeps its listener until it is drained. A started request (a stream, a
//! WebSocket) is not evaluated again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::route::v3::{
    Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route, route_action,
    route_match,
};
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use legate_model::{InstanceRateLimits, LoadBalancer};

use crate::balancing;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::CLIENT_CERTIFICATE;
use crate::listener::inbound::ForwardCaller;
use crate::memo::Memo;
use crate::names::{HTTP_RBAC, LOCAL_APP, LOCAL_RATE_LIMIT, PUBLIC_LISTENER};
use crate::rate_limit;
use crate::rbac;
use crate::retry;
use crate::settings::ProxySettings;

#[derive(Hash)]
struct Input<'a> {
    access: Any,
    removed: Vec<String>,
    rate_limits: Option<&'a InstanceRateLimits>,
    request_timeout: Option<Duration>,
    idle_timeout: Option<Duration>,
}

/// The routes of the public listener of an HTTP service: requests that intentions allow, to the
/// application.
pub(crate) fn public(
    memo: &Memo,
    access: rbac::Access<'_>,
    rate_limits: Option<&InstanceRateLimits>,
    (settings, forward): (&ProxySettings, ForwardCaller),
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let input = Input {
        access: access.requests(warnings)?,
        removed: removed(forward),
        rate_limits,
        request_timeout: settings.local_request_timeout,
        idle_timeout: settings.local_idle_timeout,
    };
    memo.get(&input, |input| {
        Ok(encode::resource(PUBLIC_LISTENER, &build(input), &[]))
    })
}

/// Routes to a service outside the mesh.
#[derive(Debug)]
pub(crate) struct ExternalRoutes<'a> {
    /// The service's cluster, which is also the name of the routes.
    pub(crate) cluster: &'a str,
    pub(crate) balancer: Option<&'a LoadBalancer>,
    /// `None` means Envoy's default of 15 s.
    pub(crate) timeout: Option<Duration>,
    /// Whether requests get the host name of the instance.
    pub(crate) rewrites_host: bool,
    /// Whether Envoy refuses the routes without their cluster.
    pub(crate) validates_clusters: bool,
    pub(crate) forward_caller: ForwardCaller,
}

/// Routes of a terminating gateway: requests that intentions allow, to one service.
pub(crate) fn external(
    memo: &Memo,
    access: rbac::Access<'_>,
    routes: &ExternalRoutes<'_>,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let access = access.requests(warnings)?;
    memo.get(&(&access, format!("{routes:?}")), |_| {
        let rewritten = BoolValue { value: true };
        let action = RouteAction {
            timeout: routes.timeout.map(proto_duration),
            hash_policy: balancing::hash_policies(routes.balancer),
            host_rewrite_specifier: routes.rewrites_host.then_some(
                route_action::HostRewriteSpecifier::AutoHostRewrite(rewritten),
            ),
            retry_policy: Some(retry::policy()),
            ..to_cluster(routes.cluster)
        };
        let mut host = virtual_host(routes.cluster, action);
        host.typed_per_filter_config = HashMap::from([(HTTP_RBAC.to_owned(), access.clone())]);
        // The service must not set the header itself.
        host.response_headers_to_remove = vec![retry::NOT_SENT.to_owned()];
        let configuration = RouteConfiguration {
            validate_clusters: routes
                .validates_clusters
                .then_some(BoolValue { value: true }),
            request_headers_to_remove: removed(routes.forward_caller),
            ..configuration(routes.cluster, host)
        };
        Ok(encode::resource(routes.cluster, &configuration, &[]))
    })
}

fn build(input: &Input<'_>) -> RouteConfiguration {
    let action = RouteAction {
        timeout: input.request_timeout.map(proto_duration),
        idle_timeout: input.idle_timeout.map(proto_duration),
        ..to_cluster(LOCAL_APP)
    };
    let limited = input.rate_limits.into_iter().flat_map(rate_limit::routes);
    let limited = limited.map(|(path, limit)| Route {
        typed_per_filter_config: HashMap::from([(LOCAL_RATE_LIMIT.to_owned(), limit)]),
        ..to_path(path, action.clone())
    });
    let limited: Vec<_> = limited.collect();
    let mut host = virtual_host(PUBLIC_LISTENER, action);
    host.routes.splice(0..0, limited);
    // Overrides the config of the listener's filter of this name.
    host.typed_per_filter_config = HashMap::from([(HTTP_RBAC.to_owned(), input.access.clone())]);
    // The application must not set the header itself.
    host.response_headers_to_remove = vec![retry::NOT_SENT.to_owned()];
    RouteConfiguration {
        request_headers_to_remove: input.removed.clone(),
        ..configuration(PUBLIC_LISTENER, host)
    }
}

/// The headers that are for the rules alone.
fn removed(forward: ForwardCaller) -> Vec<String> {
    match forward {
        ForwardCaller::ToRules => vec![CLIENT_CERTIFICATE.to_owned()],
        ForwardCaller::Never | ForwardCaller::ToService => Vec::new(),
    }
}

/// Routes for all requests to an upstream's cluster. `host` is the name of the virtual host.
pub(crate) fn everything_to(cluster: &str, name: &str, host: &str) -> RouteConfiguration {
    let action = RouteAction {
        retry_policy: Some(retry::policy()),
        ..to_cluster(cluster)
    };
    let mut host = virtual_host(host, action);
    // The header is for the proxy itself, which has evaluated it by then.
    host.response_headers_to_remove = vec![retry::NOT_SENT.to_owned()];
    configuration(name, host)
}

/// Routes by host: pairs of a cluster and its hosts.
pub(crate) fn by_host(
    memo: &Memo,
    name: &str,
    hosts: &[(String, Vec<String>)],
    validate_clusters: bool,
) -> Result<Arc<EncodedResource>, GenerateError> {
    memo.get(&(name, hosts, validate_clusters), |_| {
        let hosts = hosts.iter().map(|(cluster, domains)| {
            let action = RouteAction {
                retry_policy: Some(retry::policy()),
                ..to_cluster(cluster)
            };
            VirtualHost {
                domains: domains.clone(),
                response_headers_to_remove: vec![retry::NOT_SENT.to_owned()],
                ..virtual_host(cluster, action)
            }
        });
        let configuration = RouteConfiguration {
            name: name.to_owned(),
            virtual_hosts: hosts.collect(),
            validate_clusters: validate_clusters.then_some(BoolValue { value: true }),
            ..RouteConfiguration::default()
        };
        Ok(encode::resource(name, &configuration, &[]))
    })
}

/// A route for exactly this path to a cluster.
pub(crate) fn path_to(path: &str, cluster: &str, name: &str) -> RouteConfiguration {
    let path = route_match::PathSpecifier::Path(path.to_owned());
    configuration(name, host_with(name, path, to_cluster(cluster)))
}

fn configuration(name: &str, host: VirtualHost) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![host],
        ..RouteConfiguration::default()
    }
}

fn virtual_host(name: &str, action: RouteAction) -> VirtualHost {
    let everything = route_match::PathSpecifier::Prefix("/".to_owned());
    host_with(name, everything, action)
}

fn host_with(name: &str, path: route_match::PathSpecifier, action: RouteAction) -> VirtualHost {
    VirtualHost {
        name: name.to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![to_path(path, action)],
        ..VirtualHost::default()
    }
}

fn to_path(path: route_match::PathSpecifier, action: RouteAction) -> Route {
    Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(path),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(action)),
        ..Route::default()
    }
}

fn to_cluster(cluster: &str) -> RouteAction {
    RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(cluster.to_owned())),
        ..RouteAction::default()
    }
}
