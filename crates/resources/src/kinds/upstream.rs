//! The parts of one upstream: a cluster with endpoints for each resolver of its chain, its routes
//! if there are any, and the listener of an explicit upstream.

use std::cell::{LazyCell, OnceCell};
use std::sync::Arc;

use legate_proxycfg::{Proxy, ResolvedChain, UpstreamSnapshot};

use super::change::{SameProxy, same_chain};
use crate::chain_route;
use crate::cluster;
use crate::endpoint;
use crate::listener;
use crate::memo::Memo;
use crate::names;
use crate::part::{Made, UnitBuilder, made};
use crate::resource_type::Type;
use crate::settings::{self, Settings};
use crate::tls::TlsSettings;
use crate::upstream::{self, ClusterKind, UpstreamPlan, UpstreamTarget};

/// One upstream, and its last state.
pub(super) struct UpstreamChange<'a> {
    proxy: &'a Proxy,
    upstream: &'a UpstreamSnapshot,
    earlier: Option<&'a UpstreamSnapshot>,
    same: SameProxy,
    compared_ends: OnceCell<bool>,
}

/// The inputs that the parts of one upstream share, computed on first use.
type Plan<'a, F> = LazyCell<UpstreamPlan<'a>, F>;

impl<'a> UpstreamChange<'a> {
    /// `same` are the unchanged inputs of the proxy, and `earlier` is the upstream in the last
    /// snapshot.
    pub(super) fn new(
        proxy: &'a Proxy,
        upstream: &'a UpstreamSnapshot,
        earlier: Option<&'a UpstreamSnapshot>,
        same: SameProxy,
    ) -> Self {
        Self {
            proxy,
            upstream,
            earlier,
            same,
            compared_ends: OnceCell::new(),
        }
    }

    fn is(&self, equal: impl FnOnce(&UpstreamSnapshot) -> bool) -> bool {
        self.earlier.is_some_and(equal)
    }

    /// Whether its names, its settings and its chain are unchanged.
    fn leads_alike(&self) -> bool {
        self.same.mesh_name && self.is(|last| same_chain(last, self.upstream))
    }

    /// Whether its names, its settings and the resolvers of its chain are unchanged.
    fn ends_alike(&self) -> bool {
        let ends = |last: &UpstreamSnapshot| {
            let chains = (&last.resolved.chain, &self.upstream.resolved.chain);
            same_chain(last, self.upstream)
                || Arc::ptr_eq(&last.upstream, &self.upstream.upstream)
                    && matches!(chains, (Ok(last), Ok(now)) if last.ends_alike(now))
        };
        let compare = || self.same.mesh_name && self.is(ends);
        *self.compared_ends.get_or_init(compare)
    }

    /// Whether, in addition, the settings of connections to it are unchanged.
    pub(super) fn is_dialled_alike(&self) -> bool {
        self.leads_alike() && self.same.mesh && self.same.instance
    }

    /// Whether nothing about it has changed.
    fn is_as_it_was(&self) -> bool {
        let resolved = &self.upstream.resolved;
        self.is_dialled_alike() && self.is(|last| Arc::ptr_eq(&last.resolved, resolved))
    }

    /// Adds all parts of an explicit upstream.
    pub(super) fn add_parts(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
    ) {
        if self.is_as_it_was() && unit.take_over() {
            return;
        }
        let plan = LazyCell::new(|| UpstreamPlan::new(self.proxy, self.upstream));
        self.add_clusters(unit, memo, settings, &plan);
        self.add_routes(unit, memo, &plan);
        self.add_listener(unit, memo, settings, &plan);
    }

    /// Adds the clusters of a service behind a gateway.
    pub(super) fn add_service(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
    ) {
        if self.is_as_it_was() && unit.take_over() {
            return;
        }
        let plan = LazyCell::new(|| UpstreamPlan::new(self.proxy, self.upstream));
        self.add_clusters(unit, memo, settings, &plan);
        let name = || names::upstream_sni(self.proxy, &self.upstream.upstream);
        unit.part(Type::Cluster, name, self.leads_alike(), |warnings| {
            warnings.clone_from(&plan.warnings);
            // An invalid chain is reported here, because no other part is made from it.
            plan.chain().map(|_| None)
        });
    }

