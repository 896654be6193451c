//! Config entries: settings for many instances at once, stored by kind and name.

mod mesh;
mod proxy_defaults;
mod service_defaults;
mod service_intentions;

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserialize, Deserializer, EnumAccess, VariantAccess, Visitor};
use serde::{Serialize, Serializer};

pub use mesh::{
    Mesh, MeshHttp, MeshHttpDirection, MeshTls, MeshTlsDirection, MeshTransparentProxy,
    RequestNormalization,
};
pub use proxy_defaults::ProxyDefaults;
pub use service_defaults::{
    MutualTlsMode, PassiveHealthCheck, ServiceDefaults, UpstreamConfiguration, UpstreamDefaults,
    UpstreamLimits,
};
pub use service_intentions::{ServiceIntentions, SourceIntention};

use crate::invalid::Invalid;
use crate::json;

/// A kind of config entry that is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ConfigKind {
    /// Settings of one service.
    ServiceDefaults,
    /// Settings of every proxy; one entry named `global`.
    ProxyDefaults,
    /// Settings of the mesh; one entry named `mesh`.
    Mesh,
    /// Who may call one service.
    ServiceIntentions,
}

impl ConfigKind {
    /// Every kind.
    pub const ALL: [ConfigKind; 4] = [
        ConfigKind::ServiceDefaults,
        ConfigKind::ProxyDefaults,
        ConfigKind::Mesh,
        ConfigKind::ServiceIntentions,
    ];

    /// The kinds of Consul 1.21 that are not served: there is no entry of any of them.
    pub const NOT_SERVED: [&str; 15] = [
        "api-gateway",
        "bound-api-gateway",
        "control-plane-request-limit",
        "exported-services",
        "file-system-certificate",
        "http-route",
        "ingress-gateway",
        "inline-certificate",
        "jwt-provider",
        "sameness-group",
        "service-resolver",
        "service-router",
        "service-splitter",
        "tcp-route",
        "terminating-gateway",
    ];

    /// The name in JSON and in URLs.
    pub const fn as_str(self) -> &'static str {
        match self {
            ConfigKind::ServiceDefaults => "service-defaults",
            ConfigKind::ProxyDefaults => "proxy-defaults",
            ConfigKind::Mesh => "mesh",
            ConfigKind::ServiceIntentions => "service-intentions",
        }
    }
}

impl fmt::Display for ConfigKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A kind that is not served; prints those that are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid config entry kind {0:?}: served are {kinds}", kinds = kinds())]
pub struct UnknownKind(pub String);

fn kinds() -> String {
    ConfigKind::ALL.map(ConfigKind::as_str).join(", ")
}

impl FromStr for ConfigKind {
    type Err = UnknownKind;

    fn from_str(text: &str) -> Result<Self, UnknownKind> {
        ConfigKind::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownKind(text.to_owned()))
    }
}

/// One config entry.
///
/// In JSON the kind is a field (`Kind`) beside the entry's own. Decode requests with
/// [`json::from_slice`], which understands every spelling and can refuse unknown fields.
#[derive(Debug, Clone, PartialEq)]
pub enum ConfigEntry {
    /// Settings of one service.
    ServiceDefaults(ServiceDefaults),
    /// Settings of every proxy.
    ProxyDefaults(ProxyDefaults),
    /// Settings of the mesh.
    Mesh(Mesh),
    /// Who may call one service.
    ServiceIntentions(ServiceIntentions),
}

impl ConfigEntry {
    /// Which kind it is.
    pub const fn kind(&self) -> ConfigKind {
        match self {
            ConfigEntry::ServiceDefaults(_) => ConfigKind::ServiceDefaults,
            ConfigEntry::ProxyDefaults(_) => ConfigKind::ProxyDefaults,
            ConfigEntry::Mesh(_) => ConfigKind::Mesh,
            ConfigEntry::ServiceIntentions(_) => ConfigKind::ServiceIntentions,
        }
    }

    /// Its name, unique within its kind.
    pub fn name(&self) -> &str {
        match self {
            ConfigEntry::ServiceDefaults(entry) => &entry.name,
            ConfigEntry::ProxyDefaults(entry) => &entry.name,
            ConfigEntry::Mesh(_) => Mesh::NAME,
            ConfigEntry::ServiceIntentions(entry) => &entry.name,
        }
    }

