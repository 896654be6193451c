//! Tenancies, and types for fields of Consul that are not supported here. Such fields are declared
//! nevertheless: some decoders ignore undeclared fields, and ignoring a field that restricts access
//! would widen it.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error};

/// Name of the built-in namespace and partition.
pub const DEFAULT_TENANCY: &str = "default";

/// The maximum length of a namespace's or partition's name in bytes, as in Consul Enterprise.
pub const MAX_TENANCY_NAME: usize = 64;

/// Wildcard for all namespaces or partitions, where permitted.
pub const EVERY_TENANCY: &str = "*";

/// The tenancy of a row. Names are unique within one tenancy only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenancy {
    /// The admin partition.
    pub partition: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The peer that the row was imported from; empty for local rows.
    pub peer: Arc<str>,
}

impl Default for Tenancy {
    /// The default namespace of the default partition, local.
    fn default() -> Self {
        static DEFAULT: LazyLock<Tenancy> = LazyLock::new(|| Tenancy {
            partition: DEFAULT_TENANCY.into(),
            namespace: DEFAULT_TENANCY.into(),
            peer: "".into(),
        });
        DEFAULT.clone()
    }
}

impl Tenancy {
    /// A namespace of a partition; unset names mean `default`.
    #[must_use]
    pub fn new(partition: &TenancyName, namespace: &TenancyName) -> Self {
        Self::default().resolve(partition, namespace)
    }

    /// The tenancy that a row of this tenancy refers to. Unset names mean this tenancy's own.
    #[must_use]
    pub fn resolve(&self, partition: &TenancyName, namespace: &TenancyName) -> Self {
        let named = |name: &TenancyName, own: &Arc<str>| name.0.as_ref().unwrap_or(own).clone();
        Self {
            partition: named(partition, &self.partition),
            namespace: named(namespace, &self.namespace),
            peer: self.peer.clone(),
        }
    }

    /// The partition and namespace with which another tenancy refers to this one: both unset if the
    /// tenancies are equal, both set if the partitions differ.
    #[must_use]
    pub fn named_from(&self, other: &Self) -> (TenancyName, TenancyName) {
        let name = |is: bool, name: &Arc<str>| TenancyName(is.then(|| name.clone()));
        let elsewhere = self.partition != other.partition;
        let namespace = elsewhere || self.namespace != other.namespace;
        (
            name(elsewhere, &self.partition),
            name(namespace, &self.namespace),
        )
    }

    /// The tenancy of what belongs to the partition as a whole, such as nodes.
    #[must_use]
    pub fn of_partition(&self) -> Self {
        Self {
            namespace: Self::default().namespace,
            ..self.clone()
        }
    }

    /// Another namespace of the same partition.
    #[must_use]
    pub fn in_namespace(&self, namespace: &TenancyName) -> Self {
        self.resolve(&TenancyName::default(), namespace)
    }

    /// What was imported from a peer into this tenancy; with an empty name the tenancy's own rows.
    #[must_use]
    pub fn of_peer(&self, peer: &str) -> Self {
        Self {
            peer: peer.to_ascii_lowercase().into(),
            ..self.clone()
        }
    }

    /// The peer for use in rows: unset for those of this cluster.
    #[must_use]
    pub fn shown_peer(&self) -> PeerName {
        PeerName(Some(self.peer.clone()).filter(|peer| !peer.is_empty()))
    }

    /// Whether partition and namespace are both `default`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.is_default_partition() && self.is_default_namespace()
    }

    /// Whether the partition is `default`.
    #[must_use]
    pub fn is_default_partition(&self) -> bool {
        &*self.partition == DEFAULT_TENANCY
    }

    /// Whether the namespace is `default`.
    #[must_use]
    pub fn is_default_namespace(&self) -> bool {
        &*self.namespace == DEFAULT_TENANCY
    }

    /// The partition for use in rows: unset if it is `default`, so that the output without tenancies
    /// is unchanged.
    #[must_use]
    pub fn shown_partition(&self) -> TenancyName {
        TenancyName::shown(&self.partition)
    }

    /// The namespace for use in rows; see [`Self::shown_partition`].
    #[must_use]
    pub fn shown_namespace(&self) -> TenancyName {
        TenancyName::shown(&self.namespace)
    }
}

/// The full name of a service: tenancy and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceName {
    /// The service's tenancy.
    pub tenancy: Tenancy,
    /// Its name, or `*`.
    pub name: Arc<str>,
}

impl ServiceName {
    /// A service in a tenancy.
    #[must_use]
    pub fn new(tenancy: &Tenancy, name: &str) -> Self {
        Self {
            tenancy: tenancy.clone(),
            name: name.into(),
        }
    }

    /// The namespace and the name, each of which may be `*`.
    #[must_use]
    pub fn exact(&self) -> [&str; 2] {
        [&self.tenancy.namespace, &self.name]
    }
}

impl From<&ServiceName> for ServiceName {
    fn from(service: &ServiceName) -> Self {
        service.clone()
    }
}

impl PartialEq<&str> for ServiceName {
    /// Whether it is the service of that name in the default tenancy.
    fn eq(&self, name: &&str) -> bool {
        self.tenancy.is_default() && *self.name == **name
    }
}

impl From<&str> for ServiceName {
    /// A service in the default tenancy.
    fn from(name: &str) -> Self {
        Self::new(&Tenancy::default(), name)
    }
}

