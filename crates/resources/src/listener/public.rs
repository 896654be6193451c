//! The listener for the mesh: who may connect, who may ask for what, and on to the application.
//!
//! Callers without a certificate of the mesh never get past the handshake. Access rules stand before
//! everything that speaks to the application. Those about requests are part of the routes, which
//! Envoy gets apart from the listener: until it has them, and for requests that no route is for,
//! everything is refused. Those about connections are part of the listener; Envoy applies them when
//! the first bytes of the caller arrive, so what a server says before it was spoken to is not held
//! back.
//!
//! In transparent mode, `MutualTLSMode` permissive lets in besides what was sent to the application's own
//! port and captured, without TLS and without access rules.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener,
};
use envoy_types::pb::envoy::extensions::filters::http::header_to_metadata::v3::{
    Config as HeaderToMetadata, config,
};
use envoy_types::pb::envoy::extensions::filters::network::connection_limit::v3::ConnectionLimit;
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, Rds, http_connection_manager,
};
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use envoy_types::pb::google::protobuf::{Any, BoolValue, UInt32Value, UInt64Value};
use legate_model::{ConnectProxy, InstanceRateLimits, MutualTlsMode, Protocol, ProxyMode};
use legate_proxycfg::Snapshot;

use crate::custom;
use crate::duration::proto_duration;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::jwt;
use crate::listener::guards::{self, Guards};
use crate::listener::normalization::Normalization;
use crate::listener::{self, Bind, RouteSpecifier};
use crate::memo::Memo;
use crate::names::{
    CONNECTION_LIMIT, HEADER_TO_METADATA, HTTP_RBAC, JWT_AUTHN, LOCAL_APP, NETWORK_RBAC,
    PUBLIC_LISTENER,
};
use crate::rate_limit;
use crate::rbac;
use crate::retry;
use crate::settings::{PUBLIC_LISTENER_JSON, ProxySettings};
use crate::telemetry::Telemetry;
use crate::tls::{self, TlsSettings};

/// The header in which proxies tell who called.
const CLIENT_CERTIFICATE: &str = "x-forwarded-client-cert";

/// The caller's identity in that header, its parts as groups. The last proxy adds its entry at the
/// end, which the leading wildcard skips to.
const CALLER: &str = ".*URI=spiffe://([^/]+)(?:/ap/([^/]+))?/ns/([^/]+)/dc/([^/]+)/svc/([^/;,]+).*";

/// The metadata that other filters and logs see, by the group it is taken from.
const CALLER_PARTS: [(&str, &str); 5] = [
    ("trust-domain", r"\1"),
    ("partition", r"\2"),
    ("namespace", r"\3"),
    ("datacenter", r"\4"),
    ("service", r"\5"),
];

/// The filter with the rules about requests in a listener that a user wrote. Routes can replace what a
/// filter says by its name: this one has a name that no document of a user may have in it.
const INTENTIONS: &str = "legate.intentions";

/// What the filter chain for plain connections counts under. Consul's.
const PERMISSIVE_STATS: &str = "permissive_public_listener";

/// What the rules about callers look at.
#[derive(Hash)]
enum Access {
    /// Connections, by these rules.
    Connections(Any),
    /// Requests, by the rules in the routes.
    Requests {
        /// Envoy waits for the routes this long at first; `None` is its 15 s.
        fetch_timeout: Option<Duration>,
        /// What verifies the tokens that the rules ask for, where they ask for some.
        tokens: Option<Any>,
    },
}

#[derive(Hash)]
struct Input<'a> {
    bind: Bind,
    protocol: Protocol,
    access: Access,
    tls: TlsSettings,
    max_connections: u32,
    exact_balance: bool,
    forward_caller: bool,
    normalization: Normalization,
    /// The application's port, connections to which are let in as they are.
    open_port: Option<u16>,
    rate_limits: Option<&'a InstanceRateLimits>,
    telemetry: &'a Telemetry,
    name: &'a str,
}

/// The listener that the mesh connects to.
pub(crate) fn listener(
    memo: &Memo,
    snapshot: &Snapshot,
    settings: &ProxySettings,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mesh = (*snapshot.mesh).as_ref();
    if let Some(text) = &settings.public_listener {
        return written(memo, snapshot, text, warnings);
    }
    let bind = bind(snapshot, settings)?;
    let sanitize = mesh
        .and_then(|mesh| mesh.http.as_ref())
        .is_some_and(|http| http.sanitize_x_forwarded_client_cert);
    let access = if snapshot.protocol.is_http() {
        Access::Requests {
            fetch_timeout: settings.fetch_timeout,
            tokens: jwt::filter(&snapshot.jwt_providers)?,
        }
    } else {
        Access::Connections(rbac::connections(snapshot, warnings)?)
    };
    let input = Input {
        name: &format!("{PUBLIC_LISTENER}:{}", bind.suffix()),
        bind,
        protocol: snapshot.protocol,
        access,
        tls: TlsSettings::incoming(mesh)?,
        max_connections: settings.max_inbound_connections,
        exact_balance: settings.balance_inbound,
        forward_caller: !sanitize && snapshot.protocol != Protocol::Grpc,
        normalization: Normalization::read(mesh)?,
        open_port: open_port(&snapshot.instance.proxy),
        rate_limits: snapshot.instance.proxy.rate_limits.as_ref(),
        telemetry: &settings.telemetry,
    };
    memo.get(&input, |input| {
        let routes: &[&str] = match input.access {
            Access::Requests { .. } => &[PUBLIC_LISTENER],
            Access::Connections(_) => &[],
        };
        Ok(encode::resource(input.name, &build(input), routes))
    })
}

