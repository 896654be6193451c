//! The sidecar: its own side (certificates, the application, the public listener and its routes,
//! exposed paths), and its explicit upstreams, composed in `upstream`. `transparent` and `egress`
//! compose the additional resources of transparent mode.
//!
//! The order of units in a set: the own side, the key servers of JWT providers, the listener for
//! captured traffic if there is one, the explicit upstreams, the implicit ones, the services
//! outside the mesh, and the routes to those.

use std::cell::LazyCell;

use legate_model::UpstreamType;
use legate_proxycfg::Snapshot;

use super::change::{Same, counterpart};
use super::egress::Egress;
use super::transparent::Transparent;
use super::upstream::UpstreamChange;
use crate::cluster;
use crate::composer::Composer;
use crate::jwt;
use crate::listener::{self, exposed};
use crate::memo::Memo;
use crate::names::{self, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS};
use crate::part::{Made, UnitBuilder, made};
use crate::rate_limit;
use crate::resource_type::Type;
use crate::route;
use crate::secret;
use crate::settings::{self, ProxySettings, Settings};

/// The index of the routes among the parts of the proxy's own side.
const ROUTES: usize = 3;

/// The index of the application's cluster among the parts of the proxy's own side.
const APPLICATION: usize = 2;

/// The index of the key servers among the units of a set.
const KEY_SERVERS: usize = 1;

/// The index of the listener for captured traffic among the units of a set, if there is one.
const OUTBOUND: usize = 2;

/// The index of the first explicit upstream among the units of a set.
fn first_upstream(snapshot: &Snapshot) -> usize {
    OUTBOUND + usize::from(snapshot.implicit.is_some())
}

pub(super) fn compose(composer: &mut Composer<'_>, snapshot: &Snapshot, last: Option<&Snapshot>) {
    let same = last.map_or_else(Same::default, |last| Same::between(last, snapshot));
    let settings: Settings<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = Vec::new();
        let settings = ProxySettings::read(&snapshot.instance, &mut warnings);
        (settings, warnings)
    }));
    own_side(composer, snapshot, same, &settings);
    key_servers(composer, snapshot, same);
    let mut explicit = explicit_upstreams(composer, snapshot, last, same, &settings);
    let mut implicit = Vec::new();
    if let Some(upstreams) = &snapshot.implicit {
        let transparent = Transparent {
            snapshot,
            last,
            same,
            settings: &settings,
            implicit: upstreams,
        };
        let first = last.map_or(0, |last| first_upstream(last) + last.upstreams.len());
        implicit = transparent.upstreams(composer, first);
        let last = last.filter(|last| last.implicit.is_some());
        let egress = Egress {
            snapshot,
            last: last.map(|last| &*last.destinations),
            same,
            settings: &settings,
        };
        let before = last.and_then(|last| last.implicit.as_ref());
        let outside = egress.units(composer, first + before.map_or(0, |before| before.0.len()));
        let upstreams = (&mut *explicit, &mut *implicit);
        composer.add(transparent.outbound(composer, OUTBOUND, upstreams, (&egress, &outside)));
        implicit.extend(outside.all());
    }
    for unit in explicit.into_iter().chain(implicit) {
        composer.add(unit);
    }
}

fn explicit_upstreams<'a>(
    composer: &Composer<'a>,
    snapshot: &Snapshot,
    last: Option<&Snapshot>,
    same: Same,
    settings: &Settings<'_>,
) -> Vec<UnitBuilder<'a>> {
    let mut units = Vec::with_capacity(snapshot.upstreams.len());
    for (place, upstream) in snapshot.upstreams.iter().enumerate() {
        let before = last.and_then(|last| counterpart(&last.upstreams, place, upstream));
        let earlier = last.zip(before).map(|(last, at)| &last.upstreams[at]);
        let change = UpstreamChange::new(snapshot, upstream, earlier, same);
        let place = last.zip(before).map(|(last, at)| first_upstream(last) + at);
        let mut unit = composer.unit(place);
        let definition = &upstream.upstream;
        unit = match definition.destination_type {
            UpstreamType::Unset | UpstreamType::Service => {
                unit.for_upstream(&names::extended(snapshot, definition))
            }
            UpstreamType::PreparedQuery => unit.for_upstream(&definition.id().to_string()),
        };
        change.add_parts(&mut unit, composer.memo, settings);
        units.push(unit);
    }
    units
}

