//! JSON Web Tokens that requests must carry. Proxies verify tokens; nothing here does.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// A required token: issued by one of the providers and with all required claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtRequirement {
    /// Accepted providers; a token of one of them is sufficient.
    #[schemars(length(max = 64))]
    pub providers: Vec<RequiredProvider>,
}

/// An accepted provider.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequiredProvider {
    /// Name of a `jwt-provider` config entry.
    pub name: String,
    /// Claims that the token must have, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub verify_claims: Vec<RequiredClaim>,
}

/// A required claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequiredClaim {
    /// Path of the claim: keys of nested objects, the outermost first.
    #[schemars(length(max = 64))]
    pub path: Vec<String>,
    /// The required value. If the claim is a list, it must contain the value.
    pub value: String,
}

impl JwtRequirement {
    /// The names of the providers.
    pub fn provider_names(&self) -> impl Iterator<Item = &str> {
        self.providers.iter().map(|provider| provider.name.as_str())
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub(crate) fn validate(&self) -> Result<(), Invalid> {
        if self.providers.is_empty() {
            return Err(Invalid::new(
                "Providers",
                "at least one is needed: without, no token would do; leave JWT out to ask for none",
            ));
        }
        for (i, provider) in self.providers.iter().enumerate() {
            provider
                .validate()
                .map_err(|error| error.within(format_args!("Providers[{i}]")))?;
        }
        Ok(())
    }
}

impl RequiredProvider {
    fn validate(&self) -> Result<(), Invalid> {
        if self.name.is_empty() {
            return Err(Invalid::new("Name", "JWT provider name is required"));
        }
        for (i, claim) in self.verify_claims.iter().enumerate() {
            if claim.path.is_empty() || claim.path.iter().any(String::is_empty) {
                return Err(Invalid::new(
                    format!("VerifyClaims[{i}].Path"),
                    "it must name the claim: at least one key, none of them empty",
                ));
            }
        }
        Ok(())
    }
}
