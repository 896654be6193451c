//! Properties of the proxy that extensions use.

use std::collections::{BTreeMap, BTreeSet};

use legate_model::Protocol;
use legate_model::extension::Target;
use legate_proxycfg::{Sidecar, Snapshot};

use crate::memo::Memo;
use crate::names;
use crate::upstream;

/// A proxy with extensions.
#[derive(Debug)]
pub(super) struct Proxy {
    /// The protocol of its application.
    pub(super) protocol: Protocol,
    /// The clusters of upstreams that extensions call, by service name.
    pub(super) clusters: BTreeMap<String, String>,
}

impl Proxy {
    /// `services` are the services that the extensions call.
    pub(super) fn of(memo: &Memo, snapshot: &Snapshot, services: BTreeSet<&str>) -> Self {
        let cluster =
            |service: &str| Some((service.to_owned(), cluster_of(memo, snapshot, service)?));
        Self {
            protocol: Sidecar::of(snapshot).map_or_else(Protocol::default, |own| own.protocol),
            clusters: services.into_iter().filter_map(cluster).collect(),
        }
    }

    pub(super) fn cluster<'a>(
        &'a self,
        target: &Target,
        local: Option<&'a str>,
    ) -> Result<&'a str, String> {
        local.map_or_else(|| self.upstream(&target.service.name), Ok)
    }

    pub(super) fn upstream(&self, service: &str) -> Result<&str, String> {
        let cluster = self.clusters.get(service).map(String::as_str);
        cluster.ok_or_else(|| format!("no upstream definition found for service {service:?}"))
    }
}

/// The cluster of the upstream of a service, if all its traffic goes to a single cluster.
fn cluster_of(memo: &Memo, snapshot: &Snapshot, service: &str) -> Option<String> {
    let sidecar = Sidecar::of(snapshot)?;
    let implicit = sidecar.implicit.iter().flat_map(|all| &all.0);
    let upstreams = sidecar.upstreams.iter();
    let mut upstreams = upstreams.chain(implicit.map(|one| &one.upstream));
    let upstream = upstreams.find(|one| {
        let one = &one.upstream;
        one.destination_type.is_service()
            && names::extended(&snapshot.proxy, one).eq_ignore_ascii_case(service)
    })?;
    upstream::only_cluster(memo, upstream)
}
