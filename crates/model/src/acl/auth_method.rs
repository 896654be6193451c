//! Auth methods: how a foreign proof of identity is verified at a login.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::acl::interpolation::interpolate;
use crate::acl::jwt::JwtConfig;
use crate::acl::kubernetes::KubernetesConfig;
use crate::acl::selector;
use crate::acl::variables::Variables;
use crate::duration;
use crate::invalid::Invalid;
use crate::json::decode::Opaque;
use crate::json::nesting::validate_nesting;
use crate::name;
use crate::tenancy::{InvalidTenancyName, Tenancy, TenancyName};

/// The maximum number of namespace rules of an auth method.
const MAX_NAMESPACE_RULES: usize = 256;

const MIN_TOKEN_TTL: Duration = Duration::from_secs(60);

/// Where tokens from logins are valid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenLocality {
    /// Unset, which means the same as [`TokenLocality::Local`].
    #[default]
    #[serde(rename = "")]
    Unset,
    /// In the login's datacenter only.
    Local,
    /// In every datacenter.
    Global,
}

impl TokenLocality {
    /// Whether tokens are valid only in the datacenter of the login.
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
    /// Name that logins refer to.
    pub name: String,
    /// `jwt` or `kubernetes`.
    pub r#type: String,
    /// Free text for operators; not interpreted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// Free text for operators; not interpreted.
    pub description: String,
    /// Lifetime of tokens from logins: 0 for no expiry, otherwise at least one minute.
    #[serde(
        rename = "MaxTokenTTL",
        with = "duration::text",
        skip_serializing_if = "Duration::is_zero"
    )]
    pub max_token_ttl: Duration,
    /// Where tokens from logins are valid.
    #[serde(skip_serializing_if = "TokenLocality::is_unset")]
    pub token_locality: TokenLocality,
    /// Type-specific settings.
    pub config: Opaque,
    /// Select the namespace of tokens from logins; the first matching rule applies. Without a match,
    /// tokens are in the auth method's namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespace_rules: Vec<NamespaceRule>,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// A rule that selects the namespace of a login's token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamespaceRule {
    /// Selector over a login's variables; empty matches every login.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The namespace; may contain variables as `${value.x}`.
    pub bind_namespace: String,
}

impl NamespaceRule {
    /// The namespace for a login, or `None` if the rule does not match.
    fn namespace(&self, variables: &Variables) -> Result<Option<TenancyName>, String> {
        let fits = selector::matches(&self.selector, variables);
        if !fits.map_err(|error| error.to_string())? {
            return Ok(None);
        }
        let name = interpolate(&self.bind_namespace, variables);
        let name = name.map_err(|error| error.to_string())?;
        let name: TenancyName = name
            .parse()
            .map_err(|error: InvalidTenancyName| error.to_string())?;
        if name.is_empty() || name.is_every() {
            return Err(format!("{:?} is not a namespace", self.bind_namespace));
        }
        Ok(Some(name))
    }

    fn validate(&self, known: &Variables) -> Result<(), Invalid> {
        selector::check(&self.selector, known)
            .map_err(|error| Invalid::new("Selector", error.to_string()))?;
        // Values are unknown until a login: a valid sample lets only the fixed parts be checked.
        let mut sample = known.clone();
        let values = sample.values.values_mut();
        values.for_each(|value| *value = "x".to_owned());
        let all = Self {
            selector: String::new(),
            ..self.clone()
        };
        let bound = all.namespace(&sample);
        bound.map_err(|reason| Invalid::new("BindNamespace", reason))?;
        Ok(())
    }
}

/// Settings of an auth method, by type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MethodConfig {
    /// A JWT that a known key has signed.
    Jwt(JwtConfig),
    /// The token of a Kubernetes service account.
    Kubernetes(KubernetesConfig),
}

impl MethodConfig {
    /// The variables of every login, with empty values, which selectors and templates may use.
    pub fn known_variables(&self) -> Variables {
        match self {
            Self::Jwt(config) => config.known_variables(),
            Self::Kubernetes(config) => config.known_variables(),
        }
    }
}

/// Redacted: the settings may contain a token.
impl fmt::Debug for AuthMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthMethod")
            .field("name", &self.name)
            .field("type", &self.r#type)
            .finish_non_exhaustive()
    }
}

impl AuthMethod {
    /// The type for JWTs signed by a known key.
    pub const JWT: &'static str = "jwt";
    /// The type for tokens of Kubernetes service accounts.
    pub const KUBERNETES: &'static str = "kubernetes";

    /// Parses the type-specific settings.
    ///
    /// # Errors
    ///
    /// [`Invalid`] when the type is not served or a setting is not accepted.
    pub fn settings(&self) -> Result<MethodConfig, Invalid> {
        let within = |error: Invalid| error.within("Config");
        validate_nesting("Config", &self.config)?;
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
    /// [`Invalid`] names the first invalid field.
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
        let settings = self.settings()?;
        if self.namespace_rules.is_empty() {
            return Ok(());
        }
        if !self.tenancy().is_default_namespace() {
            return Err(Invalid::new(
                "NamespaceRules",
                "only an auth method of the namespace \"default\" may have them: leave them out",
            ));
        }
        if self.namespace_rules.len() > MAX_NAMESPACE_RULES {
            let reason = format!("an auth method has at most {MAX_NAMESPACE_RULES}");
            return Err(Invalid::new("NamespaceRules", reason));
        }
        let known = settings.known_variables();
        for (i, rule) in self.namespace_rules.iter().enumerate() {
            let within = |error: Invalid| error.within(format_args!("NamespaceRules[{i}]"));
            rule.validate(&known).map_err(within)?;
        }
        Ok(())
    }

    /// The tenancy of the token that a login creates.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the rule that cannot be applied; the login must be refused.
    pub fn token_tenancy(&self, variables: &Variables) -> Result<Tenancy, Invalid> {
        let own = self.tenancy();
        for (i, rule) in self.namespace_rules.iter().enumerate() {
            let bound = rule.namespace(variables);
            let bound =
                bound.map_err(|reason| Invalid::new(format!("NamespaceRules[{i}]"), reason))?;
            if let Some(namespace) = bound {
                return Ok(own.resolve(&TenancyName::default(), &namespace));
            }
        }
        Ok(own)
    }
}
