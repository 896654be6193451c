//! The public listener, for the mesh: authenticates and authorizes callers ([`inbound`]), and proxies
//! to the application.
//!
//! In transparent mode, permissive `MutualTLSMode` also admits captured connections to the
//! application's own port, without TLS and without access rules.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TrafficDirection;
use envoy_types::pb::envoy::config::listener::v3::{
    Filter, FilterChain, FilterChainMatch, Listener,
};
use envoy_types::pb::envoy::extensions::filters::http::header_to_metadata::v3::{
    Config as HeaderToMetadata, config,
};
use envoy_types::pb::envoy::extensions::filters::network::connection_limit::v3::ConnectionLimit;
use envoy_types::pb::envoy::r#type::matcher::v3::{RegexMatchAndSubstitute, RegexMatcher};
use envoy_types::pb::google::protobuf::{Any, UInt32Value, UInt64Value};
use legate_model::{
    ConnectProxy, InstanceRateLimits, MutualTlsMode, Protocol, ProxyMode, ServiceInstance,
    ServiceName, sni,
};
use legate_proxycfg::{Proxy, Sidecar};

use crate::custom;
use crate::encode::{self, EncodedResource};
use crate::error::GenerateError;
use crate::jwt;
use crate::listener::guards::{self, Guards};
use crate::listener::inbound::{self, Access, Dialing, ForwardCaller, Inbound};
use crate::listener::normalization::Normalization;
use crate::listener::{self, Bind, CLIENT_CERTIFICATE};
use crate::memo::Memo;
use crate::names::{
    self, CONNECTION_LIMIT, HEADER_TO_METADATA, JWT_AUTHN, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS,
    ROOTS_AND_PEERS,
};
use crate::rate_limit;
use crate::rbac;
use crate::settings::{APPLICATION_PORTS, PUBLIC_LISTENER_JSON, ProxySettings};
use crate::telemetry::Telemetry;
use crate::tls::{self, TlsSettings};

/// Extracts the parts of the caller's identity from that header. Proxies append their entries, so
/// that the leading wildcard skips to the last one.
const CALLER: &str = ".*URI=spiffe://([^/]+)(?:/ap/([^/]+))?/ns/([^/]+)/dc/([^/]+)/svc/([^/;,]+).*";

/// The metadata keys for other filters and logs, with the regex group of each.
const CALLER_PARTS: [(&str, &str); 5] = [
    ("trust-domain", r"\1"),
    ("partition", r"\2"),
    ("namespace", r"\3"),
    ("datacenter", r"\4"),
    ("service", r"\5"),
];

/// The filter with the rules for requests in a listener that a user wrote. Routes can override a
/// filter's config by its name: documents of users must not contain this name.
const INTENTIONS: &str = "legate.intentions";

/// The statistics prefix of the filter chain for plain connections, as in Consul.
const PERMISSIVE_STATS: &str = "permissive_public_listener";

/// A port of the application besides the registered one, with the server name of its callers.
type Application = (u16, String);

#[derive(Hash)]
struct Input<'a> {
    bind: Bind,
    inbound: Inbound<'a>,
    max_connections: u32,
    exact_balance: bool,
    /// The application's port, if plain connections to it are admitted.
    open_port: Option<u16>,
    rate_limits: Option<&'a InstanceRateLimits>,
    /// Their connections are passed on as they are, whatever they carry.
    applications: Vec<Application>,
    /// The rules for these connections.
    application_access: Option<Any>,
    name: &'a str,
}

