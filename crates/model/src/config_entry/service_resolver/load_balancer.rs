//! Load balancing between a service's instances.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;
use crate::invalid::Invalid;
use crate::json::shown::is_zero;
use crate::schema;

/// Envoy's limit, which is also its default maximum.
const LARGEST_RING: u64 = 8 * 1024 * 1024;
/// Envoy's default minimum.
const SMALLEST_RING: u64 = 1024;

/// How callers choose an instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LoadBalancer {
    /// The policy.
    #[serde(skip_serializing_if = "LoadBalancerPolicy::is_default")]
    pub policy: LoadBalancerPolicy,
    /// With `ring_hash` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ring_hash_config: Option<RingHashConfig>,
    /// With `least_request` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub least_request_config: Option<LeastRequestConfig>,
    /// The request attributes that are hashed; with `ring_hash` and `maglev` only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub hash_policies: Vec<HashPolicy>,
}

/// A load balancing policy of Envoy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoadBalancerPolicy {
    /// Unset, which means round robin.
    #[default]
    #[serde(rename = "")]
    Default,
    /// A random instance.
    Random,
    /// Each instance in turn.
    RoundRobin,
    /// The one with the fewest active requests among some that are chosen at random.
    LeastRequest,
    /// By a hash of the request, with a hash ring.
    RingHash,
    /// By a hash of the request, with a Maglev table.
    Maglev,
}

impl LoadBalancerPolicy {
    fn is_default(&self) -> bool {
        *self == LoadBalancerPolicy::Default
    }
}

/// Ring size of `ring_hash`; 0 means Envoy's default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RingHashConfig {
    /// The minimum number of entries; Envoy's default is 1024.
    #[serde(skip_serializing_if = "is_zero")]
    pub minimum_ring_size: u64,
    /// The maximum number of entries; Envoy's default is 8 million.
    #[serde(skip_serializing_if = "is_zero")]
    pub maximum_ring_size: u64,
}

/// Settings of `least_request`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct LeastRequestConfig {
    /// How many instances are compared, at least 2; 0 means Envoy's default, 2.
    pub choice_count: u32,
}

/// A request attribute that is hashed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!({field} && has(self.sourceIP) && self.sourceIP)",
        "only one of field and sourceIP can be given",
    ),
    schema::rule("!{field} || {fieldValue}", "field needs fieldValue"),
]))]
pub struct HashPolicy {
    /// Kind of the attribute.
    #[serde(skip_serializing_if = "HashField::is_none")]
    pub field: HashField,
    /// Name of the header, cookie or parameter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field_value: String,
    /// Sets a cookie if the request has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie_config: Option<CookieConfig>,
    /// Whether the caller's address is hashed instead of a field.
    #[serde(rename = "SourceIP", skip_serializing_if = "std::ops::Not::not")]
    pub source_ip: bool,
    /// Whether the remaining policies are skipped if this one yields a hash.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
}

/// Kind of a hashed attribute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HashField {
    /// None; used with the caller's address.
    #[default]
    #[serde(rename = "")]
    None,
    /// A header.
    Header,
    /// A cookie.
    Cookie,
    /// A query parameter.
    QueryParameter,
}

impl HashField {
    fn is_none(&self) -> bool {
        *self == HashField::None
    }
}

/// A cookie that Envoy generates.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
#[schemars(extend("x-kubernetes-validations" = [
    schema::rule(
        "!(has(self.session) && self.session && has(self.ttl) && self.ttl != '0s' && self.ttl != \
         '0')",
        "only one of session and ttl can be given",
    ),
]))]
pub struct CookieConfig {
    /// Whether it is a session cookie.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub session: bool,
    /// Lifetime of the cookie.
    #[serde(
        rename = "TTL",
        with = "duration::nanos",
        skip_serializing_if = "Duration::is_zero"
    )]
    #[schemars(with = "duration::Unsigned")]
    pub ttl: Duration,
    /// Path of the cookie.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

impl LoadBalancer {
    /// Whether equal requests are routed to the same instance.
    pub fn is_hash_based(&self) -> bool {
        use LoadBalancerPolicy::{Maglev, RingHash};
        matches!(self.policy, RingHash | Maglev)
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that is not valid for the policy.
    pub(super) fn validate(&self) -> Result<(), Invalid> {
        let refused = |field, wanted| {
            let reason = format!("it is specified for an incompatible policy: it needs {wanted}");
            Err(Invalid::new(field, reason))
        };
        if self.ring_hash_config.is_some() && self.policy != LoadBalancerPolicy::RingHash {
            return refused("RingHashConfig", "ring_hash");
        }
        if let Some(ring) = &self.ring_hash_config {
            ring.validate()
                .map_err(|error| error.within("RingHashConfig"))?;
        }
        if let Some(config) = &self.least_request_config
            && config.choice_count == 1
        {
            let reason = "it must be at least 2: Envoy compares instances";
            return Err(Invalid::new("LeastRequestConfig.ChoiceCount", reason));
        }
        if self.least_request_config.is_some() && self.policy != LoadBalancerPolicy::LeastRequest {
            return refused("LeastRequestConfig", "least_request");
        }
        if !self.hash_policies.is_empty() && !self.is_hash_based() {
            return refused("HashPolicies", "ring_hash or maglev");
        }
        let mut policies = self.hash_policies.iter().enumerate();
        policies.try_for_each(|(at, policy)| {
            policy
                .validate()
                .map_err(|error| error.within(format_args!("HashPolicies[{at}]")))
        })
    }
}

impl RingHashConfig {
    fn validate(&self) -> Result<(), Invalid> {
        for (field, size) in [
            ("MinimumRingSize", self.minimum_ring_size),
            ("MaximumRingSize", self.maximum_ring_size),
        ] {
            if size > LARGEST_RING {
                let reason =
                    format!("{size} is above {LARGEST_RING}, which is Envoy's largest ring");
                return Err(Invalid::new(field, reason));
            }
        }
        let or = |size, default| if size == 0 { default } else { size };
        let minimum = or(self.minimum_ring_size, SMALLEST_RING);
        if or(self.maximum_ring_size, LARGEST_RING) < minimum {
            let reason = format!(
                "{} is below MinimumRingSize, {minimum}; without one it is {SMALLEST_RING}",
                self.maximum_ring_size
            );
            return Err(Invalid::new("MaximumRingSize", reason));
        }
        Ok(())
    }
}

impl HashPolicy {
    fn validate(&self) -> Result<(), Invalid> {
        let refused = |field, reason| Err(Invalid::new(field, reason));
        if self.source_ip && !(self.field.is_none() && self.field_value.is_empty()) {
            return refused(
                "SourceIP",
                "a single hash policy cannot hash both a source address and a field",
            );
        }
        if !self.field.is_none() && self.field_value.is_empty() {
            return refused("FieldValue", "Field was specified without a FieldValue");
        }
        if self.field.is_none() && !self.field_value.is_empty() {
            return refused("Field", "FieldValue requires a Field to apply to");
        }
        let Some(cookie) = &self.cookie_config else {
            return Ok(());
        };
        if self.field != HashField::Cookie {
            return refused("CookieConfig", "it needs Field to be cookie");
        }
        if cookie.session && !cookie.ttl.is_zero() {
            return refused(
                "CookieConfig.TTL",
                "a session cookie cannot have an associated TTL",
            );
        }
        Ok(())
    }
}
