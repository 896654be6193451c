//! The `spec` of each kind: the schema for the API server, and the names of every field in resources
//! and config entries.
//!
//! A type deserializes a resource, whose fields are in camel case (`connectTimeoutMs`), and
//! serializes the config entry with the names of Consul's API (`ConnectTimeoutMs`). One type serves
//! both, so that no field can be missing in one of them. Nothing here writes a resource.
//!
//! Unknown fields of a resource are refused, never dropped.

mod declaration;
mod exported_services;
mod ingress_gateway;
mod jwt_provider;
mod mesh;
mod parts;
mod proxy_defaults;
mod service_defaults;
mod service_intentions;
mod service_resolver;
mod service_router;
mod service_splitter;
mod terminating_gateway;
mod values;

pub(crate) use declaration::Spec;
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
