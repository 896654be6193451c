//! Additional resources of a sidecar in transparent mode: a cluster and endpoints for every service
//! that intentions allow, one listener for all of them, and passthrough to single instances and to
//! destinations outside the mesh where allowed.
//!
//! A service that is also an explicit upstream uses the cluster of the explicit one, whichever of
//! the two the application dials.

use std::cell::LazyCell;
use std::net::IpAddr;
use std::sync::Arc;

use legate_model::{Mesh, Protocol, Upstream};
use legate_proxycfg::{
    DialledKind, ImplicitUpstream, ImplicitUpstreams, Sidecar, UpstreamSnapshot,
};

use super::change::{Positions, SameProxy, counterpart, is_of_same_tenancy, same_chain};
use super::egress::{Egress, Units};
use super::frontends::{self, OfCluster};
use super::sidecar::View;
use super::upstream::UpstreamChange;
use crate::cluster;
use crate::composer::Composer;
use crate::listener::outbound::{self, Chain, Target};
use crate::memo::Memo;
use crate::names::{self, ORIGINAL_DESTINATION, OUTBOUND_LISTENER};
use crate::part::{Made, UnitBuilder, made};
use crate::resource_type::Type;
use crate::retry;
use crate::section::Section;
use crate::settings::Settings;
use crate::tls::TlsSettings;
use crate::upstream::{UpstreamPlan, UpstreamTarget};

/// The listener for captured traffic.
pub(super) const OUTBOUND: Section = Section("captured traffic");

/// The implicit upstreams, one unit each.
pub(super) const IMPLICIT: Section = Section("implicit upstreams");

/// A proxy in transparent mode, and its last snapshot.
pub(super) struct Transparent<'a, 's> {
    pub(super) now: View<'a>,
    pub(super) last: Option<View<'a>>,
    pub(super) same: SameProxy,
    pub(super) settings: &'a Settings<'s>,
    pub(super) implicit: &'a ImplicitUpstreams,
}

