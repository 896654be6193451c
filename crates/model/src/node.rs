//! Nodes: the machines (or virtual groups) that service instances belong to.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::locality::Locality;
use crate::tenancy::{PeerName, TenancyName};

/// A node of the catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    /// UUID, or empty.
    #[serde(rename = "ID")]
    pub id: String,
    /// The node's name, unique in the datacenter irrespective of case.
    pub node: String,
    /// Host name or IP address, without a port.
    pub address: String,
    /// Datacenter that the node belongs to.
    pub datacenter: String,
    /// Other addresses by purpose (`lan`, `wan`, …).
    pub tagged_addresses: BTreeMap<String, String>,
    /// Free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// Region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Box<Locality>>,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// The peer that it was imported from; omitted for those of this cluster.
    #[serde(skip_serializing_if = "PeerName::is_empty")]
    pub peer_name: PeerName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}
