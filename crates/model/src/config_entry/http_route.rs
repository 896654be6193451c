//! `http-route`: routes HTTP requests from an API gateway to services.

use std::collections::BTreeMap;
use std::time::Duration;

use legate_filter::re2;
use serde::{Deserialize, Serialize};

use super::entry::{Entry, EntryRights, entry};
use super::gateway_tls::is_host_name;
use super::header_modifiers::HeaderModifiers;
use super::reference::{ResourceReference, Status, normalise_parents, validate_parents};
use super::service_router::METHODS;
use crate::invalid::Invalid;
use crate::json::shown::null_if_empty;
use crate::jwt_requirement::JwtRequirement;
use crate::tenancy::TenancyName;
use crate::{duration, meta, name};

entry! {
    /// Routes HTTP requests to services.
    pub struct HttpRoute {
        /// Its name.
        pub name: String,
        /// The gateways or gateway listeners that it attaches to.
        #[serde(serialize_with = "null_if_empty")]
        pub parents: Vec<ResourceReference>,
        /// The rules.
        #[serde(serialize_with = "null_if_empty")]
        pub rules: Vec<HttpRouteRule>,
        /// Host names that requests must have; empty matches any.
        #[serde(serialize_with = "null_if_empty")]
        pub hostnames: Vec<String>,
        /// Status, computed when the entry is read.
        pub status: Status,
    }
}

/// Routes matching requests to services.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteRule {
    /// Changes to requests.
    pub filters: HttpRouteFilters,
    /// Changes to responses.
    pub response_filters: HttpRouteResponseFilters,
    /// Matching conditions; one must hold. Empty matches every request.
    #[serde(serialize_with = "null_if_empty")]
    pub matches: Vec<HttpRouteMatch>,
    /// Target services.
    #[serde(serialize_with = "null_if_empty")]
    pub services: Vec<HttpRouteService>,
}

/// Conditions on a request, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteMatch {
    /// Conditions on headers.
    #[serde(serialize_with = "null_if_empty")]
    pub headers: Vec<HttpRouteValueMatch>,
    /// Required method; empty matches any.
    pub method: String,
    /// Condition on the path; empty matches any.
    pub path: HttpRoutePathMatch,
    /// Conditions on query parameters.
    #[serde(serialize_with = "null_if_empty")]
    pub query: Vec<HttpRouteValueMatch>,
}

/// Condition on a header or a query parameter.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteValueMatch {
    /// `exact`, `present`, `regex`; for headers also `prefix`, `suffix`.
    pub r#match: String,
    /// Name of the header or parameter.
    pub name: String,
    /// Value to compare with.
    pub value: String,
}

/// Condition on a path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRoutePathMatch {
    /// `exact`, `prefix` or `regex`.
    pub r#match: String,
    /// Value to compare with.
    pub value: String,
}

/// Changes to requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteFilters {
    /// Changes to headers.
    #[serde(serialize_with = "null_if_empty")]
    pub headers: Vec<HttpRouteHeaders>,
    /// Change to the path.
    #[serde(rename = "URLRewrite")]
    pub url_rewrite: Option<UrlRewrite>,
    /// Retry policy.
    pub retry_filter: Option<RetryFilter>,
    /// Timeouts.
    pub timeout_filter: Option<TimeoutFilter>,
    /// The token that requests must carry. Consul Enterprise only.
    #[serde(rename = "JWT")]
    pub jwt: Option<JwtRequirement>,
}

/// Changes to responses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteResponseFilters {
    /// Changes to headers.
    #[serde(serialize_with = "null_if_empty")]
    pub headers: Vec<HttpRouteHeaders>,
}

/// Changes to headers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteHeaders {
    /// Appended after existing values.
    pub add: Option<BTreeMap<String, String>>,
    /// Names of removed headers.
    #[serde(serialize_with = "null_if_empty")]
    pub remove: Vec<String>,
    /// Set in place of existing values.
    pub set: Option<BTreeMap<String, String>>,
}

