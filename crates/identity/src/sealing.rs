//! Sealing: encryption of stored values, so that stolen files or backups reveal no secrets.
//!
//! AES-256-GCM with a random nonce per value. Each value is bound to its place in the store and
//! cannot be decrypted at another one.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::IdentityError;

/// The length of a key in bytes.
const KEY_LEN: usize = 32;

/// The first byte of every sealed value, for future changes of the format.
const VERSION: u8 = 1;

/// A key for sealing. Clones share the same memory.
#[derive(Clone)]
pub struct SealingKey {
    shared: Arc<Shared>,
}

/// The length of derived keys.
struct DerivedLen;

impl KeyType for DerivedLen {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

struct Shared {
    bytes: [u8; KEY_LEN],
    key: RandomizedNonceKey,
}

impl SealingKey {
    /// Generates a random key.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Seal`] when the system provides no randomness.
    pub fn generate() -> Result<SealingKey, IdentityError> {
        let mut bytes = [0; KEY_LEN];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| IdentityError::Seal)?;
        SealingKey::new(bytes)
    }

    /// Parses a key: 32 bytes as 64 hexadecimal digits or base64; surrounding whitespace is ignored.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseSealingKey`] for anything else; the text is not quoted.
    pub fn from_text(text: &str) -> Result<SealingKey, IdentityError> {
        let text = text.trim();
        let bytes = match from_hex(text) {
            Some(bytes) => bytes,
            None => STANDARD
                .decode(text)
                .map_err(|_| IdentityError::ParseSealingKey)?,
        };
        let bytes = bytes.try_into();
        SealingKey::new(bytes.map_err(|_| IdentityError::ParseSealingKey)?)
    }

    fn new(bytes: [u8; KEY_LEN]) -> Result<SealingKey, IdentityError> {
        let key = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| IdentityError::Seal)?;
        Ok(SealingKey {
            shared: Arc::new(Shared { bytes, key }),
        })
    }

    /// The key as 64 hexadecimal digits. This exposes the secret.
    #[must_use]
    pub fn to_text(&self) -> String {
        let digits = self.shared.bytes.iter();
        digits.map(|byte| format!("{byte:02x}")).collect()
    }

    /// Derives a key for another purpose, from which this one cannot be computed (HKDF, RFC 5869).
    ///
    /// # Errors
    ///
    /// [`IdentityError::Seal`] never happens for a key of this length.
    pub(crate) fn derive(&self, purpose: &[u8]) -> Result<[u8; KEY_LEN], IdentityError> {
        let mut derived = [0; KEY_LEN];
        let extracted = Salt::new(HKDF_SHA256, b"legate").extract(&self.shared.bytes);
        let purposes = [purpose];
        let expanded = extracted.expand(&purposes, DerivedLen);
        let filled = expanded.and_then(|key| key.fill(&mut derived));
        filled.map_err(|_| IdentityError::Seal)?;
        Ok(derived)
    }

    /// Encrypts a value. `place` is where the value will be stored; it is authenticated, but not part
    /// of the result.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Seal`] when the system provides no randomness.
    pub fn seal(&self, place: &[u8], value: &[u8]) -> Result<Vec<u8>, IdentityError> {
        let mut text = value.to_vec();
        let nonce = self
            .shared
            .key
            .seal_in_place_append_tag(Aad::from(place), &mut text)
            .map_err(|_| IdentityError::Seal)?;
        Ok([&[VERSION], &nonce.as_ref()[..], &text].concat())
    }

    /// Decrypts a value that was sealed with this key for the same place.
    ///
    /// # Errors
    ///
    /// [`IdentityError::Unseal`] when the key or place differs, or the value is damaged.
    pub fn open(&self, place: &[u8], sealed: &[u8]) -> Result<Vec<u8>, IdentityError> {
        let sealed = sealed.strip_prefix(&[VERSION]);
        let parts = sealed.and_then(<[u8]>::split_first_chunk::<NONCE_LEN>);
        let (nonce, text) = parts.ok_or(IdentityError::Unseal)?;
        let mut text = text.to_vec();
        let value = self
            .shared
            .key
            .open_in_place(Nonce::from(nonce), Aad::from(place), &mut text)
            .map_err(|_| IdentityError::Unseal)?;
        Ok(value.to_vec())
    }
}

impl fmt::Debug for SealingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealingKey(***)")
    }
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * KEY_LEN || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = (0..text.len()).step_by(2);
    pairs
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_value_opens_with_the_same_key_and_place() {
        let key = SealingKey::generate().unwrap();
        let sealed = key.seal(b"here", b"the secret").unwrap();
        assert_eq!(key.open(b"here", &sealed).unwrap(), b"the secret");
        let again = SealingKey::from_text(&key.to_text()).unwrap();
        assert_eq!(again.open(b"here", &sealed).unwrap(), b"the secret");

        assert!(key.open(b"there", &sealed).is_err());
        let other = SealingKey::generate().unwrap();
        assert!(other.open(b"here", &sealed).is_err());
        assert_ne!(key.seal(b"here", b"the secret").unwrap(), sealed);
        assert!(!sealed.windows(6).any(|part| part == b"secret"));
    }

    #[test]
    fn a_damaged_value_does_not_open() {
        let key = SealingKey::generate().unwrap();
        let sealed = key.seal(b"", b"value").unwrap();
        for at in 0..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert!(key.open(b"", &damaged).is_err(), "byte {at}");
            assert!(key.open(b"", &sealed[..at]).is_err(), "{at} bytes");
        }
    }

    #[test]
    fn keys_generated_by_openssl_are_parsed() {
        let hex = "00".repeat(31) + "fF\n";
        let base64 = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAP8=\n";
        let key = SealingKey::from_text(&hex).unwrap();
        assert_eq!(key.to_text(), hex.trim().to_lowercase());
        let same = SealingKey::from_text(base64).unwrap();
        assert_eq!(same.to_text(), key.to_text());
    }

    #[test]
    fn invalid_keys_are_refused_and_keys_are_redacted() {
        for text in ["", "hunter2", &"00".repeat(31), &"0g".repeat(32), "AAAA"] {
            let error = SealingKey::from_text(text).unwrap_err();
            assert!(text.is_empty() || !format!("{error} {error:?}").contains(text));
        }
        let key = SealingKey::generate().unwrap();
        assert!(!format!("{key:?}").contains(&key.to_text()));
    }
}
