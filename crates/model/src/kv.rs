//! Entries of the key-value store: values and locks.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;
use serde::{Deserialize as DeriveDeserialize, Serialize as DeriveSerialize};

use crate::tenancy::TenancyName;

/// The maximum length of a key, in bytes. Consul has no such limit.
pub const MAX_KEY: usize = 4096;

/// A key with its value.
#[derive(Debug, Clone, Default, PartialEq, Eq, DeriveSerialize, DeriveDeserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct KvEntry {
    /// How many times the lock was acquired.
    pub lock_index: u64,
    /// The key; case-sensitive.
    pub key: String,
    /// Application-defined; opaque here.
    pub flags: u64,
    /// The value; arbitrary bytes.
    pub value: KvValue,
    /// Id of the session that holds the lock; empty if it is not held.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// Namespace; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub namespace: TenancyName,
    /// Partition; omitted when it is `default`.
    #[serde(skip_serializing_if = "TenancyName::is_empty")]
    pub partition: TenancyName,
    /// Index of the write that created it.
    pub create_index: u64,
    /// Index of the last write that changed it.
    pub modify_index: u64,
}

/// A byte string; in JSON base64, or `null` if empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KvValue(Option<Arc<[u8]>>);

impl KvValue {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_deref().unwrap_or_default()
    }
}

impl From<&[u8]> for KvValue {
    fn from(bytes: &[u8]) -> Self {
        KvValue((!bytes.is_empty()).then(|| bytes.into()))
    }
}

impl std::fmt::Debug for KvValue {
    /// Omits the bytes: values are large and may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.as_bytes().len())
    }
}

impl serde::Serialize for KvValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            None => serializer.serialize_none(),
            Some(bytes) => serializer.serialize_str(&STANDARD.encode(bytes)),
        }
    }
}

impl<'de> Deserialize<'de> for KvValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(text) = Option::<String>::deserialize(deserializer)? else {
            return Ok(KvValue::default());
        };
        let bytes = STANDARD.decode(&text);
        let bytes = bytes.map_err(|error| D::Error::custom(format!("no base64: {error}")))?;
        Ok(KvValue::from(&*bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_base64_and_empty_ones_are_null() {
        let entry = KvEntry {
            key: "a".to_owned(),
            value: KvValue::from(&b"test"[..]),
            ..KvEntry::default()
        };
        let text = serde_json::to_string(&entry).unwrap();
        let expected = r#"{"LockIndex":0,"Key":"a","Flags":0,"Value":"dGVzdA==","CreateIndex":0,"ModifyIndex":0}"#;
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_str::<KvEntry>(&text).unwrap(), entry);
        let empty = KvValue::from(&b""[..]);
        assert_eq!(serde_json::to_string(&empty).unwrap(), "null");
        assert_eq!(serde_json::from_str::<KvValue>("\"\"").unwrap(), empty);
        assert!(serde_json::from_str::<KvValue>("\"%\"").is_err());
        assert_eq!(format!("{:?}", entry.value), "4 bytes");
    }
}