#[derive(Hash)]
struct Written<'a> {
    text: &'a str,
    protocol: Protocol,
    connections: Any,
    /// What requests pass first: what verifies their tokens, then the rules.
    requests: Option<Vec<(&'static str, Any)>>,
    normalization: Normalization,
    tls: TlsSettings,
}

/// The listener as a user wrote it, with TLS and the access rules.
fn written(
    memo: &Memo,
    snapshot: &Snapshot,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mesh = (*snapshot.mesh).as_ref();
    let requests = match snapshot.protocol.is_http() {
        true => {
            let tokens = jwt::filter(&snapshot.jwt_providers)?;
            let tokens = tokens.map(|config| (JWT_AUTHN, config));
            let rules = (INTENTIONS, rbac::filter(snapshot, warnings)?);
            Some(tokens.into_iter().chain([rules]).collect())
        }
        false => None,
    };
    let mut about_connections = Vec::new();
    let connections = rbac::connections(snapshot, &mut about_connections)?;
    // Of requests they are only asked where a chain cannot look into these.
    if requests.is_none() {
        warnings.append(&mut about_connections);
    }
    let input = Written {
        text,
        protocol: snapshot.protocol,
        connections,
        requests,
        normalization: Normalization::read(mesh)?,
        tls: TlsSettings::incoming(mesh)?,
    };
    memo.get(&input, |input| {
        let mut listener: Listener = custom::read(PUBLIC_LISTENER_JSON, input.text)?;
        custom::refuse_name(PUBLIC_LISTENER_JSON, &listener, INTENTIONS)?;
        let filters = |filters: &Vec<(&str, Any)>| {
            let filters = filters.iter();
            let filter = |(name, config): &(&str, Any)| listener::http_filter(name, config.clone());
            filters.map(filter).collect()
        };
        let guards = Guards {
            tls: tls::downstream(&input.tls, alpn(input.protocol)),
            connections: input.connections.clone(),
            requests: input.requests.as_ref().map(filters),
            normalization: input.normalization,
        };
        guards::guard(PUBLIC_LISTENER_JSON, &mut listener, &guards)?;
        if listener.name.is_empty() {
            PUBLIC_LISTENER.clone_into(&mut listener.name);
        }
        Ok(custom::resource(&listener.name, &listener, &[]))
    })
}

/// The port that `MutualTLSMode` permissive opens: only where connections to it are captured is it known
/// what they were made to.
fn open_port(proxy: &ConnectProxy) -> Option<u16> {
    let opens = proxy.mutual_tls_mode == MutualTlsMode::Permissive
        && proxy.mode == ProxyMode::Transparent
        && proxy.local_service_port != 0;
    opens.then_some(proxy.local_service_port)
}

/// Where the listener for the mesh listens, whoever wrote it; `None` where that cannot be said.
pub(crate) fn listens_on(snapshot: &Snapshot, settings: &ProxySettings) -> Option<Bind> {
    let Some(text) = &settings.public_listener else {
        return bind(snapshot, settings).ok();
    };
    let listener: Listener = custom::read(PUBLIC_LISTENER_JSON, text).ok()?;
    Bind::of(listener.address.as_ref()?)
}

/// Where the listener for the mesh listens that no user wrote.
fn bind(snapshot: &Snapshot, settings: &ProxySettings) -> Result<Bind, GenerateError> {
    let port = settings.bind_port.unwrap_or(snapshot.instance.port);
    if port == 0 {
        return Err(GenerateError::NoPort);
    }
    bind_to(snapshot, settings, port)
}

/// The address that others reach the proxy at, with a port.
pub(crate) fn bind_to(
    snapshot: &Snapshot,
    settings: &ProxySettings,
    port: u16,
) -> Result<Bind, GenerateError> {
    let instance = &snapshot.instance;
    let (setting, address) = match &settings.bind_address {
        Some(address) => ("bind_address in Proxy.Config", address.as_str()),
        None => (
            "Address of the proxy's registration (or bind_address in Proxy.Config)",
            instance.address.as_str(),
        ),
    };
    let address = if address.is_empty() {
        "0.0.0.0"
    } else {
        address
    };
    Bind::socket(setting, address, port)
}

