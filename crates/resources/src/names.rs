//! Names of resources and filters that are referred to from several places.

use legate_model::{Destination, ServiceName, Tenancy, Upstream, UpstreamId, UpstreamType, sni};
use legate_proxycfg::{Peers, Proxy};

use crate::resource_type::Type;

/// The secret with the proxy's own certificate and key.
pub const LEAF: &str = "leaf";

/// The secret with the certificates that peers are verified against.
pub const ROOTS: &str = "roots";

/// The secret with the certificates that callers of the mesh and of peers are verified against.
pub(crate) const ROOTS_AND_PEERS: &str = "roots and peers";

/// The cluster of the proxy's application.
pub(crate) const LOCAL_APP: &str = "local_app";

/// The listener for the mesh and its routes. The listener's full name has its address appended.
pub(crate) const PUBLIC_LISTENER: &str = "public_listener";

/// The prefix of the names of exposed paths' listeners.
pub(crate) const EXPOSED_LISTENER: &str = "exposed_path_";

/// The listener for outbound traffic of the application. Its full name has its address appended.
pub(crate) const OUTBOUND_LISTENER: &str = "outbound_listener";

/// The listeners and clusters of ports of UDP, and the beginning of their names.
pub(crate) const DATAGRAMS: &str = "datagrams";

/// The cluster for captured connections to their original destination outside the mesh.
pub(crate) const ORIGINAL_DESTINATION: &str = "original-destination";

pub(crate) const ORIGINAL_DST_FILTER: &str = "envoy.filters.listener.original_dst";
pub(crate) const TLS_INSPECTOR: &str = "envoy.filters.listener.tls_inspector";
pub(crate) const PROXY_PROTOCOL: &str = "envoy.filters.listener.proxy_protocol";
pub(crate) const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
pub(crate) const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
pub(crate) const CONNECTION_LIMIT: &str = "envoy.filters.network.connection_limit";
pub(crate) const NETWORK_RBAC: &str = "envoy.filters.network.rbac";
pub(crate) const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
pub(crate) const LOCAL_RATE_LIMIT: &str = "envoy.filters.http.local_ratelimit";
pub(crate) const HTTP_CORS: &str = "envoy.filters.http.cors";
pub(crate) const HTTP_RBAC: &str = "envoy.filters.http.rbac";
pub(crate) const GRPC_STATS: &str = "envoy.filters.http.grpc_stats";
pub(crate) const GRPC_HTTP1_BRIDGE: &str = "envoy.filters.http.grpc_http1_bridge";
pub(crate) const HEADER_TO_METADATA: &str = "envoy.filters.http.header_to_metadata";
pub(crate) const ROUTER: &str = "envoy.filters.http.router";
pub(crate) const SNI_CLUSTER: &str = "envoy.filters.network.sni_cluster";
pub(crate) const TLS_SOCKET: &str = "tls";
pub(crate) const QUIC_SOCKET: &str = "envoy.transport_sockets.quic";
pub(crate) const PROXY_PROTOCOL_SOCKET: &str = "envoy.transport_sockets.upstream_proxy_protocol";
pub(crate) const PLAINTEXT_SOCKET: &str = "envoy.transport_sockets.raw_buffer";

/// The key of a cluster's HTTP options in Envoy.
pub(crate) const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The listener of an exposed path, without its address. As in Consul, only the letters and digits
/// of the path are used.
pub(crate) fn exposed_listener(path: &str) -> String {
    format!("{EXPOSED_LISTENER}{}", letters_and_digits(path))
}

/// The name of an exposed path in statistics, as in Consul.
pub(crate) fn exposed_filter(path: &str, listener_port: u16) -> String {
    let path = letters_and_digits(path);
    format!("exposed_path_filter_{path}_{listener_port}")
}

fn letters_and_digits(path: &str) -> String {
    path.chars().filter(char::is_ascii_alphanumeric).collect()
}

/// The cluster of the exposed paths of one port of the application.
pub(crate) fn exposed_cluster(local_path_port: u16) -> String {
    format!("exposed_cluster_{local_path_port}")
}

/// The cluster of another port of the application than the registered one.
pub(crate) fn application_cluster(port: u16) -> String {
    format!("{LOCAL_APP}_{port}")
}

