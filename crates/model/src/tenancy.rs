//! Whose a row is, and fields that Consul has and that cannot be used here. They are declared all the
//! same, because a field that is left out is ignored by some decoders, and ignoring one that restricts
//! access would widen it.

use std::sync::Arc;

use serde::de::{Deserialize, Deserializer, Error};

use crate::DEFAULT_TENANCY;

/// Whose a row is. Names are unique within one tenancy only.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenancy {
    /// The admin partition.
    pub partition: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// The peer that it was imported from; empty for what is registered here.
    pub peer: Arc<str>,
}

impl Default for Tenancy {
    /// Partition and namespace `default`, registered here.
    fn default() -> Self {
        Self {
            partition: DEFAULT_TENANCY.into(),
            namespace: DEFAULT_TENANCY.into(),
            peer: "".into(),
        }
    }
}

/// Whether a namespace or partition that a caller names is served: the default one, in any case, or
/// none. What is not served is refused, wherever a caller can name it.
#[must_use]
pub fn is_served_tenancy(namespace_or_partition: &str) -> bool {
    namespace_or_partition.is_empty()
        || namespace_or_partition.eq_ignore_ascii_case(DEFAULT_TENANCY)
}

/// A `Namespace` or `Partition` field: reads `""` and `"default"`, refuses anything else.
///
/// It holds nothing, because there is nothing to choose from, and it is not serialised.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct OnlyDefault;

impl<'de> Deserialize<'de> for OnlyDefault {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if is_served_tenancy(&name) {
            Ok(OnlyDefault)
        } else {
            Err(D::Error::custom(format_args!(
                "{name:?} is not served: namespaces and partitions other than {DEFAULT_TENANCY:?} \
                 do not exist here, leave the field out"
            )))
        }
    }
}

/// A peer's name: peering does not exist here, so only `""` is read. Serialises as `""`.
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
                "the peer {name:?} is not served: cluster peering does not exist here, leave the \
                 field out"
            )))
        }
    }
}

/// A field that is read whatever it holds and not used, because Consul does not use it either.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ignored;

impl<'de> Deserialize<'de> for Ignored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Ignored)
    }
}

/// A field whose meaning is not served: any value but an empty one is refused.
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
