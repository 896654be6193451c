//! Compiles resolvers: redirects, default subsets, settings and failover of a target.

use std::sync::Arc;
use std::time::Duration;

use legate_model::{
    FailoverTarget, MeshGatewayMode, SamenessGroupMember, ServiceName, ServiceResolver,
    TenancyName, WILDCARD,
};

use super::Compiler;
use crate::chain::{Failover, Node, NodeKind, Resolver, Target};
use crate::error::ChainError;

/// Consul's default.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The fields of a target that a redirect or failover changes; empty fields change nothing.
#[derive(Default)]
struct Change<'a> {
    service: &'a str,
    subset: &'a str,
    datacenter: &'a str,
    peer: &'a str,
    partition: Option<&'a TenancyName>,
    namespace: Option<&'a TenancyName>,
}

impl Compiler<'_> {
    /// Compiles the resolver of a target, following its redirects, and returns the node's key.
    pub(super) fn resolver(&mut self, target: Target) -> Result<String, ChainError> {
        let (mut target, entry) = self.redirected(target)?;
        let node = Node {
            kind: NodeKind::Resolver(Resolver {
                default: entry.is_default(),
                connect_timeout: Duration::ZERO,
                request_timeout: entry.request_timeout,
                target: target.id.clone(),
                failover: None,
            }),
            name: target.id.clone(),
            load_balancer: entry.load_balancer.clone(),
        };
        let key = node.key();
        if self.nodes.contains_key(&key) {
            return Ok(key);
        }
        self.complete(&mut target, &entry)?;
        let section = section_of(&entry, &target.service_subset);
        let policy = section.and_then(|section| section.policy.clone());
        let connect_timeout = target.connect_timeout;
        let ids = self.failover_of(&target, &entry)?;
        self.retain(target);
        let failover = (!ids.is_empty()).then_some(Failover {
            targets: ids,
            policy,
        });
        let NodeKind::Resolver(resolver) = node.kind else {
            return Ok(key);
        };
        Ok(self.add(Node {
            kind: NodeKind::Resolver(Resolver {
                // Failover by default is one that the service has, too.
                default: resolver.default && failover.is_none(),
                connect_timeout,
                failover,
                ..resolver
            }),
            ..node
        }))
    }

    /// Compiles the targets to which a target fails over, and returns their ids.
    fn failover_of(
        &mut self,
        target: &Target,
        entry: &ServiceResolver,
    ) -> Result<Vec<String>, ChainError> {
        let mut ids = Vec::new();
        for other in self.failover(target, entry) {
            ids.push(self.failover_target(other)?);
        }
        for member in self.members(target) {
            // One that cannot be used, such as with another protocol, is left out: no entry of the service names it.
            if let Ok(id) = self.failover_target(member)
                && id != target.id
                && !ids.contains(&id)
            {
                ids.push(id);
            }
        }
        Ok(ids)
    }

    /// Compiles a failover target. Its redirects and default subsets apply; its own failover does not.
    fn failover_target(&mut self, target: Target) -> Result<String, ChainError> {
        let (mut target, entry) = self.redirected(target)?;
        self.complete(&mut target, &entry)?;
        let id = target.id.clone();
        self.retain(target);
        Ok(id)
    }

    /// The members of the partition's default sameness group, as targets, if the target has no resolver of its own.
    fn members(&mut self, target: &Target) -> Vec<Target> {
        let own = &self.request.service.tenancy;
        let is_own = target.peer.is_empty() && target.tenancy.partition == own.partition;
        let service = target.service_name();
        if !is_own || target.external || self.stored_resolver(&service).is_some() {
            return Vec::new();
        }
        let read = || self.entries.default_sameness_group(own).map(Arc::new);
        let Some(group) = self.group.get_or_insert_with(read).clone() else {
            return Vec::new();
        };
        let namespace = target.tenancy.shown_namespace();
        let as_target = |member: &SamenessGroupMember| {
            let partition = member.partition.parse().ok()?;
            let change = Change {
                peer: &member.peer,
                partition: Some(&partition),
                namespace: Some(&namespace),
                ..Change::default()
            };
            Some(self.changed(target, &change))
        };
        let members = group.members.iter().filter_map(as_target);
        members.filter(|member| member.id != target.id).collect()
    }

    fn retain(&mut self, target: Target) {
        self.retained.insert(target.id.clone());
        self.targets.insert(target.id.clone(), Box::new(target));
    }

    /// Follows redirects and default subsets.
    fn redirected(
        &mut self,
        mut target: Target,
    ) -> Result<(Target, Arc<ServiceResolver>), ChainError> {
        let mut way: Vec<String> = Vec::new();
        loop {
            if target.peer.is_empty() {
                self.record_protocol(&target.service_name())?;
            }
            let entry = self.resolver_of(&target.service_name());
            // Redirects and subsets do not apply to a service of a peer.
            if !target.peer.is_empty() {
                return Ok((target, entry));
            }
            let again = way.contains(&target.id);
            way.push(target.id.clone());
            if again {
                return Err(ChainError::CircularRedirect(way));
            }
            self.check_length(way.len())?;
            if let Some(redirect) = &entry.redirect {
                let to = self.changed(
                    &target,
                    &Change {
                        service: &redirect.service,
                        subset: &redirect.service_subset,
                        datacenter: &redirect.datacenter,
                        peer: &redirect.peer,
                        partition: Some(&redirect.partition),
                        namespace: Some(&redirect.namespace),
                    },
                );
                if to.id != target.id {
                    target = to;
                    continue;
                }
            }
            if target.service_subset.is_empty() && !entry.default_subset.is_empty() {
                let subset = Change {
                    subset: &entry.default_subset,
                    ..Change::default()
                };
                target = self.changed(&target, &subset);
                continue;
            }
            if !entry.has_subset(&target.service_subset) {
                return Err(ChainError::NoSubset {
                    service: target.service,
                    subset: target.service_subset,
                });
            }
            return Ok((target, entry));
        }
    }

    fn resolver_of(&mut self, service: &ServiceName) -> Arc<ServiceResolver> {
        let none = || {
            Arc::new(ServiceResolver {
                name: service.name.as_ref().to_owned(),
                ..ServiceResolver::default()
            })
        };
        self.stored_resolver(service).unwrap_or_else(none)
    }

    fn stored_resolver(&mut self, service: &ServiceName) -> Option<Arc<ServiceResolver>> {
        let read = || self.entries.resolver(service).map(Arc::new);
        let entry = self.resolvers.entry(service.clone());
        entry.or_insert_with(read).clone()
    }

    /// The target after the change. Another service drops the subset, and a peer drops the datacenter and the
    /// namespace: what is imported is in the partition of the chain, in the namespace that the peer exports it from.
    fn changed(&self, target: &Target, change: &Change<'_>) -> Target {
        let none = TenancyName::default();
        let (partition, namespace) = (change.partition, change.namespace);
        let own;
        let base = match change.peer.is_empty() {
            true => &target.tenancy,
            false => {
                own = self.request.service.tenancy.of_partition();
                &own
            }
        };
        let tenancy = base.resolve(partition.unwrap_or(&none), namespace.unwrap_or(&none));
        let mut changed = Target {
            service: target.service.clone(),
            service_subset: target.service_subset.clone(),
            datacenter: target.datacenter.clone(),
            // As in peerings: their names are in lower case.
            peer: change.peer.to_ascii_lowercase(),
            ..Target::default()
        };
        if !changed.peer.is_empty() {
            changed.locality = self.entries.peer_locality(&tenancy, &changed.peer);
        }
        if !change.service.is_empty() {
            changed.service = change.service.to_owned();
        }
        changed.tenancy = tenancy;
        if changed.service_name() != target.service_name() {
            changed.service_subset.clear();
        }
        if !change.subset.is_empty() {
            changed.service_subset = change.subset.to_owned();
        }
        if !change.peer.is_empty() {
            changed.datacenter.clear();
        } else if !change.datacenter.is_empty() {
            // As in identities: their names are in lower case.
            changed.datacenter = change.datacenter.to_ascii_lowercase();
        } else if changed.datacenter.is_empty() {
            changed.datacenter = self.request.datacenter.to_owned();
        }
        self.named(changed)
    }

    /// Sets the target's timeout, subset, locality, gateway and SNI from the config entries and
    /// overrides.
    fn complete(&mut self, target: &mut Target, entry: &ServiceResolver) -> Result<(), ChainError> {
        let timeout = match entry.connect_timeout {
            Duration::ZERO => CONNECT_TIMEOUT,
            timeout => timeout,
        };
        let wanted = self.request.overrides.connect_timeout;
        target.connect_timeout = if wanted.is_zero() { timeout } else { wanted };
        if target.connect_timeout != timeout {
            self.customised.connect_timeout = wanted;
        }
        let subset = entry.subsets.get(&target.service_subset);
        target.subset = subset.cloned().unwrap_or_default();
        let usual = self.proxy_defaults(&target.tenancy);
        let usual = usual.as_deref();
        // The locality of instances is only comparable within the callers' own partition.
        let is_near = target.tenancy.partition == self.request.service.tenancy.partition;
        if is_near && target.peer.is_empty() {
            let near = entry.prioritize_by_locality.as_ref();
            let near = near.or(usual.and_then(|usual| usual.prioritize_by_locality.as_ref()));
            target.prioritize_by_locality = near.cloned();
        }
        let usual_gateway = usual.map(|usual| usual.mesh_gateway.mode);
        let usually_dialled = usual.is_some_and(|usual| usual.transparent_proxy.dialed_directly);
        let own = self.service_defaults(&target.service_name());
        let own = own.as_deref();
        let sni = own.map_or("", |own| own.external_sni.as_str());
        if !sni.is_empty() {
            target.sni = sni.to_owned();
            target.external = true;
            return check_external(target, entry);
        }
        let mode = match own.map(|own| own.mesh_gateway.mode).unwrap_or_default() {
            MeshGatewayMode::Default => usual_gateway.unwrap_or_default(),
            own => own,
        };
        let own = own.is_some_and(|own| own.transparent_proxy.dialed_directly);
        target.transparent_proxy.dialed_directly = own || usually_dialled;
        let wanted = self.request.overrides.mesh_gateway;
        target.mesh_gateway.mode = match wanted {
            MeshGatewayMode::Default => mode,
            wanted => wanted,
        };
        if target.mesh_gateway.mode != mode {
            self.customised.mesh_gateway = wanted;
        }
        Ok(())
    }

    /// The failover targets of a target, without the target itself.
    fn failover(&self, target: &Target, entry: &ServiceResolver) -> Vec<Target> {
        let Some(section) = section_of(entry, &target.service_subset) else {
            return Vec::new();
        };
        let change = |datacenter| Change {
            service: &section.service,
            subset: &section.service_subset,
            datacenter,
            namespace: Some(&section.namespace),
            ..Change::default()
        };
        let of_target = |other: &FailoverTarget| {
            self.changed(
                target,
                &Change {
                    service: &other.service,
                    subset: &other.service_subset,
                    datacenter: &other.datacenter,
                    peer: &other.peer,
                    partition: Some(&other.partition),
                    namespace: Some(&other.namespace),
                },
            )
        };
        let others: Vec<Target> = if !section.datacenters.is_empty() {
            let all = section.datacenters.iter();
            all.map(|datacenter| self.changed(target, &change(datacenter)))
                .collect()
        } else if !section.targets.is_empty() {
            section.targets.iter().map(of_target).collect()
        } else {
            vec![self.changed(target, &change(""))]
        };
        let elsewhere = |other: &Target| other.id != target.id;
        others.into_iter().filter(elsewhere).collect()
    }
}

/// The failover section of a subset, or else that of the wildcard.
fn section_of<'e>(entry: &'e ServiceResolver, subset: &str) -> Option<&'e legate_model::Failover> {
    let exact = entry.failover.get(subset);
    exact.or_else(|| entry.failover.get(WILDCARD))
}

/// A service outside of the mesh has no instances to which redirects, subsets or failover could
/// apply.
fn check_external(target: &Target, entry: &ServiceResolver) -> Result<(), ChainError> {
    let given = [
        (entry.redirect.is_some(), "redirects"),
        (!entry.subsets.is_empty(), "subsets"),
        (!entry.failover.is_empty(), "failover"),
    ];
    match given.into_iter().find(|(given, _)| *given) {
        Some((_, what)) => Err(ChainError::External {
            service: target.service.clone(),
            what,
        }),
        None => Ok(()),
    }
}