/// The name of a port of a Service of the cluster, `<name>.<namespace>`.
pub(crate) fn service_port(service: &str, port: u16) -> String {
    format!("{port}.{service}.kubernetes")
}

/// The cluster of the server with the keys of a `jwt-provider`, named as in Consul.
pub(crate) fn jwks_cluster(provider: &str) -> String {
    format!("jwks_cluster_{provider}")
}

/// The secret with the certificates that the services of a peer are verified against.
pub(crate) fn peer_roots(peer: &str) -> String {
    format!("{ROOTS} of peer {}", peer.to_ascii_lowercase())
}

/// The datacenter of an upstream.
pub(crate) fn datacenter<'a>(proxy: &'a Proxy, upstream: &'a Upstream) -> &'a str {
    match upstream.datacenter.as_str() {
        "" => &proxy.datacenter,
        other => other,
    }
}

/// The service of an upstream.
pub(crate) fn service(proxy: &Proxy, upstream: &Upstream) -> ServiceName {
    let tenancy = upstream.tenancy(&proxy.id.tenancy);
    ServiceName::new(&tenancy, &upstream.destination_name)
}

/// The name of an upstream's service in extensions. Its partition and namespace precede it if they
/// differ from those of the proxy. An extension names no service of a peer.
pub(crate) fn extended(proxy: &Proxy, upstream: &Upstream) -> String {
    let mut service = service(proxy, upstream);
    service.tenancy = service.tenancy.of_peer(&upstream.destination_peer);
    seen_from(&proxy.id.tenancy, &service)
}

/// The same for a service that an extension of a proxy in this tenancy names.
pub(crate) fn seen_from(own: &Tenancy, service: &ServiceName) -> String {
    let (partition, namespace) = service.tenancy.named_from(own);
    let id = UpstreamId {
        r#type: UpstreamType::Service,
        partition,
        namespace,
        name: service.name.as_ref().to_owned(),
        peer: service.tenancy.peer.as_ref().to_owned(),
        ..UpstreamId::default()
    };
    id.to_string()
}

/// The server name (SNI) of an upstream.
pub(crate) fn upstream_sni(proxy: &Proxy, upstream: &Upstream) -> String {
    let datacenter = datacenter(proxy, upstream);
    sni::service(&service(proxy, upstream), datacenter, &proxy.trust_domain)
}

/// The name of one member of a failover cluster, as in Consul.
pub(crate) fn failover_member(at: usize, cluster: &str) -> String {
    format!("failover-target~{at}~{cluster}")
}

/// Whether a cluster is a member of a failover cluster.
pub(crate) fn is_failover_member(member: &str, cluster: &str) -> bool {
    let rest = member.strip_prefix("failover-target~");
    rest.and_then(|rest| rest.split_once('~'))
        .is_some_and(|(_, of)| of == cluster)
}

/// The cluster for the instance to which a captured connection was sent.
pub(crate) fn passthrough_cluster(sni: &str) -> String {
    format!("passthrough~{sni}")
}

/// The cluster of one address of a service outside the mesh, also the server name (SNI) that
/// gateways match. Named as in Consul.
pub(crate) fn destination_cluster(proxy: &Proxy, service: &str, address: &str) -> String {
    destination_of(
        proxy,
        &ServiceName::new(&proxy.id.tenancy, service),
        address,
    )
}

/// The same for a service of any namespace.
pub(crate) fn destination_of(proxy: &Proxy, service: &ServiceName, address: &str) -> String {
    let name = format!("{}.{}", Destination::label(address), service.name);
    let name = ServiceName::new(&service.tenancy, &name);
    let sni = sni::service(&name, &proxy.datacenter, &proxy.trust_domain);
    format!("destination.{sni}")
}

/// The routes for services outside the mesh that speak HTTP on one port, named as in Consul.
pub(crate) fn destination_routes(proxy: &Proxy, port: u16) -> String {
    destination_cluster(proxy, "~http", &port.to_string())
}

