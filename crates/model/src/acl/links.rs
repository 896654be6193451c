//! The links that tokens and roles have in common.

use std::collections::BTreeSet;

use crate::acl::identity::{NodeIdentity, ServiceIdentity};
use crate::acl::policy::{Policy, PolicyLink};
use crate::acl::role::Role;
use crate::acl::rules::Rules;
use crate::acl::template::TemplatedPolicy;
use crate::acl::token::Token;
use crate::invalid::Invalid;
use crate::name;
use crate::tenancy::Tenancy;

/// Links of one token or role.
pub(crate) struct Links<'a> {
    pub(crate) policies: &'a [PolicyLink],
    pub(crate) services: &'a [ServiceIdentity],
    pub(crate) nodes: &'a [NodeIdentity],
    pub(crate) templates: &'a [TemplatedPolicy],
}

macro_rules! linked {
    ($($row:ty),+) => {
        $(
            impl $row {
                /// Removes duplicates and sets the ids of templates.
                pub fn normalize(&mut self) {
                    normalize(
                        &mut self.service_identities,
                        &mut self.node_identities,
                        &mut self.templated_policies,
                    );
                }

                pub(crate) fn links(&self) -> Links<'_> {
                    Links {
                        policies: &self.policies,
                        services: &self.service_identities,
                        nodes: &self.node_identities,
                        templates: &self.templated_policies,
                    }
                }

                /// The rules that its identities imply in other namespaces.
                pub fn rules_elsewhere(&self, datacenter: &str) -> Option<Rules> {
                    self.links().rules_elsewhere(&self.tenancy(), datacenter)
                }

                /// The policies that its identities and templated policies expand to.
                pub fn own_policies(&self) -> Vec<Policy> {
                    self.links().policies(&self.tenancy())
                }
            }
        )+
    };
}

linked!(Role, Token);

impl<'a> Links<'a> {
    /// # Errors
    ///
    /// [`Invalid`] names the first invalid field.
    pub(crate) fn validate(&self, own: &Tenancy) -> Result<(), Invalid> {
        if !own.is_default_namespace() && !self.nodes.is_empty() {
            return Err(Invalid::new(
                "NodeIdentities",
                "nodes belong to a whole partition: only tokens and roles of the namespace \
                 \"default\" can have them",
            ));
        }
        for (i, identity) in self.services.iter().enumerate() {
            name::validate_identity_name(&identity.service_name).map_err(|error| {
                Invalid::new(
                    format!("ServiceIdentities[{i}].ServiceName"),
                    error.to_string(),
                )
            })?;
        }
        for (i, identity) in self.nodes.iter().enumerate() {
            let path = |field| format!("NodeIdentities[{i}].{field}");
            name::validate_identity_name(&identity.node_name)
                .map_err(|error| Invalid::new(path("NodeName"), error.to_string()))?;
            name::validate_datacenter(&identity.datacenter)
                .map_err(|error| Invalid::new(path("Datacenter"), error.to_string()))?;
        }
        for (i, templated) in self.templates.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("TemplatedPolicies[{i}]"));
            templated.validate().map_err(within)?;
        }
        let nameless = |link: &PolicyLink| link.id.is_empty() && link.name.is_empty();
        match self.policies.iter().position(nameless) {
            Some(i) => Err(Invalid::new(
                format!("Policies[{i}]"),
                "ID or Name must identify the policy",
            )),
            None => Ok(()),
        }
    }

    /// What identities and templated policies contribute to the content hash.
    pub(crate) fn hashed(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let services = self.services.iter().flat_map(|identity| {
            let datacenters = identity.datacenters.iter().map(String::as_str);
            std::iter::once(&*identity.service_name).chain(datacenters)
        });
        let nodes = self.nodes.iter();
        let nodes = nodes.flat_map(|identity| [&*identity.node_name, &*identity.datacenter]);
        services
            .chain(nodes)
            .chain(self.templates.iter().flat_map(TemplatedPolicy::hashed))
    }

    /// The rules of node identities in other namespaces, if there are any node identities: a node's
    /// services may be in any namespace. The policy text only contains the rules of its own
    /// namespace.
    pub(crate) fn rules_elsewhere(&self, own: &Tenancy, datacenter: &str) -> Option<Rules> {
        let nodes = self.nodes.iter().map(NodeIdentity::policy);
        let templates = self.templates.iter().filter(|one| one.is_of_node());
        let templates = templates.filter_map(TemplatedPolicy::policy);
        let mut valid = nodes
            .chain(templates)
            .filter(|one| one.is_valid_in(datacenter));
        let any = own.is_default_namespace() && valid.next().is_some();
        any.then(Rules::reading_services_of_every_namespace)
    }

    /// The policies that identities and templated policies expand to, in the tenancy of their owner.
    pub(crate) fn policies(&self, own: &Tenancy) -> Vec<Policy> {
        let services = self.services.iter().map(ServiceIdentity::policy);
        let nodes = self.nodes.iter().map(NodeIdentity::policy);
        let templates = self.templates.iter().filter_map(TemplatedPolicy::policy);
        let all = services.chain(nodes).chain(templates);
        all.map(|policy| policy.of(own)).collect()
    }
}

/// Removes duplicates and sets the ids of templates.
pub(crate) fn normalize(
    services: &mut Vec<ServiceIdentity>,
    nodes: &mut Vec<NodeIdentity>,
    templates: &mut Vec<TemplatedPolicy>,
) {
    // Entries of one service are merged. One without datacenters is valid in all of them.
    let mut merged: Vec<ServiceIdentity> = Vec::new();
    for mut identity in std::mem::take(services) {
        let same = |known: &&mut ServiceIdentity| known.service_name == identity.service_name;
        match merged.iter_mut().find(same) {
            Some(known) if known.datacenters.is_empty() || identity.datacenters.is_empty() => {
                known.datacenters.clear();
            }
            Some(known) => {
                known.datacenters.append(&mut identity.datacenters);
                known.datacenters.sort();
                known.datacenters.dedup();
            }
            None => merged.push(identity),
        }
    }
    *services = merged;
    let mut seen = BTreeSet::new();
    nodes.retain(|identity| seen.insert(identity.clone()));
    let mut seen = BTreeSet::new();
    templates.iter_mut().for_each(TemplatedPolicy::normalize);
    templates.retain(|templated| seen.insert(templated.clone()));
}
