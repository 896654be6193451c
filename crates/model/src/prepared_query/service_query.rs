//! Selection of a service's instances by a query: conditions, order and failover.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use crate::check::CheckStatus;
use crate::instance::CheckServiceNode;
use crate::invalid::Invalid;
use crate::meta;
use crate::tenancy::{Tenancy, TenancyName};

/// Selects instances of one service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ServiceQuery {
    /// Name of the service.
    pub service: String,
    /// Refused: sameness groups are not served.
    pub sameness_group: String,
    /// Failover if there is no matching instance.
    pub failover: QueryFailover,
    /// Whether instances with warning checks are excluded.
    pub only_passing: bool,
    /// Ids of checks that are ignored.
    #[serde(rename = "IgnoreCheckIDs")]
    pub ignore_check_ids: Option<Vec<String>>,
    /// The node whose instances are returned first: its name, `_agent` for that of the queried agent,
    /// or `_ip` for the node with the caller's address.
    pub near: String,
    /// Required tags; a leading `!` excludes a tag. Case-insensitive.
    pub tags: Option<Vec<String>>,
    /// Required metadata of the node.
    pub node_meta: Option<BTreeMap<String, String>>,
    /// Required metadata of the instance.
    pub service_meta: Option<BTreeMap<String, String>>,
    /// Whether to return the service's mesh-capable instances, such as sidecars.
    pub connect: bool,
    /// The peer that the service is imported from; empty means this cluster.
    pub peer: String,
    /// Namespace of the service; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition of the service; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Failover of a query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailover {
    /// How many other datacenters to try, nearest first.
    pub nearest_n: i64,
    /// Datacenters to try, in order.
    pub datacenters: Option<Vec<String>>,
    /// Targets to try, in order; not together with the other fields.
    pub targets: Option<Vec<QueryFailoverTarget>>,
}

/// A failover target.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct QueryFailoverTarget {
    /// The peer that the service is imported from; empty means none. Not together with a datacenter.
    pub peer: String,
    /// Name of a datacenter.
    pub datacenter: String,
    /// A namespace of this datacenter; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// A partition of this datacenter; empty means `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

/// Where a query looks for instances of its service.
///
/// What is imported from a peer is in this datacenter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryScope<'q> {
    /// Another datacenter; `None` is this one.
    pub datacenter: Option<&'q str>,
    /// The peer that the service is imported from; empty means none.
    pub peer: &'q str,
    /// The partition.
    pub partition: &'q TenancyName,
    /// The namespace.
    pub namespace: &'q TenancyName,
}

impl QueryFailoverTarget {
    /// Whether the target is a tenancy of this datacenter, or imported from a peer.
    fn is_here(&self) -> bool {
        let is_tenant = !self.namespace.is_empty() || !self.partition.is_empty();
        !self.peer.is_empty() || is_tenant && self.datacenter.is_empty()
    }
}

impl QueryScope<'_> {
    /// The tenancy of the service.
    pub fn tenancy(&self) -> Tenancy {
        Tenancy::new(self.partition, self.namespace).of_peer(self.peer)
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
        Ok(())
    }

    /// Where to look, in order, until there is an instance: the query's own peer, partition and namespace, then the nearest
    /// datacenters if it names a number of them, those that it names, and its targets. `nearest` are all other
    /// datacenters, the nearest first; those that are not in it are left out.
    pub fn scopes<'q>(&'q self, nearest: &'q [String]) -> Vec<QueryScope<'q>> {
        let own = |datacenter: Option<&'q str>| QueryScope {
            datacenter,
            // A peer exports to one datacenter.
            peer: if datacenter.is_some() { "" } else { &self.peer },
            partition: &self.partition,
            namespace: &self.namespace,
        };
        let known = |name: &str| {
            let mut nearest = nearest.iter();
            let known = nearest.find(|known| known.eq_ignore_ascii_case(name));
            known.map(String::as_str)
        };
        let count = usize::try_from(self.failover.nearest_n).unwrap_or_default();
        let by_distance = nearest.iter().take(count).map(String::as_str);
        let named = self.failover.datacenters.iter().flatten();
        let named = named.filter_map(|name| known(name));
        let targets = self.failover.targets.iter().flatten();
        let targets = targets.filter_map(|target| {
            let datacenter = match target.is_here() {
                true => None,
                false => Some(known(&target.datacenter)?),
            };
            Some(QueryScope {
                datacenter,
                peer: &target.peer,
                partition: &target.partition,
                namespace: &target.namespace,
            })
        });
        let mut scopes = vec![own(None)];
        let datacenters = by_distance.chain(named).map(|name| own(Some(name)));
        for scope in datacenters.chain(targets) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes
    }

    /// Tenancy of the queried service.
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

    /// Whether a check is ignored.
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
        // A set, since both sides may have thousands of tags.
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
    /// The fields that name other datacenters.
    pub fn other_datacenters(&self) -> Vec<String> {
        let named = [
            (
                "Datacenters",
                self.datacenters
                    .as_deref()
                    .is_some_and(|names| !names.is_empty()),
            ),
            ("NearestN", self.nearest_n > 0),
        ];
        let named = named.into_iter().filter(|(_, is_named)| *is_named);
        let mut fields: Vec<String> = named.map(|(field, _)| field.to_owned()).collect();
        let targets = self.targets.iter().flatten().enumerate();
        let elsewhere = targets.filter(|(_, target)| !target.datacenter.is_empty());
        fields.extend(elsewhere.map(|(at, _)| format!("Targets[{at}].Datacenter")));
        fields
            .iter()
            .map(|field| format!("Service.Failover.{field}"))
            .collect()
    }

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
            if !target.peer.is_empty() && !target.datacenter.is_empty() {
                return refuse("Peer", "it cannot be used together with Datacenter");
            }
            for (field, name) in [
                ("Namespace", &target.namespace),
                ("Partition", &target.partition),
            ] {
                if name.is_every() {
                    return refuse(field, "\"*\" is not allowed here: name one");
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

/// Moves the instances on a node to the front.
pub fn put_node_first(instances: &mut [CheckServiceNode], node: &str) {
    instances.sort_by_key(|instance| !instance.node.node.eq_ignore_ascii_case(node));
}
