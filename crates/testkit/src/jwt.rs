//! JWTs for auth methods, signed with a key pair generated for the test.
//!
//! Signs arbitrary claims, including invalid ones, without checks.

use std::fmt;

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};

/// An ES256 key pair.
pub struct TestSigner {
    key: EncodingKey,
    public_key_pem: String,
}

impl TestSigner {
    /// Generates a key pair.
    ///
    /// # Panics
    ///
    /// If no key can be generated.
    #[must_use]
    pub fn generate() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("P-256 key pair");
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).expect("PKCS #8 key");
        Self {
            key,
            public_key_pem: pair.public_key_pem(),
        }
    }

    /// The public key as PEM, for `JWTValidationPubKeys` of an auth method.
    #[must_use]
    pub fn public_key_pem(&self) -> &str {
        &self.public_key_pem
    }

    /// A JWT with exactly these claims. Times are Unix timestamps.
    ///
    /// # Panics
    ///
    /// If the claims cannot be encoded.
    #[must_use]
    pub fn sign(&self, claims: &serde_json::Value) -> String {
        encode(&Header::new(Algorithm::ES256), claims, &self.key).expect("claims are JSON")
    }
}

impl TestSigner {
    /// A JWT with exactly these claims and a key id.
    ///
    /// # Panics
    ///
    /// If the claims cannot be encoded.
    #[must_use]
    pub fn sign_as(&self, key_id: &str, claims: &serde_json::Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(key_id.to_owned());
        encode(&header, claims, &self.key).expect("claims are JSON")
    }

    /// The public key as a JSON Web Key with this id.
    ///
    /// # Panics
    ///
    /// If the key cannot be encoded.
    #[must_use]
    pub fn public_jwk(&self, key_id: &str) -> serde_json::Value {
        let mut key = Jwk::from_encoding_key(&self.key, Algorithm::ES256).expect("a P-256 key");
        key.common.key_id = Some(key_id.to_owned());
        serde_json::to_value(key).expect("a key is JSON")
    }
}

impl fmt::Debug for TestSigner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestSigner")
            .field("public_key_pem", &self.public_key_pem)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::{DecodingKey, Validation, decode};
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_signature_verifies_with_its_own_public_key_only() {
        let signer = TestSigner::generate();
        let other = TestSigner::generate();
        let token = signer.sign(&json!({"sub": "web", "exp": 4_000_000_000_u64}));
        let verify = |pem: &str| {
            let key = DecodingKey::from_ec_pem(pem.as_bytes()).unwrap();
            decode::<Value>(&token, &key, &Validation::new(Algorithm::ES256))
        };
        assert_eq!(
            verify(signer.public_key_pem()).unwrap().claims["sub"],
            "web"
        );
        assert!(verify(other.public_key_pem()).is_err());
    }
}
