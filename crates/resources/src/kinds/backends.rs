//! Backends outside of the mesh, as they are written for a gateway: a unit for each way to call a port, with its
//! cluster and its endpoints. Those of UDP are part of the gateway's own ports (`datagrams`).

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use legate_proxycfg::{BackendSnapshot, Proxy};
use legate_routes::{Backend, BackendProtocol};

use super::change::SameProxy;
use crate::composer::Composer;
use crate::gateway::backend::{self, Sidecars};
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;
use crate::tls::TlsSettings;

/// The section of the backends.
pub(super) const SECTION: Section = Section("backends");

/// The units of the backends, in their order, with the names of the secrets that the proxy has and whether they are
/// those of the last snapshot.
pub(super) fn units<'a>(
    composer: &Composer<'a>,
    proxy: &Proxy,
    (own, last): (&[BackendSnapshot], Option<&[BackendSnapshot]>),
    same: SameProxy,
    (secrets, same_secrets): (&BTreeSet<&str>, bool),
) -> Vec<UnitBuilder<'a>> {
    let same_mesh = same.mesh_name && same.mesh;
    let mut units = Vec::with_capacity(own.len());
    let last: Option<Vec<_>> = last.map(|last| of(last).collect());
    for (place, one) in of(own).enumerate() {
        let last = last.as_deref();
        let before = last.and_then(|last| counterpart(last, place, one));
        let earlier = last.zip(before).map(|(last, at)| last[at]);
        let mut unit = composer.unit(SECTION, before);
        let (memo, backend) = (composer.memo, &one.backend);
        let sidecars = LazyCell::new(|| Sidecars::of(proxy, &one.endpoints));
        let name = || sidecars.cluster(backend);
        let same_sidecars = earlier.is_some_and(|last| have_same_sidecars(proxy, last, one));
        let same_cluster = same_mesh && same_secrets && same_sidecars;
        unit.part(Type::Cluster, name, same_cluster, |_| {
            let has_secret = |name: &str| secrets.contains(name);
            let settings = match sidecars.is_empty() {
                true => TlsSettings::default(),
                false => TlsSettings::outgoing((*proxy.mesh).as_ref())?,
            };
            made(backend::cluster(
                memo, backend, &sidecars, &settings, has_secret,
            ))
        });
        let same_endpoints =
            earlier.is_some_and(|earlier| Arc::ptr_eq(&earlier.endpoints, &one.endpoints));
        unit.part(Type::Endpoints, name, same_endpoints && same_mesh, |_| {
            made(backend::endpoints(memo, proxy, &name(), &one.endpoints))
        });
        units.push(unit);
    }
    units
}

/// The backends that have a unit, in order.
fn of(own: &[BackendSnapshot]) -> impl Iterator<Item = &BackendSnapshot> {
    let is_udp = |one: &BackendSnapshot| one.backend.protocol == BackendProtocol::Udp;
    own.iter().filter(move |one| !is_udp(one))
}

/// The backends that have a cluster, with its name.
pub(super) fn clusters<'a>(
    proxy: &Proxy,
    own: &'a [BackendSnapshot],
    units: &[UnitBuilder<'_>],
) -> BTreeMap<&'a Backend, String> {
    let all = std::iter::zip(of(own), units);
    let present = all.filter(|(_, unit)| unit.lacking(Type::Cluster).is_none());
    let named = present.map(|(one, _)| {
        let sidecars = Sidecars::of(proxy, &one.endpoints);
        (&*one.backend, sidecars.cluster(&one.backend))
    });
    named.collect()
}

/// Whether the backends have clusters of the same names, if the mesh has the same name.
pub(super) fn have_same_clusters(
    proxy: &Proxy,
    last: &[BackendSnapshot],
    own: &[BackendSnapshot],
) -> bool {
    let mut pairs = std::iter::zip(last, own);
    last.len() == own.len()
        && pairs
            .all(|(last, own)| last.backend == own.backend && have_same_sidecars(proxy, last, own))
}

/// Whether a backend has a cluster of the same name, if the mesh has the same name.
fn have_same_sidecars(proxy: &Proxy, last: &BackendSnapshot, now: &BackendSnapshot) -> bool {
    let sidecars = |one: &BackendSnapshot| Sidecars::of(proxy, &one.endpoints);
    Arc::ptr_eq(&last.endpoints, &now.endpoints) || sidecars(last) == sidecars(now)
}

/// The index of a backend among those of the last snapshot.
fn counterpart(last: &[&BackendSnapshot], place: usize, now: &BackendSnapshot) -> Option<usize> {
    let same = |other: &&BackendSnapshot| other.backend == now.backend;
    let in_place = last.get(place).filter(|other| same(other));
    in_place
        .map(|_| place)
        .or_else(|| last.iter().position(same))
}
