//! `builtin/ext-authz`: an external service authorizes requests or connections.

use legate_filter::re2;
use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use super::target::{GrpcService, HeaderValue, Target};
use crate::format_string;
use crate::invalid::Invalid;

/// Statuses that Envoy can return when authorization fails: its `envoy.type.v3.StatusCode`.
const STATUS_CODES: [i64; 56] = [
    100, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308,
    400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 421,
    422, 423, 424, 426, 428, 429, 431, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511,
];

/// Arguments of the extension.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtAuthz {
    /// `connect-proxy` or empty.
    pub proxy_type: String,
    /// Listeners that it applies to; the default is inbound.
    pub listener_type: Direction,
    /// Position of the filter in the filter chain.
    pub insert_options: InsertOptions,
    /// The authorization service and its settings.
    pub config: ExtAuthzConfig,
}

/// Position of a filter in the filter chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InsertOptions {
    /// The location.
    pub location: InsertLocation,
    /// Name of the filter that the location refers to.
    pub filter_name: String,
}

/// A location in the filter chain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InsertLocation {
    /// Before the terminal filter.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Before all other filters, including those for intentions.
    First,
    /// After all other filters. Refused, since Envoy requires a terminal filter at the end.
    Last,
    /// Before the first filter with the name.
    BeforeFirstMatch,
    /// After the first filter with the name.
    AfterFirstMatch,
    /// Before the last filter with the name.
    BeforeLastMatch,
    /// After the last filter with the name.
    AfterLastMatch,
}

/// Settings of the authorization service. Exactly one of the two services is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtAuthzConfig {
    /// Key of the proxy's own metadata whose labels are sent with each request.
    pub bootstrap_metadata_labels_key: String,
    /// Whether the route is selected again after the authorization.
    pub clear_route_cache: bool,
    /// The authorization service, if it uses gRPC.
    pub grpc_service: Option<GrpcService>,
    /// The authorization service, if it uses HTTP.
    pub http_service: Option<HttpService>,
    /// Whether the caller's certificate is sent.
    pub include_peer_certificate: bool,
    /// Metadata namespaces that are sent, in addition to `consul`.
    pub metadata_context_namespaces: Vec<String>,
    /// Status of the response if the authorization service fails; `None` means Envoy's 403.
    pub status_on_error: Option<i64>,
    /// Prefix in statistics; empty means `response`.
    pub stat_prefix: String,
    /// Whether and how the request's body is sent.
    pub with_request_body: Option<BodyBuffer>,
}

/// How a request's body is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BodyBuffer {
    /// The maximum number of bytes.
    pub max_request_bytes: u32,
    /// Whether longer bodies are truncated instead of refused.
    pub allow_partial_message: bool,
    /// Whether the body is sent as bytes instead of text.
    pub pack_as_bytes: bool,
}

/// An HTTP authorization service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpService {
    /// Address of the service.
    pub target: Target,
    /// Prefix for the path of authorization requests.
    pub path_prefix: String,
    /// Contents of authorization requests.
    pub authorization_request: AuthorizationRequest,
    /// Handling of the responses.
    pub authorization_response: AuthorizationResponse,
}

/// Contents of authorization requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthorizationRequest {
    /// Headers of the original request that are sent, in addition to those that Envoy always sends.
    pub allowed_headers: Vec<StringMatcher>,
    /// Additional headers.
    pub headers_to_add: Vec<HeaderValue>,
}

/// Handling of the headers of authorization responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthorizationResponse {
    /// Headers that replace those of the original request.
    pub allowed_upstream_headers: Vec<StringMatcher>,
    /// Headers that are appended to those of the original request.
    pub allowed_upstream_headers_to_append: Vec<StringMatcher>,
    /// Headers that are added to the response of a refused request.
    pub allowed_client_headers: Vec<StringMatcher>,
    /// Headers that are added to the response of a permitted request.
    pub allowed_client_headers_on_success: Vec<StringMatcher>,
    /// Headers that are stored as dynamic metadata of the request.
    pub dynamic_metadata_from_headers: Vec<StringMatcher>,
}

/// Matches a header's name; exactly one of the texts is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StringMatcher {
    /// Substring of the name.
    pub contains: String,
    /// The exact name.
    pub exact: String,
    /// Whether case is ignored; not for `SafeRegex`.
    pub ignore_case: bool,
    /// Prefix of the name.
    pub prefix: String,
    /// RE2 expression that the whole name must match.
    pub safe_regex: String,
    /// Suffix of the name.
    pub suffix: String,
}

