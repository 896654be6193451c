//! Auth methods: how a foreign proof of identity is verified.

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
use crate::name;
use crate::tenancy::{InvalidTenancyName, Tenancy, TenancyName};

/// The most rules about namespaces that an auth method may have.
const MAX_NAMESPACE_RULES: usize = 256;

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
    /// In which namespaces tokens from logins are made: the first rule that fits decides. Without,
    /// they are of the auth method's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub namespace_rules: Vec<NamespaceRule>,
    /// The namespace that it is of; not shown where that is the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// The partition that it is of; not shown where that is the default one.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// In which namespace the token of a login is made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NamespaceRule {
    /// Which logins are meant; empty means all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The namespace, with variables as `${value.x}`.
    pub bind_namespace: String,
}

impl NamespaceRule {
    /// The namespace of a login, if the rule is about it.
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
            return Err(format!("{:?} names no namespace", self.bind_namespace));
        }
        Ok(Some(name))
    }

    fn validate(&self, known: &Variables) -> Result<(), Invalid> {
        selector::check(&self.selector, known)
            .map_err(|error| Invalid::new("Selector", error.to_string()))?;
        // Every value could be anything that is valid, so that only the fixed parts are judged.
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

    /// The tenancy of the token of a login.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the rule that cannot be applied: the login is refused then.
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
