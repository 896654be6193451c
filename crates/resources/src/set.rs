//! Everything that one proxy should have, by type and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::Secret;
use prost::Name;

use crate::encode::EncodedResource;

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
            let types = [
                (Cluster::type_url(), &mut set.clusters),
                (ClusterLoadAssignment::type_url(), &mut set.endpoints),
                (Listener::type_url(), &mut set.listeners),
                (RouteConfiguration::type_url(), &mut set.routes),
                (Secret::type_url(), &mut set.secrets),
            ];
            let known = types.into_iter().find(|(known, _)| known == type_url);
            if let Some((_, by_name)) = known {
                by_name.insert(resource.name.clone(), Arc::new(resource));
            }
        }
        set
    }

    /// The resources of a type, by name. None of a type that this crate does not make.
    pub fn get(&self, type_url: &str) -> &BTreeMap<Arc<str>, Arc<EncodedResource>> {
        static NONE: ByName = BTreeMap::new();
        let types = [
            (Cluster::type_url(), &self.clusters),
            (ClusterLoadAssignment::type_url(), &self.endpoints),
            (Listener::type_url(), &self.listeners),
            (RouteConfiguration::type_url(), &self.routes),
            (Secret::type_url(), &self.secrets),
        ];
        types
            .into_iter()
            .find(|(known, _)| known == type_url)
            .map_or(&NONE, |(_, resources)| resources)
    }

    /// What was left out or replaced by a default because it could not be used, for the log.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}
