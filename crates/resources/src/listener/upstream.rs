//! The listener on which the application reaches one upstream.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener};
use legate_model::{Protocol, Upstream};

use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::kinds::sidecar::UpstreamPlan;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::names;
use crate::retry;
use crate::route;
use crate::telemetry::Telemetry;

/// Statistics of upstreams stand under this.
const STATS: &str = "upstream.";

#[derive(Hash)]
struct Input<'a> {
    id: String,
    filter: String,
    cluster: &'a str,
    bind: Bind,
    protocol: Protocol,
    exact_balance: bool,
    telemetry: &'a Telemetry,
}

/// The listener of an explicit upstream.
pub(crate) fn listener(
    memo: &Memo,
    plan: &UpstreamPlan<'_>,
    bind: &Bind,
    telemetry: &Telemetry,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let definition = &plan.upstream.upstream;
    let input = Input {
        id: definition.id().to_string(),
        filter: names::upstream_filter(plan.snapshot, definition),
        cluster: &plan.cluster,
        bind: bind.clone(),
        protocol: plan.upstream.protocol,
        exact_balance: plan.settings.balance_outbound,
        telemetry,
    };
    memo.get(&input, |input| {
        let name = format!("{}:{}", input.id, input.bind.suffix());
        Ok(encode::resource(&name, &build(&name, input), &[]))
    })
}

/// Where the application dials an upstream.
pub(crate) fn bind(upstream: &Upstream) -> Result<Bind, GenerateError> {
    if !upstream.has_local_socket() {
        let setting = format!("LocalBindAddress of upstream {}", upstream.id());
        return Bind::socket(
            &setting,
            &upstream.local_bind_address,
            upstream.local_bind_port,
        );
    }
    Ok(Bind::Pipe {
        path: upstream.local_bind_socket_path.clone(),
        mode: socket_mode(upstream)?,
    })
}

/// Octal digits, with or without the usual prefixes. Empty leaves it to Envoy.
fn socket_mode(upstream: &Upstream) -> Result<u32, GenerateError> {
    let text = upstream.local_bind_socket_mode.trim();
    let digits = text.strip_prefix("0o").unwrap_or(text);
    if digits.is_empty() {
        return Ok(0);
    }
    u32::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| GenerateError::SocketMode {
            upstream: upstream.id().to_string(),
            value: upstream.local_bind_socket_mode.clone(),
        })
}

fn build(name: &str, input: &Input<'_>) -> Listener {
    let filter = filter(
        &input.id,
        &input.filter,
        input.cluster,
        input.protocol,
        retry::ATTEMPTS,
        input.telemetry,
    );
    let chain = FilterChain {
        filters: vec![filter],
        ..FilterChain::default()
    };
    listener::listener(
        name,
        &input.bind,
        TrafficDirection::Outbound,
        input.exact_balance,
        input.telemetry,
        vec![chain],
    )
}

/// The prefix of an upstream's statistics.
pub(crate) fn stats(filter: &str) -> String {
    names::stat_prefix(STATS, filter)
}

/// The filter that hands what an application sends to the cluster of an upstream. At most `attempts`
/// of its instances are dialled for a connection that is not HTTP.
pub(crate) fn filter(
    id: &str,
    filter: &str,
    cluster: &str,
    protocol: Protocol,
    attempts: u32,
    telemetry: &Telemetry,
) -> Filter {
    let stats = stats(filter);
    if !protocol.is_http() {
        return listener::tcp_proxy(&stats, cluster, attempts, telemetry);
    }
    let routes = RouteSpecifier::RouteConfig(route::everything_to(cluster, id, filter));
    let manager = listener::connection_manager(&stats, protocol, routes, telemetry, Vec::new());
    listener::http_connection(&manager)
}
