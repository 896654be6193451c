//! Parses the keys of a CA configuration. Error texts are Consul's where it has them.

mod values;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use legate_identity::KeyKind;
use legate_model::json::same_key;
use legate_model::{CaConfiguration, Secret};
use serde_json::Value;

use self::values::Values;
pub(crate) use self::values::go_text;
use crate::CaError;

/// The name of the built-in provider, as in Consul.
pub(crate) const BUILT_IN: &str = "consul";
/// The name of the HashiCorp Vault provider.
pub(crate) const VAULT: &str = "vault";

const HOUR: Duration = Duration::from_secs(3600);
const SHORTEST_LEAF: Duration = HOUR;
const LONGEST_LEAF: Duration = Duration::from_secs(365 * 24 * 3600);
/// Interval at which intermediates are checked for renewal.
const RENEW_INTERVAL: Duration = HOUR;
/// The maximum lifetime, which certificates and clocks can still represent.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(200 * 365 * 24 * 3600);

/// A parsed and validated configuration.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Settings {
    pub(crate) common: Common,
    pub(crate) provider: ProviderSettings,
}

/// Settings of every provider.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Common {
    pub(crate) leaf_ttl: Duration,
    pub(crate) intermediate_ttl: Duration,
    pub(crate) root_ttl: Duration,
    /// The maximum number of signatures per second; 0 means no limit.
    pub(crate) csr_per_second: f64,
    /// The maximum number of concurrent signatures, if there is no rate limit; 0 means no limit.
    pub(crate) csr_concurrent: usize,
    /// Kind of the keys that a provider generates for itself.
    pub(crate) key: KeyKind,
}

/// Settings of a specific provider.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProviderSettings {
    BuiltIn(BuiltInSettings),
    Vault(Box<VaultSettings>),
}

/// Settings of the built-in provider.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct BuiltInSettings {
    /// Key of the root; generated if empty.
    pub(crate) private_key: Secret,
    /// Certificate of the root; generated if empty.
    pub(crate) root_cert: String,
    pub(crate) disable_cross_signing: bool,
    /// The value of `State`, for tests of clients.
    pub(crate) test_state: Option<BTreeMap<String, String>>,
}

/// Address and usage of a Vault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VaultSettings {
    pub(crate) address: String,
    pub(crate) access: VaultAccess,
    pub(crate) root_path: String,
    pub(crate) root_namespace: String,
    pub(crate) intermediate_path: String,
    pub(crate) intermediate_namespace: String,
    pub(crate) namespace: String,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client_cert: Option<(PathBuf, PathBuf)>,
    pub(crate) server_name: String,
    pub(crate) skip_verify: bool,
}

/// Authentication at a Vault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum VaultAccess {
    Token(Secret),
    Login(VaultLogin),
}

/// A login at Vault.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VaultLogin {
    pub(crate) mount: String,
    pub(crate) proof: VaultProof,
}

/// Credentials of a login.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum VaultProof {
    /// Role and secret, each as a value or from a file.
    AppRole {
        role_id: Given,
        secret_id: Option<Given>,
    },
    /// A role, and a JWT as a value or from a file.
    Jwt { role: String, jwt: Given },
}

/// A value, or the file that contains it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Given {
    Value(Secret),
    File(PathBuf),
}

/// The names of keys in the API.
const NAMES: [&str; 27] = [
    "LeafCertTTL",
    "IntermediateCertTTL",
    "RootCertTTL",
    "SkipValidate",
    "CSRMaxPerSecond",
    "CSRMaxConcurrent",
    "PrivateKeyType",
    "PrivateKeyBits",
    "RotationPeriod",
    "PrivateKey",
    "RootCert",
    "DisableCrossSigning",
    "Address",
    "Token",
    "AuthMethod",
    "RootPKIPath",
    "RootPKINamespace",
    "IntermediatePKIPath",
    "IntermediatePKINamespace",
    "Namespace",
    "CAFile",
    "CAPath",
    "CertFile",
    "KeyFile",
    "TLSServerName",
    "TLSSkipVerify",
    "test_state",
];

