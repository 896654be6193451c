//! A compiled chain: a graph of nodes whose leaves are targets. Its JSON is Consul's `CompiledDiscoveryChain`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use legate_model::{
    EnvoyExtension, FailoverPolicy, LoadBalancer, Locality, MeshGateway, PrioritizeByLocality,
    Protocol, Route, ServiceName, Split, Subset, Tenancy, TransparentProxy, duration,
};
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

/// The compiled discovery chain of a service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Chain {
    /// The service that callers request.
    pub service_name: String,
    /// Its namespace and partition.
    #[serde(flatten, serialize_with = "tenancy")]
    pub tenancy: Tenancy,
    /// The callers' datacenter.
    pub datacenter: String,
    /// Hash of the caller's overrides that had an effect, eight hexadecimal digits. Clusters of such a chain need names
    /// of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customization_hash: Option<String>,
    /// True if requests go to the service's own instances and no config entry changes that.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// The protocol that all services of the chain speak.
    #[serde(serialize_with = "protocol")]
    pub protocol: Protocol,
    /// The `Meta` of the service's `service-defaults`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_meta: BTreeMap<String, String>,
    /// Extensions of `proxy-defaults`, then those of the service's `service-defaults`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub envoy_extensions: Vec<EnvoyExtension>,
    /// The key of the node that receives requests.
    pub start_node: String,
    /// The nodes by key, `<type>:<name>`. Boxed, because most chains have one node and a map allocates room for eleven.
    pub nodes: Nodes,
    /// The targets at which requests can end, by id.
    pub targets: BTreeMap<String, Box<Target>>,
}

/// Nodes by key.
pub type Nodes = BTreeMap<String, Box<Node>>;

fn protocol<S: Serializer>(protocol: &Protocol, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(protocol.as_str())
}

/// Serializes the tenancy as the two fields `Namespace` and `Partition`.
fn tenancy<S: Serializer>(tenancy: &Tenancy, serializer: S) -> Result<S::Ok, S::Error> {
    let mut fields = serializer.serialize_struct("Tenancy", 2)?;
    fields.serialize_field("Namespace", &*tenancy.namespace)?;
    fields.serialize_field("Partition", &*tenancy.partition)?;
    fields.end()
}

impl Chain {
    /// The node that receives requests.
    pub fn start(&self) -> Option<&Node> {
        self.node(&self.start_node)
    }

    /// The node with this key.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.nodes.get(key).map(Box::as_ref)
    }

    /// Whether both chains have the same protocol, resolvers, targets, overrides and load balancer of the start node.
    /// Routes and splits may differ.
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

/// A routing decision: a router, a splitter or a resolver.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique among the nodes of its kind.
    pub name: String,
    /// The kind of decision, with its data.
    pub kind: NodeKind,
    /// The load balancing policy for the instances below a splitter or resolver.
    pub load_balancer: Option<LoadBalancer>,
}

/// The kinds of routing decisions.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeKind {
    /// Selects the first route that matches.
    Router(Vec<RouteStep>),
    /// Distributes requests by weight.
    Splitter(Vec<SplitStep>),
    /// Ends the chain at a target.
    Resolver(Resolver),
}

impl Node {
    /// The node's key in [`Chain::nodes`].
    pub fn key(&self) -> String {
        format!("{}:{}", self.kind.as_str(), self.name)
    }

    /// The keys of the next nodes.
    pub(crate) fn next(&self) -> BTreeSet<&str> {
        match &self.kind {
            NodeKind::Router(routes) => routes.iter().map(|one| &*one.next_node).collect(),
            NodeKind::Splitter(splits) => splits.iter().map(|one| &*one.next_node).collect(),
            NodeKind::Resolver(_) => BTreeSet::new(),
        }
    }
}

impl NodeKind {
    /// The kind's name in JSON.
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

/// A route of a router, and the next node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct RouteStep {
    /// The route as written; the last route of a router is the generated catch-all.
    pub definition: Route,
    /// The key of the next node.
    pub next_node: String,
}

/// A split of a splitter, and the next node.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct SplitStep {
    /// The split as written, with the header changes of the outer splits merged into it.
    pub definition: Split,
    /// The percentage of requests, multiplied by the weights of the outer splits.
    pub weight: f32,
    /// The key of the next node.
    pub next_node: String,
}

/// A target with its timeouts and failover targets.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Resolver {
    /// True if no `service-resolver` entry changes the defaults.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// The connect timeout.
    #[serde(with = "duration::text")]
    pub connect_timeout: Duration,
    /// The request timeout; zero means not set.
    #[serde(with = "duration::nanos", skip_serializing_if = "Duration::is_zero")]
    pub request_timeout: Duration,
    /// The id of the target.
    pub target: String,
    /// The failover targets, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failover: Option<Failover>,
}

/// The targets used when no instance of the primary target is available.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Failover {
    /// The ids of the targets, in order of preference.
    pub targets: Vec<String>,
    /// The order in which the targets are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<FailoverPolicy>,
}

/// The instances that answer: all of a service, or a subset of them.
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
    /// The datacenter of the instances; empty for those of a peer.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub datacenter: String,
    /// The peer that the service is imported from; empty means none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub peer: String,
    /// Whether traffic is routed through mesh gateways.
    pub mesh_gateway: MeshGateway,
    /// The definition of the subset.
    pub subset: Subset,
    /// Whether its instances may be dialled directly.
    pub transparent_proxy: TransparentProxy,
    /// The connect timeout.
    #[serde(with = "duration::text")]
    pub connect_timeout: Duration,
    /// Whether callers prefer instances of their own locality.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prioritize_by_locality: Option<PrioritizeByLocality>,
    /// True if the service is outside of the mesh.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external: bool,
    /// The SNI that callers send.
    #[serde(rename = "SNI", skip_serializing_if = "String::is_empty")]
    pub sni: String,
    /// The name of the target's cluster: its SNI in the mesh. Empty for a service of a peer, until it is known what the
    /// peer exports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Where the peer is, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Locality>,
    /// The SPIFFE ids that may answer for a service of a peer, from the peer. Empty as long as it is not known how the
    /// service is reached. For other targets the id follows from the service.
    #[serde(skip)]
    pub peer_identities: Vec<String>,
}

impl Target {
    /// The service's name with its tenancy, whatever the peer.
    pub fn service_name(&self) -> ServiceName {
        ServiceName::new(&self.tenancy, &self.service)
    }

    /// The target of a service that is imported from a peer. Its SNI, name and identities are not known here.
    pub fn of_peer(service: &ServiceName, peer: &str) -> Self {
        let mut target = Self {
            service: service.name.as_ref().to_owned(),
            tenancy: service.tenancy.clone(),
            peer: peer.to_ascii_lowercase(),
            ..Self::default()
        };
        target.id = target.make_id();
        target
    }
}