impl ExtAuthz {
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        validate_proxy_type(&self.proxy_type)?;
        let options = &self.insert_options;
        match options.location {
            InsertLocation::Last => {
                let reason = "Last is not served: Envoy takes no filter after the one that serves the \
                              request or the connection; use BeforeLastMatch with its name";
                return Err(Invalid::new("InsertOptions.Location", reason));
            }
            InsertLocation::Default | InsertLocation::First => {}
            _ if options.filter_name.is_empty() => {
                let reason = "it is required with this Location";
                return Err(Invalid::new("InsertOptions.FilterName", reason));
            }
            _ => {}
        }
        self.config
            .validate()
            .map_err(|error| error.within("Config"))
    }
}

impl ExtAuthzConfig {
    fn validate(&self) -> Result<(), Invalid> {
        match (&self.grpc_service, &self.http_service) {
            (Some(service), None) => service
                .validate()
                .map_err(|error| error.within("GrpcService"))?,
            (None, Some(service)) => service
                .validate()
                .map_err(|error| error.within("HttpService"))?,
            _ => {
                let reason = "exactly one of GrpcService or HttpService must be set";
                return Err(Invalid::new("GrpcService", reason));
            }
        }
        if let Some(code) = self.status_on_error
            && !STATUS_CODES.contains(&code)
        {
            let reason = format!("status code {code} is not supported by Envoy");
            return Err(Invalid::new("StatusOnError", reason));
        }
        match &self.with_request_body {
            Some(body) if body.max_request_bytes == 0 => Err(Invalid::new(
                "WithRequestBody.MaxRequestBytes",
                "it must be at least 1",
            )),
            _ => Ok(()),
        }
    }

    /// The target of the configured service.
    pub fn target(&self) -> Option<&Target> {
        let grpc = self.grpc_service.as_ref().map(|service| &service.target);
        grpc.or_else(|| self.http_service.as_ref().map(|service| &service.target))
    }
}

impl HttpService {
    fn validate(&self) -> Result<(), Invalid> {
        self.target
            .validate()
            .map_err(|error| error.within("Target"))?;
        if !self.path_prefix.is_empty() && !self.path_prefix.starts_with('/') {
            let reason = format!("{:?} must start with /", self.path_prefix);
            return Err(Invalid::new("PathPrefix", reason));
        }
        let request = &self.authorization_request;
        let response = &self.authorization_response;
        let matchers = [
            (
                "AuthorizationRequest.AllowedHeaders",
                &request.allowed_headers,
            ),
            (
                "AuthorizationResponse.AllowedUpstreamHeaders",
                &response.allowed_upstream_headers,
            ),
            (
                "AuthorizationResponse.AllowedUpstreamHeadersToAppend",
                &response.allowed_upstream_headers_to_append,
            ),
            (
                "AuthorizationResponse.AllowedClientHeaders",
                &response.allowed_client_headers,
            ),
            (
                "AuthorizationResponse.AllowedClientHeadersOnSuccess",
                &response.allowed_client_headers_on_success,
            ),
            (
                "AuthorizationResponse.DynamicMetadataFromHeaders",
                &response.dynamic_metadata_from_headers,
            ),
        ];
        for (field, matchers) in matchers {
            for (at, matcher) in matchers.iter().enumerate() {
                matcher
                    .validate()
                    .map_err(|error| error.within(format!("{field}[{at}]")))?;
            }
        }
        let field = "AuthorizationRequest.HeadersToAdd";
        for (at, header) in request.headers_to_add.iter().enumerate() {
            format_string::validate(&header.value)
                .map_err(|reason| Invalid::new(format!("{field}[{at}].Value"), reason))?;
        }
        HeaderValue::validate_all(field, &request.headers_to_add)
    }
}

impl StringMatcher {
    fn validate(&self) -> Result<(), Invalid> {
        let given = [
            &self.contains,
            &self.exact,
            &self.prefix,
            &self.safe_regex,
            &self.suffix,
        ];
        if given.iter().filter(|text| !text.is_empty()).count() != 1 {
            return Err(Invalid::new(
                "Exact",
                "exactly one of Contains, Exact, Prefix, SafeRegex or Suffix must be set",
            ));
        }
        re2::validate(&self.safe_regex).map_err(|reason| Invalid::new("SafeRegex", reason))
    }
}