fn own_side(composer: &mut Composer<'_>, snapshot: &Snapshot, same: Same, settings: &Settings<'_>) {
    let memo = composer.memo;
    let is_http = snapshot.protocol.is_http();
    let mut unit = composer.unit(Some(0));
    if same.all() && unit.is_sound() && unit.take_over() {
        composer.add(unit);
        return;
    }
    unit.part(
        Type::Secret,
        || LEAF.to_owned(),
        same.leaf,
        |_| made(secret::leaf(memo, &snapshot.leaf)),
    );
    unit.part(
        Type::Secret,
        || ROOTS.to_owned(),
        same.roots,
        |_| made(secret::roots(memo, &snapshot.roots)),
    );
    let unchanged = same.instance && same.protocol;
    unit.part(
        Type::Cluster,
        || LOCAL_APP.to_owned(),
        unchanged,
        |warnings| {
            warnings.clone_from(&settings.1);
            warnings.extend(rate_limit::warning(snapshot, &settings.0));
            made(cluster::local_app(memo, snapshot, &settings.0, warnings))
        },
    );
    let rules = same.intentions && same.mesh_name && same.jwt_providers;
    let name = || PUBLIC_LISTENER.to_owned();
    // A listener that a user wrote contains its own routes and the rules for requests.
    let is_written = settings::has_public_listener(&snapshot.instance);
    let has_routes = is_http && !is_written;
    let same_routes = unchanged && (rules || !has_routes);
    unit.part(Type::Routes, name, same_routes, |warnings| {
        if !has_routes {
            return Ok(None);
        }
        made(route::public(memo, snapshot, &settings.0, warnings))
    });
    let unguarded = unit.missing(ROUTES, PUBLIC_LISTENER).cloned();
    let access = rules || (has_routes && same.jwt_providers);
    let unchanged = unchanged && same.mesh && access && !unit.troubled(ROUTES);
    unit.part(Type::Listener, name, unchanged, |warnings| {
        // The new listener would refuse all requests for lack of routes, while the previous one may
        // have some.
        match unguarded {
            Some(reason) => Err(reason),
            None => {
                let listener = listener::public::listener(memo, snapshot, &settings.0, warnings);
                made(listener)
            }
        }
    });
    unit.named_by_user(is_written);
    unit.outdated(!rules && !has_routes);
    exposed_paths(&mut unit, memo, snapshot, same, settings);
    composer.add(unit);
}

/// Adds one part for every JWT provider whose keys are on a server. They are a separate unit,
/// because their number varies.
fn key_servers(composer: &mut Composer<'_>, snapshot: &Snapshot, same: Same) {
    let memo = composer.memo;
    let mut unit = composer.unit(Some(KEY_SERVERS));
    if snapshot.protocol.is_http() {
        let unchanged = same.jwt_providers && same.protocol;
        for provider in snapshot.jwt_providers.values() {
            let keys = provider.json_web_key_set.as_ref();
            let Some(remote) = keys.and_then(|keys| keys.remote.as_ref()) else {
                continue;
            };
            let name = || names::jwks_cluster(&provider.name);
            unit.part(Type::Cluster, name, unchanged, |warnings| {
                let cluster = jwt::keys::cluster(memo, &provider.name, remote, warnings);
                made(cluster)
            });
        }
    }
    composer.add(unit);
}

/// Adds two parts for every exposed path, the cluster and the listener, so that the type of a part
/// follows from its index. They are the last parts of the own side, because their number varies.
fn exposed_paths(
    unit: &mut UnitBuilder<'_>,
    memo: &Memo,
    snapshot: &Snapshot,
    same: Same,
    settings: &Settings<'_>,
) {
    let unchanged = same.instance && same.protocol && same.node_address;
    let path_http = LazyCell::new(|| exposed::path_http(snapshot));
    let public = LazyCell::new(|| listener::public::listens_on(snapshot, &settings.0));
    for path in &snapshot.instance.proxy.expose.paths {
        let port = path.local_path_port;
        let own = exposed::own_cluster(snapshot, path);
        let place = unit.next_place();
        let name = || names::exposed_cluster(port);
        unit.part(Type::Cluster, name, unchanged, |_| {
            let http = own.as_ref().and_then(|_| path_http.get(&port));
            http.map_or(Ok(None), |http| {
                made(cluster::exposed(memo, snapshot, &settings.0, port, *http))
            })
        });
        let (place, cluster) = match &own {
            Some(own) => (place, own.as_str()),
            None => (APPLICATION, LOCAL_APP),
        };
        let unchanged = unchanged && !unit.troubled(place);
        // Envoy refuses a listener whose routes refer to an unknown cluster.
        let nowhere = match unchanged {
            true => None,
            false => unit.missing(place, cluster).cloned(),
        };
        let name = || names::exposed_listener(&path.path);
        unit.part(Type::Listener, name, unchanged, |warnings| {
            if let Some(reason) = nowhere {
                return Err(reason);
            }
            // As in Consul, these requests are not traced.
            let telemetry = &settings.0.telemetry.without_tracing();
            let bind = listener::public::bind_to(snapshot, &settings.0, path.listener_port)?;
            if public.as_ref() == Some(&bind) {
                warnings.push(exposed::on_the_public_listener(path, &bind));
                return Ok(None);
            }
            let resource = exposed::listener(memo, path, cluster, &bind, telemetry, snapshot)?;
            let bind = Some(Box::new(bind));
            Ok(Some(Made { resource, bind }))
        });
    }
}
