//! The ports of UDP of a gateway: a unit for each, with its cluster, its endpoints and its listeners.

use std::sync::Arc;

use legate_proxycfg::{ApiGateway, BackendSnapshot};
use legate_routes::{Backend, Datagrams, Endpoint};

use crate::composer::Composer;
use crate::gateway::datagrams;
use crate::listener::Bind;
use crate::names::DATAGRAMS;
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::section::Section;

/// The section of the ports.
pub(super) const SECTION: Section = Section("datagrams");

/// The units of the ports. `hosts` are the addresses of the gateway.
pub(super) fn units<'a>(
    composer: &Composer<'a>,
    own: &ApiGateway,
    last: Option<&ApiGateway>,
    same_instance: bool,
    hosts: &[String],
) -> Vec<UnitBuilder<'a>> {
    let units = own.served.datagrams.iter().map(|one| {
        let place = last.and_then(|last| {
            let mut ports = last.served.datagrams.iter();
            ports.position(|last| last.port == one.port)
        });
        let earlier = last.zip(place);
        let earlier = earlier.map(|(last, at)| (last, &last.served.datagrams[at]));
        let mut unit = composer.unit(SECTION, place);
        let (memo, name) = (composer.memo, || datagrams::name(one.port));
        unit.part(Type::Cluster, name, earlier.is_some(), |_| {
            made(datagrams::cluster(memo, one.port))
        });
        let same_endpoints = earlier.is_some_and(|(last, before)| {
            Arc::ptr_eq(before, one) && have_same_endpoints(last, own, one)
        });
        unit.part(Type::Endpoints, name, same_endpoints, |_| {
            made(datagrams::endpoints(memo, one.port, &shares(own, one)))
        });
        for host in hosts {
            let name = || format!("{DATAGRAMS}:{host}:{}", one.port);
            let unchanged = earlier.is_some() && same_instance;
            unit.part(Type::Listener, name, unchanged, |_| {
                let bind = Bind::socket("an address of the gateway", host, one.port)?;
                made(datagrams::listener(memo, &bind, one.port))
            });
        }
        unit
    });
    units.collect()
}

fn find<'a>(own: &'a ApiGateway, backend: &Backend) -> Option<&'a BackendSnapshot> {
    let found = own
        .backends
        .binary_search_by(|one| (*one.backend).cmp(backend));
    found.ok().map(|at| &own.backends[at])
}

fn have_same_endpoints(last: &ApiGateway, own: &ApiGateway, port: &Datagrams) -> bool {
    port.backends()
        .into_iter()
        .all(|backend| match (find(last, backend), find(own, backend)) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a.endpoints, &b.endpoints),
            _ => false,
        })
}

/// The weight and the endpoints of each backend of a port. What is not outside of the mesh has none.
fn shares<'a>(own: &'a ApiGateway, port: &Datagrams) -> Vec<(u32, &'a [Endpoint])> {
    let shares = port.backends.iter().map(|one| {
        let found = one.target.backend().and_then(|backend| find(own, backend));
        let endpoints = found.map_or(&[][..], |found| &found.endpoints);
        (one.weight, endpoints)
    });
    shares.collect()
}
