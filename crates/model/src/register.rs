//! Requests that write to the catalog.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::check::HealthCheck;
use crate::invalid::Invalid;
use crate::locality::Locality;
use crate::node::Node;
use crate::service::{ServiceInstance, ServiceKind};
use crate::tenancy::{NoPeer, PeerName, TenancyName};
use crate::validate::{validate_address, validate_host};
use crate::{meta, name};

/// The error for a mesh-native instance without a port.
pub(crate) const NATIVE_PORT: &str = "Port or SocketPath must be set for a Connect native service.";

/// The error for a row of a peer.
pub(crate) const OF_PEER: &str =
    "cannot register requests with PeerName in them: only a peering writes what it imports";

/// Body of `PUT /v1/catalog/register`: a node, and optionally an instance and checks on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RegisterRequest {
    /// Datacenter of the node; empty means the server's.
    pub datacenter: String,
    /// The node's UUID, or empty.
    #[serde(rename = "ID")]
    pub id: String,
    /// The node's name.
    pub node: String,
    /// The node's address.
    pub address: String,
    /// The node's other addresses.
    pub tagged_addresses: BTreeMap<String, String>,
    /// The node's free key/value pairs.
    pub node_meta: BTreeMap<String, String>,
    /// An instance on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceInstance>,
    /// A single check, in addition to `checks`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<HealthCheck>,
    /// Checks of the node or of instances on it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<HealthCheck>,
    /// Whether an existing node is not updated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_node_update: bool,
    /// Region and zone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locality: Option<Box<Locality>>,
    /// Refused, unless it is empty: imported rows are written by the peering only.
    #[serde(skip_serializing)]
    pub peer_name: NoPeer,
    /// Partition of the node; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Rows that a registration writes, with all ids set.
#[derive(Debug, Clone, PartialEq)]
pub struct RegistrationParts {
    /// The node.
    pub node: Node,
    /// The instance on it.
    pub service: Option<ServiceInstance>,
    /// The checks.
    pub checks: Vec<HealthCheck>,
    /// Whether an existing node is not updated.
    pub skip_node_update: bool,
}

