//! The sidecar: its own side (certificates, the application, the listener for the mesh and its
//! routes, exposed paths), and a listener, a cluster and endpoints for every explicit upstream. What it has in
//! transparent mode is made in `transparent`.
//!
//! The units of a set are in this order: the own side, the servers of the keys of JSON Web Tokens, the
//! listener for captured traffic where there
//! is one, the explicit upstreams, the implicit ones, the services outside the mesh, and the routes to those.

use std::cell::{LazyCell, OnceCell};
use std::sync::Arc;

use legate_model::{Upstream, UpstreamType};
use legate_proxycfg::{ResolvedChain, Snapshot, UpstreamSnapshot};

use super::egress::Egress;
use super::transparent::Transparent;
use crate::chain_route;
use crate::cluster;
use crate::encode::EncodedResource;
use crate::endpoint;
use crate::error::GenerateError;
use crate::jwt;
use crate::listener::{self, exposed};
use crate::memo::Memo;
use crate::names::{self, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS};
use crate::part::{Composer, Made, UnitBuilder};
use crate::rate_limit;
use crate::route;
use crate::secret;
use crate::set::Type;
use crate::settings::{self, ProxySettings};
use crate::telemetry::Telemetry;
use crate::tls::TlsSettings;
use crate::upstream::{self, ClusterKind, Leads, UpstreamPlan};

/// The place of the routes among the parts of the proxy's own side.
const ROUTES: usize = 3;

/// The place of the application's cluster among the parts of the proxy's own side.
const APPLICATION: usize = 2;

/// The place of the servers of keys among the units of a set.
const KEY_SERVERS: usize = 1;

/// The place of the listener for captured traffic among the units of a set, where there is one.
pub(super) const OUTBOUND: usize = 2;

/// The place of the first explicit upstream among the units of a set.
fn first_upstream(snapshot: &Snapshot) -> usize {
    OUTBOUND + usize::from(snapshot.implicit.is_some())
}

/// The parts of a snapshot that are the same as in the last one.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Same {
    /// Trust domain and datacenter.
    pub(super) mesh_name: bool,
    pub(super) instance: bool,
    /// Where the proxy is.
    locality: bool,
    node_address: bool,
    protocol: bool,
    pub(super) mesh: bool,
    /// What is reported of connections and requests.
    telemetry: bool,
    leaf: bool,
    roots: bool,
    intentions: bool,
    jwt_providers: bool,
}

impl Same {
    fn between(last: &Snapshot, now: &Snapshot) -> Self {
        Self {
            mesh_name: last.trust_domain == now.trust_domain && last.datacenter == now.datacenter,
            instance: Arc::ptr_eq(&last.instance, &now.instance),
            locality: last.instance.locality == now.instance.locality,
            node_address: last.node_address == now.node_address,
            protocol: last.protocol == now.protocol,
            mesh: Arc::ptr_eq(&last.mesh, &now.mesh),
            telemetry: Telemetry::is_same(&last.instance, &now.instance),
            leaf: Arc::ptr_eq(&last.leaf, &now.leaf),
            roots: Arc::ptr_eq(&last.roots, &now.roots),
            intentions: Arc::ptr_eq(&last.intentions, &now.intentions)
                && last.default_intention == now.default_intention,
            jwt_providers: Arc::ptr_eq(&last.jwt_providers, &now.jwt_providers),
        }
    }

    /// Whether all of them are.
    fn all(self) -> bool {
        let all = Self {
            mesh_name: true,
            instance: true,
            locality: true,
            node_address: true,
            protocol: true,
            mesh: true,
            telemetry: true,
            leaf: true,
            roots: true,
            intentions: true,
            jwt_providers: true,
        };
        self == all
    }
}

type ReadSettings = (ProxySettings, Vec<String>);

