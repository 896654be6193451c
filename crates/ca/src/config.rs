//! CA settings for the creation of a mesh. Afterwards, the configuration in the store applies.

use std::time::Duration;

use legate_model::CaConfiguration;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::CaError;
use crate::settings::{self, BUILT_IN, LONGEST_TTL, Settings, go_text};

const HOUR: Duration = Duration::from_secs(3600);

/// Certificates have a resolution of seconds, and a leaf needs several for its renewal.
pub(crate) const SHORTEST_LEAF: Duration = Duration::from_secs(10);

/// The minimum lifetime of leaves in the API.
const SHORTEST_CHECKED: Duration = HOUR;

/// The configuration of the CA of a new mesh.
#[derive(Debug, Clone, PartialEq)]
pub struct CaConfig {
    /// Lifetime of leaf certificates, at least 10 s. Default 72 h, Consul's `LeafCertTTL`.
    pub leaf_ttl: Duration,
    /// Lifetime of a new root. Default ten years (87600 h), Consul's `RootCertTTL`.
    pub root_ttl: Duration,
    /// The cluster id, the first label of the trust domain. Default: a random one.
    pub cluster_id: Option<Uuid>,
    /// The provider: `consul`, the default, or `vault`.
    pub provider: String,
    /// The primary datacenter if this one is secondary: the roots are the primary's, and no root is created here.
    pub primary: Option<String>,
    /// Additional keys of the provider's `Config`, with Consul's names. They may contain secrets.
    pub more: ProviderKeys,
}

/// Keys of a provider's `Config`, redacted in output.
#[derive(Clone, Default, PartialEq)]
pub struct ProviderKeys(pub Map<String, Value>);

impl std::fmt::Debug for ProviderKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Default for CaConfig {
    fn default() -> Self {
        Self {
            leaf_ttl: 72 * HOUR,
            root_ttl: 87_600 * HOUR,
            cluster_id: None,
            provider: BUILT_IN.to_owned(),
            primary: None,
            more: ProviderKeys::default(),
        }
    }
}

impl CaConfig {
    /// Validates the settings for a new mesh.
    ///
    /// # Errors
    ///
    /// Names the invalid key and its permitted values.
    pub fn validate(&self) -> Result<(), CaError> {
        let fail = |reason| Err(CaError::Config { reason });
        if self.leaf_ttl < SHORTEST_LEAF {
            return fail(format!(
                "leaf_ttl is {:?}, it must be at least {SHORTEST_LEAF:?}",
                self.leaf_ttl
            ));
        }
        if self.root_ttl < self.leaf_ttl || self.root_ttl > LONGEST_TTL {
            return fail(format!(
                "root_ttl is {:?}, it must not be shorter than leaf_ttl, which is {:?}, nor longer \
                 than 200 years",
                self.root_ttl, self.leaf_ttl
            ));
        }
        let configuration = self.configuration();
        if self.primary.is_some() {
            Settings::may_be_secondary(&configuration)?;
            if self.cluster_id.is_some() {
                return fail(
                    "cluster_id cannot be set in a secondary datacenter: it is that of the primary"
                        .to_owned(),
                );
            }
        }
        Settings::parse(&configuration)?;
        Ok(())
    }

    /// The settings in the form of the API.
    pub(crate) fn configuration(&self) -> CaConfiguration {
        let mut config = Map::new();
        let intermediate = (8760 * HOUR).max(3 * self.leaf_ttl);
        let mut ttl = |key: &str, ttl| {
            config.insert(key.to_owned(), text(ttl).into());
        };
        ttl("LeafCertTTL", self.leaf_ttl);
        ttl("IntermediateCertTTL", intermediate);
        ttl("RootCertTTL", self.root_ttl);
        if self.leaf_ttl < SHORTEST_CHECKED || self.root_ttl < intermediate {
            config.insert("SkipValidate".to_owned(), true.into());
        }
        for (key, value) in &self.more.0 {
            let name = settings::name(key).unwrap_or(key);
            config.insert(name.to_owned(), value.clone());
        }
        CaConfiguration {
            provider: self.provider.clone(),
            config,
            ..CaConfiguration::default()
        }
    }

    /// Only the lifetimes, for a mesh that was created before configurations were stored.
    pub(crate) fn lifetimes(&self) -> CaConfig {
        CaConfig {
            leaf_ttl: self.leaf_ttl,
            root_ttl: self.root_ttl,
            ..CaConfig::default()
        }
    }
}

/// Formats a duration in the form `72h`.
fn text(time: Duration) -> String {
    let text = go_text(time);
    match text.strip_suffix("h0m0s") {
        Some(hours) => format!("{hours}h"),
        None => text,
    }
}
