//! Content hashes of policies, roles and tokens, which Consul returns so that clients can compare
//! them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Serialize, Serializer};

/// Hash of all user-editable fields. Computed for responses, never stored or parsed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentHash(Option<String>);

impl ContentHash {
    /// As in Consul: BLAKE2b-256 of the concatenated texts.
    pub(crate) fn of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut hash = Blake2b::<U32>::new();
        for text in texts {
            hash.update(text);
        }
        Self(Some(STANDARD.encode(hash.finalize())))
    }

    /// Whether it is unset, as in stored rows.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Serialize for ContentHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ContentHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| Self::default())
    }
}