/// A change to the path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct UrlRewrite {
    /// Replacement for the matched prefix.
    pub path: String,
}

/// Retry policy of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RetryFilter {
    /// The maximum number of retries.
    pub num_retries: u32,
    /// Envoy's retry conditions.
    #[serde(serialize_with = "null_if_empty")]
    pub retry_on: Vec<String>,
    /// Response statuses that are retried.
    #[serde(serialize_with = "null_if_empty")]
    pub retry_on_status_codes: Vec<u32>,
    /// Whether connection failures are retried.
    pub retry_on_connect_failure: bool,
}

/// Timeouts of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TimeoutFilter {
    /// Timeout for the complete response.
    #[serde(with = "duration::nanos")]
    pub request_timeout: Duration,
    /// Timeout without data.
    #[serde(with = "duration::nanos")]
    pub idle_timeout: Duration,
}

/// A target service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct HttpRouteService {
    /// Its name.
    pub name: String,
    /// Share of the requests, relative to the other services' weights; at least 1.
    pub weight: i64,
    /// Changes to requests.
    pub filters: HttpRouteFilters,
    /// Changes to responses.
    pub response_filters: HttpRouteResponseFilters,
    /// Namespace; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; empty means the entry's own.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
}

impl Entry for HttpRoute {
    const RIGHTS: EntryRights = EntryRights::MeshOnly;

    /// With Consul's error texts.
    fn validate(&self) -> Result<(), Invalid> {
        name::validate_entry_name(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        for (at, host) in self.hostnames.iter().enumerate() {
            let refused = |reason: String| Err(Invalid::new(format!("Hostnames[{at}]"), reason));
            if host.contains('*') {
                return refused(format!("host {host:?} must not be a wildcard"));
            }
            if !is_host_name(host) {
                return refused(format!("host {host:?} must be a valid DNS hostname"));
            }
        }
        validate_parents(&self.parents)?;
        meta::validate_entry("Meta", &self.meta)?;
        for (at, rule) in self.rules.iter().enumerate() {
            rule.validate()
                .map_err(|error| error.within(format_args!("Rules[{at}]")))?;
        }
        Ok(())
    }

    fn normalise(&mut self) {
        normalise_parents(&mut self.parents);
        for rule in &mut self.rules {
            for one in &mut rule.matches {
                one.method = one.method.to_uppercase();
                if one.path.r#match.is_empty() {
                    one.path = HttpRoutePathMatch {
                        r#match: "prefix".to_owned(),
                        value: "/".to_owned(),
                    };
                }
            }
            for service in &mut rule.services {
                service.weight = service.weight.max(1);
            }
        }
    }
}

impl HttpRouteRule {
    fn validate(&self) -> Result<(), Invalid> {
        validate_filters(&self.filters, &self.response_filters)?;
        for (at, one) in self.matches.iter().enumerate() {
            one.validate()
                .map_err(|error| error.within(format_args!("Matches[{at}]")))?;
        }
        for (at, service) in self.services.iter().enumerate() {
            validate_filters(&service.filters, &service.response_filters)
                .map_err(|error| error.within(format_args!("Services[{at}]")))?;
        }
        Ok(())
    }
}

fn validate_filters(
    request: &HttpRouteFilters,
    response: &HttpRouteResponseFilters,
) -> Result<(), Invalid> {
    if let Some(jwt) = &request.jwt {
        jwt.validate()
            .map_err(|error| error.within("Filters.JWT"))?;
    }
    for (field, all) in [
        ("Filters", &request.headers),
        ("ResponseFilters", &response.headers),
    ] {
        for (at, headers) in all.iter().enumerate() {
            // Consul leaves this to Envoy, which refuses the listener then.
            let valid = headers.modifiers().validate();
            valid.map_err(|error| error.within(format_args!("{field}.Headers[{at}]")))?;
        }
    }
    Ok(())
}