/// The keys that only a datacenter with its own root can have.
const OF_ROOTS: [&str; 3] = ["PrivateKey", "RootCert", "DisableCrossSigning"];

/// The API's spelling of a key.
pub(crate) fn name(key: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|name| same_key(name, key))
}

/// Path of the service account token in a pod.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

impl Settings {
    /// # Errors
    ///
    /// [`CaError::Config`] names the invalid key, or the values that are inconsistent.
    pub(crate) fn parse(configuration: &CaConfiguration) -> Result<Settings, CaError> {
        let name = configuration.provider.as_str();
        let mut values = Values::new(&configuration.config);
        let settings = match name {
            BUILT_IN => built_in(&mut values),
            VAULT => vault(&mut values),
            "aws-pca" => {
                Err("CA provider \"aws-pca\" is not served: use \"consul\" or \"vault\"".to_owned())
            }
            other => Err(format!("unknown CA provider {other:?}")),
        };
        let settings = settings.and_then(|provider| {
            let common = common(&mut values)?;
            values.finish()?;
            Ok(Settings { common, provider })
        });
        settings.map_err(|reason| CaError::Config { reason })
    }

    /// Whether a secondary datacenter, which has the roots of the primary, can have this configuration.
    ///
    /// # Errors
    ///
    /// [`CaError::Config`] names what it cannot have.
    pub(crate) fn may_be_secondary(configuration: &CaConfiguration) -> Result<(), CaError> {
        let refuse = |what: String| {
            let reason = format!(
                "{what} is not served in a secondary datacenter, which has the roots of the primary and signs with an \
                 intermediate of its own"
            );
            Err(CaError::Config { reason })
        };
        if configuration.provider != BUILT_IN {
            return refuse(format!("CA provider {:?}", configuration.provider));
        }
        let is_set = |value: &Value| !(value.is_null() || value == "" || value == false);
        let of_roots = |key: &str| OF_ROOTS.into_iter().find(|name| same_key(name, key));
        let mut set = configuration
            .config
            .iter()
            .filter(|(_, value)| is_set(value));
        match set.find_map(|(key, _)| of_roots(key)) {
            Some(key) => refuse(key.to_owned()),
            None => Ok(()),
        }
    }

    /// Whether this configuration may replace `before`.
    ///
    /// # Errors
    ///
    /// When the root of the same Vault would get another key.
    pub(crate) fn may_follow(&self, before: &Settings) -> Result<(), CaError> {
        let (ProviderSettings::Vault(old), ProviderSettings::Vault(new)) =
            (&before.provider, &self.provider)
        else {
            return Ok(());
        };
        let (was, is) = (before.common.key, self.common.key);
        if old.root_path != new.root_path || was == KeyKind::default() {
            return Ok(());
        }
        let field = match (was.algorithm() == is.algorithm(), was == is) {
            (_, true) => return Ok(()),
            (false, _) => "PrivateKeyType",
            (true, _) => "PrivateKeyBits",
        };
        Err(CaError::Config {
            reason: format!(
                "new configuration is incompatible with previous configuration: cannot update the \
                 {field} field without changing RootPKIPath"
            ),
        })
    }
}

fn common(values: &mut Values<'_>) -> Result<Common, String> {
    let leaf_ttl = values.duration("LeafCertTTL", 72 * HOUR)?;
    let intermediate_ttl = values.duration("IntermediateCertTTL", 8_760 * HOUR)?;
    let root_ttl = values.duration("RootCertTTL", 87_600 * HOUR)?;
    let skip = values.flag("SkipValidate")?;
    let csr_per_second = values.number("CSRMaxPerSecond", 50.0)?;
    let csr_concurrent = values.number("CSRMaxConcurrent", 0.0)?;
    let algorithm = values.text("PrivateKeyType")?;
    let bits = values.number("PrivateKeyBits", 0.0)?;
    // In Consul an old name that has no effect.
    values.ignore("RotationPeriod");
    if root_ttl > LONGEST_TTL {
        return Err("root cert TTL must not be longer than 200 years".to_owned());
    }
    if !skip {
        lifetimes(leaf_ttl, intermediate_ttl, root_ttl)?;
    }
    if leaf_ttl.is_zero() || intermediate_ttl.is_zero() || root_ttl.is_zero() {
        return Err("the TTLs of certificates must be longer than nothing".to_owned());
    }
    Ok(Common {
        leaf_ttl,
        intermediate_ttl,
        root_ttl,
        csr_per_second,
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the value is a count, and a too large one is the largest"
        )]
        csr_concurrent: csr_concurrent as usize,
        key: key_kind(algorithm.as_deref().unwrap_or("ec"), bits)?,
    })
}