/// The public listener.
pub(crate) fn listener(
    memo: &Memo,
    proxy: &Proxy,
    sidecar: &Sidecar,
    settings: &ProxySettings,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mesh = (*proxy.mesh).as_ref();
    if let Some(text) = &settings.public_listener {
        if !settings.application_ports.is_empty() {
            warnings.push(format!(
                "Proxy.Config: {APPLICATION_PORTS} has no effect, because of {PUBLIC_LISTENER_JSON}"
            ));
        }
        return written(memo, proxy, sidecar, text, warnings);
    }
    let bind = bind(&proxy.instance, settings)?;
    let rules = rbac::Access::of_sidecar(proxy, sidecar);
    let inbound = Inbound {
        stats: PUBLIC_LISTENER.into(),
        protocol: sidecar.protocol,
        access: Access::of(rules, sidecar.protocol, settings.fetch_timeout, warnings)?,
        cluster: LOCAL_APP.into(),
        dialing: Dialing {
            attempts: 1,
            hash_source_ip: false,
        },
        routes: PUBLIC_LISTENER.into(),
        leaf: LEAF.into(),
        roots: roots(sidecar).into(),
        tls: TlsSettings::incoming(mesh)?,
        alpn: alpn(sidecar.protocol),
        forward_caller: ForwardCaller::of(mesh, sidecar.protocol, &sidecar.peers),
        normalization: Normalization::read(mesh)?,
        telemetry: &settings.telemetry,
    };
    let (applications, application_access) = applications(proxy, sidecar, settings, warnings)?;
    let input = Input {
        applications,
        application_access,
        name: &format!("{PUBLIC_LISTENER}:{}", bind.suffix()),
        bind,
        inbound,
        max_connections: settings.max_inbound_connections,
        exact_balance: settings.balance_inbound,
        open_port: open_port(&proxy.instance.proxy),
        rate_limits: proxy.instance.proxy.rate_limits.as_ref(),
    };
    memo.get(&input, |input| {
        let routes: &[&str] = match input.inbound.access {
            Access::Requests { .. } => &[PUBLIC_LISTENER],
            Access::Connections(_) => &[],
        };
        Ok(encode::resource(input.name, &build(input), routes))
    })
}

/// Ports of the application besides the registered one, and the rules for their connections.
fn applications(
    proxy: &Proxy,
    sidecar: &Sidecar,
    settings: &ProxySettings,
    warnings: &mut Vec<String>,
) -> Result<(Vec<Application>, Option<Any>), GenerateError> {
    if settings.application_ports.is_empty() {
        return Ok((Vec::new(), None));
    }
    let service = &proxy.instance.proxy.destination_service_name;
    let service = ServiceName::new(&proxy.id.tenancy, service);
    let ports = settings.application_ports.iter().map(|port| {
        let (datacenter, domain) = (&proxy.datacenter, &proxy.trust_domain);
        let name = sni::application(&service, *port, datacenter, domain);
        (*port, name)
    });
    let rules = rbac::Access::of_sidecar(proxy, sidecar);
    let mut refused = Vec::new();
    let access = rules.connections(Protocol::Tcp, &mut refused)?;
    // Those of a service without requests concern the registered port, too.
    if sidecar.protocol.is_http() && !refused.is_empty() {
        warnings.push(format!(
            "{} intentions that look into requests refuse every connection to the ports {:?} of the \
             application",
            refused.len(),
            settings.application_ports,
        ));
    }
    Ok((ports.collect(), Some(access)))
}

#[derive(Hash)]
struct Written<'a> {
    text: &'a str,
    protocol: Protocol,
    connections: Any,
    /// The filters that requests pass first: token verification, then the rules.
    requests: Option<Vec<(&'static str, Any)>>,
    normalization: Normalization,
    tls: TlsSettings,
    roots: &'static str,
}

/// The secret with the certificates that callers are verified against.
fn roots(sidecar: &Sidecar) -> &'static str {
    match sidecar.peers.connecting.is_empty() {
        true => ROOTS,
        false => ROOTS_AND_PEERS,
    }
}