/// The server name (SNI) of a service or, if it is not empty, of one of its subsets. A terminating
/// gateway names the cluster, endpoints and routes by it.
pub(crate) fn subset(proxy: &Proxy, service: &ServiceName, subset: &str) -> String {
    let sni = sni::service(service, &proxy.datacenter, &proxy.trust_domain);
    match subset {
        "" => sni,
        subset => format!("{subset}.{sni}"),
    }
}

/// The secret with the certificate of a service that a terminating gateway represents.
pub(crate) fn leaf_of(proxy: &Proxy, service: &ServiceName) -> String {
    format!("{LEAF} of {}", subset(proxy, service, ""))
}

/// The secret with the certificates that callers of these peers are verified against. `with_own`: and those of the mesh.
pub(crate) fn roots_of(peers: &Peers, with_own: bool) -> String {
    let peers: Vec<&str> = peers.keys().map(AsRef::as_ref).collect();
    let beginning = match with_own {
        true => ROOTS_AND_PEERS,
        false => "peers",
    };
    format!("{beginning} {}", peers.join(","))
}

/// A service in statistics. As in Consul.
pub(crate) fn service_filter(proxy: &Proxy, service: &ServiceName) -> FilterName {
    let ServiceName { tenancy, name } = service;
    let (namespace, partition) = (&tenancy.namespace, &tenancy.partition);
    FilterName::from(format!("{name}.{namespace}.{partition}.{}", proxy.datacenter).as_str())
}

/// The port of an API gateway that a resource of this type and name is for, as in `443` or `53/udp`;
/// `None` for what is not of one port. The names of listeners end with their address, and those of
/// routes begin with their port.
pub fn gateway_port(type_url: &str, name: &str) -> Option<String> {
    let of_datagrams = name.strip_prefix(DATAGRAMS);
    let (port, transport) = match (Type::from_url(type_url)?, of_datagrams) {
        (Type::Listener, Some(rest)) if rest.starts_with(':') => (rest.rsplit(':').next(), "/udp"),
        (Type::Listener, _) => (name.rsplit(':').next(), ""),
        (Type::Routes, _) => (name.split('/').next(), ""),
        (Type::Cluster | Type::Endpoints, Some(rest)) => (rest.strip_prefix('.'), "/udp"),
        (Type::Cluster | Type::Endpoints, None) | (Type::Secret, _) => (None, ""),
    };
    let port: u16 = port?.parse().ok()?;
    Some(format!("{port}{transport}"))
}

/// The prefix of upstreams in statistics.
const UPSTREAM_STATS: &str = "upstream.";

/// The prefix of upstreams that name a peer. As in Consul.
const PEERED_STATS: &str = "upstream_peered.";

/// The name of an upstream in statistics, and in the routes of its listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FilterName {
    prefix: &'static str,
    pub(crate) name: String,
}

impl FilterName {
    /// The prefix of its statistics.
    pub(crate) fn stats(&self) -> String {
        stat_prefix(self.prefix, &self.name)
    }
}

impl From<&str> for FilterName {
    fn from(name: &str) -> Self {
        Self {
            prefix: UPSTREAM_STATS,
            name: name.to_owned(),
        }
    }
}

/// The name of an upstream: `<service>.<namespace>.<partition>.<datacenter>`, the id of the upstream for a prepared
/// query, or `<service>.<namespace>.<peer>`. As in Consul.
pub(crate) fn upstream_filter(proxy: &Proxy, upstream: &Upstream) -> FilterName {
    if upstream.destination_type == UpstreamType::PreparedQuery {
        return FilterName::from(upstream.id().to_string().as_str());
    }
    let datacenter = datacenter(proxy, upstream);
    let ServiceName { tenancy, name } = service(proxy, upstream);
    if !upstream.destination_peer.is_empty() {
        let peer = upstream.destination_peer.to_ascii_lowercase();
        return FilterName {
            prefix: PEERED_STATS,
            name: format!("{name}.{}.{peer}", tenancy.namespace),
        };
    }
    let (namespace, partition) = (&tenancy.namespace, &tenancy.partition);
    FilterName::from(format!("{name}.{namespace}.{partition}.{datacenter}").as_str())
}

/// A name in statistics, without Envoy's separator.
pub(crate) fn stat_prefix(prefix: &str, name: &str) -> String {
    format!("{prefix}{name}").replace(':', "_")
}
