//! Private keys: generation, parsing and encoding. They are redacted in output.

use std::fmt;
use std::sync::Arc;

use rcgen::{KeyPair, PublicKeyData, RsaKeySize, SignatureAlgorithm, SigningKey};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};

use crate::IdentityError;
use crate::certificate::colon_hex;

/// Algorithm and size of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyKind {
    /// ECDSA over P-256.
    #[default]
    EcP256,
    /// ECDSA over P-384.
    EcP384,
    /// ECDSA over P-521.
    EcP521,
    /// RSA of 2048 bits.
    Rsa2048,
    /// RSA of 4096 bits.
    Rsa4096,
}

impl KeyKind {
    /// All kinds.
    pub const ALL: [KeyKind; 5] = [
        KeyKind::EcP256,
        KeyKind::EcP384,
        KeyKind::EcP521,
        KeyKind::Rsa2048,
        KeyKind::Rsa4096,
    ];

    /// `ec` or `rsa`.
    #[must_use]
    pub fn algorithm(self) -> &'static str {
        match self {
            KeyKind::EcP256 | KeyKind::EcP384 | KeyKind::EcP521 => "ec",
            KeyKind::Rsa2048 | KeyKind::Rsa4096 => "rsa",
        }
    }

    /// The size in bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self {
            KeyKind::EcP256 => 256,
            KeyKind::EcP384 => 384,
            KeyKind::EcP521 => 521,
            KeyKind::Rsa2048 => 2048,
            KeyKind::Rsa4096 => 4096,
        }
    }
}

/// A private key. Clones share the same memory.
#[derive(Clone)]
pub struct PrivateKey {
    pair: Arc<KeyPair>,
    pem: Arc<str>,
}

impl PrivateKey {
    /// Generates an EC P-256 key, the kind that every leaf certificate has.
    ///
    /// # Errors
    ///
    /// [`IdentityError::GenerateKey`] when the system provides no randomness.
    pub fn generate() -> Result<PrivateKey, IdentityError> {
        PrivateKey::generate_kind(KeyKind::EcP256)
    }

    /// Generates a key of this kind. RSA keys can take seconds of CPU time.
    ///
    /// # Errors
    ///
    /// [`IdentityError::GenerateKey`] when the system provides no randomness.
    pub fn generate_kind(kind: KeyKind) -> Result<PrivateKey, IdentityError> {
        let rsa = |size| KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size);
        let pair = match kind {
            KeyKind::EcP256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            KeyKind::EcP384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            KeyKind::EcP521 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512),
            KeyKind::Rsa2048 => rsa(RsaKeySize::_2048),
            KeyKind::Rsa4096 => rsa(RsaKeySize::_4096),
        };
        let pair = pair.map_err(IdentityError::GenerateKey)?;
        let pem = pair.serialize_pem().into();
        Ok(PrivateKey {
            pair: Arc::new(pair),
            pem,
        })
    }

    /// Parses the first private key in a PEM text; other sections before it are skipped.
    ///
    /// # Errors
    ///
    /// [`IdentityError::ParseKey`] when there is none or its algorithm is not supported.
    pub fn from_pem(pem: &str) -> Result<PrivateKey, IdentityError> {
        let der =
            PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| IdentityError::ParseKey)?;
        let pair = KeyPair::try_from(&der).map_err(|_| IdentityError::ParseKey)?;
        let pem = match der {
            PrivateKeyDer::Pkcs8(_) => pair.serialize_pem(),
            // The library would mislabel the other encodings as PKCS#8.
            _ => pem.to_owned(),
        };
        Ok(PrivateKey {
            pair: Arc::new(pair),
            pem: pem.into(),
        })
    }

    /// The key as PEM. This exposes the secret.
    #[must_use]
    pub fn to_pem(&self) -> String {
        self.pem.to_string()
    }

    /// SHA-256 of the public key, hex bytes joined by colons, as in
    /// [`CertificateInfo`](crate::CertificateInfo).
    #[must_use]
    pub fn public_key(&self) -> String {
        colon_hex(&self.key_id())
    }

    /// SHA-256 of the public key in PKIX form, used as the key id in certificates.
    pub(crate) fn key_id(&self) -> Vec<u8> {
        key_id(&self.pair.subject_public_key_info())
    }
}

/// SHA-256 of a public key in PKIX form.
pub(crate) fn key_id(public_key_info: &[u8]) -> Vec<u8> {
    Sha256::digest(public_key_info).to_vec()
}

impl PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        self.pair.der_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.pair.algorithm()
    }
}

impl SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.pair.sign(message)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_a_round_trip_through_pem() {
        let key = PrivateKey::generate().unwrap();
        let pem = key.to_pem();
        assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        let read = PrivateKey::from_pem(&pem).unwrap();
        assert_eq!(read.to_pem(), pem);
        assert_eq!(read.key_id(), key.key_id());
    }

    #[test]
    fn every_kind_survives_a_round_trip_through_pem() {
        for kind in KeyKind::ALL {
            let key = PrivateKey::generate_kind(kind).unwrap();
            let read = PrivateKey::from_pem(&key.to_pem()).unwrap();
            assert_eq!(read.key_id(), key.key_id(), "{kind:?}");
        }
    }

    #[test]
    fn parses_the_format_of_consul() {
        // The SEC1 form of a P-256 key without its optional parts.
        let key = PrivateKey::generate().unwrap();
        let pkcs8 = PrivateKeyDer::from_pem_slice(key.to_pem().as_bytes()).unwrap();
        let sec1 = sec1_inside(pkcs8.secret_der());
        let pem = pem_text("EC PRIVATE KEY", sec1);
        let read = PrivateKey::from_pem(&pem).unwrap();
        assert_eq!(read.key_id(), key.key_id());
        assert_eq!(read.to_pem(), pem);
    }

    #[test]
    fn refuses_invalid_keys_without_quoting_them() {
        for text in [
            "",
            "hunter2",
            "-----BEGIN PRIVATE KEY-----\nhunter2=\n-----END PRIVATE KEY-----\n",
        ] {
            let error = PrivateKey::from_pem(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"));
        }
    }

    #[test]
    fn is_never_printed() {
        let key = PrivateKey::generate().unwrap();
        assert_eq!(format!("{key:?}"), "PrivateKey(***)");
    }

    /// The octet string at the end of a PKCS#8 structure: 0x04, length, SEC1 key.
    fn sec1_inside(pkcs8: &[u8]) -> &[u8] {
        let start = (0..pkcs8.len() - 2)
            .find(|&at| {
                pkcs8[at] == 0x04
                    && usize::from(pkcs8[at + 1]) == pkcs8.len() - at - 2
                    && pkcs8[at + 2] == 0x30
            })
            .unwrap();
        &pkcs8[start + 2..]
    }

    fn pem_text(label: &str, der: &[u8]) -> String {
        const ALPHABET: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for chunk in der.chunks(3) {
            let bits = chunk
                .iter()
                .fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte))
                << (8 * (3 - chunk.len()));
            for digit in 0..4 {
                let index = (bits >> (18 - 6 * digit)) & 63;
                let letter = if digit > chunk.len() {
                    b'='
                } else {
                    ALPHABET[index as usize]
                };
                text.push(char::from(letter));
            }
        }
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n")
    }
}
