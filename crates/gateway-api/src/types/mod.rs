//! The kinds of the Gateway API: their specs, with the fields that have a meaning here. Other fields
//! are found when an object is read ([`crate::Object::unserved`]).
//!
//! Choices are texts, because a newer version of the API may have more of them. Who evaluates one
//! says what happens with a value that it does not know.

mod gateway;
mod policy;
mod route;

pub use gateway::{
    AllowedListeners, AllowedNamespaces, AllowedRoutes, BackendTlsOfGateway, Frontend, FrontendTls,
    Gateway, GatewayAddress, GatewayClass, GatewayTls, Infrastructure, KindReference,
    LabelSelector, LabelSelectorRequirement, Listener, ListenerSet, ListenerTls, ObjectReference,
    ParametersReference, PerPort, Validation,
};
pub use policy::{
    BackendTlsPolicy, BackendValidation, GrantFrom, GrantTo, LocalReference, PolicyTarget,
    ReferenceGrant, SubjectAltName,
};
pub use route::{
    BackendReference, Cors, Fraction, GrpcFilter, GrpcMatch, GrpcMethod, GrpcRoute, GrpcRule,
    Header, HeaderFilter, HttpBackend, HttpBackendFilter, HttpFilter, HttpMatch, HttpRoute,
    HttpRule, HttpTimeouts, ParentReference, PathModifier, PlainBackend, PlainRoute, PlainRule,
    Redirect, RequestMirror, RetryPolicy, TlsRoute, TypedPath, TypedValue, UrlRewrite,
};

/// The group of the Gateway API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// The group of MeshService, a kind of Consul.
pub const CONSUL_GROUP: &str = "consul.hashicorp.com";