impl<'a> Transparent<'a, '_> {
    fn last_implicit(&self) -> Option<&'a ImplicitUpstreams> {
        self.last.and_then(|last| last.own.implicit.as_deref())
    }

    /// The units of the implicit upstreams.
    pub(super) fn upstreams<'b>(&self, composer: &Composer<'b>) -> Vec<UnitBuilder<'b>> {
        let last = self.last_implicit();
        let key = |one: &'a Arc<ImplicitUpstream>| full_name(&one.upstream.upstream);
        let positions = Positions::of(
            last.is_some_and(|last| std::ptr::eq(last, self.implicit)),
            last.into_iter().flat_map(|last| &last.0).map(key),
        );
        let upstreams = self.implicit.0.iter().enumerate();
        let unit = |(at, implicit): (usize, &'a Arc<ImplicitUpstream>)| {
            let before = positions.before(at, &key(implicit));
            let name = names::extended(self.now.proxy, &implicit.upstream.upstream);
            let mut unit = composer.unit(IMPLICIT, before).for_upstream(&name);
            let earlier = before.and_then(|at| last?.0.get(at));
            self.add_parts(composer, &mut unit, implicit, earlier);
            unit
        };
        upstreams.map(unit).collect()
    }

    /// Adds the clusters and routes of a service, and the passthrough cluster for its instances, as
    /// needed.
    fn add_parts(
        &self,
        composer: &Composer<'_>,
        unit: &mut UnitBuilder<'_>,
        implicit: &ImplicitUpstream,
        earlier: Option<&Arc<ImplicitUpstream>>,
    ) {
        let upstream = &implicit.upstream;
        let is_explicit = explicit(self.now, upstream).is_some();
        let was_explicit = self.last.map(|last| explicit(last, upstream).is_some());
        let before = earlier.filter(|_| was_explicit == Some(is_explicit));
        let before = before.map(|earlier| &earlier.upstream);
        let change = UpstreamChange::new(self.now.proxy, upstream, before, self.same);
        let plan = LazyCell::new(|| UpstreamPlan::new(self.now.proxy, upstream));
        if !is_explicit {
            change.add_clusters(unit, composer.memo, self.settings, &plan);
            change.add_routes(unit, composer.memo, &plan);
        }
        let is_instance = |one: &ImplicitUpstream| {
            let mut addresses = one.addresses.iter();
            addresses.any(|dialled| dialled.kind == DialledKind::Instance)
        };
        let directly = is_instance(implicit);
        let unchanged = change.is_dialled_alike()
            && earlier.is_some_and(|earlier| is_instance(earlier) == directly);
        let name = || {
            let sni = names::upstream_sni(self.now.proxy, &upstream.upstream);
            names::passthrough_cluster(&sni)
        };
        unit.part(Type::Cluster, name, unchanged, |warnings| {
            warnings.clone_from(&plan.warnings);
            // An invalid chain is reported here, because no other part is made from it.
            plan.chain()?;
            if !directly {
                return Ok(None);
            }
            let tls = TlsSettings::outgoing((*self.now.proxy.mesh).as_ref())?;
            made(cluster::passthrough(composer.memo, &plan, &tls))
        });
    }

    /// The unit of the outbound listener, built from the units of all upstreams and of the services
    /// outside the mesh.
    pub(super) fn outbound<'b>(
        &self,
        composer: &Composer<'b>,
        (explicit_units, implicit_units): (&mut [UnitBuilder<'_>], &mut [UnitBuilder<'_>]),
        egress: (&Egress<'_, '_>, &Units<'_>),
        frontends: (&OfCluster<'_>, &frontends::Units<'_>),
    ) -> UnitBuilder<'b> {
        let memo = composer.memo;
        let mut unit = composer.unit(OUTBOUND, Some(0));
        let only_mesh = (*self.now.proxy.mesh)
            .as_ref()
            .is_some_and(is_destinations_only);
        let name = || ORIGINAL_DESTINATION.to_owned();
        unit.part(Type::Cluster, name, self.same.mesh, |_| match only_mesh {
            true => Ok(None),
            false => made(cluster::original_destination(memo)),
        });
        let mut units = explicit_units.iter().chain(&*implicit_units);
        let unchanged = self.same.mesh
            && self.same.mesh_name
            && self.same.instance
            && self
                .last_implicit()
                .is_some_and(|last| same_chains(last, self.implicit))
            && self
                .last
                .is_some_and(|last| same_explicit(last.own, self.now.own))
            && egress.0.is_reached_alike()
            && !egress.1.have_trouble()
            && frontends.0.is_reached_alike(frontends.1)
            && !units.any(|unit| unit.has_trouble(Type::Cluster) || unit.has_trouble(Type::Routes));
        let name = || OUTBOUND_LISTENER.to_owned();
        unit.part(Type::Listener, name, unchanged, |warnings| {
            let owners = outbound::owners(&self.implicit.0, warnings);
            let mut chains = Vec::new();
            for (place, implicit) in self.implicit.0.iter().enumerate() {
                let own = &owners[place];
                let upstream = &implicit.upstream;
                chains.extend(chain(&own.service, || match explicit(self.now, upstream) {
                    Some(at) => self.to_explicit(memo, at, &mut explicit_units[at]),
                    None => {
                        let last = || self.last_of(implicit);
                        self.to_service(memo, upstream, &mut implicit_units[place], last)
                    }
                }));
                chains.extend(chain(&own.instances, || self.to_instances(upstream)));
            }
            let services = std::iter::zip(&self.implicit.0, &owners);
            let services = services.flat_map(|(implicit, own)| {
                let name = &*implicit.upstream.upstream.destination_name;
                own.service.iter().map(move |address| (name, *address))
            });
            let services = services.collect();
            let ports = frontends.0.ports(frontends.1, &services, warnings)?;
            let in_mesh = owners.iter().flat_map(outbound::Own::all);
            let in_mesh = in_mesh
                .chain(ports.iter().flat_map(|one| one.addresses.iter().copied()))
                .collect();
            chains.extend(egress.0.chains(egress.1, &in_mesh, warnings));
            let bind = outbound::bind(&self.now.proxy.instance)?;
            let chains = (&*chains, &*ports);
            let resource = outbound::listener(memo, &bind, chains, !only_mesh, &self.settings.0)?;
            let bind = Some(Box::new(bind));
            Ok(resource.map(|resource| Made { resource, bind }))
        });
        unit
    }

    /// The same implicit upstream in the last snapshot.
    fn last_of(&self, implicit: &ImplicitUpstream) -> Option<&'a UpstreamSnapshot> {
        let now = full_name(&implicit.upstream.upstream);
        let mut last = self.last_implicit()?.0.iter().map(|one| &one.upstream);
        last.find(|one| full_name(&one.upstream) == now)
    }

    fn to_explicit(&self, memo: &Memo, at: usize, unit: &mut UnitBuilder<'_>) -> Chain<'static> {
        let upstream = &self.now.own.upstreams[at];
        let last = || {
            let last = &self.last?.own.upstreams;
            counterpart(last, at, upstream).map(|at| &last[at])
        };
        self.to_service(memo, upstream, unit, last)
    }

    /// The filter chain of a service. `last` is the upstream in the last snapshot.
    fn to_service(
        &self,
        memo: &Memo,
        upstream: &UpstreamSnapshot,
        unit: &mut UnitBuilder<'_>,
        last: impl FnOnce() -> Option<&'a UpstreamSnapshot>,
    ) -> Chain<'static> {
        let plan = UpstreamPlan::new(self.now.proxy, upstream);
        let kinds = [Type::Cluster, Type::Routes];
        let is_lacking = kinds.into_iter().any(|kind| unit.lacking(kind).is_some());
        let target = match plan.target(memo) {
            Ok(target) if !is_lacking => Some((plan.protocol(), target)),
            _ => unit
                .keep_target(|| {
                    let last = UpstreamPlan::new(self.last?.proxy, last()?);
                    Some((last.protocol(), last.target(memo).ok()?))
                })
                .cloned(),
        };
        let named = self.named(upstream);
        match target {
            Some((protocol, target)) => Chain {
                protocol,
                target,
                attempts: retry::ATTEMPTS,
                hash_source_ip: plan.hashes_source_ip(),
                ..named
            },
            // There is no cluster of this name, so that Envoy closes the connections. Without a
            // chain they would leave the mesh.
            None => Chain {
                target: UpstreamTarget::Cluster(plan.id),
                ..named
            },
        }
    }

    fn to_instances(&self, upstream: &UpstreamSnapshot) -> Chain<'static> {
        let sni = names::upstream_sni(self.now.proxy, &upstream.upstream);
        Chain {
            target: UpstreamTarget::Cluster(names::passthrough_cluster(&sni)),
            ..self.named(upstream)
        }
    }

    fn named(&self, upstream: &UpstreamSnapshot) -> Chain<'static> {
        Chain {
            filter: names::upstream_filter(self.now.proxy, &upstream.upstream),
            id: upstream.upstream.id().to_string(),
            target: UpstreamTarget::Cluster(String::new()),
            protocol: Protocol::Tcp,
            attempts: 1,
            hash_source_ip: false,
            dialled: Target::Service(&[]),
        }
    }
}