impl fmt::Display for ServiceName {
    /// `<name>`, `<namespace>/<name>` or `<partition>/<namespace>/<name>`, then the peer, if any.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tenancy {
            partition,
            namespace,
            peer,
        } = &self.tenancy;
        if !self.tenancy.is_default_partition() {
            write!(f, "{partition}/{namespace}/")?;
        } else if !self.tenancy.is_default_namespace() {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        match peer.is_empty() {
            true => Ok(()),
            false => write!(f, " of peer {peer}"),
        }
    }
}

/// A reference to a service in a config entry; unset parts mean the entry's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServiceReference<'a> {
    pub(crate) service: &'a str,
    pub(crate) partition: &'a TenancyName,
    pub(crate) namespace: &'a TenancyName,
}

impl ServiceReference<'_> {
    /// The service that is referred to in an entry of the service `own`.
    pub(crate) fn resolve(&self, own: &ServiceName) -> ServiceName {
        let name = match self.service {
            "" => &own.name,
            service => service,
        };
        ServiceName::new(&own.tenancy.resolve(self.partition, self.namespace), name)
    }
}

/// The name of a namespace or partition in lower case, `*` for all of them, or unset.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenancyName(Option<Arc<str>>);

/// A text that is not a valid name of a namespace or partition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a namespace or partition: write at most 64 letters, digits and dashes, with a \
     letter or digit first and last"
)]
pub struct InvalidTenancyName(String);

impl TenancyName {
    /// The name as text; empty if unset.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether it is unset.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it is the wildcard `*`.
    #[must_use]
    pub fn is_every(&self) -> bool {
        self.as_str() == EVERY_TENANCY
    }

    /// The name that unset names default to.
    #[must_use]
    pub fn default_name() -> Self {
        Self(Some(Tenancy::default().namespace))
    }

    /// Whether it is unset or `default`.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.is_empty() || self.as_str() == DEFAULT_TENANCY
    }

    /// The unset name.
    pub(crate) const NONE: &'static Self = &Self(None);

    fn shown(name: &Arc<str>) -> Self {
        Self(Some(name.clone()).filter(|name| &**name != DEFAULT_TENANCY))
    }
}

impl std::str::FromStr for TenancyName {
    type Err = InvalidTenancyName;

    /// Accepts any case, the empty text and `*`.
    fn from_str(text: &str) -> Result<Self, InvalidTenancyName> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let valid = text.len() <= MAX_TENANCY_NAME
            && text.chars().all(is_inner)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if valid || text == EVERY_TENANCY {
            Ok(Self(Some(text.to_ascii_lowercase().into())))
        } else {
            Err(InvalidTenancyName(text.to_owned()))
        }
    }
}

impl fmt::Display for TenancyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TenancyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for TenancyName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for TenancyName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        name.unwrap_or_default().parse().map_err(D::Error::custom)
    }
}

impl JsonSchema for TenancyName {
    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// The peer that a row was imported from; unset for rows of this cluster. Its text is the peer's local name.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerName(Option<Arc<str>>);

impl PeerName {
    /// The name as text; empty if unset.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }

    /// Whether it is unset.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl From<&str> for PeerName {
    /// In lower case; the empty text means unset.
    fn from(name: &str) -> Self {
        Self((!name.is_empty()).then(|| name.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for PeerName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for PeerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Option::<String>::deserialize(deserializer)?;
        Ok(Self::from(name.unwrap_or_default().as_str()))
    }
}

impl JsonSchema for PeerName {
    fn schema_name() -> Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// The name of a peer in a request that writes rows of this cluster, so only `""` is accepted. Serialises as `""`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NoPeer;

impl serde::Serialize for NoPeer {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("")
    }
}

impl<'de> Deserialize<'de> for NoPeer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() {
            Ok(NoPeer)
        } else {
            Err(D::Error::custom(format_args!(
                "the peer {name:?} cannot be named here: only its own cluster writes what is imported \
                 from it, leave the field out"
            )))
        }
    }
}

/// A field that accepts any value and ignores it, as Consul does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

impl JsonSchema for Ignored {
    fn schema_name() -> Cow<'static, str> {
        "Ignored".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        Schema::default()
    }
}

/// A field that is not served: any value but an empty one is refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct NotServed;

impl<'de> Deserialize<'de> for NotServed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde_json::Value;
        let empty = match Value::deserialize(deserializer)? {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Number(number) => number.as_f64() == Some(0.0),
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
        };
        if empty {
            Ok(NotServed)
        } else {
            Err(D::Error::custom("the field is not served: leave it out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TenancyName {
        text.parse().expect("a valid name")
    }

    #[test]
    fn names_are_lower_case_and_short() {
        assert_eq!(name("Team-1"), name("team-1"));
        assert!(name("").is_empty() && name("*").is_every());
        for bad in ["-a", "a-", "a.b", "a b", "**", "\u{e9}", &"a".repeat(65)] {
            assert!(bad.parse::<TenancyName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_reference_inherits_what_it_leaves_out() {
        let own = Tenancy::new(&name("p"), &name("n"));
        assert_eq!(own.resolve(&name(""), &name("")), own);
        assert_eq!(
            own.resolve(&name(""), &name("m")),
            Tenancy::new(&name("p"), &name("m"))
        );
        assert_eq!(own.of_partition(), Tenancy::new(&name("p"), &name("")));
    }

    #[test]
    fn rows_of_the_default_tenancy_show_none() {
        assert!(Tenancy::default().is_default());
        assert!(Tenancy::default().shown_namespace().is_empty());
        assert_eq!(
            Tenancy::new(&name("p"), &name("")).shown_partition(),
            name("p")
        );
    }
}