fn lifetimes(leaf: Duration, intermediate: Duration, root: Duration) -> Result<(), String> {
    if root < intermediate {
        return Err(format!(
            "root cert TTL is set and is not greater than intermediate cert ttl. root cert ttl: \
             {}, intermediate cert ttl: {}",
            go_text(root),
            go_text(intermediate)
        ));
    }
    if leaf < SHORTEST_LEAF {
        let least = go_text(SHORTEST_LEAF);
        return Err(format!(
            "leaf cert TTL must be greater or equal than {least}"
        ));
    }
    if leaf > LONGEST_LEAF {
        let most = go_text(LONGEST_LEAF);
        return Err(format!("leaf cert TTL must be less than {most}"));
    }
    if intermediate < 3 * RENEW_INTERVAL {
        return Err("Intermediate Cert TTL must be greater or equal than 3h".to_owned());
    }
    if intermediate < 3 * leaf {
        return Err(format!(
            "Intermediate Cert TTL must be greater or equal than 3 * LeafCertTTL (>={}).",
            go_text(3 * leaf)
        ));
    }
    Ok(())
}

#[expect(clippy::float_cmp, reason = "sizes of keys are whole numbers")]
fn key_kind(algorithm: &str, bits: f64) -> Result<KeyKind, String> {
    let all = KeyKind::ALL.into_iter();
    let mut of_algorithm = all.filter(|kind| kind.algorithm() == algorithm);
    let found = match bits {
        // For RSA the number is invalid: Consul defaults to 256 bits for both.
        0.0 if algorithm == "ec" => of_algorithm.next(),
        bits => of_algorithm.find(|kind| f64::from(kind.bits()) == bits),
    };
    found.ok_or_else(|| match algorithm {
        "ec" if bits == 224.0 => {
            "PrivateKeyBits 224 is not served: EC keys have 256, 384 or 521 bits".to_owned()
        }
        "ec" => "EC key length must be one of (224, 256, 384, 521) bits".to_owned(),
        "rsa" => "RSA key length must be 2048 or 4096 bits".to_owned(),
        _ => "private key type must be either 'ec' or 'rsa'".to_owned(),
    })
}

fn built_in(values: &mut Values<'_>) -> Result<ProviderSettings, String> {
    let settings = BuiltInSettings {
        private_key: values.text("PrivateKey")?.unwrap_or_default().into(),
        root_cert: values.text("RootCert")?.unwrap_or_default(),
        disable_cross_signing: values.flag("DisableCrossSigning")?,
        test_state: values.texts("test_state")?,
    };
    if settings.private_key.is_empty() && !settings.root_cert.is_empty() {
        return Err("must provide a private key when providing a root cert".to_owned());
    }
    Ok(ProviderSettings::BuiltIn(settings))
}