/// A chain for these addresses, `None` if there are none.
fn chain<'a>(addresses: &'a [IpAddr], to: impl FnOnce() -> Chain<'a>) -> Option<Chain<'a>> {
    (!addresses.is_empty()).then(|| Chain {
        dialled: Target::Service(addresses),
        ..to()
    })
}

fn is_destinations_only(mesh: &Mesh) -> bool {
    mesh.transparent_proxy.mesh_destinations_only
}

/// The key of a service among the implicit upstreams of a proxy.
type FullName<'a> = (&'a str, &'a str, &'a str, &'a str);

fn full_name(upstream: &Upstream) -> FullName<'_> {
    (
        upstream.destination_partition.as_str(),
        upstream.destination_namespace.as_str(),
        &upstream.destination_peer,
        &upstream.destination_name,
    )
}

/// The index of the first explicit upstream of the same service.
fn explicit(of: View<'_>, upstream: &UpstreamSnapshot) -> Option<usize> {
    let implicit = &upstream.upstream;
    let mut all = of.own.upstreams.iter().map(|one| &one.upstream);
    all.position(|one| {
        let own = names::datacenter(of.proxy, one).eq_ignore_ascii_case(&of.proxy.datacenter);
        let is_service = one.destination_type.is_service();
        own && is_service
            && one
                .destination_peer
                .eq_ignore_ascii_case(&implicit.destination_peer)
            && is_of_same_tenancy(one, implicit)
            && one
                .destination_name
                .eq_ignore_ascii_case(&implicit.destination_name)
    })
}

/// Whether the same addresses are routed to the same services.
fn same_chains(last: &ImplicitUpstreams, now: &ImplicitUpstreams) -> bool {
    std::ptr::eq(last, now)
        || last.0.len() == now.0.len()
            && std::iter::zip(&last.0, &now.0).all(|(last, now)| {
                Arc::ptr_eq(last, now)
                    || last.addresses == now.addresses && same_chain(&last.upstream, &now.upstream)
            })
}

fn same_explicit(last: &Sidecar, now: &Sidecar) -> bool {
    let pairs = || std::iter::zip(&last.upstreams, &now.upstreams);
    last.upstreams.len() == now.upstreams.len() && pairs().all(|(a, b)| same_chain(a, b))
}