/// The proxy's settings with what is wrong with them, read when a part needs them.
pub(super) type Settings<'a> = LazyCell<ReadSettings, Box<dyn FnOnce() -> ReadSettings + 'a>>;

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
        composer.add(transparent.outbound(composer, upstreams, (&egress, &outside)));
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
        let change = UpstreamChange {
            snapshot,
            upstream,
            earlier,
            same,
            compared_ends: OnceCell::new(),
        };
        let place = last.zip(before).map(|(last, at)| first_upstream(last) + at);
        let mut unit = composer.unit(place);
        // Extensions for an upstream are for a service.
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

/// Whether two upstreams of one proxy, or of one before and after a change, are of one tenancy.
pub(super) fn is_of_same_tenancy(one: &Upstream, other: &Upstream) -> bool {
    one.destination_partition == other.destination_partition
        && one.destination_namespace == other.destination_namespace
}

/// Where an upstream was in the last snapshot.
pub(super) fn counterpart(
    last: &[UpstreamSnapshot],
    place: usize,
    upstream: &UpstreamSnapshot,
) -> Option<usize> {
    let now = &upstream.upstream;
    let same = |other: &UpstreamSnapshot| Arc::ptr_eq(&other.upstream, now);
    let alike = |other: &UpstreamSnapshot| {
        let other = &other.upstream;
        other.destination_name == now.destination_name
            && is_of_same_tenancy(other, now)
            && other.destination_type.is_service() == now.destination_type.is_service()
            && other.datacenter == now.datacenter
            && other.destination_peer == now.destination_peer
    };
    let in_place = last.get(place).filter(|other| same(other));
    in_place
        .map(|_| place)
        .or_else(|| last.iter().position(same))
        .or_else(|| last.get(place).filter(|other| alike(other)).map(|_| place))
        .or_else(|| last.iter().position(alike))
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
    // A listener that a user wrote has routes of its own, and the rules about requests in it.
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
        // Requests would be refused by it, for lack of routes, which the listener before may serve.
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

/// One part for every provider of tokens whose keys are on a server. A unit of their own, because
/// their number changes.
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

/// Two parts for every exposed path, the cluster and the listener, so that the type of a part follows
/// from its place. They are the last ones of the own side, because their number changes.
fn exposed_paths(
    unit: &mut UnitBuilder<'_>,
    memo: &Memo,
    snapshot: &Snapshot,
    same: Same,
    settings: &Settings<'_>,
) {
    let unchanged = same.instance && same.protocol && same.node_address;
    let asked = LazyCell::new(|| exposed::asked(snapshot));
    let public = LazyCell::new(|| listener::public::listens_on(snapshot, &settings.0));
    for path in &snapshot.instance.proxy.expose.paths {
        let port = path.local_path_port;
        let own = exposed::own_cluster(snapshot, path);
        let place = unit.next_place();
        let name = || names::exposed_cluster(port);
        unit.part(Type::Cluster, name, unchanged, |_| {
            let asked = own.as_ref().and_then(|_| asked.get(&port));
            asked.map_or(Ok(None), |asked| {
                made(cluster::exposed(memo, snapshot, &settings.0, port, *asked))
            })
        });
        let (place, cluster) = match &own {
            Some(own) => (place, own.as_str()),
            None => (APPLICATION, LOCAL_APP),
        };
        let unchanged = unchanged && !unit.troubled(place);
        // Envoy refuses a listener whose routes lead to a cluster that it does not have.
        let nowhere = match unchanged {
            true => None,
            false => unit.missing(place, cluster).cloned(),
        };
        let name = || names::exposed_listener(&path.path);
        unit.part(Type::Listener, name, unchanged, |warnings| {
            if let Some(reason) = nowhere {
                return Err(reason);
            }
            // Consul traces none of these requests either.
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

/// One upstream, and what it was in the last snapshot.
pub(super) struct UpstreamChange<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) upstream: &'a UpstreamSnapshot,
    pub(super) earlier: Option<&'a UpstreamSnapshot>,
    pub(super) same: Same,
    pub(super) compared_ends: OnceCell<bool>,
}

/// What the parts of one upstream have in common, found out when a part needs it.
type Plan<'a, F> = LazyCell<UpstreamPlan<'a>, F>;

impl<'a> UpstreamChange<'a> {
    fn is(&self, equal: impl FnOnce(&UpstreamSnapshot) -> bool) -> bool {
        self.earlier.is_some_and(equal)
    }

    /// Whether its names and settings are as they were, and what its chain makes of them.
    fn leads_alike(&self) -> bool {
        self.same.mesh_name && self.is(|last| same_chain(last, self.upstream))
    }

    /// Whether its names and settings are as they were, and where its chain ends.
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

    /// Whether connections to it are made as they were, besides.
    pub(super) fn is_dialled_alike(&self) -> bool {
        self.leads_alike() && self.same.mesh && self.same.instance
    }

    /// Whether nothing about it has changed.
    fn is_as_it_was(&self) -> bool {
        let resolved = &self.upstream.resolved;
        self.is_dialled_alike() && self.is(|last| Arc::ptr_eq(&last.resolved, resolved))
    }

    fn add_parts(&self, unit: &mut UnitBuilder<'_>, memo: &Memo, settings: &Settings<'_>) {
        if self.is_as_it_was() && unit.take_over() {
            return;
        }
        let plan = LazyCell::new(|| UpstreamPlan::new(self.snapshot, self.upstream));
        self.add_clusters(unit, memo, settings, &plan);
        self.add_routes(unit, memo, &plan);
        self.add_listener(unit, memo, settings, &plan);
    }

    /// A cluster for each end of the chain, each followed by its endpoints where it has some of its
    /// own. None where the entries that are stored do not make a chain.
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
            let name = || cluster.name.clone();
            unit.part(Type::Cluster, name, is_dialled_alike, |_| {
                let tls = TlsSettings::outgoing((*self.snapshot.mesh).as_ref())?;
                let fetch_timeout = settings.0.fetch_timeout;
                made(cluster::upstream(memo, plan, &cluster, &tls, fetch_timeout))
            });
            let ClusterKind::Target(target, _) = cluster.kind else {
                continue;
            };
            let of = |resolved: &'a ResolvedChain| resolved.instances(&target.id);
            let Some(instances) = of(resolved) else {
                continue;
            };
            let before = self.earlier.and_then(|last| of(&last.resolved));
            let same = before.is_some_and(|before| Arc::ptr_eq(before, instances));
            let near = endpoint::near(&self.snapshot.instance, target);
            let unchanged = ends_alike && same && self.same.locality;
            unit.part(Type::Endpoints, name, unchanged, |warnings| {
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

    /// The routes, where the chain says more than that all goes to one cluster.
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
                let Leads::Routes(name) = plan.leads(memo)? else {
                    return Ok(None);
                };
                // Envoy refuses requests to a cluster that it does not have, and routes if it is asked to.
                if let Some(reason) = nowhere {
                    return Err(reason);
                }
                let mesh = (*self.snapshot.mesh).as_ref();
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
        // A listener without routes of its own says itself where requests go.
        let leads_alike = match waits_for_routes {
            true => self.ends_alike(),
            false => self.leads_alike(),
        };
        let unchanged = leads_alike
            && self.same.telemetry
            && (self.same.instance || !waits_for_routes)
            && !unit.has_trouble(Type::Cluster)
            && !unit.has_trouble(Type::Routes);
        // Envoy refuses a listener whose routes lead to a cluster that it does not have, and one
        // whose routes do not come refuses requests.
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

/// Whether the same settings hold for two upstreams, and the same chain.
pub(super) fn same_chain(last: &UpstreamSnapshot, now: &UpstreamSnapshot) -> bool {
    let chains = last
        .resolved
        .chain
        .as_ref()
        .ok()
        .zip(now.resolved.chain.as_ref().ok());
    Arc::ptr_eq(&last.upstream, &now.upstream)
        && chains.is_some_and(|(last, now)| Arc::ptr_eq(last, now))
}

pub(super) fn made(
    resource: Result<Arc<EncodedResource>, GenerateError>,
) -> Result<Option<Made>, GenerateError> {
    resource.map(|resource| Some(resource.into()))
}
