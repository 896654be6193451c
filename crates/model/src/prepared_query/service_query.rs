//! What a query asks for: instances of a service, and where else to look. Which instances it selects,
//! and in which order.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::check::CheckStatus;
use crate::instance::CheckServiceNode;
use crate::invalid::Invalid;
use crate::meta;
use crate::tenancy::{Tenancy, TenancyName};

/// Instances of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceQuery {
    /// Its name.
    pub service: String,
    /// Sameness groups are not served.
    pub sameness_group: String,
    /// Where else to ask when there is no instance.
    pub failover: QueryFailover,
    /// Leaves out instances with a warning, too.
    pub only_passing: bool,
    /// Checks that do not count.
    #[serde(rename = "IgnoreCheckIDs")]
    pub ignore_check_ids: Option<Vec<String>>,
    /// The node whose instances come first; `_agent` is that of the agent that is asked, `_ip` the one
    /// with the address of whoever asks.
    pub near: String,
    /// Tags that an instance has; after `!` one that it has not. Case does not matter.
    pub tags: Option<Vec<String>>,
    /// What the node's meta has.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// What the instance's meta has.
    pub service_meta: Option<BTreeMap<String, String>>,
    /// Whether to answer with what stands for the service in the mesh.
    pub connect: bool,
    /// Peers are not served.
    pub peer: String,
    /// The namespace of the service; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition of the service; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Where else to ask. There is one datacenter: others find nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailover {
    /// So many other datacenters, the nearest first.
    pub nearest_n: i64,
    /// These datacenters, in order.
    pub datacenters: Option<Vec<String>>,
    /// These, in order, instead of both.
    pub targets: Option<Vec<QueryFailoverTarget>>,
}

/// A place to ask.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailoverTarget {
    /// Peers are not served.
    pub peer: String,
    /// A datacenter.
    pub datacenter: String,
    /// A namespace of this datacenter; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// A partition of this datacenter; empty for the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl QueryFailoverTarget {
    /// Whether it names another tenant of this datacenter, and nothing else.
    fn is_here(&self) -> bool {
        let is_tenant = !self.namespace.is_empty() || !self.partition.is_empty();
        is_tenant && self.datacenter.is_empty() && self.peer.is_empty()
    }
}

impl ServiceQuery {
    pub(super) fn validate(&self) -> Result<(), String> {
        if self.service.is_empty() {
            return Err("Must provide a Service name to query".to_owned());
        }
        self.failover.validate()?;
        for (field, map) in [
            ("NodeMeta", &self.node_meta),
            ("ServiceMeta", &self.service_meta),
        ] {
            let checked = map
                .iter()
                .try_for_each(|map| meta::validate_entry(field, map));
            checked.map_err(|invalid: Invalid| invalid.to_string())?;
        }
        if !self.sameness_group.is_empty() {
            return Err(
                "sameness-groups are an enterprise-only feature: leave SamenessGroup out"
                    .to_owned(),
            );
        }
        if !self.peer.is_empty() {
            return Err("Service.Peer: peers are not served, leave it out".to_owned());
        }
        Ok(())
    }

    /// The partitions and namespaces to look in, until there is an instance: its own, and those that it fails
    /// over to.
    pub fn places(&self) -> impl Iterator<Item = (&TenancyName, &TenancyName)> {
        let targets = self.failover.targets.iter().flatten();
        let others = targets.filter(|target| target.is_here());
        let others = others.map(|target| (&target.partition, &target.namespace));
        std::iter::once((&self.partition, &self.namespace)).chain(others)
    }

    /// Where the query looks for its service.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy::new(&self.partition, &self.namespace)
    }

    /// Whether the query selects an instance of its service.
    pub fn fits(&self, instance: &CheckServiceNode) -> bool {
        self.is_healthy(instance)
            && has_all(&instance.node.meta, self.node_meta.as_ref())
            && has_all(&instance.service.meta, self.service_meta.as_ref())
            && self.fits_tags(&instance.service.tags)
    }

    /// Whether a check does not count.
    pub fn ignores(&self, check_id: &str) -> bool {
        let mut ignored = self.ignore_check_ids.iter().flatten();
        ignored.any(|id| id == check_id)
    }

    fn is_healthy(&self, instance: &CheckServiceNode) -> bool {
        let mut checks = instance.checks.iter();
        checks.all(|check| {
            self.ignores(&check.check_id)
                || match check.status {
                    CheckStatus::Passing => true,
                    CheckStatus::Warning => !self.only_passing,
                    CheckStatus::Critical => false,
                }
        })
    }

    fn fits_tags(&self, own: &[String]) -> bool {
        let Some(wanted) = &self.tags else {
            return true;
        };
        // Either side may have many thousand tags.
        let own: HashSet<String> = own.iter().map(|tag| tag.to_lowercase()).collect();
        wanted.iter().all(|tag| {
            let tag = tag.to_lowercase();
            match tag.strip_prefix('!') {
                Some(unwanted) => !own.contains(unwanted),
                None => own.contains(&tag),
            }
        })
    }
}

impl QueryFailover {
    fn validate(&self) -> Result<(), String> {
        if self.nearest_n < 0 {
            return Err(format!("Bad NearestN '{}', must be >= 0", self.nearest_n));
        }
        let targets = self.targets.as_deref().unwrap_or_default();
        let datacenters = self.datacenters.as_deref().unwrap_or_default();
        if !targets.is_empty() && (self.nearest_n != 0 || !datacenters.is_empty()) {
            return Err("Targets cannot be populated with NearestN or Datacenters".to_owned());
        }
        for (at, target) in targets.iter().enumerate() {
            let refuse = |field: &str, reason: &str| {
                Err(format!("Service.Failover.Targets[{at}].{field}: {reason}"))
            };
            if !target.peer.is_empty() {
                return refuse("Peer", "peers are not served, leave it out");
            }
            for (field, name) in [
                ("Namespace", &target.namespace),
                ("Partition", &target.partition),
            ] {
                if name.is_every() {
                    return refuse(field, "\"*\" stands for every one: name one");
                }
            }
        }
        Ok(())
    }
}

fn has_all(own: &BTreeMap<String, String>, wanted: Option<&BTreeMap<String, String>>) -> bool {
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|(key, value)| own.get(key) == Some(value))
}

/// Puts the instances of a node before the others.
pub fn put_node_first(instances: &mut [CheckServiceNode], node: &str) {
    instances.sort_by_key(|instance| !instance.node.node.eq_ignore_ascii_case(node));
}