fn vault(values: &mut Values<'_>) -> Result<ProviderSettings, String> {
    let token = Secret::new(values.text("Token")?.unwrap_or_default());
    let login = values.inside("AuthMethod")?;
    let access = match (token.is_empty(), login) {
        (true, None) => {
            return Err("must provide a Vault token or configure a Vault auth method".to_owned());
        }
        (false, Some(_)) => {
            return Err(
                "only one of Vault token or Vault auth method can be provided, but not both"
                    .to_owned(),
            );
        }
        (false, None) => VaultAccess::Token(token),
        (true, Some(mut login)) => {
            let read = vault_login(&mut login)?;
            login.finish()?;
            VaultAccess::Login(read)
        }
    };
    let mut text = |key: &'static str| values.text(key).map(Option::unwrap_or_default);
    let address = text("Address")?;
    if address.is_empty() {
        return Err("must provide the Address of Vault".to_owned());
    }
    let root_path = text("RootPKIPath")?;
    if root_path.is_empty() {
        return Err("must provide a valid path to a root PKI backend".to_owned());
    }
    let intermediate_path = text("IntermediatePKIPath")?;
    if intermediate_path.is_empty() {
        return Err("must provide a valid path for the intermediate PKI backend".to_owned());
    }
    let (cert, key) = (text("CertFile")?, text("KeyFile")?);
    let client_cert = match (cert.is_empty(), key.is_empty()) {
        (true, true) => None,
        (false, false) => Some((cert.into(), key.into())),
        _ => return Err("CertFile and KeyFile are needed together".to_owned()),
    };
    let (file, folder) = (text("CAFile")?, text("CAPath")?);
    let ca = [file, folder].into_iter().find(|path| !path.is_empty());
    Ok(ProviderSettings::Vault(Box::new(VaultSettings {
        address,
        access,
        root_path: path(&root_path),
        root_namespace: text("RootPKINamespace")?,
        intermediate_path: path(&intermediate_path),
        intermediate_namespace: text("IntermediatePKINamespace")?,
        namespace: text("Namespace")?,
        ca: ca.map(Into::into),
        client_cert,
        server_name: text("TLSServerName")?,
        skip_verify: values.flag("TLSSkipVerify")?,
    })))
}

/// Removes surrounding slashes.
fn path(text: &str) -> String {
    text.trim_matches('/').to_owned()
}

fn vault_login(values: &mut Values<'_>) -> Result<VaultLogin, String> {
    let method = values.text("Type")?.unwrap_or_default();
    let mount = values.text("MountPath")?.filter(|mount| !mount.is_empty());
    let mut none = None;
    let empty = serde_json::Map::new();
    let parameters = match values.inside("Params")? {
        Some(parameters) => none.insert(parameters),
        None => none.insert(Values::new(&empty)),
    };
    let mut text = |key: &'static str| {
        let text = parameters.text(key)?;
        Ok::<_, String>(text.filter(|text| !text.trim().is_empty()))
    };
    let file = |path: String| Given::File(path.into());
    let value = |text: String| Given::Value(text.into());
    let proof = match method.as_str() {
        "approle" => {
            let direct = (text("role_id")?, text("secret_id")?);
            let files = (text("role_id_file_path")?, text("secret_id_file_path")?);
            let role_id = direct.0.map(value).or(files.0.map(file));
            VaultProof::AppRole {
                role_id: role_id.ok_or("missing 'role_id_file_path' value")?,
                secret_id: direct.1.map(value).or(files.1.map(file)),
            }
        }
        "jwt" => {
            let role = text("role")?.ok_or("missing 'role' value")?;
            let jwt = text("jwt")?.map(value).or(text("path")?.map(file));
            let jwt = jwt.ok_or("missing 'path' value")?;
            VaultProof::Jwt { role, jwt }
        }
        "kubernetes" => {
            let role = text("role")?.ok_or("missing 'role' value")?;
            let jwt = text("jwt")?.map(value).or(text("token_path")?.map(file));
            let jwt = jwt.unwrap_or_else(|| file(SERVICE_ACCOUNT.to_owned()));
            VaultProof::Jwt { role, jwt }
        }
        "token" => {
            return Err(
                "'token' auth method is not supported via auth method configuration; please \
                 provide the token with the 'token' parameter in the CA configuration"
                    .to_owned(),
            );
        }
        other => {
            return Err(format!(
                "auth method {other:?} is not supported: use approle, jwt or kubernetes"
            ));
        }
    };
    parameters.finish()?;
    Ok(VaultLogin {
        mount: mount.map_or(method, |mount| path(&mount)),
        proof,
    })
}

#[cfg(test)]
mod tests;
