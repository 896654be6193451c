//! Settings of the `jwt` auth method, and what they ask of a token's claims.
//!
//! Signatures are verified by the caller with [`JwtConfig::keys`] and [`JwtConfig::algorithms`];
//! nothing here knows cryptography or the time.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Opaque;
use crate::acl::variables::Variables;
use crate::duration::GoDuration;
use crate::invalid::Invalid;
use crate::json;

const DEFAULT_LEEWAY: Duration = Duration::from_secs(150);
const DEFAULT_SKEW: Duration = Duration::from_secs(60);

/// A signature algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are those of RFC 7518, section 3.1")]
pub enum JwtAlgorithm {
    Rs256,
    Rs384,
    Rs512,
    Es256,
    Es384,
    Es512,
    Ps256,
    Ps384,
    Ps512,
}

/// Settings of the `jwt` auth method. Keys are given directly; fetching them is not served.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtConfig {
    /// Public keys in PEM, one of which must have signed.
    #[serde(rename = "JWTValidationPubKeys")]
    pub keys: Vec<String>,
    /// Algorithms that may have been used; empty means RS256 only.
    #[serde(rename = "JWTSupportedAlgs")]
    pub supported_algorithms: Vec<JwtAlgorithm>,
    /// What `iss` must be; empty means anything.
    pub bound_issuer: String,
    /// Of which `aud` must have one; empty means that `aud` must be absent.
    pub bound_audiences: Vec<String>,
    /// Claims that become `value.<name>`.
    pub claim_mappings: BTreeMap<String, String>,
    /// Claims that become `list.<name>`.
    pub list_claim_mappings: BTreeMap<String, String>,
    /// Validity after the later of `iat` and `nbf` when there is no `exp`: 150 s by default, none
    /// when negative.
    pub expiration_leeway: GoDuration,
    /// Validity before `exp` when there is neither `nbf` nor `iat`: 150 s by default, none when
    /// negative.
    pub not_before_leeway: GoDuration,
    /// Difference of clocks that is put up with: 60 s by default, none when negative.
    pub clock_skew_leeway: GoDuration,
}

/// Claims that are not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ClaimError(String);

