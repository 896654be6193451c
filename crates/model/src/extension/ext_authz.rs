//! `builtin/ext-authz`: another program decides about requests or connections.

use legate_filter::re2;
use serde::{Deserialize, Serialize};

use super::direction::{Direction, validate_proxy_type};
use super::target::{GrpcService, HeaderValue, Target};
use crate::format_string;
use crate::invalid::Invalid;

/// The answers that Envoy can give when nobody decided: its `envoy.type.v3.StatusCode`.
const STATUS_CODES: [i64; 56] = [
    100, 200, 201, 202, 203, 204, 205, 206, 207, 208, 226, 300, 301, 302, 303, 304, 305, 307, 308,
    400, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 413, 414, 415, 416, 417, 421,
    422, 423, 424, 426, 428, 429, 431, 500, 501, 502, 503, 504, 505, 506, 507, 508, 510, 511,
];

/// The arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtAuthz {
    /// `connect-proxy`, or left out.
    pub proxy_type: String,
    /// The listeners that it is for; inbound when it is left out.
    pub listener_type: Direction,
    /// Where the filter stands among the others.
    pub insert_options: InsertOptions,
    /// Who decides, and about what.
    pub config: ExtAuthzConfig,
}

/// Where a filter stands among the others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct InsertOptions {
    /// The place.
    pub location: InsertLocation,
    /// The filter that the place is about.
    pub filter_name: String,
}

/// A place among filters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InsertLocation {
    /// Before the last filter, which serves the request or the connection.
    #[default]
    #[serde(rename = "")]
    Default,
    /// Before all others, access rules included.
    First,
    /// After all others, which Envoy takes from no filter.
    Last,
    /// Before the first filter of the name.
    BeforeFirstMatch,
    /// After the first filter of the name.
    AfterFirstMatch,
    /// Before the last filter of the name.
    BeforeLastMatch,
    /// After the last filter of the name.
    AfterLastMatch,
}

/// Who decides, and about what. Exactly one of the services is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtAuthzConfig {
    /// The key of the proxy's own metadata whose labels are sent along.
    pub bootstrap_metadata_labels_key: String,
    /// Routes are chosen again after the decision.
    pub clear_route_cache: bool,
    /// It is asked by gRPC.
    pub grpc_service: Option<GrpcService>,
    /// It is asked by HTTP.
    pub http_service: Option<HttpService>,
    /// The caller's certificate is sent along.
    pub include_peer_certificate: bool,
    /// The metadata that is sent along, besides `consul`.
    pub metadata_context_namespaces: Vec<String>,
    /// The answer when nobody decided; `None` is Envoy's 403.
    pub status_on_error: Option<i64>,
    /// In statistics; empty is `response`.
    pub stat_prefix: String,
    /// The request's body is sent along.
    pub with_request_body: Option<BodyBuffer>,
}

/// How much of a request's body is sent along.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct BodyBuffer {
    /// At most so many bytes.
    pub max_request_bytes: u32,
    /// The beginning of a longer one is sent; otherwise it is refused.
    pub allow_partial_message: bool,
    /// As bytes, and not as a text.
    pub pack_as_bytes: bool,
}

/// A service that speaks HTTP.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpService {
    /// Where it is.
    pub target: Target,
    /// Stands before the path of the request that is decided about.
    pub path_prefix: String,
    /// What it is asked.
    pub authorization_request: AuthorizationRequest,
    /// What of its answers goes where.
    pub authorization_response: AuthorizationResponse,
}

/// What the deciding service is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthorizationRequest {
    /// Headers of the request that it gets, besides those that Envoy always sends.
    pub allowed_headers: Vec<StringMatcher>,
    /// Headers that it gets besides.
    pub headers_to_add: Vec<HeaderValue>,
}

/// What of the answers goes where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthorizationResponse {
    /// Headers that replace those of the request.
    pub allowed_upstream_headers: Vec<StringMatcher>,
    /// Headers that are added to those of the request.
    pub allowed_upstream_headers_to_append: Vec<StringMatcher>,
    /// Headers that the caller gets with a refusal.
    pub allowed_client_headers: Vec<StringMatcher>,
    /// Headers that the caller gets with the response.
    pub allowed_client_headers_on_success: Vec<StringMatcher>,
    /// Headers that become metadata of the request.
    pub dynamic_metadata_from_headers: Vec<StringMatcher>,
}

/// A header's name, by exactly one of its fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct StringMatcher {
    /// Is in it.
    pub contains: String,
    /// Is it.
    pub exact: String,
    /// Letters are compared in any case; not for `SafeRegex`.
    pub ignore_case: bool,
    /// It begins with this.
    pub prefix: String,
    /// An RE2 expression for all of it.
    pub safe_regex: String,
    /// It ends with this.
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

    /// What is called.
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
