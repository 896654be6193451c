//! Filter chains for callers in the mesh: they authenticate and authorize the callers of one
//! service, and proxy to one cluster. A sidecar has one in its public listener, and a terminating
//! gateway one for each service that it represents.
//!
//! Callers without a certificate of the mesh fail the TLS handshake. Access rules precede every
//! filter that reaches the service. Rules for requests are part of the routes, which Envoy receives
//! separately from the listener: until then, and for requests without a route, everything is denied.
//! Rules for connections are part of the chain. Envoy evaluates them on the first bytes of the
//! caller, so that data that a server sends first is not held back.

use std::borrow::Cow;
use std::time::Duration;

use envoy_types::pb::envoy::config::listener::v3::{Filter, FilterChain};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager,
};
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use legate_model::{Mesh, Protocol};
use legate_proxycfg::{JwtProviders, PeerCallers};

use crate::duration::proto_duration;
use crate::error::GenerateError;
use crate::jwt;
use crate::listener::normalization::Normalization;
use crate::listener::{self, RouteSpecifier};
use crate::names::{HTTP_RBAC, JWT_AUTHN, NETWORK_RBAC};
use crate::rbac;
use crate::retry;
use crate::telemetry::Telemetry;
use crate::tls::{self, TlsSettings};

/// The level of the access rules.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Access {
    /// Rules for connections.
    Connections(Any),
    /// Rules for requests, which are in the routes.
    Requests {
        /// Envoy's initial fetch timeout for the routes; `None` means its default of 15 s.
        fetch_timeout: Option<Duration>,
        /// The filter config that verifies tokens, if the rules require some.
        tokens: Option<Any>,
    },
}

impl Access {
    /// The level that a service's protocol has.
    pub(crate) fn of(
        rules: rbac::Access<'_>,
        protocol: Protocol,
        fetch_timeout: Option<Duration>,
        warnings: &mut Vec<String>,
    ) -> Result<Self, GenerateError> {
        if !protocol.is_http() {
            return rules.connections(protocol, warnings).map(Self::Connections);
        }
        let providers: &JwtProviders = rules.providers;
        Ok(Self::Requests {
            fetch_timeout,
            tokens: jwt::filter(providers)?,
        })
    }
}

/// What a chain is made from.
#[derive(Debug, Hash)]
pub(crate) struct Inbound<'a> {
    /// The prefix of its statistics.
    pub(crate) stats: Cow<'a, str>,
    pub(crate) protocol: Protocol,
    pub(crate) access: Access,
    /// The cluster of connections.
    pub(crate) cluster: Cow<'a, str>,
    /// How connections are balanced over the instances of the cluster.
    pub(crate) dialing: Dialing,
    /// The name of the routes of requests.
    pub(crate) routes: Cow<'a, str>,
    /// The secret with the service's certificate and key.
    pub(crate) leaf: Cow<'a, str>,
    /// The secret with the certificates that callers are verified against.
    pub(crate) roots: Cow<'a, str>,
    pub(crate) tls: TlsSettings,
    /// The protocols to negotiate in the TLS handshake.
    pub(crate) alpn: &'static [&'static str],
    pub(crate) forward_caller: ForwardCaller,
    pub(crate) normalization: Normalization,
    pub(crate) telemetry: &'a Telemetry,
}

/// How connections are balanced over instances.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct Dialing {
    /// The maximum number of instances to try.
    pub(crate) attempts: u32,
    /// Whether connections from one address use the same instance.
    pub(crate) hash_source_ip: bool,
}

/// What becomes of the header with the identities of callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ForwardCaller {
    /// Nothing sees it.
    Never,
    /// The rules see what mesh gateways say of callers of peers; the routes remove it.
    ToRules,
    /// The service gets it, with the caller added.
    ToService,
}

impl ForwardCaller {
    /// According to the `mesh` entry, for a service that these peers call.
    pub(crate) fn of(mesh: Option<&Mesh>, protocol: Protocol, peers: &PeerCallers) -> Self {
        match (
            forwards_callers(mesh) && protocol != Protocol::Grpc,
            peers.all.is_empty(),
        ) {
            (true, _) => Self::ToService,
            (false, false) => Self::ToRules,
            (false, true) => Self::Never,
        }
    }
}

/// Whether callers' identities are forwarded, according to the `mesh` entry.
pub(crate) fn forwards_callers(mesh: Option<&Mesh>) -> bool {
    let http = mesh.and_then(|mesh| mesh.http.as_ref());
    !http.is_some_and(|http| http.sanitize_x_forwarded_client_cert)
}

/// The chain. `limit` precedes what reaches the service, and `between` are HTTP filters after the
/// access rules.
pub(crate) fn chain(
    inbound: &Inbound<'_>,
    limit: Option<Filter>,
    between: Vec<HttpFilter>,
) -> FilterChain {
    let filters = match &inbound.access {
        Access::Requests {
            fetch_timeout,
            tokens,
        } => {
            let manager = manager(inbound, *fetch_timeout, tokens.clone(), between);
            let http = listener::http_connection(&manager);
            limit.into_iter().chain([http]).collect()
        }
        Access::Connections(rules) => {
            let access = listener::network_filter(NETWORK_RBAC, rules.clone());
            let Dialing {
                attempts,
                hash_source_ip,
            } = inbound.dialing;
            let proxy = listener::tcp_proxy(
                &inbound.stats,
                &inbound.cluster,
                attempts,
                hash_source_ip,
                inbound.telemetry,
            );
            [access].into_iter().chain(limit).chain([proxy]).collect()
        }
    };
    FilterChain {
        filters,
        transport_socket: Some(tls::downstream(
            &inbound.tls,
            (&inbound.leaf, &inbound.roots),
            inbound.alpn,
        )),
        ..FilterChain::default()
    }
}

fn manager(
    inbound: &Inbound<'_>,
    fetch_timeout: Option<Duration>,
    tokens: Option<Any>,
    between: Vec<HttpFilter>,
) -> HttpConnectionManager {
    use http_connection_manager::{ForwardClientCertDetails, SetCurrentClientCertDetails};
    // Before the rules, which check the claims that it stores.
    let tokens = tokens.map(|config| listener::http_filter(JWT_AUTHN, config));
    let access = listener::http_filter(HTTP_RBAC, rbac::no_requests());
    let filters = tokens.into_iter().chain([access]).chain(between);
    let routes = RouteSpecifier::Rds(Rds {
        config_source: Some(tls::ads(fetch_timeout.map(proto_duration))),
        route_config_name: inbound.routes.clone().into_owned(),
    });
    let mut manager = listener::connection_manager(
        &inbound.stats,
        inbound.protocol,
        routes,
        inbound.telemetry,
        filters.collect(),
    );
    manager.local_reply_config = Some(retry::replies());
    if inbound.forward_caller == ForwardCaller::ToRules {
        manager.forward_client_cert_details = ForwardClientCertDetails::ForwardOnly.into();
    }
    if inbound.forward_caller == ForwardCaller::ToService {
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
    inbound.normalization.apply(&mut manager);
    manager
}
