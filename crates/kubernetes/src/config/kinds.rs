//! The kinds of custom resources: their names in Kubernetes and their kinds of config entries.

use kube::core::{ApiResource, GroupVersionKind};
use legate_model::ConfigKind;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::spec::{self, Spec};

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
    /// The schema of `spec`.
    pub(crate) schema: fn(&mut SchemaGenerator) -> schemars::Schema,
    /// Converts a `spec` to the fields of the entry, with the names of Consul's API.
    pub(crate) fields: fn(&Value) -> Result<Value, String>,
}

/// Parses a `spec` and serializes it as fields of the entry.
fn fields<T: Spec>(spec: &Value) -> Result<Value, String> {
    let spec: T = serde_path_to_error::deserialize(spec).map_err(|error| {
        let reason = error.inner().to_string();
        // Drops serde's list of all known fields.
        let reason = reason.split(", expected one of").next().unwrap_or(&reason);
        match error.path().to_string().as_str() {
            "." => format!("spec: {reason}"),
            path => format!("spec.{path}: {reason}"),
        }
    })?;
    if let Some(reason) = spec.not_served() {
        return Err(reason);
    }
    serde_json::to_value(spec).map_err(|error| error.to_string())
}

macro_rules! kinds {
    ($($name:literal, $plural:literal, $short:expr, $entry:ident, $naming:expr, $virtual_ip:literal: $spec:ident;)+) => {
        /// Every kind.
        pub static KINDS: [Kind; [$($name),+].len()] = [$(Kind {
            name: $name,
            plural: $plural,
            short_name: $short,
            entry: ConfigKind::$entry,
            naming: $naming,
            virtual_ip: $virtual_ip,
            schema: <spec::$spec as JsonSchema>::json_schema,
            fields: fields::<spec::$spec>,
        }),+];
    };
}

kinds! {
    "ServiceDefaults", "servicedefaults", Some("service-defaults"), ServiceDefaults,
        Naming::Resource, true: ServiceDefaultsSpec;
    "ProxyDefaults", "proxydefaults", Some("proxy-defaults"), ProxyDefaults,
        Naming::Only("global"), false: ProxyDefaultsSpec;
    "Mesh", "meshes", None, Mesh, Naming::Only("mesh"), false: MeshSpec;
    "ServiceIntentions", "serviceintentions", Some("service-intentions"), ServiceIntentions,
        Naming::Destination, true: ServiceIntentionsSpec;
    "ServiceResolver", "serviceresolvers", Some("service-resolver"), ServiceResolver,
        Naming::Resource, true: ServiceResolverSpec;
    "ServiceRouter", "servicerouters", Some("service-router"), ServiceRouter,
        Naming::Resource, true: ServiceRouterSpec;
    "ServiceSplitter", "servicesplitters", Some("service-splitter"), ServiceSplitter,
        Naming::Resource, true: ServiceSplitterSpec;
    "ExportedServices", "exportedservices", Some("exported-services"), ExportedServices,
        Naming::Partition, false: ExportedServicesSpec;
    "JWTProvider", "jwtproviders", None, JwtProvider, Naming::Resource, false: JwtProviderSpec;
    "IngressGateway", "ingressgateways", Some("ingress-gateway"), IngressGateway,
        Naming::Resource, false: IngressGatewaySpec;
    "TerminatingGateway", "terminatinggateways", Some("terminating-gateway"), TerminatingGateway,
        Naming::Resource, false: TerminatingGatewaySpec;
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
