//! The fields that filter expressions may use, by endpoint: those of Consul's types, except fields
//! that this server never sets. Filters are evaluated on the JSON of responses, so the keys are those
//! of the types' `Serialize`.

use legate_filter::{Field, Filter, FilterError, Shape};

use crate::instance::CheckServiceNode;

const fn text(name: &'static str) -> Field {
    Field::new(name, Shape::Text)
}

const fn integer(name: &'static str) -> Field {
    Field::new(name, Shape::Integer)
}

const fn boolean(name: &'static str) -> Field {
    Field::new(name, Shape::Bool)
}

const fn texts(name: &'static str) -> Field {
    Field::new(name, Shape::Texts)
}

const fn meta(name: &'static str) -> Field {
    Field::new(name, Shape::Map(&Shape::Text))
}

const fn record(name: &'static str, fields: &'static [Field]) -> Field {
    Field::new(name, Shape::Record(fields))
}

const fn list(name: &'static str, fields: &'static [Field]) -> Field {
    Field::new(name, Shape::List(fields))
}

/// Nodes: `/v1/catalog/nodes`.
pub static NODE: [Field; 8] = [
    text("ID"),
    text("Node"),
    text("Partition"),
    text("PeerName"),
    text("Address"),
    text("Datacenter"),
    meta("TaggedAddresses"),
    meta("Meta"),
];

/// Members of the cluster: `/v1/agent/members`.
pub static MEMBER: [Field; 10] = [
    text("Name"),
    integer("Port"),
    meta("Tags"),
    integer("Status"),
    integer("ProtocolMin"),
    integer("ProtocolMax"),
    integer("ProtocolCur"),
    integer("DelegateMin"),
    integer("DelegateMax"),
    integer("DelegateCur"),
];

static ADDRESS: [Field; 2] = [text("Address"), integer("Port")];
static WEIGHTS: [Field; 2] = [integer("Passing"), integer("Warning")];
static CONNECT: [Field; 1] = [boolean("Native")];
static MESH_GATEWAY: [Field; 1] = [text("Mode")];
static TRANSPARENT_PROXY: [Field; 2] = [integer("OutboundListenerPort"), boolean("DialedDirectly")];
static ACCESS_LOGS: [Field; 6] = [
    boolean("Enabled"),
    boolean("DisableListenerLogs"),
    text("Type"),
    text("Path"),
    text("JSONFormat"),
    text("TextFormat"),
];
static EXTENSION: [Field; 4] = [
    text("Name"),
    boolean("Required"),
    text("ConsulVersion"),
    text("EnvoyVersion"),
];
static EXPOSE_PATH: [Field; 5] = [
    integer("ListenerPort"),
    text("Path"),
    integer("LocalPathPort"),
    text("Protocol"),
    boolean("ParsedFromCheck"),
];
static EXPOSE: [Field; 2] = [boolean("Checks"), list("Paths", &EXPOSE_PATH)];
static UPSTREAM: [Field; 11] = [
    text("DestinationType"),
    text("DestinationNamespace"),
    text("DestinationPartition"),
    text("DestinationPeer"),
    text("DestinationName"),
    text("Datacenter"),
    text("LocalBindAddress"),
    integer("LocalBindPort"),
    text("LocalBindSocketPath"),
    text("LocalBindSocketMode"),
    record("MeshGateway", &MESH_GATEWAY),
];
static PROXY: [Field; 12] = [
    text("DestinationServiceName"),
    text("DestinationServiceID"),
    text("LocalServiceAddress"),
    integer("LocalServicePort"),
    text("LocalServiceSocketPath"),
    text("Mode"),
    list("Upstreams", &UPSTREAM),
    record("MeshGateway", &MESH_GATEWAY),
    record("Expose", &EXPOSE),
    record("TransparentProxy", &TRANSPARENT_PROXY),
    record("AccessLogs", &ACCESS_LOGS),
    list("EnvoyExtensions", &EXTENSION),
];

/// Instances without their nodes: `/v1/catalog/node/:node`, `/v1/catalog/node-services/:node` and
/// `/v1/agent/services`.
pub static SERVICE: [Field; 14] = [
    text("Kind"),
    text("ID"),
    text("Service"),
    texts("Tags"),
    text("Address"),
    Field::new("TaggedAddresses", Shape::Map(&Shape::Record(&ADDRESS))),
    meta("Meta"),
    integer("Port"),
    text("SocketPath"),
    record("Weights", &WEIGHTS),
    boolean("EnableTagOverride"),
    record("Proxy", &PROXY),
    record("Connect", &CONNECT),
    text("PeerName"),
];

