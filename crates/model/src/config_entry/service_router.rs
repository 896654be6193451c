//! `service-router`: routes a service's HTTP requests.

use std::collections::BTreeSet;

use legate_filter::re2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::header_modifiers::{HeaderModifiers, validate_both};
use super::service_resolver::{validate_destination, validate_single};
use crate::duration::GoDuration;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::schema;
use crate::tenancy::{ServiceReference, TenancyName};
use crate::{meta, name};

/// The maximum number of routes; each is a route in every caller's proxy.
const MAX_ROUTES: usize = 1_000;

/// HTTP methods that can be matched.
pub(super) const METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE",
];

/// Envoy's retry conditions.
const RETRY_CONDITIONS: [&str; 12] = [
    "5xx",
    "gateway-error",
    "reset",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

entry! {
    /// Routes a service's HTTP requests.
    #[derive(JsonSchema)]
    pub struct ServiceRouter {
        /// Name of the service.
        pub name: String,
        /// The first matching route applies; requests without a match are routed to the service itself.
        #[schemars(length(max = 512))]
        pub routes: Vec<Route>,
    }
}

/// A route for matching requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!{destination.prefixRewrite} || {match.http.pathPrefix} || {match.http.pathExact}",
        "destination.prefixRewrite needs match.http.pathPrefix or match.http.pathExact",
    ),
]))]
pub struct Route {
    /// Match conditions; unset matches all requests.
    #[serde(rename = "Match", skip_serializing_if = "Option::is_none")]
    pub matched: Option<RouteMatch>,
    /// Destination; unset means the service itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<RouteDestination>,
}

/// Match conditions of a route.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RouteMatch {
    /// Conditions on HTTP requests.
    #[serde(rename = "HTTP", skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpMatch>,
}

/// Conditions on a request, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::at_most_one(&["pathExact", "pathPrefix", "pathRegex"]),
]))]
pub struct HttpMatch {
    /// The whole path, without the query.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_exact: String,
    /// Prefix of the path.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_prefix: String,
    /// A regular expression that the whole path must match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_regex: String,
    /// Whether exact paths and prefixes ignore case.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub case_insensitive: bool,
    /// Conditions on headers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub header: Vec<HeaderMatch>,
    /// Conditions on query parameters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub query_param: Vec<QueryParamMatch>,
    /// Accepted methods; empty accepts any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub methods: Vec<String>,
}

/// A condition on one header; exactly one kind of match is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
pub struct HeaderMatch {
    /// The header's name.
    pub name: String,
    /// Whether the header must be present, with any value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub present: bool,
    /// Exact value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exact: String,
    /// Prefix of the value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
    /// Suffix of the value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub suffix: String,
    /// A regular expression that the whole value must match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub regex: String,
    /// Whether the condition is inverted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub invert: bool,
}

/// A condition on one query parameter; exactly one kind of match is set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("required" = ["Name"]))]
pub struct QueryParamMatch {
    /// The parameter's name.
    pub name: String,
    /// Whether the parameter must be present, with any value.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub present: bool,
    /// Exact value.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exact: String,
    /// A regular expression that the whole value must match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub regex: String,
}

/// Destination of requests, with timeouts and retries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RouteDestination {
    /// Name of the service; empty means the router's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Subset of the service. If empty, the service's splitter and default subset apply.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub service_subset: String,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Replacement for the matched path or prefix.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix_rewrite: String,
    /// Timeout of a request including retries; 0 means the resolver's timeout, or Envoy's 15 seconds.
    /// A negative value disables it, as in Consul.
    #[serde(skip_serializing_if = "GoDuration::is_zero")]
    pub request_timeout: GoDuration,
    /// Timeout without data in either direction; 0 means Envoy's 5 minutes. A negative value disables
    /// it, as in Consul.
    #[serde(skip_serializing_if = "GoDuration::is_zero")]
    pub idle_timeout: GoDuration,
    /// The maximum number of retries; 0 means one if a retry condition is set.
    #[serde(skip_serializing_if = "is_zero")]
    pub num_retries: u32,
    /// Whether connection failures are retried.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub retry_on_connect_failure: bool,
    /// Envoy's retry conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub retry_on: Vec<String>,
    /// Response statuses that are retried.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub retry_on_status_codes: Vec<u32>,
    /// Changes to request headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_headers: Option<HeaderModifiers>,
    /// Changes to response headers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_headers: Option<HeaderModifiers>,
}

impl Entry for ServiceRouter {
    const RIGHTS: EntryRights = EntryRights::Service;

    fn destinations(&self) -> Vec<ServiceReference<'_>> {
        let to = self
            .routes
            .iter()
            .filter_map(|route| route.destination.as_ref());
        to.map(|to| ServiceReference {
            service: &to.service,
            partition: &to.partition,
            namespace: &to.namespace,
        })
        .collect()
    }

    fn validate(&self) -> Result<(), Invalid> {
        name::validate_service_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        meta::validate_entry("Meta", &self.meta)?;
        if self.routes.len() > MAX_ROUTES {
            let reason = format!("at most {MAX_ROUTES} routes can be given");
            return Err(Invalid::new("Routes", reason));
        }
        let mut routes = self.routes.iter().enumerate();
        routes.try_for_each(|(at, route)| {
            route
                .validate()
                .map_err(|error| error.within(format_args!("Routes[{at}]")))
        })
    }

    fn normalise(&mut self) {
        let matches = self.routes.iter_mut().filter_map(|route| {
            let matched = route.matched.as_mut()?;
            matched.http.as_mut()
        });
        for http in matches {
            for method in &mut http.methods {
                method.make_ascii_uppercase();
            }
        }
    }
}

