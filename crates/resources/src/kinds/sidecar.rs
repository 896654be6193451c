//! The sidecar: its own side (certificates, the application, the listener for the mesh and its
//! routes), and a listener, a cluster and endpoints for every explicit upstream.

use std::cell::LazyCell;
use std::sync::Arc;

use legate_proxycfg::{Snapshot, UpstreamSnapshot};

use crate::cluster;
use crate::encode::EncodedResource;
use crate::endpoint;
use crate::error::GenerateError;
use crate::listener;
use crate::memo::Memo;
use crate::names::{self, LEAF, LOCAL_APP, PUBLIC_LISTENER, ROOTS};
use crate::part::{Composer, Made, UnitBuilder};
use crate::route;
use crate::secret;
use crate::set::Type;
use crate::settings::{ProxySettings, UpstreamSettings};
use crate::tls::TlsSettings;

/// The place of the routes among the parts of the proxy's own side.
const ROUTES: usize = 3;

/// The place of the cluster among the parts of an upstream.
const CLUSTER: usize = 0;

/// One upstream with what its resources have in common.
pub(crate) struct UpstreamPlan<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) upstream: &'a UpstreamSnapshot,
    /// The server name by which it is dialled.
    pub(crate) sni: String,
    /// The name of its cluster and its endpoints.
    pub(crate) cluster: String,
    pub(crate) settings: UpstreamSettings,
    warnings: Vec<String>,
}

impl<'a> UpstreamPlan<'a> {
    fn new(snapshot: &'a Snapshot, upstream: &'a UpstreamSnapshot) -> Self {
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
struct Same {
    /// Trust domain and datacenter.
    mesh_name: bool,
    instance: bool,
    protocol: bool,
    mesh: bool,
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
            leaf: Arc::ptr_eq(&last.leaf, &now.leaf),
            roots: Arc::ptr_eq(&last.roots, &now.roots),
            intentions: Arc::ptr_eq(&last.intentions, &now.intentions)
                && last.default_intention == now.default_intention,
        }
    }
}

type ReadSettings = (ProxySettings, Vec<String>);

/// The proxy's settings with what is wrong with them, read when a part needs them.
type Settings<'a> = LazyCell<ReadSettings, Box<dyn FnOnce() -> ReadSettings + 'a>>;

pub(super) fn compose(composer: &mut Composer<'_>, snapshot: &Snapshot, last: Option<&Snapshot>) {
    let same = last.map_or_else(Same::default, |last| Same::between(last, snapshot));
    let settings: Settings<'_> = LazyCell::new(Box::new(|| {
        let mut warnings = Vec::new();
        let settings = ProxySettings::read(&snapshot.instance, &mut warnings);
        (settings, warnings)
    }));
    own_side(composer, snapshot, same, &settings);
    for (place, upstream) in snapshot.upstreams.iter().enumerate() {
        let before = last.and_then(|last| counterpart(&last.upstreams, place, upstream));
        let earlier = last.zip(before).map(|(last, at)| &last.upstreams[at]);
        let change = UpstreamChange {
            snapshot,
            upstream,
            earlier,
            same,
        };
        // The proxy's own side is the first unit.
        let mut unit = composer.unit(before.map(|at| at + 1));
        change.add_parts(&mut unit, composer.memo, &settings);
        composer.add(unit);
    }
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
    composer.add(unit);
}

/// One upstream, and what it was in the last snapshot.
struct UpstreamChange<'a> {
    snapshot: &'a Snapshot,
    upstream: &'a UpstreamSnapshot,
    earlier: Option<&'a UpstreamSnapshot>,
    same: Same,
}

impl UpstreamChange<'_> {
    fn is(&self, equal: impl FnOnce(&UpstreamSnapshot) -> bool) -> bool {
        self.earlier.is_some_and(equal)
    }

    fn add_parts(&self, unit: &mut UnitBuilder<'_>, memo: &Memo, settings: &Settings<'_>) {
        let (upstream, same) = (self.upstream, self.same);
        let plan = LazyCell::new(|| UpstreamPlan::new(self.snapshot, upstream));
        let named = same.mesh_name
            && self.is(|last| {
                Arc::ptr_eq(&last.upstream, &upstream.upstream)
                    && last.customisation == upstream.customisation
            });
        let spoken = named && self.is(|last| last.protocol == upstream.protocol);
        let dialled = spoken
            && same.mesh
            && same.instance
            && self.is(|last| last.connect_timeout == upstream.connect_timeout);
        let name = || plan.cluster.clone();
        unit.part(Type::Cluster, name, dialled, |_| {
            let tls = TlsSettings::outgoing((*self.snapshot.mesh).as_ref())?;
            made(cluster::upstream(
                memo,
                &plan,
                &tls,
                settings.0.fetch_timeout,
            ))
        });
        let id = || upstream.upstream.id().to_string();
        let unchanged = spoken && !unit.troubled(CLUSTER);
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
            let resource = listener::upstream::listener(memo, &plan, &bind)?;
            let bind = Some(Box::new(bind));
            Ok(Some(Made { resource, bind }))
        });
        let instances = &upstream.instances;
        let unchanged = named && self.is(|last| Arc::ptr_eq(&last.instances, instances));
        unit.part(Type::Endpoints, name, unchanged, |warnings| {
            made(endpoint::assignment(
                memo,
                &plan.cluster,
                instances,
                warnings,
            ))
        });
    }
}

fn made(
    resource: Result<Arc<EncodedResource>, GenerateError>,
) -> Result<Option<Made>, GenerateError> {
    resource.map(|resource| Some(resource.into()))
}
