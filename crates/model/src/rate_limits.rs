//! Request rate limits of a service's instances: `RateLimits` of `service-defaults`.
//!
//! These fields have an effect only in Consul Enterprise; the semantics here are the same.

use legate_filter::re2;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::schema;

/// Limits on request rates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RateLimits {
    /// Limits of each instance.
    pub instance_level: InstanceRateLimits,
}

/// Limits of each instance, for HTTP requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct InstanceRateLimits {
    /// Average requests per second; 0 means no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub requests_per_second: u32,
    /// The maximum burst of requests; 0 means the same as per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub requests_max_burst: u32,
    /// Limits by path, which replace those above. The first match applies.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub routes: Vec<RouteRateLimits>,
}

/// Limit of each instance for one path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::exactly_one(&["pathExact", "pathPrefix", "pathRegex"]),
]))]
pub struct RouteRateLimits {
    /// The exact path.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_exact: String,
    /// Prefix of the path.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(regex(pattern = schema::PATH))]
    pub path_prefix: String,
    /// Regular expression (RE2) that the whole path must match.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path_regex: String,
    /// Average requests per second.
    pub requests_per_second: u32,
    /// The maximum burst of requests; 0 means the same as per second.
    #[serde(skip_serializing_if = "is_zero")]
    pub requests_max_burst: u32,
}

impl RateLimits {
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        let all = &self.instance_level;
        let within = |error: Invalid| error.within("InstanceLevel");
        validate_burst(all.requests_per_second, all.requests_max_burst).map_err(within)?;
        for (i, route) in all.routes.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("InstanceLevel.Routes[{i}]"));
            route.validate().map_err(within)?;
        }
        Ok(())
    }
}

impl RouteRateLimits {
    fn validate(&self) -> Result<(), Invalid> {
        let paths = [&self.path_exact, &self.path_prefix, &self.path_regex];
        if paths.iter().filter(|path| !path.is_empty()).count() != 1 {
            return Err(Invalid::new(
                "PathExact",
                "exactly one of PathExact, PathPrefix, PathRegex must be set",
            ));
        }
        for (field, path) in [
            ("PathExact", &self.path_exact),
            ("PathPrefix", &self.path_prefix),
        ] {
            if !path.is_empty() && !path.starts_with('/') {
                return Err(Invalid::new(field, format!("{path:?} must start with /")));
            }
        }
        re2::validate(&self.path_regex).map_err(|reason| Invalid::new("PathRegex", reason))?;
        if self.requests_per_second == 0 {
            return Err(Invalid::new("RequestsPerSecond", "it must be at least 1"));
        }
        validate_burst(self.requests_per_second, self.requests_max_burst)
    }
}

fn validate_burst(per_second: u32, burst: u32) -> Result<(), Invalid> {
    if burst != 0 && burst < per_second {
        return Err(Invalid::new(
            "RequestsMaxBurst",
            format!("{burst} is below RequestsPerSecond, {per_second}"),
        ));
    }
    if burst != 0 && per_second == 0 {
        return Err(Invalid::new(
            "RequestsPerSecond",
            "it must be set where RequestsMaxBurst is",
        ));
    }
    Ok(())
}
