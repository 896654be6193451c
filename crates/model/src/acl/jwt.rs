//! Settings of the `jwt` auth method, and validation of a token's claims.
//!
//! Callers verify signatures with the keys of [`JwtConfig::key_source`] and
//! [`JwtConfig::algorithms`]. Pure: no cryptography, network or clock.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::acl::method_config;
use crate::acl::variables::Variables;
use crate::duration::GoDuration;
use crate::invalid::Invalid;
use crate::json::decode::Opaque;

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

/// Source of an auth method's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySource<'a> {
    /// PEM in the settings.
    Static(&'a [String]),
    /// A JWKS URL.
    Jwks(Location<'a>),
    /// The issuer URL of an OpenID provider, whose metadata contains the JWKS URL.
    Discovery(Location<'a>),
}

/// A URL and the CA certificates for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location<'a> {
    /// `https://…` or `http://…`.
    pub url: &'a str,
    /// PEM of the CA certificates that verify the server; empty means the system's.
    pub ca: &'a str,
}

/// Settings of the `jwt` auth method. Exactly one of `JWTValidationPubKeys`, `JWKSURL` and
/// `OIDCDiscoveryURL` sets the source of the keys.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtConfig {
    /// Public keys in PEM; a token must be signed by one of them.
    #[serde(rename = "JWTValidationPubKeys")]
    pub keys: Vec<String>,
    /// URL of a JSON Web Key Set (RFC 7517).
    #[serde(rename = "JWKSURL")]
    pub jwks_url: String,
    /// PEM of the CA certificates that verify `JWKSURL`; empty means the system's.
    #[serde(rename = "JWKSCACert")]
    pub jwks_ca_cert: String,
    /// Issuer URL for OpenID Connect Discovery, without `/.well-known/openid-configuration`.
    #[serde(rename = "OIDCDiscoveryURL")]
    pub oidc_discovery_url: String,
    /// PEM of the CA certificates that verify `OIDCDiscoveryURL`; empty means the system's.
    #[serde(rename = "OIDCDiscoveryCACert")]
    pub oidc_discovery_ca_cert: String,
    /// Accepted signature algorithms; empty means RS256 only.
    #[serde(rename = "JWTSupportedAlgs")]
    pub supported_algorithms: Vec<JwtAlgorithm>,
    /// Required value of `iss`; empty accepts any.
    pub bound_issuer: String,
    /// Accepted values of `aud`. If empty, tokens must have no `aud`, except that with
    /// `OIDCDiscoveryURL` any is accepted.
    pub bound_audiences: Vec<String>,
    /// Maps claims to variables `value.<name>`.
    pub claim_mappings: BTreeMap<String, String>,
    /// Maps claims to variables `list.<name>`.
    pub list_claim_mappings: BTreeMap<String, String>,
    /// Lifetime after the later of `iat` and `nbf` for tokens without `exp`. 0 means 150 s; a
    /// negative value means no leeway.
    pub expiration_leeway: GoDuration,
    /// Validity before `exp` for tokens without `nbf` and `iat`. 0 means 150 s; a negative value
    /// means no leeway.
    pub not_before_leeway: GoDuration,
    /// Tolerated clock skew. 0 means 60 s; a negative value means none.
    pub clock_skew_leeway: GoDuration,
}

/// Claims that were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ClaimError(String);

impl JwtConfig {
    /// Parses the settings of an auth method.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first setting that is unknown or has the wrong type.
    pub fn from_map(config: &Opaque) -> Result<Self, Invalid> {
        method_config::settings(config, "jwt")
    }