impl HttpRouteHeaders {
    /// These changes as those of other entries.
    pub fn modifiers(&self) -> HeaderModifiers {
        HeaderModifiers {
            add: self.add.clone().unwrap_or_default(),
            set: self.set.clone().unwrap_or_default(),
            remove: self.remove.clone(),
        }
    }
}

impl HttpRouteMatch {
    fn validate(&self) -> Result<(), Invalid> {
        let method = self.method.to_uppercase();
        if !method.is_empty() && !METHODS.contains(&method.as_str()) {
            let reason = format!("Method contains an invalid method {method:?}");
            return Err(Invalid::new("Method", reason));
        }
        for (at, query) in self.query.iter().enumerate() {
            query
                .validate(&["present", "exact", "regex"])
                .map_err(|error| error.within(format_args!("Query[{at}]")))?;
        }
        for (at, header) in self.headers.iter().enumerate() {
            header
                .validate(&["present", "exact", "prefix", "suffix", "regex"])
                .map_err(|error| error.within(format_args!("Headers[{at}]")))?;
        }
        self.path.validate().map_err(|error| error.within("Path"))
    }
}

impl HttpRouteValueMatch {
    fn validate(&self, types: &[&str]) -> Result<(), Invalid> {
        if self.name.is_empty() {
            return Err(Invalid::new("Name", "missing required Name field"));
        }
        validate_type(&self.r#match, types)?;
        validate_regex(&self.r#match, &self.value)
    }
}

impl HttpRoutePathMatch {
    fn validate(&self) -> Result<(), Invalid> {
        let how = self.r#match.as_str();
        if how.is_empty() {
            return Ok(());
        }
        validate_type(how, &["exact", "prefix", "regex"])?;
        if how != "regex" && !self.value.starts_with('/') {
            let reason = format!("{how} type match doesn't start with '/': {:?}", self.value);
            return Err(Invalid::new("Value", reason));
        }
        validate_regex(how, &self.value)
    }
}

fn validate_type(how: &str, types: &[&str]) -> Result<(), Invalid> {
    if types.contains(&how) {
        return Ok(());
    }
    let (last, others) = types.split_last().unwrap_or((&"", &[]));
    Err(Invalid::new(
        "Match",
        format!(
            "match type should be one of {}, or {last}",
            others.join(", ")
        ),
    ))
}

/// Refuses invalid expressions early. Consul leaves this to Envoy.
fn validate_regex(how: &str, value: &str) -> Result<(), Invalid> {
    match how {
        "regex" => re2::validate(value).map_err(|reason| Invalid::new("Value", reason)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_to_headers_that_envoy_refuses_are_refused() {
        let check = |headers: serde_json::Value| {
            let services = json!([{"Name": "a", "ResponseFilters": {"Headers": [{}, headers]}}]);
            let rules = json!([{"Filters": {"Headers": [headers]}}, {"Services": services}]);
            let mut found = Vec::new();
            for rule in rules.as_array().unwrap() {
                let rule: HttpRouteRule = serde_json::from_value(rule.clone()).unwrap();
                found.push(rule.validate().map_err(|error| error.to_string()));
            }
            found
        };
        for valid in [
            json!({}),
            json!({"Add": {"x-a": "%REQ(x)%"}, "Set": {"x": ""}, "Remove": ["x"]}),
        ] {
            assert_eq!(check(valid), [Ok(()), Ok(())]);
        }
        for invalid in [
            json!({"Remove": [":method"]}),
            json!({"Remove": ["x", "Host"]}),
            json!({"Set": {"": "a"}}),
            json!({"Add": {"x": "%"}}),
        ] {
            let [first, second] = check(invalid).try_into().unwrap();
            let first = first.unwrap_err();
            assert!(first.contains("Filters.Headers[0]."), "{first}");
            let second = second.unwrap_err();
            assert!(
                second.contains("Services[0].ResponseFilters.Headers[1]."),
                "{second}"
            );
        }
    }
}
