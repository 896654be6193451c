//! The listeners that the dataplane adds for metrics and readiness, and the clusters behind them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

use super::document::{
    Address, Cluster, ConnectionManager, DataSource, FilterChain, HttpFilter, Listener,
    NetworkFilter, Route, RouteAction, RouteConfig, RouteMatch, Secret, SecretContent, TypeOnly,
    VirtualHost, Wire,
};
use super::{BootstrapError, BootstrapInputs, PrometheusTls, TrustedCa};

const SELF_ADMIN: &str = "self_admin";
const PROMETHEUS_BACKEND: &str = "prometheus_backend";
const PROMETHEUS: &str = "envoy_prometheus_metrics";
const STATS: &str = "envoy_metrics";
const READY: &str = "envoy_ready";
const PROMETHEUS_CERTIFICATE: &str = "prometheus_cert";
const PROMETHEUS_VALIDATION: &str = "prometheus_validation_context";

/// What the dataplane adds to the static resources.
#[derive(Default)]
pub(super) struct Additions {
    pub(super) listeners: Vec<Listener>,
    pub(super) clusters: Vec<Cluster>,
    pub(super) secrets: Vec<Secret>,
    pub(super) warnings: Vec<String>,
}

/// Prometheus, stats and ready listeners, in this order, as far as they are configured.
/// `taken` are the names of the clusters that the user brings along.
pub(super) fn additions(
    inputs: &BootstrapInputs,
    taken: &[&str],
) -> Result<Additions, BootstrapError> {
    let keys = &inputs.proxy_config;
    let mut added = Additions::default();
    if let Some(bind) = &keys.prometheus_bind_addr {
        let path = scrape_path(&inputs.prometheus.scrape_path, &mut added.warnings);
        let tls = inputs.prometheus.tls.as_ref();
        added.listeners.push(listener(ListenerPlan {
            name: PROMETHEUS,
            bind: bind_address("envoy_prometheus_bind_addr", bind)?,
            matches: RouteMatch::Path(path),
            cluster: PROMETHEUS_BACKEND,
            rewrite: "/stats/prometheus",
            transport_socket: tls.map(|_| transport_socket()),
        }));
        added.secrets.extend(tls.into_iter().flat_map(secrets));
    }
    if let Some(bind) = &keys.stats_bind_addr {
        added.listeners.push(listener(ListenerPlan {
            name: STATS,
            bind: bind_address("envoy_stats_bind_addr", bind)?,
            matches: RouteMatch::Prefix("/stats".to_owned()),
            cluster: SELF_ADMIN,
            rewrite: "/stats",
            transport_socket: None,
        }));
    }
    if let Some(bind) = inputs.ready {
        added.listeners.push(listener(ListenerPlan {
            name: READY,
            bind,
            matches: RouteMatch::Path("/ready".to_owned()),
            cluster: SELF_ADMIN,
            rewrite: "/ready",
            transport_socket: None,
        }));
    }
    let backends = [
        (
            PROMETHEUS_BACKEND,
            keys.prometheus_bind_addr.is_some(),
            inputs.prometheus.backend,
        ),
        (
            SELF_ADMIN,
            keys.stats_bind_addr.is_some() || inputs.ready.is_some(),
            inputs.admin,
        ),
    ];
    for (name, needed, address) in backends {
        // A cluster of the user under the same name is meant to replace ours.
        if needed && !taken.contains(&name) {
            let to = Address::from(reachable(address));
            added
                .clusters
                .push(Cluster::local(name, "5s", Wire::Http1, to));
        }
    }
    Ok(added)
}

/// Where a local client reaches what is bound to `address`: a wildcard is no destination.
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// Whether that is the name of one of these listeners, which carry no traffic of the application.
pub(crate) fn is_own(name: &str) -> bool {
    [PROMETHEUS, STATS, READY]
        .iter()
        .any(|own| name == listener_name(own))
}

fn listener_name(name: &str) -> String {
    format!("{name}_listener")
}

struct ListenerPlan {
    name: &'static str,
    bind: SocketAddr,
    matches: RouteMatch,
    cluster: &'static str,
    rewrite: &'static str,
    transport_socket: Option<Value>,
}

fn listener(plan: ListenerPlan) -> Listener {
    let forward = Route {
        matches: plan.matches,
        action: RouteAction::Route {
            cluster: plan.cluster,
            prefix_rewrite: plan.rewrite,
        },
    };
    let otherwise = Route {
        matches: RouteMatch::Prefix("/".to_owned()),
        action: RouteAction::DirectResponse { status: 404 },
    };
    let manager = ConnectionManager {
        type_url: "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix: plan.name,
        codec_type: "HTTP1",
        route_config: RouteConfig {
            name: "self_admin_route",
            virtual_hosts: [VirtualHost {
                name: SELF_ADMIN,
                domains: ["*"],
                routes: [forward, otherwise],
            }],
        },
        http_filters: [HttpFilter {
            name: "envoy.filters.http.router",
            typed_config: TypeOnly {
                type_url: "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            },
        }],
    };
    Listener {
        name: listener_name(plan.name),
        address: plan.bind.into(),
        filter_chains: [FilterChain {
            filters: [NetworkFilter {
                name: "envoy.filters.network.http_connection_manager",
                typed_config: manager,
            }],
            transport_socket: plan.transport_socket,
        }],
    }
}

fn transport_socket() -> Value {
    json!({
        "name": "tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            // A scraper may come without a certificate; one that it shows has to be trusted.
            "require_client_certificate": false,
            "common_tls_context": {
                "tls_certificate_sds_secret_configs": [{ "name": PROMETHEUS_CERTIFICATE }],
                "validation_context_sds_secret_config": { "name": PROMETHEUS_VALIDATION },
            },
        },
    })
}

fn secrets(tls: &PrometheusTls) -> [Secret; 2] {
    let file = |path: &std::path::Path| DataSource::Filename(path.to_string_lossy().into_owned());
    let trusted_ca = match &tls.ca {
        TrustedCa::File(path) => file(path),
        TrustedCa::Folder { pem, .. } => DataSource::InlineString(pem.clone()),
    };
    [
        Secret {
            name: PROMETHEUS_CERTIFICATE,
            content: SecretContent::TlsCertificate {
                certificate_chain: file(&tls.certificate),
                private_key: file(&tls.key),
            },
        },
        Secret {
            name: PROMETHEUS_VALIDATION,
            content: SecretContent::ValidationContext { trusted_ca },
        },
    ]
}

fn bind_address(key: &'static str, value: &str) -> Result<SocketAddr, BootstrapError> {
    value.parse().map_err(|_| BootstrapError::BindAddress {
        key,
        value: value.to_owned(),
    })
}

fn scrape_path(path: &str, warnings: &mut Vec<String>) -> String {
    let mut path = path.to_owned();
    if !path.starts_with('/') {
        warnings.push(format!(
            "envoy_prometheus_metrics path {path} must begin with '/', adding for path match"
        ));
        path.insert(0, '/');
    }
    if let Some(query) = path.find('?') {
        warnings.push(format!(
            "envoy_prometheus_metrics path {path} must not contain a query, stripping for path match"
        ));
        path.truncate(query);
    }
    path
}
