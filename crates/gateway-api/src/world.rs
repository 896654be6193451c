//! Everything that is known of a cluster at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use legate_model::ServiceName;

use crate::object::{Key, Object};
use crate::types::{
    BackendTlsPolicy, Gateway, GatewayAddress, GatewayClass, GrpcRoute, HttpRoute, ListenerSet,
    ParametersReference, PlainRoute, ReferenceGrant, TlsRoute,
};

/// What is known of a cluster. The order of its lists means nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// Whose servers the mesh has.
    pub servers: Servers,
    /// The name of the controller, which classes of its own have.
    pub controller: String,
    /// The version of the Gateway API whose kinds the cluster has, as in `v1.6.3`.
    pub bundle: Option<String>,
    /// Whether these are the kinds of the experimental channel, which have more fields.
    pub experimental: bool,
    /// The classes, also those of others.
    pub classes: Vec<Object<GatewayClass>>,
    /// The gateways of all classes.
    pub gateways: Vec<Object<Gateway>>,
    /// The ListenerSets.
    pub listener_sets: Vec<Object<ListenerSet>>,
    /// The HTTPRoutes.
    pub http_routes: Vec<Object<HttpRoute>>,
    /// The GRPCRoutes.
    pub grpc_routes: Vec<Object<GrpcRoute>>,
    /// The TLSRoutes.
    pub tls_routes: Vec<Object<TlsRoute>>,
    /// The TCPRoutes.
    pub tcp_routes: Vec<Object<PlainRoute>>,
    /// The UDPRoutes.
    pub udp_routes: Vec<Object<PlainRoute>>,
    /// The ReferenceGrants.
    pub grants: Vec<Object<ReferenceGrant>>,
    /// The BackendTLSPolicies.
    pub policies: Vec<Object<BackendTlsPolicy>>,
    /// The Services.
    pub services: BTreeMap<Key, Service>,
    /// The MeshServices, which are names for services of the mesh, wherever these are.
    pub mesh_services: BTreeMap<Key, ServiceName>,
    /// The Secrets, and why one has no certificate with its key.
    pub certificates: BTreeMap<Key, Result<(), String>>,
    /// The ConfigMaps: their certificates of authorities in PEM, or why they have none.
    pub authorities: BTreeMap<Key, Result<String, String>>,
    /// The labels of the namespaces.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// The objects with settings of the infrastructure that exist.
    pub parameters: BTreeSet<ParametersReference>,
    /// What was made for gateways.
    pub fronts: BTreeMap<Key, Front>,
    /// Why frontends of these Services could not be written the last time.
    pub unwritten: BTreeMap<Key, String>,
}

/// Whose servers a mesh has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Servers {
    /// Legate's, which serve everything.
    #[default]
    Legate,
    /// Consul's, which serve what their config entries can say, to services of the mesh.
    Consul,
}

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Whether it only stands for a name outside of the cluster.
    pub external_name: bool,
    /// The addresses at which it is called in the cluster; none if it has no address of its own.
    pub addresses: Vec<IpAddr>,
    /// Whether callers in the mesh need a frontend for it even if no route is attached: a service of the
    /// mesh with its name would lead them to something else.
    pub needs_frontend: bool,
    /// The service of the mesh with its name, if pods behind it are in the mesh.
    pub of_mesh: Option<ServiceName>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// The number.
    pub port: u16,
    /// The name; empty if it has none.
    pub name: String,
    /// Whether it is for datagrams.
    pub udp: bool,
    /// What it understands.
    pub app_protocol: Option<String>,
    /// Whether the service of the mesh with the Service's name leads there.
    pub is_of_mesh: bool,
}

/// What was made for a gateway: the proxies and the Service in front of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Front {
    /// The addresses of the Service.
    pub addresses: Vec<GatewayAddress>,
    /// Whether a proxy is ready.
    pub ready: bool,
    /// Why something that it needs could not be made or written the last time.
    pub failed: Option<String>,
    /// The generation of the gateway that a proxy has acknowledged.
    pub generation: i64,
    /// The same of its ListenerSets.
    pub sets: BTreeMap<Key, i64>,
    /// Why the proxies have refused what is on a port.
    pub rejected: BTreeMap<u16, String>,
}