/// Instances with the fields of their nodes: `/v1/catalog/services`, `/v1/catalog/service/:service` and
/// `/v1/catalog/connect/:service`.
pub static SERVICE_NODE: [Field; 20] = [
    text("ID"),
    text("Node"),
    text("Address"),
    text("Datacenter"),
    meta("TaggedAddresses"),
    meta("NodeMeta"),
    text("ServiceKind"),
    text("ServiceID"),
    text("ServiceName"),
    texts("ServiceTags"),
    text("ServiceAddress"),
    Field::new(
        "ServiceTaggedAddresses",
        Shape::Map(&Shape::Record(&ADDRESS)),
    ),
    meta("ServiceMeta"),
    integer("ServicePort"),
    text("ServiceSocketPath"),
    record("ServiceWeights", &WEIGHTS),
    boolean("ServiceEnableTagOverride"),
    record("ServiceProxy", &PROXY),
    record("ServiceConnect", &CONNECT),
    text("PeerName"),
];

/// Checks: `/v1/health/node/:node`, `/v1/health/checks/:service`, `/v1/health/state/:state` and
/// `/v1/agent/checks`.
pub static CHECK: [Field; 14] = [
    text("Node"),
    text("CheckID"),
    text("Name"),
    text("Status"),
    text("Notes"),
    text("Output"),
    text("ServiceID"),
    text("ServiceName"),
    texts("ServiceTags"),
    text("Type"),
    text("Interval"),
    text("Timeout"),
    integer("ExposedPort"),
    text("PeerName"),
];

/// Instances with their nodes and checks: `/v1/health/service/:service`,
/// `/v1/health/connect/:service`, and the subsets of a service.
pub static INSTANCE: [Field; 3] = [
    record("Node", &NODE),
    record("Service", &SERVICE),
    list("Checks", &CHECK),
];

/// Intentions: `/v1/connect/intentions`.
pub static INTENTION: [Field; 14] = [
    text("ID"),
    text("Description"),
    text("SourcePeer"),
    text("SourceSamenessGroup"),
    text("SourcePartition"),
    text("SourceNS"),
    text("SourceName"),
    text("DestinationPartition"),
    text("DestinationNS"),
    text("DestinationName"),
    text("SourceType"),
    text("Action"),
    integer("Precedence"),
    meta("Meta"),
];

static CONSUMERS: [Field; 2] = [texts("Peers"), texts("Partitions")];

/// Exported services: `/v1/exported-services`.
pub static EXPORTED: [Field; 4] = [
    text("Service"),
    text("Namespace"),
    text("Partition"),
    record("Consumers", &CONSUMERS),
];

static UPSTREAM_SETTINGS: [Field; 8] = [
    text("Name"),
    text("Peer"),
    text("EnvoyListenerJSON"),
    text("EnvoyClusterJSON"),
    text("Protocol"),
    integer("ConnectTimeoutMs"),
    record("MeshGateway", &MESH_GATEWAY),
    text("BalanceOutboundConnections"),
];
static UPSTREAM_CONFIG: [Field; 2] = [
    list("Overrides", &UPSTREAM_SETTINGS),
    record("Defaults", &UPSTREAM_SETTINGS),
];

static DESTINATION: [Field; 2] = [texts("Addresses"), integer("Port")];

/// `/v1/config/service-defaults`. Other kinds of config entries cannot be filtered.
pub static SERVICE_DEFAULTS: [Field; 17] = [
    text("Kind"),
    text("Name"),
    text("Protocol"),
    text("Mode"),
    record("TransparentProxy", &TRANSPARENT_PROXY),
    text("MutualTLSMode"),
    record("MeshGateway", &MESH_GATEWAY),
    record("Expose", &EXPOSE),
    text("ExternalSNI"),
    record("UpstreamConfig", &UPSTREAM_CONFIG),
    record("Destination", &DESTINATION),
    integer("MaxInboundConnections"),
    integer("LocalConnectTimeoutMs"),
    integer("LocalRequestTimeoutMs"),
    text("BalanceInboundConnections"),
    list("EnvoyExtensions", &EXTENSION),
    meta("Meta"),
];

impl CheckServiceNode {
    /// Parses a filter for instances.
    ///
    /// # Errors
    ///
    /// [`FilterError`] locates the syntax error and names what was expected.
    pub fn filter(text: &str) -> Result<Filter, FilterError> {
        Filter::parse(text, &INSTANCE[..])
    }

    /// Whether the instance matches a filter.
    pub fn matches(&self, filter: &Filter) -> bool {
        filter.matches(self)
    }
}
