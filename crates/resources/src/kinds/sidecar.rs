//! The sidecar: its own side (certificates, the application, the listener for the mesh and its
//! routes, exposed paths), and a listener, a cluster and endpoints for every explicit upstream. What it has in
//! transparent mode is made in `transparent`.
//!
//! The units of a set are in this order: the own side, the listener for captured traffic where there
//! is one, the explicit upstreams, the implicit ones.

use std::cell::LazyCell;
use std::sync::Arc;

use legate_proxycfg::{Snapshot, UpstreamSnapshot};

use super::transparent::Transparent;
use crate::cluster;
use crate::encode::EncodedResource;
use crate::endpoint;
use crate::error::GenerateError;
use crate::listener::{self, exposed};
use crate::memo::Memo;
use crate::names::{self, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS};
use crate::part::{Composer, Made, UnitBuilder};
use crate::route;
use crate::secret;
use crate::set::Type;
use crate::settings::{ProxySettings, UpstreamSettings};
use crate::telemetry::Telemetry;
use crate::tls::TlsSettings;

/// The place of the routes among the parts of the proxy's own side.
const ROUTES: usize = 3;

/// The place of the application's cluster among the parts of the proxy's own side.
const APPLICATION: usize = 2;

/// The place of the cluster among the parts of an upstream, implicit ones included.
pub(super) const CLUSTER: usize = 0;

/// The place of the first explicit upstream among the units of a set.
fn first_upstream(snapshot: &Snapshot) -> usize {
    1 + usize::from(snapshot.implicit.is_some())
}

/// One upstream with what its resources have in common.
pub(crate) struct UpstreamPlan<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) upstream: &'a UpstreamSnapshot,
    /// The server name by which it is dialled.
    pub(crate) sni: String,
    /// The name of its cluster and its endpoints.
    pub(crate) cluster: String,
    pub(crate) settings: UpstreamSettings,
    pub(super) warnings: Vec<String>,
}

impl<'a> UpstreamPlan<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, upstream: &'a UpstreamSnapshot) -> Self {
        let sni = names::upstream_sni(snapshot, &upstream.upstream);
        let mut warnings = Vec::new();
        Self {
            snapshot,
            upstream,
            cluster: names::upstream_cluster(upstream, &sni),
            sni,
            settings: UpstreamSettings::read(&upstream.upstream, &mut warnings),
            warnings,
        }
    }
}

/// The parts of a snapshot that are the same as in the last one.
#[derive(Clone, Copy, Default)]
pub(super) struct Same {
    /// Trust domain and datacenter.
    pub(super) mesh_name: bool,
    pub(super) instance: bool,
    protocol: bool,
    pub(super) mesh: bool,
    /// What all listeners tell.
    telemetry: bool,
    leaf: bool,
    roots: bool,
    intentions: bool,
}

impl Same {
    fn between(last: &Snapshot, now: &Snapshot) -> Self {
        Self {
            mesh_name: last.trust_domain == now.trust_domain && last.datacenter == now.datacenter,
            instance: Arc::ptr_eq(&last.instance, &now.instance),
            protocol: last.protocol == now.protocol,
            mesh: Arc::ptr_eq(&last.mesh, &now.mesh),
            telemetry: Telemetry::is_same(&last.instance, &now.instance),
            leaf: Arc::ptr_eq(&last.leaf, &now.leaf),
            roots: Arc::ptr_eq(&last.roots, &now.roots),
            intentions: Arc::ptr_eq(&last.intentions, &now.intentions)
                && last.default_intention == now.default_intention,
        }
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
    let explicit = explicit_upstreams(composer, snapshot, last, same, &settings);
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
        composer.add(transparent.outbound(composer, &explicit, &implicit));
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
        };
        let place = last.zip(before).map(|(last, at)| first_upstream(last) + at);
        let mut unit = composer.unit(place);
        change.add_parts(&mut unit, composer.memo, settings);
        units.push(unit);
    }
    units
}

