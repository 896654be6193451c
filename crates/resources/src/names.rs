//! The names of resources and filters, in one place because others refer to them by name.

use legate_model::{Destination, ServiceName, Tenancy, Upstream, UpstreamId, UpstreamType, sni};
use legate_proxycfg::Snapshot;

/// The secret with the proxy's own certificate and key.
pub const LEAF: &str = "leaf";

/// The secret with the certificates that peers are verified against.
pub const ROOTS: &str = "roots";

/// The cluster of the proxy's application.
pub(crate) const LOCAL_APP: &str = "local_app";

/// The listener for the mesh, whose address follows in its full name, and its routes.
pub(crate) const PUBLIC_LISTENER: &str = "public_listener";

/// What the names of the listeners of exposed paths begin with.
pub(crate) const EXPOSED_LISTENER: &str = "exposed_path_";

/// The listener for what the application sends, whose address follows in its full name.
pub(crate) const OUTBOUND_LISTENER: &str = "outbound_listener";

/// The cluster that leads where a captured connection was sent to, outside the mesh.
pub(crate) const ORIGINAL_DESTINATION: &str = "original-destination";

pub(crate) const ORIGINAL_DST_FILTER: &str = "envoy.filters.listener.original_dst";
pub(crate) const TLS_INSPECTOR: &str = "envoy.filters.listener.tls_inspector";
pub(crate) const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
pub(crate) const HTTP_CONNECTION_MANAGER: &str = "envoy.filters.network.http_connection_manager";
pub(crate) const CONNECTION_LIMIT: &str = "envoy.filters.network.connection_limit";
pub(crate) const NETWORK_RBAC: &str = "envoy.filters.network.rbac";
pub(crate) const JWT_AUTHN: &str = "envoy.filters.http.jwt_authn";
pub(crate) const LOCAL_RATE_LIMIT: &str = "envoy.filters.http.local_ratelimit";
pub(crate) const HTTP_RBAC: &str = "envoy.filters.http.rbac";
pub(crate) const GRPC_STATS: &str = "envoy.filters.http.grpc_stats";
pub(crate) const GRPC_HTTP1_BRIDGE: &str = "envoy.filters.http.grpc_http1_bridge";
pub(crate) const HEADER_TO_METADATA: &str = "envoy.filters.http.header_to_metadata";
pub(crate) const ROUTER: &str = "envoy.filters.http.router";
pub(crate) const TLS_SOCKET: &str = "tls";

/// The key under which Envoy looks for a cluster's HTTP options.
pub(crate) const HTTP_OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

/// The listener of an exposed path, without its address. Consul's name: what is no letter or digit is
/// left out of the path.
pub(crate) fn exposed_listener(path: &str) -> String {
    format!("{EXPOSED_LISTENER}{}", letters_and_digits(path))
}

/// An exposed path in statistics. Consul's name.
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

/// The cluster of the server with the keys of a `jwt-provider`. Consul's name.
pub(crate) fn jwks_cluster(provider: &str) -> String {
    format!("jwks_cluster_{provider}")
}

/// The datacenter that an upstream is in.
pub(crate) fn datacenter<'a>(snapshot: &'a Snapshot, upstream: &'a Upstream) -> &'a str {
    match upstream.datacenter.as_str() {
        "" => &snapshot.datacenter,
        other => other,
    }
}

/// The service that an upstream is.
pub(crate) fn service(snapshot: &Snapshot, upstream: &Upstream) -> ServiceName {
    let tenancy = upstream.tenancy(&snapshot.proxy.tenancy);
    ServiceName::new(&tenancy, &upstream.destination_name)
}

/// The name by which extensions know an upstream that is a service: that of the service, behind those of
/// its partition and namespace where they are not the proxy's own.
pub(crate) fn extended(snapshot: &Snapshot, upstream: &Upstream) -> String {
    seen_from(&snapshot.proxy.tenancy, &service(snapshot, upstream))
}

/// The same for a service that an extension of a proxy of this tenancy names.
pub(crate) fn seen_from(own: &Tenancy, service: &ServiceName) -> String {
    let (partition, namespace) = service.tenancy.named_from(own);
    let id = UpstreamId {
        r#type: UpstreamType::Service,
        partition,
        namespace,
        name: service.name.as_ref().to_owned(),
        ..UpstreamId::default()
    };
    id.to_string()
}

/// The server name by which an upstream is dialled.
pub(crate) fn upstream_sni(snapshot: &Snapshot, upstream: &Upstream) -> String {
    let datacenter = datacenter(snapshot, upstream);
    sni::service(
        &service(snapshot, upstream),
        datacenter,
        &snapshot.trust_domain,
    )
}

/// One of those that a cluster takes instances from. Consul's name.
pub(crate) fn failover_member(at: usize, cluster: &str) -> String {
    format!("failover-target~{at}~{cluster}")
}

/// Whether a cluster is for one of the targets of the other one.
pub(crate) fn is_failover_member(member: &str, cluster: &str) -> bool {
    let rest = member.strip_prefix("failover-target~");
    rest.and_then(|rest| rest.split_once('~'))
        .is_some_and(|(_, of)| of == cluster)
}

/// The cluster that leads to the instance of a service that a captured connection was sent to.
pub(crate) fn passthrough_cluster(sni: &str) -> String {
    format!("passthrough~{sni}")
}

/// The cluster of one address of a service outside the mesh, which is also the server name that
/// gateways know it by. Consul's name.
pub(crate) fn destination_cluster(snapshot: &Snapshot, service: &str, address: &str) -> String {
    let name = format!("{}.{service}", Destination::label(address));
    let name = ServiceName::new(&snapshot.proxy.tenancy, &name);
    let sni = sni::service(&name, &snapshot.datacenter, &snapshot.trust_domain);
    format!("destination.{sni}")
}

/// The routes to services outside the mesh that speak HTTP on one port. Consul's name.
pub(crate) fn destination_routes(snapshot: &Snapshot, port: u16) -> String {
    destination_cluster(snapshot, "~http", &port.to_string())
}

/// An upstream in statistics: `<service>.<namespace>.<partition>.<datacenter>`; a prepared query has its
/// name among the upstreams. Consul's.
pub(crate) fn upstream_filter(snapshot: &Snapshot, upstream: &Upstream) -> String {
    if upstream.destination_type == UpstreamType::PreparedQuery {
        return upstream.id().to_string();
    }
    let datacenter = datacenter(snapshot, upstream);
    let ServiceName { tenancy, name } = service(snapshot, upstream);
    format!(
        "{name}.{}.{}.{datacenter}",
        tenancy.namespace, tenancy.partition
    )
}

/// A name in statistics. Envoy's own separator cannot be part of it.
pub(crate) fn stat_prefix(prefix: &str, name: &str) -> String {
    format!("{prefix}{name}").replace(':', "_")
}
