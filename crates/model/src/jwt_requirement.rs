//! What requests have to prove with a JSON Web Token. Tokens are verified by proxies, nowhere here.

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;

/// A token that a request has to carry: one of a provider's that makes all claims.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JwtRequirement {
    /// Whose tokens are taken; a token of one of them is enough.
    pub providers: Vec<RequiredProvider>,
}

/// A provider whose tokens are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequiredProvider {
    /// Name of a `jwt-provider` config entry.
    pub name: String,
    /// Claims that the token has to make, all of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub verify_claims: Vec<RequiredClaim>,
}

/// A claim that a token has to make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RequiredClaim {
    /// Where it stands in the token: the keys of nested objects, the outermost first.
    pub path: Vec<String>,
    /// The text that stands there, or that is in the list that stands there.
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
