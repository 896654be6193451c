//! The kinds of custom resources: their names in Kubernetes and their kinds of config entries.

use std::sync::LazyLock;

use kube::core::{ApiResource, GroupVersionKind};
use legate_model::ConfigKind;
use schemars::JsonSchema;
use serde_json::Value;

use super::schema;

/// API group of the resources.
pub const GROUP: &str = "consul.hashicorp.com";
/// The only version of the resources.
pub const VERSION: &str = "v1alpha1";

/// How the name of a resource determines that of its config entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// The entry has the resource's name.
    Resource,
    /// There is one entry, and the resource must have this name.
    Only(&'static str),
    /// There is one entry, and the resource must have the name of the cluster's partition.
    Partition,
    /// The entry has the name of the destination of the intentions.
    Destination,
}

/// A kind of custom resource.
#[derive(Debug)]
pub struct Kind {
    /// In Kubernetes, such as `ServiceDefaults`.
    pub name: &'static str,
    /// Its plural in URLs, such as `servicedefaults`.
    pub plural: &'static str,
    /// Its abbreviation for `kubectl get`.
    pub short_name: Option<&'static str>,
    /// The kind of config entry.
    pub entry: ConfigKind,
    /// How its entries are named.
    pub naming: Naming,
    /// Whether the entry is about one service that needs a virtual IP, so that the entry applies to
    /// captured traffic.
    pub virtual_ip: bool,
    /// The schema of `spec`, with the names of the entry's fields.
    pub(super) spec: LazyLock<Value>,
}

macro_rules! kinds {
    ($($name:literal, $plural:literal, $short:expr, $entry:ident, $naming:expr, $virtual_ip:literal;)+) => {
        /// Every kind.
        pub static KINDS: [Kind; [$($name),+].len()] = [$(Kind {
            name: $name,
            plural: $plural,
            short_name: $short,
            entry: ConfigKind::$entry,
            naming: $naming,
            virtual_ip: $virtual_ip,
            spec: LazyLock::new(|| {
                schema::of_spec(ConfigKind::$entry, legate_model::$entry::json_schema)
            }),
        }),+];
    };
}

kinds! {
    "ServiceDefaults", "servicedefaults", Some("service-defaults"), ServiceDefaults,
        Naming::Resource, true;
    "ProxyDefaults", "proxydefaults", Some("proxy-defaults"), ProxyDefaults,
        Naming::Only("global"), false;
    "Mesh", "meshes", None, Mesh, Naming::Only("mesh"), false;
    "ServiceIntentions", "serviceintentions", Some("service-intentions"), ServiceIntentions,
        Naming::Destination, true;
    "ServiceResolver", "serviceresolvers", Some("service-resolver"), ServiceResolver,
        Naming::Resource, true;
    "ServiceRouter", "servicerouters", Some("service-router"), ServiceRouter,
        Naming::Resource, true;
    "ServiceSplitter", "servicesplitters", Some("service-splitter"), ServiceSplitter,
        Naming::Resource, true;
    "ExportedServices", "exportedservices", Some("exported-services"), ExportedServices,
        Naming::Partition, false;
    "JWTProvider", "jwtproviders", None, JwtProvider, Naming::Resource, false;
    "IngressGateway", "ingressgateways", Some("ingress-gateway"), IngressGateway,
        Naming::Resource, false;
    "TerminatingGateway", "terminatinggateways", Some("terminating-gateway"), TerminatingGateway,
        Naming::Resource, false;
}

impl Kind {
    /// Finds a kind by its name in Kubernetes.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// The resource description for requests to the API server.
    #[must_use]
    pub fn api_resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, self.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }
}
