//! The sidecar: its own side (certificates, the application, the public listener and its routes,
//! exposed paths), and its explicit upstreams, composed in `upstream`. `transparent` and `egress`
//! compose the additional resources of transparent mode.
//!
//! The order of units in a set: the own side, the roots of peers that are called and, if any call it, of those that
//! call, other ports of the application, the key servers of
//! JWT providers, the listener for captured traffic if there is one, the explicit upstreams, the
//! implicit ones, the services outside the mesh, the routes to those, and the Services of the
//! cluster with their backends.

use std::cell::LazyCell;
use std::sync::Arc;

use legate_model::UpstreamType;
use legate_proxycfg::{Proxy, Sidecar, UpstreamSnapshot};

use super::change::{SameProxy, counterpart};
use super::egress::Egress;
use super::frontends::OfCluster;
use super::peers;
use super::transparent::{self, Transparent};
use super::upstream::UpstreamChange;
use crate::cluster;
use crate::composer::Composer;
use crate::jwt;
use crate::listener::inbound::ForwardCaller;
use crate::listener::{self, exposed};
use crate::memo::Memo;
use crate::names::{self, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS, ROOTS_AND_PEERS};
use crate::part::{Made, PartAt, UnitBuilder, made};
use crate::rate_limit;
use crate::rbac;
use crate::resource_type::Type;
use crate::route;
use crate::secret;
use crate::section::Section;
use crate::settings::{self, ProxySettings, Settings};

/// Certificates, the application, the public listener with its routes, and exposed paths.
const OWN: Section = Section("own side");

/// The roots of the peers that call the service.
const PEERS: Section = Section("peers");

/// Other ports of the application than the registered one.
const APPLICATIONS: Section = Section("ports of the application");

/// The servers with the keys of JWT providers.
const KEY_SERVERS: Section = Section("key servers");

/// The explicit upstreams, one unit each.
const UPSTREAMS: Section = Section("upstreams");

/// A sidecar at one point in time.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub(super) proxy: &'a Proxy,
    pub(super) own: &'a Sidecar,
}

/// The inputs that are the same as in the last snapshot.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Same {
    proxy: SameProxy,
    protocol: bool,
    leaf: bool,
    intentions: bool,
    jwt_providers: bool,
    peers: bool,
}

impl Same {
    fn between(last: View<'_>, now: View<'_>) -> Self {
        let proxy = SameProxy::between(last.proxy, now.proxy);
        let (last, now) = (last.own, now.own);
        Self {
            proxy,
            protocol: last.protocol == now.protocol,
            leaf: Arc::ptr_eq(&last.leaf, &now.leaf),
            intentions: proxy.default_intention && Arc::ptr_eq(&last.intentions, &now.intentions),
            jwt_providers: Arc::ptr_eq(&last.jwt_providers, &now.jwt_providers),
            peers: Arc::ptr_eq(&last.peers, &now.peers),
        }
    }

    /// Whether all inputs are the same.
    fn all(self) -> bool {
        let callers = self.intentions && self.jwt_providers && self.peers;
        self.proxy.all() && self.protocol && self.leaf && callers
    }
}

pub(super) fn compose(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    own: &Sidecar,
    last: Option<(&Proxy, &Sidecar)>,
) {
    let now = View { proxy, own };
    let last = last.map(|(proxy, own)| View { proxy, own });
    let same = last.map_or_else(Same::default, |last| Same::between(last, now));
    let settings: Settings<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = Vec::new();
        let settings = ProxySettings::read(&proxy.instance, &mut warnings);
        (settings, warnings)
    }));
    own_side(composer, now, same, &settings);
    peers::add_roots(
        composer,
        upstreams(own),
        last.into_iter().flat_map(|last| upstreams(last.own)),
    );
    roots_of_peers(composer, now, same);
    applications(composer, proxy, same.proxy, &settings);
    key_servers(composer, own, same);
    let mut explicit = explicit_upstreams(composer, now, last, same.proxy, &settings);
    let (mut implicit, mut outside, mut of_cluster) = (Vec::new(), None, None);
    if let Some(upstreams) = &own.implicit {
        let transparent = Transparent {
            now,
            last,
            same: same.proxy,
            settings: &settings,
            implicit: upstreams,
        };
        implicit = transparent.upstreams(composer);
        let last = last.filter(|last| last.own.implicit.is_some());
        let egress = Egress {
            proxy,
            destinations: &own.destinations,
            last: last.map(|last| &*last.own.destinations),
            same: same.proxy,
            settings: &settings,
        };
        let services = egress.units(composer);
        let frontends = OfCluster {
            proxy,
            now: &own.frontends,
            last: last.map(|last| &last.own.frontends),
            same: same.proxy,
        };
        let units = frontends.units(composer);
        let upstreams = (&mut *explicit, &mut *implicit);
        let outbound = transparent.outbound(
            composer,
            upstreams,
            (&egress, &services),
            (&frontends, &units),
        );
        composer.add(transparent::OUTBOUND, outbound);
        outside = Some(services);
        of_cluster = Some(units);
    }
    for unit in explicit {
        composer.add(UPSTREAMS, unit);
    }
    for unit in implicit {
        composer.add(transparent::IMPLICIT, unit);
    }
    if let Some(outside) = outside {
        outside.add_to(composer);
    }
    if let Some(of_cluster) = of_cluster {
        of_cluster.add_to(composer);
    }
}

