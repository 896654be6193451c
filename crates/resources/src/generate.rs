//! From a snapshot to everything that its proxy should have.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use legate_proxycfg::{Snapshot, UpstreamSnapshot};

use crate::cluster;
use crate::encode::EncodedResource;
use crate::endpoint;
use crate::error::GenerateError;
use crate::listener::{self, Bind};
use crate::memo::Memo;
use crate::names;
use crate::route;
use crate::secret;
use crate::set::ResourceSet;
use crate::settings::{ProxySettings, UpstreamSettings};
use crate::tls::TlsSettings;

/// Makes resources, and remembers those that proxies hold. Shared by all streams.
#[derive(Debug)]
pub struct Generator {
    memo: Memo,
}

/// One upstream with what its resources have in common.
pub(crate) struct UpstreamPlan<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) upstream: &'a UpstreamSnapshot,
    /// The server name by which it is dialled.
    pub(crate) sni: String,
    /// The name of its cluster and its endpoints.
    pub(crate) cluster: String,
    /// Where the application dials it.
    pub(crate) bind: Bind,
    pub(crate) settings: UpstreamSettings,
}

impl Generator {
    /// One that remembers nothing yet.
    pub fn new() -> Self {
        Self { memo: Memo::new() }
    }

    /// Everything that the proxy of this snapshot should have.
    ///
    /// # Errors
    ///
    /// When a part cannot be made. Nothing is given then: the proxy keeps what it has, which is
    /// better than a listener without its access rules.
    pub fn generate(&self, snapshot: &Snapshot) -> Result<ResourceSet, GenerateError> {
        let mut set = ResourceSet::default();
        let memo = &self.memo;
        let settings = ProxySettings::read(&snapshot.instance, &mut set.warnings);
        let outgoing = TlsSettings::outgoing((*snapshot.mesh).as_ref())?;
        put(&mut set.secrets, secret::leaf(memo, &snapshot.leaf)?);
        put(&mut set.secrets, secret::roots(memo, &snapshot.roots)?);
        put(
            &mut set.clusters,
            cluster::local_app(memo, snapshot, &settings)?,
        );
        put(
            &mut set.listeners,
            listener::public::listener(memo, snapshot, &settings)?,
        );
        if snapshot.protocol.is_http() {
            put(&mut set.routes, route::public(memo, snapshot, &settings)?);
        }
        let mut taken = HashSet::new();
        for upstream in &snapshot.upstreams {
            let sni = names::upstream_sni(snapshot, &upstream.upstream);
            let plan = UpstreamPlan {
                snapshot,
                upstream,
                cluster: names::upstream_cluster(upstream, &sni),
                sni,
                bind: listener::upstream::bind(&upstream.upstream)?,
                settings: UpstreamSettings::read(&upstream.upstream, &mut set.warnings),
            };
            if taken.insert(plan.bind.clone()) {
                put(
                    &mut set.listeners,
                    listener::upstream::listener(memo, &plan)?,
                );
            } else {
                set.warnings.push(format!(
                    "upstream {} listens on {}, as another one does: it has no listener",
                    upstream.upstream.id(),
                    plan.bind.suffix()
                ));
            }
            let cluster = cluster::upstream(memo, &plan, &outgoing, settings.fetch_timeout)?;
            self.add_upstream(&mut set, &plan, cluster)?;
        }
        Ok(set)
    }

    /// Adds a cluster and its endpoints, which upstreams to the same service have in common.
    fn add_upstream(
        &self,
        set: &mut ResourceSet,
        plan: &UpstreamPlan<'_>,
        cluster: Arc<EncodedResource>,
    ) -> Result<(), GenerateError> {
        if !put(&mut set.clusters, cluster) {
            set.warnings.push(format!(
                "upstream {} is registered twice with different Config: the first one counts",
                plan.upstream.upstream.id()
            ));
        }
        if !set.endpoints.contains_key(plan.cluster.as_str()) {
            let instances = &plan.upstream.instances;
            let assignment =
                endpoint::assignment(&self.memo, &plan.cluster, instances, &mut set.warnings)?;
            put(&mut set.endpoints, assignment);
        }
        Ok(())
    }
}

impl Default for Generator {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds a resource unless there is another one of its name. Tells whether it is in now.
fn put(
    resources: &mut BTreeMap<Arc<str>, Arc<EncodedResource>>,
    resource: Arc<EncodedResource>,
) -> bool {
    let held = resources
        .entry(Arc::clone(&resource.name))
        .or_insert_with(|| Arc::clone(&resource));
    held.version == resource.version
}
