//! The kinds of custom resource: their names in Kubernetes, and the config entry each one means.

use kube::core::{ApiResource, GroupVersionKind};
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use super::spec::{self, Spec};

/// API group of the resources.
pub const GROUP: &str = "consul.hashicorp.com";
/// The only version of the resources.
pub const VERSION: &str = "v1alpha1";

/// What a resource of a kind may be called, and what that makes of its config entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// The entry has the resource's name.
    Resource,
    /// There is one entry, and the resource has to be called this.
    Only(&'static str),
    /// There is one entry, and the resource has to be called as the cluster's partition is.
    Partition,
    /// The entry has the name of the intentions' destination.
    Destination,
}

/// A kind of custom resource.
#[derive(Debug)]
pub struct Kind {
    /// In Kubernetes, such as `ServiceDefaults`.
    pub name: &'static str,
    /// Its plural in URLs, such as `servicedefaults`.
    pub plural: &'static str,
    /// For `kubectl get`.
    pub short_name: Option<&'static str>,
    /// The kind of config entry, such as `service-defaults`.
    pub entry: &'static str,
    /// How resources and entries are called.
    pub naming: Naming,
    /// Whether the entry is about one service, which needs a virtual IP for it to take effect on
    /// captured traffic.
    pub virtual_ip: bool,
    /// The schema of `spec`.
    pub(crate) schema: fn(&mut SchemaGenerator) -> schemars::Schema,
    /// The fields of the entry that a `spec` means, with the names of Consul's API.
    pub(crate) fields: fn(&Value) -> Result<Value, String>,
}

/// Reads a `spec` and writes what it means.
fn fields<T: Spec>(spec: &Value) -> Result<Value, String> {
    let spec: T = serde_path_to_error::deserialize(spec).map_err(|error| {
        let reason = error.inner().to_string();
        // serde goes on to list every field that it knows.
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
    ($($name:literal, $plural:literal, $short:expr, $entry:literal, $naming:expr, $virtual_ip:literal: $spec:ident;)+) => {
        /// Every kind.
        pub static KINDS: [Kind; [$($name),+].len()] = [$(Kind {
            name: $name,
            plural: $plural,
            short_name: $short,
            entry: $entry,
            naming: $naming,
            virtual_ip: $virtual_ip,
            schema: <spec::$spec as JsonSchema>::json_schema,
            fields: fields::<spec::$spec>,
        }),+];
    };
}

kinds! {
    "ServiceDefaults", "servicedefaults", Some("service-defaults"), "service-defaults",
        Naming::Resource, true: ServiceDefaultsSpec;
    "ProxyDefaults", "proxydefaults", Some("proxy-defaults"), "proxy-defaults",
        Naming::Only("global"), false: ProxyDefaultsSpec;
    "Mesh", "meshes", None, "mesh", Naming::Only("mesh"), false: MeshSpec;
    "ServiceIntentions", "serviceintentions", Some("service-intentions"), "service-intentions",
        Naming::Destination, true: ServiceIntentionsSpec;
    "ServiceResolver", "serviceresolvers", Some("service-resolver"), "service-resolver",
        Naming::Resource, true: ServiceResolverSpec;
    "ServiceRouter", "servicerouters", Some("service-router"), "service-router",
        Naming::Resource, true: ServiceRouterSpec;
    "ServiceSplitter", "servicesplitters", Some("service-splitter"), "service-splitter",
        Naming::Resource, true: ServiceSplitterSpec;
    "ExportedServices", "exportedservices", Some("exported-services"), "exported-services",
        Naming::Partition, false: ExportedServicesSpec;
    "JWTProvider", "jwtproviders", None, "jwt-provider", Naming::Resource, false: JwtProviderSpec;
    "IngressGateway", "ingressgateways", Some("ingress-gateway"), "ingress-gateway",
        Naming::Resource, false: IngressGatewaySpec;
    "TerminatingGateway", "terminatinggateways", Some("terminating-gateway"), "terminating-gateway",
        Naming::Resource, false: TerminatingGatewaySpec;
}

impl Kind {
    /// The kind with this name in Kubernetes.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.name == name)
    }

    /// Whether the entry is about a whole partition: it stands in the namespace `default`.
    #[must_use]
    pub fn of_partition(&self) -> bool {
        matches!(
            self.entry,
            "proxy-defaults" | "mesh" | "exported-services" | "jwt-provider"
        )
    }

    /// How the API server is asked for resources of this kind.
    #[must_use]
    pub fn api_resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(GROUP, VERSION, self.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }
}
