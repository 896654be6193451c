//! Auth methods: how a foreign proof of identity is verified.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::acl::jwt::JwtConfig;
use crate::duration;
use crate::invalid::Invalid;
use crate::tenancy::OnlyDefault;
use crate::{Opaque, name};

const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Where tokens from logins are valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenLocality {
    /// In the datacenter of the login.
    #[default]
    #[serde(alias = "")]
    Local,
    /// In every datacenter.
    Global,
}

impl TokenLocality {
    fn is_local(&self) -> bool {
        *self == TokenLocality::Local
    }
}

/// How a foreign proof of identity is verified. The only type is `jwt`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AuthMethod {
    /// What logins name.
    pub name: String,
    /// `jwt`.
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
    #[serde(skip_serializing_if = "TokenLocality::is_local")]
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

impl AuthMethod {
    /// The type that is served.
    pub const JWT: &'static str = "jwt";

    /// The settings of a `jwt` method.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the type is another, or a setting cannot be accepted.
    pub fn jwt(&self) -> Result<JwtConfig, Invalid> {
        if self.r#type != Self::JWT {
            return Err(Invalid::new(
                "Type",
                format!(
                    "{:?} is not served: the type must be {:?}",
                    self.r#type,
                    Self::JWT
                ),
            ));
        }
        let config = JwtConfig::from_map(&self.config).map_err(|e| e.within("Config"))?;
        config.validate().map_err(|error| error.within("Config"))?;
        Ok(config)
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
        self.jwt().map(|_| ())
    }
}