/// The explicit and the implicit upstreams.
fn upstreams(own: &Sidecar) -> impl Iterator<Item = &UpstreamSnapshot> {
    let implicit = own.implicit.iter().flat_map(|implicit| &implicit.0);
    let implicit = implicit.map(|one| &one.upstream);
    own.upstreams.iter().chain(implicit)
}

fn explicit_upstreams<'a>(
    composer: &Composer<'a>,
    now: View<'_>,
    last: Option<View<'_>>,
    same: SameProxy,
    settings: &Settings<'_>,
) -> Vec<UnitBuilder<'a>> {
    let mut units = Vec::with_capacity(now.own.upstreams.len());
    for (place, upstream) in now.own.upstreams.iter().enumerate() {
        let before = last.and_then(|last| counterpart(&last.own.upstreams, place, upstream));
        let earlier = last.zip(before).map(|(last, at)| &last.own.upstreams[at]);
        let change = UpstreamChange::new(now.proxy, upstream, earlier, same);
        let mut unit = composer.unit(UPSTREAMS, before);
        let definition = &upstream.upstream;
        unit = match definition.destination_type {
            UpstreamType::Unset | UpstreamType::Service => {
                unit.for_upstream(&names::extended(now.proxy, definition))
            }
            UpstreamType::PreparedQuery => unit.for_upstream(&definition.id().to_string()),
        };
        change.add_parts(&mut unit, composer.memo, settings);
        units.push(unit);
    }
    units
}

fn own_side(composer: &mut Composer<'_>, now: View<'_>, same: Same, settings: &Settings<'_>) {
    let memo = composer.memo;
    let View { proxy, own } = now;
    let limits = proxy.instance.proxy.rate_limits.as_ref();
    let is_http = own.protocol.is_http();
    let mut unit = composer.unit(OWN, Some(0));
    if same.all() && unit.is_sound() && unit.take_over() {
        composer.add(OWN, unit);
        return;
    }
    unit.part(
        Type::Secret,
        || LEAF.to_owned(),
        same.leaf,
        |_| made(secret::leaf(memo, LEAF, &own.leaf)),
    );
    unit.part(
        Type::Secret,
        || ROOTS.to_owned(),
        same.proxy.roots,
        |_| made(secret::roots(memo, &proxy.roots)),
    );
    let unchanged = same.proxy.instance && same.protocol;
    let application = unit.part(
        Type::Cluster,
        || LOCAL_APP.to_owned(),
        unchanged,
        |warnings| {
            warnings.clone_from(&settings.1);
            warnings.extend(rate_limit::warning(limits, own.protocol, &settings.0));
            let instance = &proxy.instance;
            made(cluster::local_app(
                memo,
                instance,
                own.protocol,
                &settings.0,
                warnings,
            ))
        },
    );
    let rules = same.intentions && same.proxy.mesh_name && same.jwt_providers && same.peers;
    let name = || PUBLIC_LISTENER.to_owned();
    // A listener that a user wrote contains its own routes and the rules for requests.
    let is_written = settings::has_public_listener(&proxy.instance);
    let has_routes = is_http && !is_written;
    // Whether the rules or the application see the header with the caller.
    let forwards = same.proxy.mesh || own.peers.all.is_empty();
    let same_routes = unchanged && forwards && (rules || !has_routes);
    let routes = unit.part(Type::Routes, name, same_routes, |warnings| {
        if !has_routes {
            return Ok(None);
        }
        let access = rbac::Access::of_sidecar(proxy, own);
        let mesh = (*proxy.mesh).as_ref();
        let forward = ForwardCaller::of(mesh, own.protocol, &own.peers);
        let settings = (&settings.0, forward);
        made(route::public(memo, access, limits, settings, warnings))
    });
    let unguarded = unit.missing(routes, PUBLIC_LISTENER).cloned();
    // The rules for connections to other ports are part of the listener.
    let has_ports = || !settings.0.application_ports.is_empty();
    let needs_rules = !has_routes || (!rules && !is_written && has_ports());
    let access = rules || (!needs_rules && same.jwt_providers);
    let access = access && same.peers;
    let unchanged = unchanged && same.proxy.mesh && access && !unit.troubled(routes);
    unit.part(Type::Listener, name, unchanged, |warnings| {
        // The new listener would refuse all requests for lack of routes, while the previous one may
        // have some.
        match unguarded {
            Some(reason) => Err(reason),
            None => {
                let listener = listener::public::listener(memo, proxy, own, &settings.0, warnings);
                made(listener)
            }
        }
    });
    unit.named_by_user(is_written);
    unit.outdated(!rules && needs_rules);
    exposed_paths((&mut unit, application), memo, now, same, settings);
    composer.add(OWN, unit);
}