    /// Adds a cluster for each resolver of the chain, followed by its endpoints if it has any. Adds
    /// none if the stored entries do not form a chain.
    pub(super) fn add_clusters<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
        plan: &Plan<'a, F>,
    ) {
        let resolved = &self.upstream.resolved;
        let ends_alike = self.ends_alike();
        let is_dialled_alike = ends_alike && self.same.mesh && self.same.instance;
        for cluster in upstream::clusters(memo, self.upstream) {
            let target = match &cluster.kind {
                ClusterKind::Target(target, _) => Some(*target),
                ClusterKind::Failover(_) => None,
            };
            let of = |resolved: &'a ResolvedChain| resolved.instances(&target?.id);
            let before = self.earlier.and_then(|last| of(&last.resolved));
            let now = of(resolved);
            let same = match (before, now) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            // Host names of the gateways of a peer are part of the cluster.
            let has_names = target.is_some_and(|target| !target.peer.is_empty());
            let name = || cluster.name.clone();
            let unchanged = is_dialled_alike && (same || !has_names);
            unit.part(Type::Cluster, name, unchanged, |warnings| {
                let tls = TlsSettings::outgoing((*self.proxy.mesh).as_ref())?;
                let fetch_timeout = settings.0.fetch_timeout;
                made(cluster::upstream(
                    memo,
                    plan,
                    &cluster,
                    &tls,
                    fetch_timeout,
                    warnings,
                ))
            });
            let Some((target, instances)) = target.zip(now) else {
                continue;
            };
            let near = endpoint::near(&self.proxy.instance, target);
            let unchanged = ends_alike && same && self.same.locality;
            let is_in_cluster =
                cluster::is_unreachable(target) || cluster::names_of(resolved, target).is_some();
            unit.part(Type::Endpoints, name, unchanged, |warnings| {
                if is_in_cluster {
                    return Ok(None);
                }
                made(endpoint::assignment(
                    memo,
                    &cluster.name,
                    instances,
                    near,
                    warnings,
                ))
            });
        }
    }

    /// Adds the routes if the chain has more than one cluster or a route.
    pub(super) fn add_routes<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        plan: &Plan<'a, F>,
    ) {
        let Ok(chain) = &self.upstream.resolved.chain else {
            return;
        };
        let unchanged = self.leads_alike()
            && (self.same.mesh || !upstream::has_routes(chain))
            && !unit.has_trouble(Type::Cluster);
        let nowhere = match unchanged {
            true => None,
            false => unit.lacking(Type::Cluster).cloned(),
        };
        unit.part(
            Type::Routes,
            || plan.id.clone(),
            unchanged,
            |_| {
                let UpstreamTarget::Routes(name) = plan.target(memo)? else {
                    return Ok(None);
                };
                // Envoy refuses requests to unknown clusters and, if configured to validate them,
                // the routes, too.
                if let Some(reason) = nowhere {
                    return Err(reason);
                }
                let mesh = (*self.proxy.mesh).as_ref();
                let validate = mesh.is_some_and(|mesh| mesh.validate_clusters);
                made(chain_route::routes(memo, &name, chain, validate))
            },
        );
    }

    fn add_listener<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
        plan: &Plan<'a, F>,
    ) {
        let upstream = self.upstream;
        let chain = upstream.resolved.chain.as_ref();
        let waits_for_routes = chain.is_ok_and(|chain| upstream::has_routes(chain));
        // A listener without separate routes contains the target itself.
        let leads_alike = match waits_for_routes {
            true => self.ends_alike(),
            false => self.leads_alike(),
        };
        let unchanged = leads_alike
            && self.same.telemetry
            && (self.same.instance || !waits_for_routes)
            && !unit.has_trouble(Type::Cluster)
            && !unit.has_trouble(Type::Routes);
        // Envoy refuses a listener whose routes refer to an unknown cluster, and refuses requests
        // while a listener's separate routes are missing.
        let nowhere = match unchanged {
            true => None,
            false => [Type::Cluster, Type::Routes]
                .into_iter()
                .find_map(|kind| unit.lacking(kind).cloned()),
        };
        unit.part(
            Type::Listener,
            || plan.id.clone(),
            unchanged,
            |warnings| {
                warnings.clone_from(&plan.warnings);
                plan.chain()?;
                if let Some(reason) = nowhere {
                    return Err(reason);
                }
                if let Some(text) = &plan.settings.listener {
                    let (resource, bind) = listener::upstream::written(memo, text)?;
                    let bind = bind.map(Box::new);
                    return Ok(Some(Made { resource, bind }));
                }
                let bind = listener::upstream::bind(&upstream.upstream)?;
                let resource = listener::upstream::listener(memo, plan, &bind, &settings.0)?;
                let bind = Some(Box::new(bind));
                Ok(Some(Made { resource, bind }))
            },
        );
        unit.named_by_user(settings::has_listener(&upstream.upstream));
    }
}