/// Where an upstream was in the last snapshot.
fn counterpart(
    last: &[UpstreamSnapshot],
    place: usize,
    upstream: &UpstreamSnapshot,
) -> Option<usize> {
    let now = &upstream.upstream;
    let same = |other: &UpstreamSnapshot| Arc::ptr_eq(&other.upstream, now);
    let alike = |other: &UpstreamSnapshot| {
        let other = &other.upstream;
        other.destination_name == now.destination_name
            && other.destination_type == now.destination_type
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
            made(cluster::local_app(memo, snapshot, &settings.0))
        },
    );
    let rules = same.intentions && same.mesh_name;
    let name = || PUBLIC_LISTENER.to_owned();
    unit.part(Type::Routes, name, unchanged && (rules || !is_http), |_| {
        if !is_http {
            return Ok(None);
        }
        made(route::public(memo, snapshot, &settings.0))
    });
    let unguarded = unit.missing(ROUTES, PUBLIC_LISTENER).cloned();
    let unchanged = unchanged && same.mesh && (rules || is_http) && !unit.troubled(ROUTES);
    unit.part(Type::Listener, name, unchanged, |_| {
        // Requests would be refused by it, for lack of routes, which the listener before may serve.
        match unguarded {
            Some(reason) => Err(reason),
            None => made(listener::public::listener(memo, snapshot, &settings.0)),
        }
    });
    exposed_paths(&mut unit, memo, snapshot, same, settings);
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
    let unchanged = same.instance && same.protocol;
    let asked = LazyCell::new(|| exposed::asked(snapshot));
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
            let bind = listener::public::bind_to(snapshot, &settings.0, path.listener_port)?;
            if listener::public::bind(snapshot, &settings.0).is_ok_and(|public| public == bind) {
                warnings.push(exposed::on_the_public_listener(path, &bind));
                return Ok(None);
            }
            let resource = exposed::listener(memo, path, cluster, &bind, &settings.0.telemetry)?;
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
}

/// What the parts of one upstream have in common, found out when a part needs it.
type Plan<'a, F> = LazyCell<UpstreamPlan<'a>, F>;

impl<'a> UpstreamChange<'a> {
    fn is(&self, equal: impl FnOnce(&UpstreamSnapshot) -> bool) -> bool {
        self.earlier.is_some_and(equal)
    }

    /// Whether its names and settings are as they were.
    fn is_named_alike(&self) -> bool {
        let upstream = self.upstream;
        self.same.mesh_name
            && self.is(|last| {
                Arc::ptr_eq(&last.upstream, &upstream.upstream)
                    && last.customisation == upstream.customisation
            })
    }

    /// Whether the same is spoken to it, besides.
    fn is_spoken_to_alike(&self) -> bool {
        self.is_named_alike() && self.is(|last| last.protocol == self.upstream.protocol)
    }

    /// Whether connections to it are made as they were, besides.
    pub(super) fn is_dialled_alike(&self) -> bool {
        self.is_spoken_to_alike()
            && self.same.mesh
            && self.same.instance
            && self.is(|last| last.connect_timeout == self.upstream.connect_timeout)
    }

    fn add_parts(&self, unit: &mut UnitBuilder<'_>, memo: &Memo, settings: &Settings<'_>) {
        let plan = LazyCell::new(|| UpstreamPlan::new(self.snapshot, self.upstream));
        self.add_cluster(unit, memo, settings, &plan);
        self.add_listener(unit, memo, settings, &plan);
        self.add_endpoints(unit, memo, &plan);
    }

    pub(super) fn add_cluster<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
        plan: &Plan<'a, F>,
    ) {
        let name = || plan.cluster.clone();
        unit.part(Type::Cluster, name, self.is_dialled_alike(), |_| {
            let tls = TlsSettings::outgoing((*self.snapshot.mesh).as_ref())?;
            let fetch_timeout = settings.0.fetch_timeout;
            made(cluster::upstream(memo, plan, &tls, fetch_timeout))
        });
    }

    fn add_listener<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        settings: &Settings<'_>,
        plan: &Plan<'a, F>,
    ) {
        let upstream = self.upstream;
        let id = || upstream.upstream.id().to_string();
        let unchanged = self.is_spoken_to_alike() && self.same.telemetry && !unit.troubled(CLUSTER);
        // Envoy refuses a listener whose routes lead to a cluster that it does not have.
        let nowhere = match unchanged {
            true => None,
            false => unit.missing(CLUSTER, &plan.cluster).cloned(),
        };
        unit.part(Type::Listener, id, unchanged, |warnings| {
            warnings.clone_from(&plan.warnings);
            if let Some(reason) = nowhere {
                return Err(reason);
            }
            let bind = listener::upstream::bind(&upstream.upstream)?;
            let resource = listener::upstream::listener(memo, plan, &bind, &settings.0.telemetry)?;
            let bind = Some(Box::new(bind));
            Ok(Some(Made { resource, bind }))
        });
    }

    pub(super) fn add_endpoints<F: FnOnce() -> UpstreamPlan<'a>>(
        &self,
        unit: &mut UnitBuilder<'_>,
        memo: &Memo,
        plan: &Plan<'a, F>,
    ) {
        let instances = &self.upstream.instances;
        let unchanged =
            self.is_named_alike() && self.is(|last| Arc::ptr_eq(&last.instances, instances));
        let name = || plan.cluster.clone();
        unit.part(Type::Endpoints, name, unchanged, |warnings| {
            let made_now = endpoint::assignment(memo, &plan.cluster, instances, warnings);
            made(made_now)
        });
    }
}

pub(super) fn made(
    resource: Result<Arc<EncodedResource>, GenerateError>,
) -> Result<Option<Made>, GenerateError> {
    resource.map(|resource| Some(resource.into()))
}
