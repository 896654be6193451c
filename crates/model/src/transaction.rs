//! Body of `PUT /v1/txn`: operations that happen together or not at all.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::check::HealthCheck;
use crate::kv::KvValue;
use crate::locality::Locality;
use crate::register::RegisterRequest;
use crate::service::ServiceInstance;
use crate::tenancy::{NoPeer, TenancyName};

/// How many operations a transaction may have.
pub const MAX_OPERATIONS: usize = 128;

/// One operation: exactly one of its fields says which.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Operation {
    /// On a key.
    #[serde(rename = "KV")]
    pub kv: Option<KvOperation>,
    /// On a node.
    pub node: Option<NodeOperation>,
    /// On an instance.
    pub service: Option<ServiceOperation>,
    /// On a check.
    pub check: Option<CheckOperation>,
    /// On a session.
    pub session: Option<SessionOperation>,
}

impl Operation {
    /// Whether it may change something.
    pub fn writes(&self) -> bool {
        const KV: [&str; 7] = [
            "set",
            "cas",
            "lock",
            "unlock",
            "delete",
            "delete-cas",
            "delete-tree",
        ];
        let of_catalog = [
            self.node.as_ref().map(|op| &op.verb),
            self.service.as_ref().map(|op| &op.verb),
            self.check.as_ref().map(|op| &op.verb),
        ];
        let kv = self.kv.as_ref();
        kv.is_some_and(|op| KV.contains(&op.verb.as_str()))
            || of_catalog.into_iter().flatten().any(|verb| verb != "get")
            || self.session.is_some()
    }
}

/// An operation on a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KvOperation {
    /// What to do.
    pub verb: String,
    /// The key, or what keys begin with.
    pub key: String,
    /// What to store.
    pub value: KvValue,
    /// For applications.
    pub flags: u64,
    /// The index that the key must have.
    pub index: u64,
    /// The session that locks, or that must hold the lock.
    pub session: String,
    /// The namespace that it is about; empty for that of the request.
    pub namespace: TenancyName,
    /// The partition that it is about; empty for that of the request.
    pub partition: TenancyName,
}

/// An operation on a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeOperation {
    /// What to do.
    pub verb: String,
    /// Which node, and what it is to be.
    pub node: NodeOperand,
}

/// A node as operations have it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeOperand {
    /// The node's UUID, or empty.
    #[serde(rename = "ID")]
    pub id: String,
    /// The node's name.
    pub node: String,
    /// The node's address.
    pub address: String,
    /// Datacenter of the node; empty means the server's.
    pub datacenter: String,
    /// The node's other addresses.
    pub tagged_addresses: BTreeMap<String, String>,
    /// The node's free key/value pairs.
    pub meta: BTreeMap<String, String>,
    /// Region and zone.
    pub locality: Option<Box<Locality>>,
    /// Accepted and not used.
    pub create_index: u64,
    /// The index that the node must have.
    pub modify_index: u64,
    /// Peering is not served.
    pub peer_name: NoPeer,
    /// The partition that it is about; empty for that of the request.
    pub partition: TenancyName,
}

/// An operation on an instance.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceOperation {
    /// What to do.
    pub verb: String,
    /// The node that it is on.
    pub node: String,
    /// Which instance, and what it is to be.
    pub service: ServiceInstance,
}

/// An operation on a check.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckOperation {
    /// What to do.
    pub verb: String,
    /// Which check, and what it is to be.
    pub check: HealthCheck,
}

/// An operation on a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionOperation {
    /// What to do.
    pub verb: String,
    /// Which session.
    pub session: SessionOperand,
}

/// A session as operations have it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionOperand {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// The namespace that it is about; empty for that of the request.
    pub namespace: TenancyName,
    /// The partition that it is about; empty for that of the request.
    pub partition: TenancyName,
}

impl NodeOperand {
    /// The registration that writes it.
    pub fn into_registration(self) -> RegisterRequest {
        RegisterRequest {
            datacenter: self.datacenter,
            id: self.id,
            node: self.node,
            address: self.address,
            tagged_addresses: self.tagged_addresses,
            node_meta: self.meta,
            locality: self.locality,
            partition: self.partition,
            ..RegisterRequest::default()
        }
    }
}

impl ServiceOperation {
    /// The registration that writes it, on a node that stays as it is.
    pub fn into_registration(self) -> RegisterRequest {
        RegisterRequest {
            node: self.node,
            service: Some(self.service),
            skip_node_update: true,
            ..RegisterRequest::default()
        }
    }
}

impl CheckOperation {
    /// The registration that writes it, on a node that stays as it is.
    pub fn into_registration(self) -> RegisterRequest {
        RegisterRequest {
            node: self.check.node.clone(),
            checks: vec![self.check],
            skip_node_update: true,
            ..RegisterRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::json::{UnknownFields, from_value};

    #[test]
    fn what_only_looks_is_no_write() {
        let writes = |body| {
            let operation: Operation = from_value(body, UnknownFields::Refuse).unwrap();
            operation.writes()
        };
        assert!(!writes(json!({})));
        assert!(!writes(json!({"KV": {"Verb": "get-tree", "Key": "a"}})));
        assert!(writes(
            json!({"KV": {"Verb": "set", "Key": "a", "Value": "eA=="}})
        ));
        assert!(!writes(
            json!({"Node": {"Verb": "get", "Node": {"Node": "n"}}})
        ));
        assert!(writes(
            json!({"Session": {"Verb": "delete", "Session": {"ID": "x"}}})
        ));
    }
}
