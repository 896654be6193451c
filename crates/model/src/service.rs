//! Service instances in the catalog.

use std::collections::BTreeMap;

use litemap::LiteMap;
use serde::{Deserialize, Deserializer, Serialize};

use crate::json::shown::is_zero;
use crate::locality::Locality;
use crate::meta::WAN_FEDERATION;
use crate::named::named;
use crate::proxy::ConnectProxy;
use crate::tenancy::{PeerName, Tenancy, TenancyName};

/// The kind of a service instance.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum ServiceKind {
    /// An application.
    #[default]
    #[serde(rename = "")]
    Typical,
    /// The sidecar of one service.
    #[serde(rename = "connect-proxy")]
    ConnectProxy,
    /// Carries mesh traffic between networks.
    #[serde(rename = "mesh-gateway")]
    MeshGateway,
    /// Carries mesh traffic to services outside the mesh.
    #[serde(rename = "terminating-gateway")]
    TerminatingGateway,
    /// Carries outside traffic into the mesh.
    #[serde(rename = "ingress-gateway")]
    IngressGateway,
    /// Carries outside traffic into the mesh, configured by routes.
    #[serde(rename = "api-gateway")]
    ApiGateway,
}

named! {
    ServiceKind {
        Typical = "",
        ConnectProxy = "connect-proxy",
        MeshGateway = "mesh-gateway",
        TerminatingGateway = "terminating-gateway",
        IngressGateway = "ingress-gateway",
        ApiGateway = "api-gateway",
    }
}

impl ServiceKind {
    /// Whether it is a gateway.
    pub const fn is_gateway(self) -> bool {
        !matches!(self, ServiceKind::Typical | ServiceKind::ConnectProxy)
    }

    /// Whether instances of this kind are configured over xDS.
    pub const fn is_proxy(self) -> bool {
        !matches!(self, ServiceKind::Typical)
    }

    pub(crate) fn is_typical(&self) -> bool {
        *self == ServiceKind::Typical
    }
}

/// An address of a service for one purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceAddress {
    /// Host name or IP address.
    pub address: String,
    /// TCP port; 0 means the service's own port.
    pub port: u16,
}

/// Load balancing weights of an instance, by its health. Both are 1 when neither is set; if only one
/// is set, the other is 0, as in Consul.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Weights {
    /// While all checks pass: 1 to 65535.
    #[serde(default)]
    pub passing: u32,
    /// While a check warns: 0 to 65535.
    #[serde(default)]
    pub warning: u32,
}

impl Default for Weights {
    fn default() -> Self {
        Weights {
            passing: 1,
            warning: 1,
        }
    }
}

/// Go's client cannot omit weights from a catalog registration and sends zeros when they are unset.
/// Consul stores the default for zeros, and so do we.
fn weights_or_unset<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Weights, D::Error> {
    let weights = Weights::deserialize(deserializer)?;
    Ok(match weights {
        Weights {
            passing: 0,
            warning: 0,
        } => Weights::default(),
        set => set,
    })
}

/// Accepts objects only: a `LiteMap` by itself would also accept a list of pairs.
fn list_of_map<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<LiteMap<String, ServiceAddress>, D::Error> {
    BTreeMap::deserialize(deserializer).map(LiteMap::from_iter)
}

/// Mesh settings of the application itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceConnect {
    /// Whether the application terminates mutual TLS itself, without a sidecar.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub native: bool,
    /// How callers reach a service of a peer, from its cluster. Only in imported instances; requests cannot set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_meta: Option<Box<PeerMeta>>,
}

/// How callers reach a service of a peer through its mesh gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PeerMeta {
    /// The server names that lead to the service. Callers use the first one.
    #[serde(rename = "SNI")]
    pub sni: Vec<String>,
    /// The identities that may answer.
    #[serde(rename = "SpiffeID")]
    pub spiffe_ids: Vec<String>,
    /// The protocol that the service speaks; empty means tcp.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub protocol: String,
}

/// One instance of a service on a node (Consul's `NodeService`).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceInstance {
    /// The instance's kind.
    #[serde(skip_serializing_if = "ServiceKind::is_typical")]
    pub kind: ServiceKind,
    /// Unique on its node; defaults to the service name.
    #[serde(rename = "ID")]
    pub id: String,
    /// The service's name.
    pub service: String,
    /// Free labels.
    pub tags: Vec<String>,
    /// Address that it listens on; empty means the node's address.
    pub address: String,
    /// Other addresses by purpose (`lan`, `wan`, `virtual`, …). A sorted list, since every proxy has
    /// exactly one and a B-tree node has space for eleven.
    #[serde(
        deserialize_with = "list_of_map",
        skip_serializing_if = "LiteMap::is_empty"
    )]
    pub tagged_addresses: LiteMap<String, ServiceAddress>,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// TCP port; 0 means none.
    #[serde(skip_serializing_if = "is_zero")]
    pub port: u16,
    /// Unix socket, instead of address and port.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub socket_path: String,
    /// Load balancing weights by health.
    #[serde(deserialize_with = "weights_or_unset")]
    pub weights: Weights,
    /// Whether tags may be changed through the catalog without being reverted by the agent.
    pub enable_tag_override: bool,
    /// Proxy settings, used for every kind but [`ServiceKind::Typical`].
    pub proxy: ConnectProxy,
    /// Mesh settings of the application itself.
    pub connect: ServiceConnect,
    /// Region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Box<Locality>>,
    /// The peer that it was imported from; unset for those of this cluster. Requests cannot set it.
    pub peer_name: PeerName,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

impl ServiceInstance {
    /// The instance's tenancy.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy::new(&self.partition, &self.namespace).of_peer(self.peer_name.as_str())
    }

    /// Whether it is a mesh gateway that leads to the servers of its datacenter, and to those of others.
    pub fn exposes_servers(&self) -> bool {
        let mark = self.meta.get(WAN_FEDERATION).map(String::as_str);
        self.kind == ServiceKind::MeshGateway && self.partition.is_default() && mark == Some("1")
    }

    /// The service that mesh callers reach through this instance: a sidecar's destination, or a
    /// mesh-native service itself. `None` for other kinds.
    pub fn destination(&self) -> Option<&str> {
        match self.kind {
            ServiceKind::ConnectProxy => {
                Some(self.proxy.destination_service_name.as_str()).filter(|name| !name.is_empty())
            }
            ServiceKind::Typical if self.connect.native => Some(&self.service),
            _ => None,
        }
    }

    /// The service whose identity the proxy uses: a sidecar's destination, or a gateway's own name.
    pub fn identity(&self) -> &str {
        match self.kind {
            ServiceKind::ConnectProxy => &self.proxy.destination_service_name,
            _ => &self.service,
        }
    }
}
