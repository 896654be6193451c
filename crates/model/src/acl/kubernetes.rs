//! Settings of the `kubernetes` auth method, and identities of reviewed tokens. Callers send the
//! requests to the API server.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::acl::method_config;
use crate::acl::variables::Variables;
use crate::invalid::Invalid;
use crate::json::decode::Opaque;
use crate::secret::Secret;

/// Prefix of the user names of service accounts.
const USER_PREFIX: &str = "system:serviceaccount:";

/// The ServiceAccount annotation that overrides its name, as in Consul.
pub const SERVICE_NAME_ANNOTATION: &str = "consul.hashicorp.com/service-name";

/// Settings of the `kubernetes` auth method.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KubernetesConfig {
    /// The API server: `host`, `host:port` or a URL; without a scheme it is `https`.
    pub host: String,
    /// PEM of the CA certificates that verify the API server.
    #[serde(rename = "CACert")]
    pub ca_cert: String,
    /// The token of a service account that may create TokenReviews and read ServiceAccounts.
    #[serde(rename = "ServiceAccountJWT")]
    pub service_account_jwt: Secret,
}

/// A service account that an API server has authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Its namespace.
    pub namespace: String,
    /// Its name, or the one set by its annotation.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl KubernetesConfig {
    /// Parses the settings of an auth method.
    ///
    /// # Errors
    ///
    /// [`Invalid`] names the first setting that is unknown or has the wrong type.
    pub fn from_map(config: &Opaque) -> Result<Self, Invalid> {
        method_config::settings(config, "kubernetes")
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first invalid setting.
    pub fn validate(&self) -> Result<(), Invalid> {
        if self.host.is_empty() {
            let reason = "it must name the Kubernetes API server, as in https://10.0.0.1:443";
            return Err(Invalid::new("Host", reason));
        }
        method_config::validate_url("Host", &self.url())?;
        method_config::validate_ca("CACert", &self.ca_cert)?;
        let jwt = self.service_account_jwt.expose();
        let parts: Vec<&str> = jwt.split('.').collect();
        let text = jwt.bytes().all(|byte| byte.is_ascii_graphic());
        if parts.len() != 3 || parts.iter().any(|part| part.is_empty()) || !text {
            return Err(Invalid::new(
                "ServiceAccountJWT",
                "it must be the token (a JWT) of a service account that may review tokens",
            ));
        }
        Ok(())
    }

    /// The API server's URL, without a trailing slash.
    pub fn url(&self) -> String {
        let host = self.host.trim_end_matches('/');
        match host.contains("://") {
            true => host.to_owned(),
            false => format!("https://{host}"),
        }
    }

    /// The variables of every login, with empty values, which selectors and templates may use.
    pub fn known_variables(&self) -> Variables {
        ServiceAccount {
            namespace: String::new(),
            name: String::new(),
            uid: String::new(),
        }
        .variables()
    }
}

impl ServiceAccount {
    /// Parses a user name, `system:serviceaccount:<namespace>:<name>`. `None` for other users.
    pub fn of_user(user: &str, uid: &str) -> Option<Self> {
        let (namespace, name) = user.strip_prefix(USER_PREFIX)?.split_once(':')?;
        // Both become path segments.
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        let good = |text: &str| text.starts_with(word) && !text.contains(|c: char| !word(c));
        let good = |text| good(text) && !text.starts_with('.');
        (good(namespace) && good(name)).then(|| ServiceAccount {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        })
    }

    /// Variables for selectors and templates.
    pub fn variables(&self) -> Variables {
        let values = [
            ("namespace", &self.namespace),
            ("name", &self.name),
            ("uid", &self.uid),
        ];
        let values = values.map(|(name, value)| (format!("serviceaccount.{name}"), value.clone()));
        Variables {
            values: values.into(),
            missing: BTreeSet::new(),
            ..Variables::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_user_names_of_service_accounts_are_parsed() {
        let account = ServiceAccount::of_user("system:serviceaccount:shop:web", "u-1").unwrap();
        assert_eq!((&*account.namespace, &*account.name), ("shop", "web"));
        assert_eq!(account.variables().values["serviceaccount.uid"], "u-1");
        for user in [
            "",
            "system:node:worker",
            "system:serviceaccount:shop",
            "system:serviceaccount::web",
            "system:serviceaccount:shop:",
            "system:serviceaccount:shop:web:more",
            "system:serviceaccount:..:web",
            "system:serviceaccount:shop:web/../../secrets",
        ] {
            assert_eq!(ServiceAccount::of_user(user, "u"), None, "{user}");
        }
    }

    #[test]
    fn invalid_settings_are_named() {
        let good = KubernetesConfig {
            host: "10.0.0.1:6443".to_owned(),
            ca_cert: "-----BEGIN CERTIFICATE-----\n".to_owned(),
            service_account_jwt: Secret::new("a.b.c"),
        };
        assert_eq!(good.validate(), Ok(()));
        assert_eq!(good.url(), "https://10.0.0.1:6443");
        let refused = |change: fn(&mut KubernetesConfig)| {
            let mut config = good.clone();
            change(&mut config);
            config.validate().unwrap_err()
        };
        assert_eq!(refused(|c| c.host.clear()).path(), "Host");
        assert_eq!(refused(|c| c.host = "a b".to_owned()).path(), "Host");
        assert_eq!(refused(|c| c.host = "ftp://a".to_owned()).path(), "Host");
        assert_eq!(refused(|c| c.ca_cert.clear()).path(), "CACert");
        for token in ["", "hunter2", "a.b", "a..c", "a.b.c\n"] {
            let config = KubernetesConfig {
                service_account_jwt: Secret::new(token),
                ..good.clone()
            };
            let error = config.validate().unwrap_err();
            assert_eq!(error.path(), "ServiceAccountJWT");
            assert!(!error.to_string().contains("hunter2"));
        }
        assert!(!format!("{good:?}").contains("a.b.c"));
    }
}
