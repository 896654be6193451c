//! Types of resources, their encoded form, and all that a cluster exports to another one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use bytes::Bytes;
use legate_api::internal::peering::{PeeringServerAddresses, PeeringTrustBundle};
use legate_api::internal::peerstream::{ExportedService, ExportedServiceList};
use prost::Message;
use prost_types::Any;
use sha2::{Digest as _, Sha256};

use crate::export::{destination, mesh_id};

/// A type of resources, in the order of subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceType {
    /// All instances of a service. The id is the service's name, or that of its mesh form.
    Service,
    /// The names of all exported services.
    ServiceList,
    /// The root certificates of the cluster.
    TrustBundle,
    /// Where the servers of an accepting cluster are reached. Only for the cluster that dials.
    ServerAddresses,
}

impl ResourceType {
    /// All types.
    pub const ALL: [Self; 4] = [
        Self::Service,
        Self::ServiceList,
        Self::TrustBundle,
        Self::ServerAddresses,
    ];

    /// The type's URL.
    pub const fn url(self) -> &'static str {
        match self {
            Self::Service => {
                "type.googleapis.com/hashicorp.consul.internal.peerstream.ExportedService"
            }
            Self::ServiceList => {
                "type.googleapis.com/hashicorp.consul.internal.peerstream.ExportedServiceList"
            }
            Self::TrustBundle => {
                "type.googleapis.com/hashicorp.consul.internal.peering.PeeringTrustBundle"
            }
            Self::ServerAddresses => {
                "type.googleapis.com/hashicorp.consul.internal.peering.PeeringServerAddresses"
            }
        }
    }

    /// The type of a URL; `None` for any other URL.
    pub fn from_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The id of the only resource of the type; empty for services.
    pub(crate) const fn id(self) -> &'static str {
        match self {
            Self::Service => "",
            Self::ServiceList => "exported-service-list",
            Self::TrustBundle => "roots",
            Self::ServerAddresses => "server-addrs",
        }
    }
}

/// Identifies the content of a resource.
pub(crate) type Digest = [u8; 32];

/// The encoded state of a resource. Clones share it.
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// An encoded `google.protobuf.Any`.
    pub(crate) any: Bytes,
    pub(crate) digest: Digest,
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.any.len())
    }
}

impl Payload {
    /// The instances of a service, in one of the forms of [`crate::export`].
    pub fn service(service: &ExportedService) -> Self {
        Self::new(ResourceType::Service, service)
    }

    /// The root certificates of this cluster.
    pub fn trust_bundle(bundle: &PeeringTrustBundle) -> Self {
        Self::new(ResourceType::TrustBundle, bundle)
    }

    /// Where the servers of this cluster are reached, each as `host:port`.
    pub fn server_addresses(addresses: Vec<String>) -> Self {
        let message = PeeringServerAddresses { addresses };
        Self::new(ResourceType::ServerAddresses, &message)
    }

    /// The state of a service without instances.
    pub(crate) fn no_instances() -> &'static Self {
        static NONE: LazyLock<Payload> =
            LazyLock::new(|| Payload::service(&ExportedService::default()));
        &NONE
    }

    fn new(kind: ResourceType, message: &impl Message) -> Self {
        let any = Any {
            type_url: kind.url().to_owned(),
            value: message.encode_to_vec(),
        };
        let any = Bytes::from(any.encode_to_vec());
        Self {
            digest: Sha256::digest(&any).into(),
            any,
        }
    }
}

/// The names of all exported services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceList {
    /// Sorted.
    pub(crate) names: Arc<[String]>,
    /// The ids of their mesh forms.
    pub(crate) mesh_ids: Vec<Arc<str>>,
    pub(crate) payload: Payload,
}

impl ServiceList {
    /// A list of the names, in any order. Without those of mesh forms.
    pub fn new(names: impl IntoIterator<Item = String>) -> Self {
        let mut services: Vec<String> = names.into_iter().collect();
        services.sort_unstable();
        services.dedup();
        let message = ExportedServiceList {
            services: services.clone(),
        };
        Self {
            mesh_ids: services.iter().map(|name| mesh_id(name).into()).collect(),
            names: services.into(),
            payload: Payload::new(ResourceType::ServiceList, &message),
        }
    }

    /// The names, sorted.
    pub fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    /// Whether an importer keeps the resource of a service when it receives this list: that of a listed service or of
    /// its mesh form.
    pub(crate) fn keeps(&self, id: &str) -> bool {
        let lists = |name: &str| {
            let order = |own: &String| own.as_str().cmp(name);
            self.names.binary_search_by(order).is_ok()
        };
        lists(id) || destination(id).is_some_and(lists)
    }
}

/// All that a cluster exports to another one. What is `None` is not known yet, and not sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exports {
    /// The list of services. Without it, services are not sent either.
    pub list: Option<ServiceList>,
    /// Services by their name or, in the mesh form, by [`crate::export::mesh_id`]. A listed service without a mesh form is
    /// not in the mesh.
    pub services: BTreeMap<Arc<str>, Payload>,
    /// The root certificates.
    pub trust_bundle: Option<Payload>,
    /// The addresses of the servers. For clusters that accept streams.
    pub server_addresses: Option<Payload>,
}
