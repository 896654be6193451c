//! The configuration of the mesh CA as the API shows and takes it. What its keys mean is not known
//! here.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::decode::same_key;

/// What stands for a secret in answers. In a write it means that the secret stays what it is.
pub const HIDDEN: &str = "hidden";

/// Keys whose values are shown to nobody.
const SECRETS: [&str; 2] = ["PrivateKey", "Token"];

/// Where the parameters of a login stand; these of them are no secrets.
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
    /// Who signs: `consul` is the built-in provider, `vault` HashiCorp Vault.
    pub provider: String,
    /// The provider's settings.
    pub config: Map<String, Value>,
    /// What the provider keeps between changes. Read-only.
    #[serde(deserialize_with = "null_is_empty", serialize_with = "empty_is_null")]
    pub state: BTreeMap<String, String>,
    /// Whether another root becomes active although the present provider cannot cross-sign it.
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
    /// The same with [`HIDDEN`] for each secret.
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

    /// The same with the secrets of `stored` where this one says [`HIDDEN`], so that what was read can
    /// be written again.
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

/// Visits the secrets, each with a name for its place.
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
    fn secrets_are_hidden_and_come_back_with_what_was_read() {
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
