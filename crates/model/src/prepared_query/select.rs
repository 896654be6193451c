//! Which instances a query selects, and in which order.

use std::collections::{BTreeMap, HashSet};

use super::ServiceQuery;
use crate::check::CheckStatus;
use crate::instance::CheckServiceNode;
use crate::tenancy::Tenancy;

impl ServiceQuery {
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

fn has_all(own: &BTreeMap<String, String>, wanted: Option<&BTreeMap<String, String>>) -> bool {
    let mut wanted = wanted.into_iter().flatten();
    wanted.all(|(key, value)| own.get(key) == Some(value))
}

/// Puts the instances of a node before the others.
pub fn put_node_first(instances: &mut [CheckServiceNode], node: &str) {
    instances.sort_by_key(|instance| !instance.node.node.eq_ignore_ascii_case(node));
}