    /// The source of the keys.
    pub fn key_source(&self) -> KeySource<'_> {
        let at = |url, ca| Location { url, ca };
        if !self.jwks_url.is_empty() {
            KeySource::Jwks(at(&self.jwks_url, &self.jwks_ca_cert))
        } else if !self.oidc_discovery_url.is_empty() {
            let (url, ca) = (&self.oidc_discovery_url, &self.oidc_discovery_ca_cert);
            KeySource::Discovery(at(url, ca))
        } else {
            KeySource::Static(&self.keys)
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid setting.
    pub fn validate(&self) -> Result<(), Invalid> {
        self.validate_key_source()?;
        for (i, key) in self.keys.iter().enumerate() {
            if !key.trim_start().starts_with("-----BEGIN ") || key.contains("PRIVATE KEY") {
                return Err(Invalid::new(
                    format!("JWTValidationPubKeys[{i}]"),
                    "it must be a public key in PEM",
                ));
            }
        }
        if self.supported_algorithms.contains(&JwtAlgorithm::Es512) {
            let reason = "ES512 is not served: use another algorithm";
            return Err(Invalid::new("JWTSupportedAlgs", reason));
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

    fn validate_key_source(&self) -> Result<(), Invalid> {
        let given = [
            !self.keys.is_empty(),
            !self.jwks_url.is_empty(),
            !self.oidc_discovery_url.is_empty(),
        ];
        if given.into_iter().filter(|given| *given).count() != 1 {
            return Err(Invalid::new(
                "JWTValidationPubKeys",
                "exactly one of JWTValidationPubKeys, JWKSURL and OIDCDiscoveryURL must be set",
            ));
        }
        for (url_field, url, ca_field, ca) in [
            ("JWKSURL", &self.jwks_url, "JWKSCACert", &self.jwks_ca_cert),
            (
                "OIDCDiscoveryURL",
                &self.oidc_discovery_url,
                "OIDCDiscoveryCACert",
                &self.oidc_discovery_ca_cert,
            ),
        ] {
            if !url.is_empty() {
                method_config::validate_url(url_field, url)?;
                if !ca.is_empty() {
                    method_config::validate_ca(ca_field, ca)?;
                }
            } else if !ca.is_empty() {
                let reason = format!("it is used with {url_field} only: set that, or leave it out");
                return Err(Invalid::new(ca_field, reason));
            }
        }
        Ok(())
    }

    /// Accepted signature algorithms.
    pub fn algorithms(&self) -> &[JwtAlgorithm] {
        match self.supported_algorithms.as_slice() {
            [] => &[JwtAlgorithm::Rs256],
            listed => listed,
        }
    }

    /// The variables of every login, with empty values, which selectors and templates may use.
    pub fn known_variables(&self) -> Variables {
        let texts = self.claim_mappings.values();
        let lists = self.list_claim_mappings.values();
        let texts: BTreeMap<_, _> = texts
            .map(|name| (format!("value.{name}"), String::new()))
            .collect();
        let lists: BTreeMap<_, _> = lists
            .map(|name| (format!("list.{name}"), Vec::new()))
            .collect();
        Variables {
            missing: texts.keys().chain(lists.keys()).cloned().collect(),
            values: texts,
            lists,
        }
    }

    /// Extracts the variables of a login from its claims. Missing claims yield empty values.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] names a claim that is an object, or a list where a single value is required.
    pub fn project(&self, claims: &Opaque) -> Result<Variables, ClaimError> {
        let mut variables = self.known_variables();
        let shape = |claim: &str, wanted: &str| {
            ClaimError(format!("the claim {claim:?} is not a {wanted}"))
        };
        for (claim, name) in &self.claim_mappings {
            let Some(value) = lookup(claims, claim) else {
                continue;
            };
            let text = scalar(value).ok_or_else(|| shape(claim, "text, number or boolean"))?;
            let name = format!("value.{name}");
            variables.missing.remove(&name);
            variables.values.insert(name, text);
        }
        for (claim, name) in &self.list_claim_mappings {
            let items = match lookup(claims, claim) {
                Some(Value::Array(items)) => items.as_slice(),
                Some(single) => std::slice::from_ref(single),
                None => continue,
            };
            let items: Option<Vec<String>> = items.iter().map(scalar).collect();
            let mut items =
                items.ok_or_else(|| shape(claim, "list of texts, numbers and booleans"))?;
            items.retain(|item| !item.is_empty());
            let name = format!("list.{name}");
            variables.missing.remove(&name);
            variables.lists.insert(name, items);
        }
        Ok(variables)
    }

    /// Validates the claims of a token with a verified signature: issuer, audience and time.
    ///
    /// # Errors
    ///
    /// [`ClaimError`] names the refused claim and the expected value.
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
        if let KeySource::Discovery(issuer) = self.key_source() {
            verify_discovered(claims, issuer.url)?;
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
                _ if !self.oidc_discovery_url.is_empty() => Ok(()),
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

/// OpenID Connect requirements in addition to the signature: the issuer matches and the token
/// expires.
fn verify_discovered(claims: &Opaque, issuer: &str) -> Result<(), ClaimError> {
    let named = claims.get("iss").and_then(Value::as_str);
    let named = named.unwrap_or_default();
    if named != issuer {
        return Err(ClaimError(format!(
            "the issuer {named:?} is not OIDCDiscoveryURL, {issuer:?}"
        )));
    }
    match numeric_date(claims, "exp")? {
        Some(_) => Ok(()),
        None => Err(ClaimError(
            "the token has no exp, so it never ends".to_owned(),
        )),
    }
}

/// 0 means the default, a negative value means none.
fn leeway(configured: GoDuration, default: Duration) -> Duration {
    if configured.is_zero() {
        default
    } else {
        configured.to_duration()
    }
}

/// Looks up a claim by name, or by JSON pointer if it starts with `/`.
fn lookup<'a>(claims: &'a Opaque, name: &str) -> Option<&'a Value> {
    let Some(pointer) = name.strip_prefix('/') else {
        return claims.get(name).filter(|value| !value.is_null());
    };
    let (first, rest) = match pointer.find('/') {
        Some(i) => pointer.split_at(i),
        None => (pointer, ""),
    };
    let first = first.replace("~1", "/").replace("~0", "~");
    claims
        .get(&first)?
        .pointer(rest)
        .filter(|value| !value.is_null())
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(flag) => Some(flag.to_string()),
        // Fractions are truncated, as in Consul.
        Value::Number(number) => Some(match number.as_f64() {
            Some(fraction) if number.is_f64() => format!("{:.0}", fraction.trunc()),
            _ => number.to_string(),
        }),
        _ => None,
    }
}

/// A time in seconds since 1970. 0 counts as absent, since some issuers write it.
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
