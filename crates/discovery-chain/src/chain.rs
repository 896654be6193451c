//! A compiled chain: a graph of nodes that ends in targets. In JSON it is Consul's
//! `CompiledDiscoveryChain`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use legate_model::{
    EnvoyExtension, FailoverPolicy, LoadBalancer, MeshGateway, PrioritizeByLocality, Protocol,
    Route, ServiceName, Split, Subset, Tenancy, TransparentProxy, duration,
};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// What becomes of a name that a caller asks for.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Chain {
    /// The service that callers ask for.
    pub service_name: String,
    /// Its namespace and partition.
    #[serde(flatten, serialize_with = "tenancy")]
    pub tenancy: Tenancy,
    /// The callers' datacenter.
    pub datacenter: String,
    /// Eight hexadecimal digits for what of a caller's overrides has changed something: its clusters need
    /// names of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customization_hash: Option<String>,
    /// No entry says anything but that the service's own instances answer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// What is spoken all the way.
    #[serde(serialize_with = "protocol")]
    pub protocol: Protocol,
    /// The `Meta` of the service's `service-defaults`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_meta: BTreeMap<String, String>,
    /// Extensions of `proxy-defaults`, then those of the service's `service-defaults`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub envoy_extensions: Vec<EnvoyExtension>,
    /// The key of the node where requests come in.
    pub start_node: String,
    /// The nodes by key, `<type>:<name>`. Most chains have one: it is boxed because a map with one entry has
    /// room for eleven.
    pub nodes: Nodes,
    /// Where requests can end, by id.
    pub targets: BTreeMap<String, Box<Target>>,
}

/// Nodes by key.
pub type Nodes = BTreeMap<String, Box<Node>>;

fn protocol<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(protocol.as_str())
}

/// As the two fields `Namespace` and `Partition`.
fn tenancy<S: Serializer>(tenancy: &Tenancy, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("Tenancy", 2)?;
    fields.serialize_field("Namespace", &*tenancy.namespace)?;
    fields.serialize_field("Partition", &*tenancy.partition)?;
    fields.end()
}

impl Chain {
    /// The node where requests come in.
    pub fn start(&self) -> Option<&Node> {
        self.node(&self.start_node)
    }

    /// The node of a key.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.nodes.get(key).map(Box::as_ref)
    }

    /// Whether another chain has the same ends, each reached alike, and what comes in is balanced alike
    /// and spoken alike. Routes and splits may differ.
    pub fn ends_alike(&self, other: &Self) -> bool {
        let balancer = |chain: &Self| chain.start().and_then(|start| start.load_balancer.clone());
        self.protocol == other.protocol
            && self.default == other.default
            && self.customization_hash == other.customization_hash
            && balancer(self) == balancer(other)
            && self.resolvers().eq(other.resolvers())
            && self.targets == other.targets
    }

    fn resolvers(&self) -> impl Iterator<Item = (&String, &Node)> {
        let nodes = self.nodes.iter().map(|(key, node)| (key, &**node));
        nodes.filter(|(_, node)| matches!(node.kind, NodeKind::Resolver(_)))
    }
}

/// A place where it is decided how requests go on.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique among those of its kind.
    pub name: String,
    /// What is decided.
    pub kind: NodeKind,
    /// How instances are chosen below a splitter or resolver.
    pub load_balancer: Option<LoadBalancer>,
}

/// What a node decides.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeKind {
    /// The first route that matches.
    Router(Vec<RouteStep>),
    /// A share of the requests each.
    Splitter(Vec<SplitStep>),
    /// The end: a target.
    Resolver(Resolver),
}

impl Node {
    /// Its key among the nodes.
    pub fn key(&self) -> String {
        format!("{}:{}", self.kind.as_str(), self.name)
    }

    /// The keys of the nodes after it.
    pub(crate) fn next(&self) -> BTreeSet<&str> {
        match &self.kind {
            NodeKind::Router(routes) => routes.iter().map(|one| &*one.next_node).collect(),
            NodeKind::Splitter(splits) => splits.iter().map(|one| &*one.next_node).collect(),
            NodeKind::Resolver(_) => BTreeSet::new(),
        }
    }
}

impl NodeKind {
    /// Its name in JSON.
    pub const fn as_str(&self) -> &'static str {
        match self {
            NodeKind::Router(_) => "router",
            NodeKind::Splitter(_) => "splitter",
            NodeKind::Resolver(_) => "resolver",
        }
    }
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = 3 + usize::from(self.load_balancer.is_some());
        let mut node = serializer.serialize_struct("Node", fields)?;
        node.serialize_field("Type", self.kind.as_str())?;
        node.serialize_field("Name", &self.name)?;
        match &self.kind {
            NodeKind::Router(routes) => node.serialize_field("Routes", routes)?,
            NodeKind::Splitter(splits) => node.serialize_field("Splits", splits)?,
            NodeKind::Resolver(resolver) => node.serialize_field("Resolver", resolver)?,
        }
        match &self.load_balancer {
            Some(balancer) => node.serialize_field("LoadBalancer", balancer)?,
            None => node.skip_field("LoadBalancer")?,
        }
        node.end()
    }
}

/// A route of the entry, and what comes after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RouteStep {
    /// As it was written; the last one of a router is its own.
    pub definition: Route,
    /// The key of the next node.
    pub next_node: String,
}

/// A split, and what comes after it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SplitStep {
    /// As it was written, with the header changes of the splits that led here.
    pub definition: Split,
    /// How many of a hundred requests, with the shares of the splits that led here.
    pub weight: f32,
    /// The key of the next node.
    pub next_node: String,
}

/// A target, and who answers when none of its instances can.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Resolver {
    /// No entry has anything to say about it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Longest time to connect.
    #[serde(with = "duration::text")]
    pub connect_timeout: Duration,
    /// Longest request; zero where nothing is said.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub request_timeout: Duration,
    /// The target's id.
    pub target: String,
    /// Others, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover: Option<Failover>,
}

/// Who answers when no instance of a target can.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Failover {
    /// The targets' ids, the first first.
    pub targets: Vec<String>,
    /// In which order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<FailoverPolicy>,
}

/// Instances that can answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Target {
    /// Unique in the mesh.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service.
    pub service: String,
    /// The subset's name; empty means all instances.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Its namespace and partition.
    #[serde(flatten, serialize_with = "tenancy")]
    pub tenancy: Tenancy,
    /// Where the instances are; empty for those of a peer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
    /// The peer that they are imported from; empty means none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Gateways on the way.
    pub mesh_gateway: MeshGateway,
    /// Which instances the subset has.
    pub subset: Subset,
    /// Whether its instances may be dialled directly.
    pub transparent_proxy: TransparentProxy,
    /// Longest time to connect.
    #[serde(with = "duration::text")]
    pub connect_timeout: Duration,
    /// Whether callers prefer near instances.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prioritize_by_locality: Option<PrioritizeByLocality>,
    /// It is outside of the mesh.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The server name that callers ask for.
    #[serde(rename = "SNI", skip_serializing_if = "String::is_empty")]
    pub sni: String,
    /// The name of its cluster: the server name that it has in the mesh.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

impl Target {
    /// The service with its tenancy.
    pub fn service_name(&self) -> ServiceName {
        ServiceName::new(&self.tenancy, &self.service)
    }
}