/// Adds the roots of the mesh and of the peers whose proxies connect to this one.
fn roots_of_peers(composer: &mut Composer<'_>, now: View<'_>, same: Same) {
    let View { proxy, own } = now;
    if own.peers.connecting.is_empty() {
        return;
    }
    let mut unit = composer.unit(PEERS, Some(0));
    let unchanged = same.peers && same.proxy.roots && same.proxy.mesh_name;
    let name = || ROOTS_AND_PEERS.to_owned();
    unit.part(Type::Secret, name, unchanged, |_| {
        let own_roots = Some((&proxy.trust_domain, &*proxy.roots));
        let peers = &own.peers.connecting;
        made(secret::domains(
            composer.memo,
            ROOTS_AND_PEERS,
            own_roots,
            peers,
        ))
    });
    composer.add(PEERS, unit);
}

/// Adds one part for every port of the application besides the registered one.
fn applications(
    composer: &mut Composer<'_>,
    proxy: &Proxy,
    same: SameProxy,
    settings: &Settings<'_>,
) {
    let mut unit = composer.unit(APPLICATIONS, Some(0));
    if same.instance && unit.is_sound() && unit.take_over() {
        composer.add(APPLICATIONS, unit);
        return;
    }
    for port in &settings.0.application_ports {
        let name = || names::application_cluster(*port);
        unit.part(Type::Cluster, name, same.instance, |_| {
            let instance = &proxy.instance;
            made(cluster::application(
                composer.memo,
                instance,
                &settings.0,
                *port,
            ))
        });
    }
    composer.add(APPLICATIONS, unit);
}

/// Adds one part for every JWT provider whose keys are on a server. They are a separate unit,
/// because their number varies.
fn key_servers(composer: &mut Composer<'_>, own: &Sidecar, same: Same) {
    let mut unit = composer.unit(KEY_SERVERS, Some(0));
    if own.protocol.is_http() {
        let unchanged = same.jwt_providers && same.protocol;
        let providers = own.jwt_providers.values();
        jwt::keys::add_servers(&mut unit, composer.memo, providers, unchanged);
    }
    composer.add(KEY_SERVERS, unit);
}

/// Adds two parts for every exposed path, the cluster and the listener, so that the type of a part
/// follows from its index. They are the last parts of the own side, because their number varies.
fn exposed_paths(
    (unit, application): (&mut UnitBuilder<'_>, PartAt),
    memo: &Memo,
    now: View<'_>,
    same: Same,
    settings: &Settings<'_>,
) {
    let (proxy, protocol) = (now.proxy, now.own.protocol);
    let instance = &proxy.instance;
    let unchanged = same.proxy.instance && same.protocol && same.proxy.node_address;
    let path_http = LazyCell::new(|| exposed::path_http(instance, protocol));
    let public = LazyCell::new(|| listener::public::listens_on(instance, &settings.0));
    for path in &instance.proxy.expose.paths {
        let port = path.local_path_port;
        let separate = exposed::own_cluster(instance, protocol, path);
        let name = || names::exposed_cluster(port);
        let own_cluster = unit.part(Type::Cluster, name, unchanged, |_| {
            let http = separate.as_ref().and_then(|_| path_http.get(&port));
            http.map_or(Ok(None), |http| {
                made(cluster::exposed(memo, instance, &settings.0, port, *http))
            })
        });
        let (place, cluster) = match &separate {
            Some(cluster) => (own_cluster, cluster.as_str()),
            None => (application, LOCAL_APP),
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
            let bind = listener::public::bind_to(instance, &settings.0, path.listener_port)?;
            if public.as_ref() == Some(&bind) {
                warnings.push(exposed::on_the_public_listener(path, &bind));
                return Ok(None);
            }
            let resource = exposed::listener(memo, path, cluster, &bind, telemetry, proxy)?;
            let bind = Some(Box::new(bind));
            Ok(Some(Made { resource, bind }))
        });
    }
}
