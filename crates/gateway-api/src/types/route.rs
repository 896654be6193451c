//! Routes: which gateways they are for, which requests or connections, and where these go.

use serde::{Deserialize, Serialize};

/// What a route is attached to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ParentReference {
    /// The group; unset for that of the Gateway API, empty for a Service.
    pub group: Option<String>,
    /// `Gateway` if unset, `ListenerSet`, or `Service`.
    pub kind: Option<String>,
    /// The namespace; the route's if unset.
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The name of one of its listeners or ports; all if unset.
    pub section_name: Option<String>,
    /// Its listeners on this port, or the port of a Service; all if unset.
    pub port: Option<u16>,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendReference {
    /// The group; unset for that of core objects.
    pub group: Option<String>,
    /// `Service` if unset.
    pub kind: Option<String>,
    /// The name.
    pub name: String,
    /// The namespace; the route's if unset.
    pub namespace: Option<String>,
    /// The port.
    pub port: Option<u16>,
}

/// A TCPRoute or a UDPRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainRoute {
    /// The gateways.
    pub parent_refs: Vec<ParentReference>,
    /// At most one.
    pub rules: Vec<PlainRule>,
}

/// A TLSRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TlsRoute {
    /// The gateways.
    pub parent_refs: Vec<ParentReference>,
    /// The server names; all of the listener if empty.
    pub hostnames: Vec<String>,
    /// At most one.
    pub rules: Vec<PlainRule>,
}

/// Where connections or datagrams go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainRule {
    /// For people.
    pub name: Option<String>,
    /// The backends.
    pub backend_refs: Vec<PlainBackend>,
}

/// A backend and its share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PlainBackend {
    /// The backend.
    #[serde(flatten)]
    pub backend: BackendReference,
    /// The share; 1 if unset.
    pub weight: Option<i64>,
}

/// An HTTPRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRoute {
    /// The gateways.
    pub parent_refs: Vec<ParentReference>,
    /// The hosts; all of the listener if empty.
    pub hostnames: Vec<String>,
    /// The rules.
    pub rules: Vec<HttpRule>,
}

/// A rule of an HTTPRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    /// Its name.
    pub name: Option<String>,
    /// Conditions, one of which holds; every request if empty.
    pub matches: Vec<HttpMatch>,
    /// What happens before a request is forwarded.
    pub filters: Vec<HttpFilter>,
    /// The backends.
    pub backend_refs: Vec<HttpBackend>,
    /// Timeouts.
    pub timeouts: Option<HttpTimeouts>,
    /// Retries.
    pub retry: Option<RetryPolicy>,
}

/// Conditions on requests, all of which hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpMatch {
    /// On the path.
    pub path: Option<TypedPath>,
    /// On headers.
    pub headers: Vec<TypedValue>,
    /// On parameters of the query.
    pub query_params: Vec<TypedValue>,
    /// The method.
    pub method: Option<String>,
}

/// A condition on the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypedPath {
    /// `Exact`, `PathPrefix` (the default) or `RegularExpression`.
    pub r#type: Option<String>,
    /// What it is compared with; `/` if unset.
    pub value: Option<String>,
}

/// A condition on a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TypedValue {
    /// `Exact` (the default) or `RegularExpression`.
    pub r#type: Option<String>,
    /// The name.
    pub name: String,
    /// What the value is compared with.
    pub value: String,
}

/// What happens to a request of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpFilter {
    /// Which of the fields is set.
    pub r#type: String,
    /// Changes to headers of requests.
    pub request_header_modifier: Option<HeaderFilter>,
    /// Changes to headers of responses.
    pub response_header_modifier: Option<HeaderFilter>,
    /// A backend that gets copies.
    pub request_mirror: Option<RequestMirror>,
    /// An answer that names another place.
    pub request_redirect: Option<Redirect>,
    /// Changes to host and path.
    pub url_rewrite: Option<UrlRewrite>,
    /// Which pages of other origins may send requests.
    pub cors: Option<Cors>,
}

/// What happens to a request for one of the backends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpBackendFilter {
    /// Which of the fields is set.
    pub r#type: String,
    /// Changes to headers of requests.
    pub request_header_modifier: Option<HeaderFilter>,
    /// Changes to headers of responses.
    pub response_header_modifier: Option<HeaderFilter>,
}