impl RegisterRequest {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_node_name(&self.node)
            .map_err(|error| Invalid::new("Node", error.to_string()))?;
        if self.address.is_empty() && !self.skip_node_update {
            return Err(Invalid::new(
                "Address",
                "it must be the node's address, unless SkipNodeUpdate is true",
            ));
        }
        validate_address("Address", &self.address)?;
        for (key, address) in &self.tagged_addresses {
            validate_host(&format!("TaggedAddresses.{key}"), address)?;
        }
        if !self.id.is_empty() && !name::is_uuid(&self.id) {
            return Err(Invalid::new(
                "ID",
                format!("{:?} is not a UUID; leave it out to have none", self.id),
            ));
        }
        meta::validate_node(&self.node_meta)?;
        if let Some(locality) = &self.locality {
            locality
                .validate()
                .map_err(|error| error.within("Locality"))?;
        }
        if let Some(service) = &self.service {
            self.validate_service(service)
                .map_err(|error| error.within("Service"))?;
        }
        if let Some(check) = &self.check {
            self.validate_check(check)
                .map_err(|error| error.within("Check"))?;
        }
        for (i, check) in self.checks.iter().enumerate() {
            self.validate_check(check)
                .map_err(|error| error.within(format_args!("Checks[{i}]")))?;
        }
        Ok(())
    }

    /// The partition and namespace of the request, where it sets them. Everything that it registers
    /// must be in one namespace, except that checks of the node belong to none and may have
    /// `default`.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when its parts have different tenancies.
    pub fn tenancy(&self) -> Result<(TenancyName, TenancyName), Invalid> {
        let mut partition = self.partition.clone();
        let mut namespace = TenancyName::default();
        let mut own = |field, named: (&TenancyName, &TenancyName)| {
            for (known, name, what) in [
                (&mut partition, named.0, "Partition"),
                (&mut namespace, named.1, "Namespace"),
            ] {
                if known.is_empty() {
                    known.clone_from(name);
                } else if !name.is_empty() && known != name {
                    let reason = format!("{name:?} is not that of the request, {known:?}");
                    return Err(Invalid::new(what, reason).within(field));
                }
            }
            Ok(())
        };
        if let Some(service) = &self.service {
            own("Service", (&service.partition, &service.namespace))?;
        }
        for check in self.check.iter().chain(&self.checks) {
            match check.service_id.is_empty() && check.namespace.is_default() {
                true => own("Check", (&check.partition, &TenancyName::default()))?,
                false => own("Check", (&check.partition, &check.namespace))?,
            }
        }
        Ok((partition, namespace))
    }

    fn validate_service(&self, service: &ServiceInstance) -> Result<(), Invalid> {
        service.validate()?;
        let reachable = service.port != 0 || !service.socket_path.is_empty();
        if service.kind == ServiceKind::ConnectProxy && !reachable {
            return Err(Invalid::new(
                "Port",
                "a connect-proxy needs the port (or SocketPath) on which its listener is reached",
            ));
        }
        if service.connect.native && !reachable {
            return Err(Invalid::new("Port", NATIVE_PORT));
        }
        Ok(())
    }

    fn validate_check(&self, check: &HealthCheck) -> Result<(), Invalid> {
        for (field, id) in [("CheckID", &check.check_id), ("Name", &check.name)] {
            name::validate_length(id).map_err(|error| Invalid::new(field, error.to_string()))?;
        }
        if check.check_id.is_empty() && check.name.is_empty() {
            return Err(Invalid::new("CheckID", "CheckID or Name must be given"));
        }
        if !check.peer_name.is_empty() {
            return Err(Invalid::new("PeerName", OF_PEER));
        }
        if !check.node.is_empty() && !check.node.eq_ignore_ascii_case(&self.node) {
            return Err(Invalid::new(
                "Node",
                format!(
                    "{:?} is not the node of the request, {:?}",
                    check.node, self.node
                ),
            ));
        }
        Ok(())
    }

    /// Sets what Consul derives: ids from names, and the node and service of checks. The request must
    /// be valid.
    pub fn into_parts(self, datacenter: &str) -> RegistrationParts {
        let node = Node {
            id: self.id.to_ascii_lowercase(),
            address: self.address,
            datacenter: match self.datacenter.as_str() {
                "" => datacenter.to_owned(),
                own => own.to_owned(),
            },
            tagged_addresses: self.tagged_addresses,
            meta: self.node_meta,
            node: self.node,
            locality: self.locality,
            partition: TenancyName::default(),
            peer_name: PeerName::default(),
            create_index: 0,
            modify_index: 0,
        };
        let service = self.service.map(|mut service| {
            if service.id.is_empty() {
                service.id.clone_from(&service.service);
            }
            service
        });
        let mut checks: Vec<HealthCheck> = self.check.into_iter().chain(self.checks).collect();
        for check in &mut checks {
            check.node.clone_from(&node.node);
            if check.check_id.is_empty() {
                check.check_id.clone_from(&check.name);
            }
            if check.r#type.is_empty() {
                check.r#type = check.definition.type_name().to_owned();
            }
            let own = service
                .as_ref()
                .filter(|service| service.id == check.service_id);
            if let Some(service) = own {
                check.service_name.clone_from(&service.service);
                check.service_tags.clone_from(&service.tags);
            }
        }
        RegistrationParts {
            node,
            service,
            checks,
            skip_node_update: self.skip_node_update,
        }
    }
}

/// Body of `PUT /v1/catalog/deregister`: removes the instance or, if none is given, the check or, if
/// neither is given, the whole node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeregisterRequest {
    /// Datacenter of the node; empty means the server's.
    pub datacenter: String,
    /// The node's name.
    pub node: String,
    /// Accepted and ignored.
    pub address: String,
    /// The instance to remove.
    #[serde(rename = "ServiceID")]
    pub service_id: String,
    /// The check to remove.
    #[serde(rename = "CheckID")]
    pub check_id: String,
    /// Refused, unless it is empty: imported rows are written by the peering only.
    #[serde(skip_serializing)]
    pub peer_name: NoPeer,
    /// Namespace of the instance or check; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition of the node; empty means the request's.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl DeregisterRequest {
    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_node_name(&self.node)
            .map_err(|error| Invalid::new("Node", error.to_string()))
    }
}
