//! The `spec` of each kind: the schema for the API server, and the names of every field in resources
//! and config entries.
//!
//! A type deserializes a resource, whose fields are in camel case (`connectTimeoutMs`), and
//! serializes the config entry with the names of Consul's API (`ConnectTimeoutMs`). One type serves
//! both, so that no field can be missing in one of them. Nothing here writes a resource.
//!
//! Unknown fields of a resource are refused, never dropped.

mod exported_services;
mod ingress_gateway;
mod jwt_provider;
mod mesh;
mod proxy_defaults;
mod service_defaults;
mod service_intentions;
mod service_resolver;
mod service_router;
mod service_splitter;
mod shared;
mod terminating_gateway;
mod values;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use exported_services::ExportedServicesSpec;
pub use ingress_gateway::IngressGatewaySpec;
pub use jwt_provider::JwtProviderSpec;
pub use mesh::MeshSpec;
pub use proxy_defaults::ProxyDefaultsSpec;
pub use service_defaults::ServiceDefaultsSpec;
pub use service_intentions::ServiceIntentionsSpec;
pub use service_resolver::ServiceResolverSpec;
pub use service_router::ServiceRouterSpec;
pub use service_splitter::ServiceSplitterSpec;
pub use terminating_gateway::TerminatingGatewaySpec;

/// The `spec` of one kind.
pub(crate) trait Spec: DeserializeOwned + Serialize {
    /// The reason why this cannot be written, if a field has no equivalent in a config entry: the
    /// field, and what to do instead.
    fn not_served(&self) -> Option<String> {
        None
    }
}

impl Spec for ExportedServicesSpec {}
impl Spec for IngressGatewaySpec {}
impl Spec for JwtProviderSpec {}
impl Spec for MeshSpec {}
impl Spec for ProxyDefaultsSpec {}
impl Spec for ServiceDefaultsSpec {}
impl Spec for ServiceIntentionsSpec {}
impl Spec for ServiceResolverSpec {}
impl Spec for ServiceRouterSpec {}
impl Spec for ServiceSplitterSpec {}

/// Declares the types of a spec. Every field is optional and has one name in the resource and one in
/// the config entry. If these are not the same words in camel and Pascal case, both are given:
/// `tls("tls" => "TLS"): MeshTls`.
macro_rules! spec {
    ($(
        $(#[$meta:meta])*
        $name:ident {
            $($(#[$field_meta:meta])* $field:ident $(($read:tt => $written:tt))?: $ty:ty,)*
        }
    )*) => {$(
        #[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        $(#[$meta])*
        #[serde(
            rename_all(serialize = "PascalCase", deserialize = "camelCase"),
            deny_unknown_fields
        )]
        #[schemars(inline)]
        pub struct $name {
            $(
                $(#[$field_meta])*
                $(#[serde(rename(serialize = $written, deserialize = $read))])?
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $field: Option<$ty>,
            )*
        }
    )*};
}
pub(crate) use spec;
