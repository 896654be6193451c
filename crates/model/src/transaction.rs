//! Body of `PUT /v1/txn`: operations that are applied atomically.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::check::HealthCheck;
use crate::kv::KvValue;
use crate::locality::Locality;
use crate::register::RegisterRequest;
use crate::service::ServiceInstance;
use crate::tenancy::{NoPeer, TenancyName};

/// The maximum number of operations in a transaction.
pub const MAX_OPERATIONS: usize = 128;

/// One operation; exactly one field is set.
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
    /// Whether it may write.
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
    /// The operation's verb.
    pub verb: String,
    /// The key or key prefix.
    pub key: String,
    /// The value to store.
    pub value: KvValue,
    /// Application-defined flags.
    pub flags: u64,
    /// The required index of the key.
    pub index: u64,
    /// The session that acquires the lock or must hold it.
    pub session: String,
    /// Namespace; empty means the request's.
    pub namespace: TenancyName,
    /// Partition; empty means the request's.
    pub partition: TenancyName,
}

/// An operation on a node.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeOperation {
    /// The operation's verb.
    pub verb: String,
    /// The node, with the values to write.
    pub node: NodeOperand,
}

/// A node in an operation.
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
    /// Accepted and ignored.
    pub create_index: u64,
    /// The required index of the node.
    pub modify_index: u64,
    /// Refused, unless it is empty: imported rows are written by the peering only.
    pub peer_name: NoPeer,
    /// Partition; empty means the request's.
    pub partition: TenancyName,
}

/// An operation on an instance.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceOperation {
    /// The operation's verb.
    pub verb: String,
    /// The instance's node.
    pub node: String,
    /// The instance, with the values to write.
    pub service: ServiceInstance,
}

/// An operation on a check.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CheckOperation {
    /// The operation's verb.
    pub verb: String,
    /// The check, with the values to write.
    pub check: HealthCheck,
}

/// An operation on a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionOperation {
    /// The operation's verb.
    pub verb: String,
    /// The session.
    pub session: SessionOperand,
}

/// A session in an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionOperand {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Namespace; empty means the request's.
    pub namespace: TenancyName,
    /// Partition; empty means the request's.
    pub partition: TenancyName,
}

impl NodeOperand {
    /// The equivalent registration.
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
    /// The equivalent registration, which does not update the node.
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
    /// The equivalent registration, which does not update the node.
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
    fn reads_are_not_writes() {
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