impl JwtConfig {
    /// Reads the settings of an auth method.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first setting that is unknown or of the wrong type.
    pub fn from_map(config: &Opaque) -> Result<Self, Invalid> {
        for (key, instead) in [
            (
                "JWKSURL",
                "fetching keys from a URL is not served: give JWTValidationPubKeys",
            ),
            (
                "JWKSCACert",
                "fetching keys from a URL is not served: give JWTValidationPubKeys",
            ),
            (
                "OIDCDiscoveryURL",
                "OIDC discovery is not served: give JWTValidationPubKeys",
            ),
            (
                "OIDCDiscoveryCACert",
                "OIDC discovery is not served: give JWTValidationPubKeys",
            ),
        ] {
            let set = |value: &Value| !value.is_null() && value.as_str() != Some("");
            if config.get(key).is_some_and(set) {
                return Err(Invalid::new(key, instead));
            }
        }
        let mut own = config.clone();
        own.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
        json::from_value(Value::Object(own), json::UnknownFields::Refuse).map_err(|error| {
            match error {
                json::DecodeError::Value { path, message } => Invalid::new(path, message),
                json::DecodeError::UnknownFields { fields } => {
                    Invalid::new(fields.join(", "), "the jwt auth method has no such setting")
                }
                json::DecodeError::Syntax(error) => Invalid::new("", error.to_string()),
            }
        })
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first setting that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.keys.is_empty() {
            return Err(Invalid::new(
                "JWTValidationPubKeys",
                "at least one public key is needed",
            ));
        }
        for (i, key) in self.keys.iter().enumerate() {
            if !key.trim_start().starts_with("-----BEGIN ") || key.contains("PRIVATE KEY") {
                return Err(Invalid::new(
                    format!("JWTValidationPubKeys[{i}]"),
                    "it must be a public key in PEM",
                ));
            }
        }
        let mut seen = std::collections::BTreeSet::new();
        for (field, mappings) in [
            ("ClaimMappings", &self.claim_mappings),
            ("ListClaimMappings", &self.list_claim_mappings),
        ] {
            for (claim, variable) in mappings {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if variable.is_empty() || !variable.chars().all(word) {
                    return Err(Invalid::new(
                        field,
                        format!("{claim:?} must map to a name of letters, digits and _"),
                    ));
                }
                if !seen.insert((field, variable)) {
                    return Err(Invalid::new(
                        field,
                        format!("two claims map to the same name, {variable:?}"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Algorithms that may have been used.
    pub fn algorithms(&self) -> &[JwtAlgorithm] {
        match self.supported_algorithms.as_slice() {
            [] => &[JwtAlgorithm::Rs256],
            listed => listed,
        }
    }

    /// The variables of every login, with empty values: what selectors and templates may use.
    pub fn known_variables(&self) -> Variables {
        self.project(&Opaque::new())
    }

    /// The variables of a login from its claims. A claim that is missing or of another shape gives
    /// an empty value.
    pub fn project(&self, claims: &Opaque) -> Variables {
        let values = self.claim_mappings.iter().map(|(claim, name)| {
            let value = lookup(claims, claim).and_then(scalar).unwrap_or_default();
            (format!("value.{name}"), value)
        });
        let lists = self.list_claim_mappings.iter().map(|(claim, name)| {
            let list = match lookup(claims, claim) {
                Some(Value::Array(items)) => items.iter().filter_map(scalar).collect(),
                Some(single) => scalar(single).into_iter().collect(),
                None => Vec::new(),
            };
            (format!("list.{name}"), list)
        });
        Variables {
            values: values.collect(),
            lists: lists.collect(),
        }
    }

    /// Judges the claims of a token whose signature is good: issuer, audience and time.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] says which claim is not accepted and what it should be.
    pub fn verify_claims(&self, claims: &Opaque, now: SystemTime) -> Result<(), ClaimError> {
        if !self.bound_issuer.is_empty() {
            let issuer = claims
                .get("iss")
                .and_then(Value::as_str)
                .unwrap_or_default();
            if issuer != self.bound_issuer {
                return Err(ClaimError(format!(
                    "the issuer {issuer:?} is not BoundIssuer, {:?}",
                    self.bound_issuer
                )));
            }
        }
        self.verify_audience(claims)?;
        self.verify_times(claims, now)
    }

    fn verify_audience(&self, claims: &Opaque) -> Result<(), ClaimError> {
        let audiences: Vec<&str> = match claims.get("aud") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(one)) => vec![one],
            Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
            Some(_) => return Err(ClaimError("aud is neither a text nor a list".to_owned())),
        };
        let bound = &self.bound_audiences;
        if bound.is_empty() {
            return match audiences.as_slice() {
                [] => Ok(()),
                _ => Err(ClaimError(format!(
                    "the token is for {audiences:?}, but BoundAudiences is empty"
                ))),
            };
        }
        if audiences
            .iter()
            .any(|audience| bound.iter().any(|b| b == audience))
        {
            return Ok(());
        }
        Err(ClaimError(format!(
            "the token is for {audiences:?}, none of which is in BoundAudiences, {bound:?}"
        )))
    }

    fn verify_times(&self, claims: &Opaque, now: SystemTime) -> Result<(), ClaimError> {
        let issued = numeric_date(claims, "iat")?;
        let starts = numeric_date(claims, "nbf")?;
        let ends = numeric_date(claims, "exp")?;
        if issued.or(starts).or(ends).is_none() {
            return Err(ClaimError(
                "the token has none of iat, nbf and exp, so its age is unknown".to_owned(),
            ));
        }
        let expiration_leeway = leeway(self.expiration_leeway, DEFAULT_LEEWAY);
        let not_before_leeway = leeway(self.not_before_leeway, DEFAULT_LEEWAY);
        let skew = leeway(self.clock_skew_leeway, DEFAULT_SKEW);
        let ends = ends.or_else(|| Some(issued.max(starts)? + expiration_leeway));
        let starts = starts
            .or(issued)
            .or_else(|| Some(ends?.saturating_sub(not_before_leeway)));
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        if let Some(ends) = ends.filter(|ends| now > *ends + skew) {
            return Err(ClaimError(format!(
                "the token expired {} s ago",
                (now - ends).as_secs()
            )));
        }
        if let Some(starts) = starts.filter(|starts| now + skew < *starts) {
            return Err(ClaimError(format!(
                "the token is valid in {} s only",
                (starts - now).as_secs()
            )));
        }
        if let Some(issued) = issued.filter(|issued| now + skew < *issued) {
            return Err(ClaimError(format!(
                "the token is issued {} s in the future",
                (issued - now).as_secs()
            )));
        }
        Ok(())
    }
}

/// Zero means the default, negative means none.
fn leeway(configured: GoDuration, default: Duration) -> Duration {
    if configured.is_zero() {
        default
    } else {
        configured.to_duration()
    }
}

/// A claim by its name, or by a JSON pointer that starts with `/`.
fn lookup<'a>(claims: &'a Opaque, name: &str) -> Option<&'a Value> {
    let Some(pointer) = name.strip_prefix('/') else {
        return claims.get(name);
    };
    let (first, rest) = match pointer.find('/') {
        Some(i) => pointer.split_at(i),
        None => (pointer, ""),
    };
    let first = first.replace("~1", "/").replace("~0", "~");
    claims.get(&first)?.pointer(rest)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A time in seconds since 1970; zero and absent are the same, as issuers write both.
fn numeric_date(claims: &Opaque, name: &str) -> Result<Option<Duration>, ClaimError> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let seconds = value
                .as_f64()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .filter(|time| *time < Duration::from_secs(1 << 40));
            match seconds {
                Some(Duration::ZERO) => Ok(None),
                Some(time) => Ok(Some(time)),
                None => Err(ClaimError(format!(
                    "{name} is not a time in seconds since 1970"
                ))),
            }
        }
    }
}