    /// Index of the write that created it.
    pub const fn create_index(&self) -> u64 {
        match self {
            ConfigEntry::ServiceDefaults(entry) => entry.create_index,
            ConfigEntry::ProxyDefaults(entry) => entry.create_index,
            ConfigEntry::Mesh(entry) => entry.create_index,
            ConfigEntry::ServiceIntentions(entry) => entry.create_index,
        }
    }

    /// Index of the last write that changed it.
    pub const fn modify_index(&self) -> u64 {
        match self {
            ConfigEntry::ServiceDefaults(entry) => entry.modify_index,
            ConfigEntry::ProxyDefaults(entry) => entry.modify_index,
            ConfigEntry::Mesh(entry) => entry.modify_index,
            ConfigEntry::ServiceIntentions(entry) => entry.modify_index,
        }
    }

    /// Sets both indexes, which the store owns.
    pub fn set_indexes(&mut self, create: u64, modify: u64) {
        let (create_index, modify_index) = match self {
            ConfigEntry::ServiceDefaults(e) => (&mut e.create_index, &mut e.modify_index),
            ConfigEntry::ProxyDefaults(e) => (&mut e.create_index, &mut e.modify_index),
            ConfigEntry::Mesh(e) => (&mut e.create_index, &mut e.modify_index),
            ConfigEntry::ServiceIntentions(e) => (&mut e.create_index, &mut e.modify_index),
        };
        *create_index = create;
        *modify_index = modify;
    }

    /// Brings it into the form that is stored: lower-case protocol, computed precedence, sources in
    /// the order in which they decide. Call it after [`ConfigEntry::validate`].
    pub fn normalise(&mut self) {
        match self {
            ConfigEntry::ServiceDefaults(entry) => entry.normalise(),
            ConfigEntry::ProxyDefaults(entry) => entry.normalise(),
            ConfigEntry::Mesh(_) => {}
            ConfigEntry::ServiceIntentions(entry) => entry.normalise(),
        }
    }

    /// # Errors
    ///
    /// [`Invalid`] names the first field that cannot be accepted.
    pub fn validate(&self) -> Result<(), Invalid> {
        match self {
            ConfigEntry::ServiceDefaults(entry) => entry.validate(),
            ConfigEntry::ProxyDefaults(entry) => entry.validate(),
            ConfigEntry::Mesh(entry) => entry.validate(),
            ConfigEntry::ServiceIntentions(entry) => entry.validate(),
        }
    }
}

/// The kind in front of the fields of an entry.
#[derive(Serialize)]
#[serde(tag = "Kind")]
enum Tagged<'a> {
    #[serde(rename = "service-defaults")]
    ServiceDefaults(&'a ServiceDefaults),
    #[serde(rename = "proxy-defaults")]
    ProxyDefaults(&'a ProxyDefaults),
    #[serde(rename = "mesh")]
    Mesh(&'a Mesh),
    #[serde(rename = "service-intentions")]
    ServiceIntentions(&'a ServiceIntentions),
}

impl Serialize for ConfigEntry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            ConfigEntry::ServiceDefaults(entry) => Tagged::ServiceDefaults(entry),
            ConfigEntry::ProxyDefaults(entry) => Tagged::ProxyDefaults(entry),
            ConfigEntry::Mesh(entry) => Tagged::Mesh(entry),
            ConfigEntry::ServiceIntentions(entry) => Tagged::ServiceIntentions(entry),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ConfigEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(json::KIND_TAGGED, EntryVisitor)
    }
}

/// The crate's own decoder answers with an enum access whose variant is the `Kind` field; any other
/// decoder hands over the object, which is then read once more by the crate's own.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = ConfigEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a config entry: an object with the field Kind")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<ConfigEntry, D::Error> {
        let value = serde_json::Value::deserialize(inner)?;
        json::from_value(value, json::UnknownFields::Ignore).map_err(de::Error::custom)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, access: A) -> Result<ConfigEntry, A::Error> {
        let (kind, fields) = access.variant::<String>()?;
        Ok(match kind.parse().map_err(de::Error::custom)? {
            ConfigKind::ServiceDefaults => ConfigEntry::ServiceDefaults(fields.newtype_variant()?),
            ConfigKind::ProxyDefaults => ConfigEntry::ProxyDefaults(fields.newtype_variant()?),
            ConfigKind::Mesh => ConfigEntry::Mesh(fields.newtype_variant()?),
            ConfigKind::ServiceIntentions => {
                ConfigEntry::ServiceIntentions(fields.newtype_variant()?)
            }
        })
    }
}
