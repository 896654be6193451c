//! The configuration of the mesh CA as the API returns and accepts it. Never interprets the
//! provider's settings.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::decode::same_key;

/// Placeholder of secrets in responses. In a write it means that the stored secret is retained.
pub const HIDDEN: &str = "hidden";

/// Settings whose values are never returned.
const SECRETS: [&str; 2] = ["PrivateKey", "Token"];

/// Login parameters are secrets as well, except for the public ones.
const LOGIN: &str = "AuthMethod";
const LOGIN_PARAMETERS: &str = "Params";
const PUBLIC_PARAMETERS: [&str; 6] = [
    "role",
    "role_id",
    "path",
    "token_path",
    "role_id_file_path",
    "secret_id_file_path",
];

/// Body of `/v1/connect/ca/configuration`.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct CaConfiguration {
    /// The provider: `consul` is built in, `vault` is HashiCorp Vault.
    pub provider: String,
    /// The provider's settings.
    pub config: Map<String, Value>,
    /// State that the provider retains between changes. Read-only.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "empty_is_null")]
    pub state: BTreeMap<String, String>,
    /// Whether a root may become active even if the current provider cannot cross-sign it.
    pub force_without_cross_signing: bool,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn empty_is_null<S: serde::Serializer>(
    state: &BTreeMap<String, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let some = (!state.is_empty()).then_some(state);
    some.serialize(serializer)
}

impl CaConfiguration {
    /// Returns a copy with each secret replaced by [`HIDDEN`].
    #[must_use]
    pub fn hidden(&self) -> CaConfiguration {
        let mut shown = self.clone();
        each_secret(&mut shown.config, |_, value| {
            if value.as_str() != Some("") {
                *value = Value::String(HIDDEN.to_owned());
            }
        });
        shown
    }

    /// Returns a copy with each [`HIDDEN`] replaced by the secret in `stored`, so that a
    /// configuration that was read can be written back.
    #[must_use]
    pub fn revealed(&self, stored: &CaConfiguration) -> CaConfiguration {
        let mut known = BTreeMap::new();
        each_secret(&mut stored.config.clone(), |place, value| {
            known.insert(place, value.clone());
        });
        let mut revealed = self.clone();
        each_secret(&mut revealed.config, |place, value| {
            if value.as_str() == Some(HIDDEN)
                && let Some(secret) = known.get(&place)
            {
                *value = secret.clone();
            }
        });
        revealed
    }
}

/// Visits each secret with a key for its position.
fn each_secret(config: &mut Map<String, Value>, mut visit: impl FnMut(String, &mut Value)) {
    for (key, value) in config {
        if let Some(secret) = SECRETS.iter().find(|secret| same_key(secret, key)) {
            visit((*secret).to_owned(), value);
        }
        if !same_key(LOGIN, key) {
            continue;
        }
        let login = value.as_object_mut().into_iter().flatten();
        let parameters = login.filter(|(key, _)| same_key(LOGIN_PARAMETERS, key));
        let parameters = parameters.filter_map(|(_, value)| value.as_object_mut());
        for (key, value) in parameters.flatten() {
            if !PUBLIC_PARAMETERS.contains(&key.as_str()) {
                visit(format!("{LOGIN}.{key}"), value);
            }
        }
    }
}

impl fmt::Debug for CaConfiguration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaConfiguration")
            .field("provider", &self.provider)
            .field("config", &self.hidden().config)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn vault(token: &str, secret: &str) -> CaConfiguration {
        let config = json!({
            "Address": "https://vault", "token": token, "PrivateKey": "",
            "auth_method": {"Type": "approle", "Params": {"role_id": "r", "secret_id": secret}},
        });
        CaConfiguration {
            provider: "vault".to_owned(),
            config: config.as_object().cloned().unwrap_or_default(),
            ..CaConfiguration::default()
        }
    }

    #[test]
    fn hidden_secrets_are_restored_on_write() {
        let stored = vault("s.1234", "sesame");
        let shown = stored.hidden();
        assert_eq!(shown, vault("hidden", "hidden"));
        let text = format!("{stored:?}");
        assert!(
            !text.contains("s.1234") && !text.contains("sesame"),
            "{text}"
        );
        assert_eq!(shown.revealed(&stored), stored);
        let other = vault("hidden", "another");
        assert_eq!(other.revealed(&stored), vault("s.1234", "another"));
    }
}
