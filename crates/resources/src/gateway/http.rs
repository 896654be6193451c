//! Routes by host: the virtual hosts of a gateway's listener.
//!
//! A host whose service cannot be routed to answers 503: without it, its requests would reach a
//! service with a less specific host.

use std::collections::HashSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::core::v3::{HeaderValue, HeaderValueOption};
use envoy_types::pb::envoy::config::route::v3::{
    DirectResponseAction, Route, RouteConfiguration, RouteMatch, VirtualHost, route, route_match,
};
use envoy_types::pb::google::protobuf::BoolValue;
use legate_discovery_chain::Chain;
use legate_model::HeaderModifiers;

use crate::chain_route;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::memo::Memo;

/// How long clients may use HTTP/3 without asking by TCP again, in seconds: a day.
const ALTERNATIVE_FOR: u32 = 86_400;

/// What holds for all routes of a listener.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OfAllRoutes {
    /// Whether Envoy refuses routes to clusters that it does not have.
    pub(crate) validate_clusters: bool,
    /// Whether the hosts of requests may name any port.
    pub(crate) any_port: bool,
    /// The port on which clients may send the same requests by HTTP/3.
    pub(crate) http3: Option<u16>,
}

/// The routes of a listener, or of one of its filter chains.
pub(crate) fn routes(
    memo: &Memo,
    name: &str,
    virtual_hosts: Vec<VirtualHost>,
    of_all: OfAllRoutes,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let alternative = of_all.http3.map(|port| HeaderValueOption {
        header: Some(HeaderValue {
            key: "alt-svc".to_owned(),
            value: format!("h3=\":{port}\"; ma={ALTERNATIVE_FOR}"),
            ..HeaderValue::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    });
    let configuration = RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts,
        response_headers_to_add: alternative.into_iter().collect(),
        validate_clusters: of_all
            .validate_clusters
            .then_some(BoolValue { value: true }),
        ignore_port_in_host_matching: of_all.any_port,
        ..RouteConfiguration::default()
    };
    memo.get(&encode::any(&configuration), |encoded| {
        Ok(encode::resource_of(name, encoded, &[]))
    })
}

/// The requests to these domains, routed by a service's chain.
pub(crate) fn host(
    name: &str,
    domains: Vec<String>,
    chain: Option<&Chain>,
    (request, response): (Option<&HeaderModifiers>, Option<&HeaderModifiers>),
) -> VirtualHost {
    let mut host = match chain {
        Some(chain) => chain_route::virtual_host(name, domains, chain),
        None => return unavailable(name, domains),
    };
    host.request_headers_to_add = chain_route::added(request);
    host.request_headers_to_remove = chain_route::removed(request);
    host.response_headers_to_add = chain_route::added(response);
    host.response_headers_to_remove
        .extend(chain_route::removed(response));
    host
}

/// Answers 503 to the requests to these domains.
pub(crate) fn unavailable(name: &str, domains: Vec<String>) -> VirtualHost {
    let everything = route_match::PathSpecifier::Prefix("/".to_owned());
    let route = Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(everything),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::DirectResponse(DirectResponseAction {
            status: 503,
            ..DirectResponseAction::default()
        })),
        ..Route::default()
    };
    VirtualHost {
        name: name.to_owned(),
        domains,
        routes: vec![route],
        ..VirtualHost::default()
    }
}

/// The domains of virtual hosts on one port, from the host names of each. As in Consul, a name
/// without a port also matches requests that name this port. Envoy refuses routes in which two
/// virtual hosts have one domain, in any case of letters: the first has it, and a name that a user
/// wrote takes precedence over an added one. Without a port, Envoy ignores that of requests.
pub(crate) fn domains(
    names: &[Vec<String>],
    port: Option<u16>,
    warnings: &mut Vec<String>,
) -> Vec<Vec<String>> {
    let mut taken = HashSet::new();
    let mut all: Vec<Vec<String>> = Vec::with_capacity(names.len());
    for own in names {
        let is_new = |name: &&String| {
            let is_new = taken.insert(name.to_lowercase());
            if !is_new {
                let port = port.map_or_else(|| "any".to_owned(), |port| port.to_string());
                warnings.push(format!(
                    "several services have the host {name:?} on port {port}: the first one has it"
                ));
            }
            is_new
        };
        all.push(own.iter().filter(is_new).cloned().collect());
    }
    let Some(port) = port else {
        return all;
    };
    for own in &mut all {
        let added = own.iter().filter(|name| !has_port(name));
        let added = added.map(|name| format!("{name}:{port}"));
        let added: Vec<String> = added
            .filter(|name| taken.insert(name.to_lowercase()))
            .collect();
        own.extend(added);
    }
    all
}

fn has_port(name: &str) -> bool {
    name.contains(':')
}