/// Changes to headers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HeaderFilter {
    /// In place of existing values.
    pub set: Vec<Header>,
    /// After existing values.
    pub add: Vec<Header>,
    /// Removed.
    pub remove: Vec<String>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Header {
    /// The name.
    pub name: String,
    /// The value.
    pub value: String,
}

/// A backend that gets copies of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestMirror {
    /// The backend.
    pub backend_ref: BackendReference,
    /// How many; all if neither is set.
    pub percent: Option<u32>,
    /// How many.
    pub fraction: Option<Fraction>,
}

/// A part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Fraction {
    /// So many
    pub numerator: u64,
    /// of so many; of a hundred if unset.
    pub denominator: Option<u64>,
}

/// An answer that names another place.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Redirect {
    /// The scheme; the request's if unset.
    pub scheme: Option<String>,
    /// The host; the request's if unset.
    pub hostname: Option<String>,
    /// The path; the request's if unset.
    pub path: Option<PathModifier>,
    /// The port.
    pub port: Option<u16>,
    /// The status; 302 if unset.
    pub status_code: Option<u16>,
}

/// A change to the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    pub r#type: String,
    /// The new path.
    pub replace_full_path: Option<String>,
    /// What takes the place of the path of the rule's condition.
    pub replace_prefix_match: Option<String>,
}

/// Changes to host and path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UrlRewrite {
    /// The new host.
    pub hostname: Option<String>,
    /// The change to the path.
    pub path: Option<PathModifier>,
}

/// Which pages of other origins may send requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Cors {
    /// The origins, in which `*` stands for anything.
    pub allow_origins: Vec<String>,
    /// Whether with cookies.
    pub allow_credentials: Option<bool>,
    /// The methods, `*` for all.
    pub allow_methods: Vec<String>,
    /// Headers of requests, `*` for all.
    pub allow_headers: Vec<String>,
    /// Headers of responses that pages may read.
    pub expose_headers: Vec<String>,
    /// How long this is known, in seconds; 5 if unset.
    pub max_age: Option<u32>,
}

/// A backend of an HTTPRoute and its share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpBackend {
    /// The backend.
    #[serde(flatten)]
    pub backend: BackendReference,
    /// The share; 1 if unset.
    pub weight: Option<i64>,
    /// What happens to its requests.
    pub filters: Vec<HttpBackendFilter>,
}

/// Timeouts, as in `500ms`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpTimeouts {
    /// Until the complete response.
    pub request: Option<String>,
    /// The same, of one try.
    pub backend_request: Option<String>,
}

/// Retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RetryPolicy {
    /// After these statuses.
    pub codes: Vec<u32>,
    /// How often.
    pub attempts: Option<u32>,
    /// The pause before the first.
    pub backoff: Option<String>,
}

/// A GRPCRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRoute {
    /// The gateways.
    pub parent_refs: Vec<ParentReference>,
    /// The hosts; all of the listener if empty.
    pub hostnames: Vec<String>,
    /// The rules.
    pub rules: Vec<GrpcRule>,
}

/// A rule of a GRPCRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcRule {
    /// Its name.
    pub name: Option<String>,
    /// Conditions, one of which holds; every request if empty.
    pub matches: Vec<GrpcMatch>,
    /// What happens before a request is forwarded.
    pub filters: Vec<GrpcFilter>,
    /// The backends.
    pub backend_refs: Vec<HttpBackend>,
}

/// Conditions on calls, all of which hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMatch {
    /// On the method.
    pub method: Option<GrpcMethod>,
    /// On headers.
    pub headers: Vec<TypedValue>,
}

/// A condition on the method.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcMethod {
    /// `Exact` (the default) or `RegularExpression`.
    pub r#type: Option<String>,
    /// The service; all if unset.
    pub service: Option<String>,
    /// The method; all if unset.
    pub method: Option<String>,
}

/// What happens to a call of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GrpcFilter {
    /// Which of the fields is set.
    pub r#type: String,
    /// Changes to headers of requests.
    pub request_header_modifier: Option<HeaderFilter>,
    /// Changes to headers of responses.
    pub response_header_modifier: Option<HeaderFilter>,
    /// A backend that gets copies.
    pub request_mirror: Option<RequestMirror>,
}
