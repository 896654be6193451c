//! Auth methods: how a foreign proof of identity is verified.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::acl::jwt::JwtConfig;
use crate::acl::kubernetes::KubernetesConfig;
use crate::acl::variables::Variables;
use crate::duration;
use crate::invalid::Invalid;
use crate::json;
use crate::tenancy::OnlyDefault;
use crate::{Opaque, name};

const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Where tokens from logins are valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenLocality {
    /// Not said, which means the same as the next.
    #[default]
    #[serde(rename = "")]
    Unset,
    /// In the datacenter of the login.
    Local,
    /// In every datacenter.
    Global,
}

impl TokenLocality {
    /// Whether tokens are valid in the datacenter of the login only.
    pub fn is_local(self) -> bool {
        self != TokenLocality::Global
    }

    fn is_unset(&self) -> bool {
        *self == TokenLocality::Unset
    }
}

/// How a foreign proof of identity is verified.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthMethod {
    /// What logins name.
    pub name: String,
    /// `jwt` or `kubernetes`.
    pub r#type: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// For people.
    pub description: String,
    /// How long tokens from logins are valid; 0 means for ever, else at least a minute.
    #[serde(
        rename = "MaxTokenTTL",
        with = "duration::text",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub max_token_ttl: Duration,
    /// Where tokens from logins are valid.
    #[serde(skip_serializing_if = "TokenLocality::is_unset")]
    pub token_locality: TokenLocality,
    /// Settings of the type.
    pub config: Opaque,
    /// Only the default namespace is served.
    #[serde(skip_serializing)]
    pub namespace: OnlyDefault,
    /// Only the default partition is served.
    #[serde(skip_serializing)]
    pub partition: OnlyDefault,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// The settings of an auth method, by its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MethodConfig {
    /// A JWT that a known key has signed.
    Jwt(JwtConfig),
    /// The token of a Kubernetes service account.
    Kubernetes(KubernetesConfig),
}

impl MethodConfig {
    /// The variables of every login, with empty values: what selectors and templates may use.
    pub fn known_variables(&self) -> Variables {
        match self {
            Self::Jwt(config) => config.known_variables(),
            Self::Kubernetes(config) => config.known_variables(),
        }
    }
}

/// Its settings may hold a token.
impl fmt::Debug for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthMethod")
            .field("name", &self.name)
            .field("type", &self.r#type)
            .finish_non_exhaustive()
    }
}

impl AuthMethod {
    /// The type whose proofs are signed by a known key.
    pub const JWT: &'static str = "jwt";
    /// The type whose proofs are tokens of Kubernetes service accounts.
    pub const KUBERNETES: &'static str = "kubernetes";

    /// The settings of the type.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the type is not served, or a setting cannot be accepted.
    pub fn settings(&self) -> Result<MethodConfig, Invalid> {
        let within = |error: Invalid| error.within("Config");
        match self.r#type.as_str() {
            Self::JWT => {
                let config = JwtConfig::from_map(&self.config).map_err(within)?;
                config.validate().map_err(within)?;
                Ok(MethodConfig::Jwt(config))
            }
            Self::KUBERNETES => {
                let config = KubernetesConfig::from_map(&self.config).map_err(within)?;
                config.validate().map_err(within)?;
                Ok(MethodConfig::Kubernetes(config))
            }
            other => Err(Invalid::new(
                "Type",
                format!(
                    "{other:?} is not served: the type must be {:?} or {:?}",
                    Self::JWT,
                    Self::KUBERNETES
                ),
            )),
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        name::validate_auth_method(&self.name)
            .map_err(|error| Invalid::new("Name", error.to_string()))?;
        if !self.max_token_ttl.is_zero() && self.max_token_ttl < MIN_TOKEN_TTL {
            return Err(Invalid::new(
                "MaxTokenTTL",
                format!(
                    "{} is too short: it must be at least {}, or left out",
                    duration::format(self.max_token_ttl),
                    duration::format(MIN_TOKEN_TTL)
                ),
            ));
        }
        self.settings().map(|_| ())
    }
}

/// Reads the settings of a type; empty values count as absent.
pub(super) fn settings<T: DeserializeOwned>(config: &Opaque, kind: &str) -> Result<T, Invalid> {
    let mut own = config.clone();
    own.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
    json::from_value(Value::Object(own), json::UnknownFields::Refuse).map_err(|error| match error {
        json::DecodeError::Value { path, message } => Invalid::new(path, message),
        json::DecodeError::UnknownFields { fields } => Invalid::new(
            fields.join(", "),
            format!("the {kind} auth method has no such setting"),
        ),
        json::DecodeError::Syntax(error) => Invalid::new("", error.to_string()),
    })
}

/// Whether a URL can be asked.
pub(super) fn validate_url(field: &str, url: &str) -> Result<(), Invalid> {
    let rest = url
        .strip_prefix("https://")
        .or_else(|| url.strip_prefix("http://"));
    let host = rest.and_then(|rest| rest.split(['/', '?']).next());
    let graphic = url.bytes().all(|byte| byte.is_ascii_graphic());
    let good = |host: &str| !host.is_empty() && !host.contains('@');
    if graphic && !url.contains('#') && host.is_some_and(good) {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("{url:?} is not a URL that is served: use https://HOST[:PORT][/PATH]"),
    ))
}

/// Whether a text may be the PEM of certificates. What is in it, the caller finds out.
pub(super) fn validate_ca(field: &str, pem: &str) -> Result<(), Invalid> {
    if pem.contains("-----BEGIN CERTIFICATE-----") && !pem.contains("PRIVATE KEY") {
        return Ok(());
    }
    let reason = "it must be the PEM of one or more certificates of authorities";
    Err(Invalid::new(field, reason))
}
