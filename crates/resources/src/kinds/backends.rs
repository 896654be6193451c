//! What is outside of the mesh and a gateway was told: a unit for each way to call a port, with its
//! cluster and its endpoints. Those of UDP are part of the gateway's own ports (`datagrams`).

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_proxycfg::{ApiGateway, BackendSnapshot};
use legate_routes::BackendProtocol;

use crate::composer::Composer;
use crate::gateway::backend;
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;

/// The section of the backends.
pub(super) const SECTION: Section = Section("backends");

/// The units of the backends, in their order.
pub(super) fn units<'a>(
    composer: &Composer<'a>,
    own: &ApiGateway,
    last: Option<&ApiGateway>,
    secrets: &BTreeSet<&str>,
    same_secrets: bool,
) -> Vec<UnitBuilder<'a>> {
    let mut units = Vec::with_capacity(own.backends.len());
    let last: Option<Vec<_>> = last.map(|last| of(last).collect());
    for (place, one) in of(own).enumerate() {
        let last = last.as_deref();
        let before = last.and_then(|last| counterpart(last, place, one));
        let earlier = last.zip(before).map(|(last, at)| last[at]);
        let mut unit = composer.unit(SECTION, before);
        let (memo, name) = (composer.memo, || backend::name(&one.backend));
        unit.part(
            Type::Cluster,
            name,
            earlier.is_some() && same_secrets,
            |_| {
                let has_secret = |name: &str| secrets.contains(name);
                made(backend::cluster(memo, &one.backend, has_secret))
            },
        );
        let same_endpoints =
            earlier.is_some_and(|earlier| Arc::ptr_eq(&earlier.endpoints, &one.endpoints));
        unit.part(Type::Endpoints, name, same_endpoints, |_| {
            made(backend::endpoints(memo, &one.backend, &one.endpoints))
        });
        units.push(unit);
    }
    units
}

/// The backends that have a unit, in order.
pub(super) fn of(own: &ApiGateway) -> impl Iterator<Item = &BackendSnapshot> {
    let is_udp = |one: &BackendSnapshot| one.backend.protocol == BackendProtocol::Udp;
    own.backends.iter().filter(move |one| !is_udp(one))
}

/// The index of a backend among those of the last snapshot.
fn counterpart(last: &[&BackendSnapshot], place: usize, now: &BackendSnapshot) -> Option<usize> {
    let same = |other: &&BackendSnapshot| Arc::ptr_eq(&other.backend, &now.backend);
    let in_place = last.get(place).filter(|other| same(other));
    in_place
        .map(|_| place)
        .or_else(|| last.iter().position(same))
}
