//! The services behind a gateway: a unit for each, with a cluster and endpoints for each resolver of
//! its chain.

use legate_proxycfg::{Proxy, UpstreamSnapshot};

use super::change::{SameProxy, counterpart};
use super::upstream::UpstreamChange;
use crate::composer::Composer;
use crate::part::UnitBuilder;
use crate::section::Section;
use crate::settings::Settings;

/// The section of the services.
pub(super) const SECTION: Section = Section("services");

/// The units of services, in their order. `last` are the services in the last snapshot.
pub(super) fn units<'a>(
    composer: &Composer<'a>,
    proxy: &Proxy,
    services: &[UpstreamSnapshot],
    last: Option<&[UpstreamSnapshot]>,
    same: SameProxy,
    settings: &Settings<'_>,
) -> Vec<UnitBuilder<'a>> {
    let mut units = Vec::with_capacity(services.len());
    for (place, service) in services.iter().enumerate() {
        let before = last.and_then(|last| counterpart(last, place, service));
        let earlier = last.zip(before).map(|(last, at)| &last[at]);
        let mut unit = composer.unit(SECTION, before);
        let change = UpstreamChange::new(proxy, service, earlier, same);
        change.add_service(&mut unit, composer.memo, settings);
        units.push(unit);
    }
    units
}