impl Route {
    fn validate(&self) -> Result<(), Invalid> {
        let http = self.matched.as_ref().and_then(|one| one.http.as_ref());
        if let Some(http) = http {
            http.validate()
                .map_err(|error| error.within("Match.HTTP"))?;
        }
        let Some(destination) = &self.destination else {
            return Ok(());
        };
        let rewritable =
            http.is_some_and(|http| !(http.path_exact.is_empty() && http.path_prefix.is_empty()));
        if !destination.prefix_rewrite.is_empty() && !rewritable {
            return Err(Invalid::new(
                "Destination.PrefixRewrite",
                "it needs Match.HTTP.PathExact or Match.HTTP.PathPrefix, whose place it takes",
            ));
        }
        destination
            .validate()
            .map_err(|error| error.within("Destination"))
    }
}

impl HttpMatch {
    fn validate(&self) -> Result<(), Invalid> {
        let paths = [
            ("PathExact", &self.path_exact),
            ("PathPrefix", &self.path_prefix),
        ];
        for (field, path) in paths {
            if !path.is_empty() && !path.starts_with('/') {
                let reason = format!("{path:?} must begin with a slash");
                return Err(Invalid::new(field, reason));
            }
        }
        validate_regex("PathRegex", &self.path_regex)?;
        let given = [&self.path_exact, &self.path_prefix, &self.path_regex];
        if given.iter().filter(|path| !path.is_empty()).count() > 1 {
            return Err(Invalid::new(
                "PathExact",
                "at most one of PathExact, PathPrefix and PathRegex can be given",
            ));
        }
        for (at, header) in self.header.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("Header[{at}]"));
            header.validate().map_err(within)?;
        }
        for (at, parameter) in self.query_param.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("QueryParam[{at}]"));
            parameter.validate().map_err(within)?;
        }
        let mut seen = BTreeSet::new();
        for method in &self.methods {
            let upper = method.to_ascii_uppercase();
            if !METHODS.contains(&upper.as_str()) {
                let reason = format!("{method:?} is not one of {}", METHODS.join(", "));
                return Err(Invalid::new("Methods", reason));
            }
            if !seen.insert(upper) {
                return Err(Invalid::new(
                    "Methods",
                    format!("{method:?} is given twice"),
                ));
            }
        }
        Ok(())
    }
}

impl HeaderMatch {
    fn validate(&self) -> Result<(), Invalid> {
        let texts = [&self.exact, &self.prefix, &self.suffix, &self.regex];
        let given = texts.iter().filter(|text| !text.is_empty()).count();
        validate_condition(
            &self.name,
            given + usize::from(self.present),
            "exactly one of Present, Exact, Prefix, Suffix and Regex must be given",
        )?;
        validate_regex("Regex", &self.regex)
    }
}

impl QueryParamMatch {
    fn validate(&self) -> Result<(), Invalid> {
        let texts = [&self.exact, &self.regex];
        let given = texts.iter().filter(|text| !text.is_empty()).count();
        validate_condition(
            &self.name,
            given + usize::from(self.present),
            "exactly one of Present, Exact and Regex must be given",
        )?;
        validate_regex("Regex", &self.regex)
    }
}

fn validate_condition(name: &str, given: usize, wanted: &str) -> Result<(), Invalid> {
    if name.is_empty() {
        return Err(Invalid::new("Name", "it must be given"));
    }
    if given != 1 {
        return Err(Invalid::new("Exact", wanted));
    }
    Ok(())
}

fn validate_regex(field: &str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Ok(());
    }
    re2::validate(text).map_err(|reason| Invalid::new(field, reason))
}

impl RouteDestination {
    fn validate(&self) -> Result<(), Invalid> {
        validate_destination(&self.service)?;
        for (field, name) in [
            ("Namespace", &self.namespace),
            ("Partition", &self.partition),
        ] {
            validate_single(name).map_err(|reason| Invalid::new(field, reason))?;
        }
        let known = |condition: &&String| RETRY_CONDITIONS.contains(&condition.as_str());
        if let Some(unknown) = self.retry_on.iter().find(|one| !known(one)) {
            let reason = format!("{unknown:?} is not one of {}", RETRY_CONDITIONS.join(", "));
            return Err(Invalid::new("RetryOn", reason));
        }
        let status = |code: &&u32| !(100..600).contains(*code);
        if let Some(code) = self.retry_on_status_codes.iter().find(status) {
            let reason = format!("{code} is not a status of HTTP: 100 to 599");
            return Err(Invalid::new("RetryOnStatusCodes", reason));
        }
        validate_both(
            self.request_headers.as_ref(),
            self.response_headers.as_ref(),
        )
    }

    /// Whether any retry setting is set.
    pub fn retries(&self) -> bool {
        self.num_retries > 0
            || self.retry_on_connect_failure
            || !self.retry_on.is_empty()
            || !self.retry_on_status_codes.is_empty()
    }
}
