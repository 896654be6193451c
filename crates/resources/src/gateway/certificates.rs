//! The certificates of a gateway: its own, and the roots that services are verified against.

use std::collections::BTreeSet;
use std::sync::Arc;

use legate_proxycfg::{Leaf, Proxy};

use crate::composer::Composer;
use crate::names::{LEAF, ROOTS};
use crate::part::{UnitBuilder, made};
use crate::resource_type::Type;
use crate::secret;
use crate::section::Section;
use crate::settings::Settings;

/// The section of the certificates.
pub(crate) const SECTION: Section = Section("certificates");

/// The unit of the certificates. It also reports what is wrong with the settings of the proxy.
/// `same`: whether the certificate, the roots and the registration are those of the last snapshot;
/// `ports`: those of the listeners, and of the listeners in the last snapshot.
pub(crate) fn unit<'a>(
    composer: &Composer<'a>,
    proxy: &Proxy,
    leaf: &Arc<Leaf>,
    settings: &Settings<'_>,
    [same_leaf, same_roots, same_instance]: [bool; 3],
    (ports, last_ports): (&BTreeSet<u16>, Option<BTreeSet<u16>>),
) -> UnitBuilder<'a> {
    let memo = composer.memo;
    let mut unit = composer.unit(SECTION, Some(0));
    unit.part(
        Type::Secret,
        || LEAF.to_owned(),
        same_leaf,
        |_| made(secret::leaf(memo, LEAF, leaf)),
    );
    unit.part(
        Type::Secret,
        || ROOTS.to_owned(),
        same_roots,
        |_| made(secret::roots(memo, &proxy.roots)),
    );
    let name = || "settings".to_owned();
    unit.part(Type::Listener, name, same_instance, |warnings| {
        warnings.clone_from(&settings.1);
        Ok(None)
    });
    let name = || "HTTP/3".to_owned();
    let same_ports = last_ports.is_some_and(|last| last == *ports);
    unit.part(
        Type::Listener,
        name,
        same_instance && same_ports,
        |warnings| {
            warnings.extend(settings.0.edge.http3_without_listener(ports));
            Ok(None)
        },
    );
    unit
}
