//! What says whether two policies, roles or tokens mean the same: Consul shows it with each.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use blake2::digest::consts::U32;
use blake2::{Blake2b, Digest};
use serde::de::{Deserialize, Deserializer, IgnoredAny};
use serde::{Serialize, Serializer};

/// A hash of everything that people can change. It is shown, never stored, and never read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContentHash(Option<String>);

impl ContentHash {
    /// Consul's: BLAKE2b with 256 bits of the texts, one behind the other.
    pub(crate) fn of<'t>(texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut hash = Blake2b::<U32>::new();
        for text in texts {
            hash.update(text);
        }
        Self(Some(STANDARD.encode(hash.finalize())))
    }

    /// Whether there is none, as in what is stored.
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
