//! The listener of an explicit upstream for the application.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::Rds;
use legate_model::{Protocol, Upstream};

use crate::custom;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::names::{self, FilterName};
use crate::retry;
use crate::route;
use crate::settings::{LISTENER_JSON, ProxySettings};
use crate::telemetry::Telemetry;
use crate::tls;
use crate::upstream::{self, UpstreamPlan, UpstreamTarget};

#[derive(Hash)]
struct Input<'a> {
    id: &'a str,
    filter: FilterName,
    target: UpstreamTarget,
    bind: Bind,
    protocol: Protocol,
    hash_source_ip: bool,
    fetch_timeout: Option<Duration>,
    exact_balance: bool,
    telemetry: &'a Telemetry,
}

/// The listener of an explicit upstream.
pub(crate) fn listener(
    memo: &Memo,
    plan: &UpstreamPlan<'_>,
    bind: &Bind,
    settings: &ProxySettings,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let definition = &plan.upstream.upstream;
    let has_routes = upstream::has_routes(plan.chain()?);
    let input = Input {
        id: &plan.id,
        filter: names::upstream_filter(plan.proxy, definition),
        target: plan.target(memo)?,
        bind: bind.clone(),
        protocol: plan.protocol(),
        hash_source_ip: plan.hashes_source_ip(),
        // Nothing else fetches.
        fetch_timeout: settings.fetch_timeout.filter(|_| has_routes),
        exact_balance: plan.settings.balance_outbound,
        telemetry: &settings.telemetry,
    };
    memo.get(&input, |input| {
        let name = format!("{}:{}", input.id, input.bind.suffix());
        let routes = input.target.routes();
        Ok(encode::resource(
            &name,
            &build(&name, input),
            routes.as_slice(),
        ))
    })
}

/// The listener of an upstream that a user wrote, and its address.
pub(crate) fn written(
    memo: &Memo,
    text: &str,
) -> Result<(Arc<EncodedResource>, Option<Bind>), GenerateError> {
    let listener: Listener = custom::read(LISTENER_JSON, text)?;
    let resource = memo.get(&(LISTENER_JSON, text), |_| {
        Ok(custom::resource(&listener.name, &listener, &[]))
    })?;
    Ok((resource, listener.address.as_ref().and_then(Bind::of)))
}

/// The address on which the application dials an upstream.
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

/// Parses octal digits with an optional prefix. Empty leaves the mode to Envoy.
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
    let filter = filter(&FilterSettings {
        id: input.id,
        filter: &input.filter,
        target: &input.target,
        protocol: input.protocol,
        attempts: retry::ATTEMPTS,
        hash_source_ip: input.hash_source_ip,
        fetch_timeout: input.fetch_timeout,
        telemetry: input.telemetry,
    });
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

/// Settings of the filter that forwards outbound traffic to an upstream.
#[derive(Clone, Copy)]
pub(crate) struct FilterSettings<'a> {
    /// The upstream's id.
    pub(crate) id: &'a str,
    /// Its name in statistics.
    pub(crate) filter: &'a FilterName,
    pub(crate) target: &'a UpstreamTarget,
    pub(crate) protocol: Protocol,
    /// The maximum number of instances to try for a TCP connection.
    pub(crate) attempts: u32,
    /// Whether TCP connections from one address use the same instance.
    pub(crate) hash_source_ip: bool,
    /// Envoy's initial fetch timeout for routes.
    pub(crate) fetch_timeout: Option<Duration>,
    pub(crate) telemetry: &'a Telemetry,
}

/// The filter that forwards outbound traffic to an upstream.
pub(crate) fn filter(settings: &FilterSettings<'_>) -> Filter {
    let stats = settings.filter.stats();
    let routes = match settings.target {
        UpstreamTarget::Cluster(cluster) if !settings.protocol.is_http() => {
            let hash = settings.hash_source_ip;
            return listener::tcp_proxy(
                &stats,
                cluster,
                settings.attempts,
                hash,
                settings.telemetry,
            );
        }
        UpstreamTarget::Cluster(cluster) => {
            let host = &settings.filter.name;
            RouteSpecifier::RouteConfig(route::everything_to(cluster, settings.id, host))
        }
        UpstreamTarget::Routes(name) => RouteSpecifier::Rds(Rds {
            config_source: Some(tls::ads(settings.fetch_timeout.map(proto_duration))),
            route_config_name: name.clone(),
        }),
    };
    let manager = listener::connection_manager(
        &stats,
        settings.protocol,
        routes,
        settings.telemetry,
        Vec::new(),
    );
    listener::http_connection(&manager)
}
