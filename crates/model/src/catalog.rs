//! The flat form of instances in catalog lists: node and service fields in one object.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::instance::CheckServiceNode;
use crate::locality::Locality;
use crate::proxy::ConnectProxy;
use crate::service::{ServiceAddress, ServiceConnect, ServiceKind, Weights};
use crate::tenancy::TenancyName;

/// An instance with the fields of its node (Consul's `ServiceNode`).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct ServiceNode {
    /// The node's id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The node's name.
    pub node: String,
    /// The node's address.
    pub address: String,
    /// The node's datacenter.
    pub datacenter: String,
    /// The node's other addresses.
    pub tagged_addresses: BTreeMap<String, String>,
    /// The node's meta.
    pub node_meta: BTreeMap<String, String>,
    /// The instance's kind.
    pub service_kind: ServiceKind,
    /// The instance's id.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// The service's name.
    pub service_name: String,
    /// The instance's tags.
    pub service_tags: Vec<String>,
    /// The instance's own address, or empty.
    pub service_address: String,
    /// The instance's other addresses.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub service_tagged_addresses: BTreeMap<String, ServiceAddress>,
    /// The instance's weights.
    pub service_weights: Weights,
    /// The instance's meta.
    pub service_meta: BTreeMap<String, String>,
    /// The instance's port.
    pub service_port: u16,
    /// The instance's unix socket.
    pub service_socket_path: String,
    /// Whether tags may be changed through the catalog.
    pub service_enable_tag_override: bool,
    /// The instance's proxy settings.
    pub service_proxy: ConnectProxy,
    /// The instance's mesh settings.
    pub service_connect: ServiceConnect,
    /// Region and zone of the instance.
    pub service_locality: Option<Box<Locality>>,
    /// The namespace of the instance; not shown where that is the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition of the instance; not shown where that is the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created the instance.
    pub create_index: u64,
    /// Index of the last write that changed the instance.
    pub modify_index: u64,
}

impl From<&CheckServiceNode> for ServiceNode {
    fn from(instance: &CheckServiceNode) -> Self {
        let (node, service) = (instance.node.as_ref(), instance.service.as_ref().clone());
        ServiceNode {
            id: node.id.clone(),
            node: node.node.clone(),
            address: node.address.clone(),
            datacenter: node.datacenter.clone(),
            tagged_addresses: node.tagged_addresses.clone(),
            node_meta: node.meta.clone(),
            service_kind: service.kind,
            service_id: service.id,
            service_name: service.service,
            service_tags: service.tags,
            service_address: service.address,
            service_tagged_addresses: service.tagged_addresses.into_iter().collect(),
            service_weights: service.weights,
            service_meta: service.meta,
            service_port: service.port,
            service_socket_path: service.socket_path,
            service_enable_tag_override: service.enable_tag_override,
            service_proxy: service.proxy,
            service_connect: service.connect,
            service_locality: service.locality,
            namespace: service.namespace,
            partition: service.partition,
            create_index: service.create_index,
            modify_index: service.modify_index,
        }
    }
}