fn build(input: &Input<'_>) -> Listener {
    let limit = (input.max_connections > 0).then(|| connection_limit(input.max_connections));
    let filters = match &input.access {
        Access::Requests {
            fetch_timeout,
            tokens,
        } => {
            let manager = manager(input, *fetch_timeout, tokens.clone());
            let http = listener::http_connection(&manager);
            limit.into_iter().chain([http]).collect()
        }
        Access::Connections(rules) => {
            let access = listener::network_filter(NETWORK_RBAC, rules.clone());
            let proxy = listener::tcp_proxy(PUBLIC_LISTENER, LOCAL_APP, 1, false, input.telemetry);
            [access].into_iter().chain(limit).chain([proxy]).collect()
        }
    };
    let chain = FilterChain {
        filters,
        transport_socket: Some(tls::downstream(&input.tls, alpn(input.protocol))),
        ..FilterChain::default()
    };
    let plain = input.open_port.map(|port| plain(port, input.telemetry));
    let listener_filters = plain.is_some().then(listener::original_destination);
    Listener {
        listener_filters: listener_filters.into_iter().collect(),
        ..listener::listener(
            input.name,
            &input.bind,
            TrafficDirection::Inbound,
            input.exact_balance,
            input.telemetry,
            [chain].into_iter().chain(plain).collect(),
        )
    }
}

/// The filter chain for what was sent to the application's own port.
fn plain(port: u16, telemetry: &Telemetry) -> FilterChain {
    FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            destination_port: Some(UInt32Value { value: port.into() }),
            ..FilterChainMatch::default()
        }),
        filters: vec![listener::tcp_proxy(
            PERMISSIVE_STATS,
            LOCAL_APP,
            1,
            false,
            telemetry,
        )],
        ..FilterChain::default()
    }
}

fn alpn(protocol: Protocol) -> &'static [&'static str] {
    match protocol {
        Protocol::Tcp => &[],
        Protocol::Http => &["http/1.1"],
        Protocol::Http2 | Protocol::Grpc => &["h2", "http/1.1"],
    }
}

fn connection_limit(most: u32) -> Filter {
    let config = ConnectionLimit {
        stat_prefix: "inbound_connection_limit".to_owned(),
        max_connections: Some(UInt64Value { value: most.into() }),
        ..ConnectionLimit::default()
    };
    listener::network_filter(CONNECTION_LIMIT, encode::any(&config))
}

fn manager(
    input: &Input<'_>,
    fetch_timeout: Option<Duration>,
    tokens: Option<Any>,
) -> HttpConnectionManager {
    use http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
    // Before the rules, which look at what it finds.
    let tokens = tokens.map(|config| listener::http_filter(JWT_AUTHN, config));
    let access = listener::http_filter(HTTP_RBAC, rbac::no_requests());
    let mut filters: Vec<_> = tokens.into_iter().chain([access]).collect();
    filters.extend(input.rate_limits.map(rate_limit::filter));
    if input.forward_caller {
        filters.push(listener::http_filter(
            HEADER_TO_METADATA,
            encode::any(&caller_metadata()),
        ));
    }
    let routes = RouteSpecifier::Rds(Rds {
        config_source: Some(tls::ads(fetch_timeout.map(proto_duration))),
        route_config_name: PUBLIC_LISTENER.to_owned(),
    });
    let mut manager = listener::connection_manager(
        PUBLIC_LISTENER,
        input.protocol,
        routes,
        input.telemetry,
        filters,
    );
    manager.local_reply_config = Some(retry::replies());
    if input.forward_caller {
        manager.forward_client_cert_details = ForwardClientCertDetails::AppendForward.into();
        manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
            subject: Some(BoolValue { value: true }),
            cert: true,
            chain: true,
            dns: true,
            uri: true,
            ..SetCurrentClientCertDetails::default()
        });
    }
    input.normalization.apply(&mut manager);
    manager
}

/// Takes the caller's identity apart.
fn caller_metadata() -> HeaderToMetadata {
    let rule = |(key, group): (&str, &str)| config::Rule {
        header: CLIENT_CERTIFICATE.to_owned(),
        on_header_present: Some(config::KeyValuePair {
            metadata_namespace: "consul".to_owned(),
            key: key.to_owned(),
            regex_value_rewrite: Some(RegexMatchAndSubstitute {
                pattern: Some(RegexMatcher {
                    regex: CALLER.to_owned(),
                    ..RegexMatcher::default()
                }),
                substitution: group.to_owned(),
            }),
            r#type: config::ValueType::String.into(),
            ..config::KeyValuePair::default()
        }),
        ..config::Rule::default()
    };
    HeaderToMetadata {
        request_rules: CALLER_PARTS.into_iter().map(rule).collect(),
        ..HeaderToMetadata::default()
    }
}