/// A listener that a user wrote, with TLS and the access rules added.
fn written(
    memo: &Memo,
    proxy: &Proxy,
    sidecar: &Sidecar,
    text: &str,
    warnings: &mut Vec<String>,
) -> Result<Arc<EncodedResource>, GenerateError> {
    let mesh = (*proxy.mesh).as_ref();
    let access = rbac::Access::of_sidecar(proxy, sidecar);
    let requests = match sidecar.protocol.is_http() {
        true => {
            let tokens = jwt::filter(&sidecar.jwt_providers)?;
            let tokens = tokens.map(|config| (JWT_AUTHN, config));
            let rules = (INTENTIONS, access.filter(warnings)?);
            Some(tokens.into_iter().chain([rules]).collect())
        }
        false => None,
    };
    let mut about_connections = Vec::new();
    let connections = access.connections(sidecar.protocol, &mut about_connections)?;
    // With rules for requests these apply only to chains without a connection manager.
    if requests.is_none() {
        warnings.append(&mut about_connections);
    }
    let input = Written {
        text,
        protocol: sidecar.protocol,
        connections,
        requests,
        normalization: Normalization::read(mesh)?,
        tls: TlsSettings::incoming(mesh)?,
        roots: roots(sidecar),
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
            tls: tls::downstream(&input.tls, (LEAF, input.roots), alpn(input.protocol)),
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

/// The port that permissive `MutualTLSMode` opens. Only captured connections have a known original
/// destination.
fn open_port(proxy: &ConnectProxy) -> Option<u16> {
    let opens = proxy.mutual_tls_mode == MutualTlsMode::Permissive
        && proxy.mode == ProxyMode::Transparent
        && proxy.local_service_port != 0;
    opens.then_some(proxy.local_service_port)
}

/// The public listener's address, whoever wrote the listener; `None` if it is unknown.
pub(crate) fn listens_on(instance: &ServiceInstance, settings: &ProxySettings) -> Option<Bind> {
    let Some(text) = &settings.public_listener else {
        return bind(instance, settings).ok();
    };
    let listener: Listener = custom::read(PUBLIC_LISTENER_JSON, text).ok()?;
    Bind::of(listener.address.as_ref()?)
}

/// The address of a public listener that no user wrote.
fn bind(instance: &ServiceInstance, settings: &ProxySettings) -> Result<Bind, GenerateError> {
    let port = settings.bind_port.unwrap_or(instance.port);
    if port == 0 {
        return Err(GenerateError::NoPort);
    }
    bind_to(instance, settings, port)
}

/// The address at which others reach the proxy, with a port.
pub(crate) fn bind_to(
    instance: &ServiceInstance,
    settings: &ProxySettings,
    port: u16,
) -> Result<Bind, GenerateError> {
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
    let limits = input.rate_limits.map(rate_limit::filter);
    let forwards = input.inbound.forward_caller == ForwardCaller::ToService;
    let callers = forwards
        .then(|| listener::http_filter(HEADER_TO_METADATA, encode::any(&caller_metadata())));
    let between = limits.into_iter().chain(callers).collect();
    let others = input.applications.iter();
    let others = others.filter_map(|one| application(input, one, limit.clone()));
    let others: Vec<_> = others.collect();
    let chain = inbound::chain(&input.inbound, limit, between);
    let telemetry = input.inbound.telemetry;
    let by_name = (!others.is_empty()).then(listener::tls_inspector);
    let plain = input.open_port.map(|port| plain(port, telemetry));
    let listener_filters = plain.is_some().then(listener::original_destination);
    Listener {
        listener_filters: listener_filters.into_iter().chain(by_name).collect(),
        ..listener::listener(
            input.name,
            &input.bind,
            TrafficDirection::Inbound,
            input.exact_balance,
            telemetry,
            [chain].into_iter().chain(others).chain(plain).collect(),
        )
    }
}

/// The filter chain of another port of the application.
fn application(
    input: &Input<'_>,
    (port, server_name): &Application,
    limit: Option<Filter>,
) -> Option<FilterChain> {
    let inbound = Inbound {
        stats: format!("{PUBLIC_LISTENER}_{port}").into(),
        protocol: Protocol::Tcp,
        access: Access::Connections(input.application_access.clone()?),
        cluster: names::application_cluster(*port).into(),
        dialing: Dialing {
            attempts: 1,
            hash_source_ip: false,
        },
        routes: PUBLIC_LISTENER.into(),
        leaf: LEAF.into(),
        roots: input.inbound.roots.clone(),
        tls: input.inbound.tls.clone(),
        alpn: alpn(Protocol::Tcp),
        forward_caller: ForwardCaller::Never,
        normalization: input.inbound.normalization,
        telemetry: input.inbound.telemetry,
    };
    Some(FilterChain {
        filter_chain_match: Some(FilterChainMatch {
            // Envoy compares server names in lower case.
            server_names: vec![server_name.to_lowercase()],
            ..FilterChainMatch::default()
        }),
        ..inbound::chain(&inbound, limit, Vec::new())
    })
}

/// The filter chain for plain connections to the application's port.
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

/// The protocols to negotiate in the TLS handshake.
pub(crate) fn alpn(protocol: Protocol) -> &'static [&'static str] {
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

/// The filter that splits the caller's identity into metadata.
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
