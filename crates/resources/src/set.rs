//! Everything that one proxy should have, by type and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::encode::EncodedResource;

const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
const ENDPOINTS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
const SECRET: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

type ByName = BTreeMap<Arc<str>, Arc<EncodedResource>>;

/// The resources of one proxy.
#[derive(Clone, Debug, Default)]
pub struct ResourceSet {
    pub(crate) clusters: ByName,
    pub(crate) endpoints: ByName,
    pub(crate) listeners: ByName,
    pub(crate) routes: ByName,
    pub(crate) secrets: ByName,
    pub(crate) warnings: Vec<String>,
}

impl ResourceSet {
    /// A set of resources that were encoded already, each with its type URL. Those of a type that
    /// this crate does not make are left out.
    pub fn from_resources<'a>(
        resources: impl IntoIterator<Item = (&'a str, EncodedResource)>,
    ) -> Self {
        let mut set = Self::default();
        for (type_url, resource) in resources {
            let by_name = match type_url {
                CLUSTER => &mut set.clusters,
                ENDPOINTS => &mut set.endpoints,
                LISTENER => &mut set.listeners,
                ROUTES => &mut set.routes,
                SECRET => &mut set.secrets,
                _ => continue,
            };
            by_name.insert(Arc::clone(&resource.name), Arc::new(resource));
        }
        set
    }

    /// The resources of a type, by name. None of a type that this crate does not make.
    pub fn get(&self, type_url: &str) -> &BTreeMap<Arc<str>, Arc<EncodedResource>> {
        static NONE: ByName = BTreeMap::new();
        match type_url {
            CLUSTER => &self.clusters,
            ENDPOINTS => &self.endpoints,
            LISTENER => &self.listeners,
            ROUTES => &self.routes,
            SECRET => &self.secrets,
            _ => &NONE,
        }
    }

    /// What was left out or replaced by a default because it could not be used, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
