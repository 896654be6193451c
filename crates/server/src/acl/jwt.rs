//! Verifies signatures of bearer tokens. [`JwtConfig`] validates the claims. Keys are fetched elsewhere.

use jsonwebtoken::jwk::{Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use legate_model::Opaque;
use legate_model::acl::{JwtAlgorithm, JwtConfig};

/// The signature of a bearer token is not accepted. The texts never contain the token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SignatureError {
    /// Not a JWT, or a JWT with an insecure algorithm.
    #[error("the bearer token is not a JWT: {0}")]
    NotAJwt(String),
    /// The algorithm is not among those that the method permits.
    #[error("the JWT is signed with {0:?}, which the auth method's JWTSupportedAlgs does not list")]
    Algorithm(Algorithm),
    /// A configured key is not a public key.
    #[error(
        "JWTValidationPubKeys[{0}] of the auth method is not the PEM of an RSA or EC public key"
    )]
    Key(usize),
    /// None of the keys verifies the signature.
    #[error("no key of the auth method fits the JWT's signature")]
    Signature,
}

/// Parses a public key in PEM.
pub(crate) fn public_key(pem: &str) -> Option<DecodingKey> {
    let pem = pem.as_bytes();
    let rsa = DecodingKey::from_rsa_pem(pem);
    rsa.or_else(|_| DecodingKey::from_ec_pem(pem)).ok()
}

/// Checks that a text is a JWT, without verifying its signature.
pub(crate) fn check_form(bearer: &str) -> Result<Header, SignatureError> {
    let header = jsonwebtoken::decode_header(bearer);
    header.map_err(|error| SignatureError::NotAJwt(error.to_string()))
}

/// Verifies a token with the method's configured keys and returns its claims.
pub(crate) fn verify_signature(config: &JwtConfig, bearer: &str) -> Result<Opaque, SignatureError> {
    let header = check_algorithm(config, bearer)?;
    for (at, pem) in config.keys.iter().enumerate() {
        let key = public_key(pem).ok_or(SignatureError::Key(at))?;
        if let Some(claims) = claims(&key, &header, bearer) {
            return Ok(claims);
        }
    }
    Err(SignatureError::Signature)
}

/// Verifies a token with a key set and returns its claims. If the token names a key, only that key is tried.
pub(crate) fn verify_with_set(
    config: &JwtConfig,
    keys: &[Jwk],
    bearer: &str,
) -> Result<Opaque, SignatureError> {
    let header = check_algorithm(config, bearer)?;
    let fits = |jwk: &&Jwk| {
        let about = &jwk.common;
        let named = header.kid.is_none() || header.kid == about.key_id;
        let usable = about
            .key_algorithm
            .is_none_or(|known| known == KeyAlgorithm::from(header.alg));
        let signs = !matches!(about.public_key_use, Some(PublicKeyUse::Encryption));
        named && usable && signs
    };
    let mut found = keys.iter().filter(fits).filter_map(|jwk| {
        let key = DecodingKey::from_jwk(jwk).ok()?;
        claims(&key, &header, bearer)
    });
    found.next().ok_or(SignatureError::Signature)
}

fn check_algorithm(config: &JwtConfig, bearer: &str) -> Result<Header, SignatureError> {
    let header = check_form(bearer)?;
    let allowed = config.algorithms().iter().filter_map(|one| known(*one));
    if !allowed.into_iter().any(|one| one == header.alg) {
        return Err(SignatureError::Algorithm(header.alg));
    }
    Ok(header)
}

/// The claims, if the key verifies the signature.
fn claims(key: &DecodingKey, header: &Header, bearer: &str) -> Option<Opaque> {
    if key.family() != header.alg.family() {
        return None;
    }
    let mut validation = Validation::new(header.alg);
    // Issuer, audience and times are validated by the caller, with the server's clock.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let token = jsonwebtoken::decode::<Opaque>(bearer, key, &validation);
    token.ok().map(|token| token.claims)
}

/// The library's name of an algorithm. It does not support ES512.
fn known(algorithm: JwtAlgorithm) -> Option<Algorithm> {
    Some(match algorithm {
        JwtAlgorithm::Rs256 => Algorithm::RS256,
        JwtAlgorithm::Rs384 => Algorithm::RS384,
        JwtAlgorithm::Rs512 => Algorithm::RS512,
        JwtAlgorithm::Ps256 => Algorithm::PS256,
        JwtAlgorithm::Ps384 => Algorithm::PS384,
        JwtAlgorithm::Ps512 => Algorithm::PS512,
        JwtAlgorithm::Es256 => Algorithm::ES256,
        JwtAlgorithm::Es384 => Algorithm::ES384,
        JwtAlgorithm::Es512 => return None,
    })
}

#[cfg(test)]
mod tests {
    use legate_testkit::jwt::TestSigner;
    use serde_json::json;

    use super::*;

    fn config(algorithms: &[JwtAlgorithm], keys: &[&str]) -> JwtConfig {
        JwtConfig {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            supported_algorithms: algorithms.to_vec(),
            ..JwtConfig::default()
        }
    }

    fn es256(signers: &[&TestSigner]) -> JwtConfig {
        let keys: Vec<&str> = signers.iter().map(|one| one.public_key_pem()).collect();
        config(&[JwtAlgorithm::Rs256, JwtAlgorithm::Es256], &keys)
    }

    #[test]
    fn any_of_the_keys_may_have_signed() {
        let (first, second) = (TestSigner::generate(), TestSigner::generate());
        let config = es256(&[&first, &second]);
        for signer in [&first, &second] {
            // Times are not validated here.
            let claims = json!({"sub": "web", "exp": 1});
            let verified = verify_signature(&config, &signer.sign(&claims)).unwrap();
            assert_eq!(verified["sub"], "web");
        }
        let stranger = TestSigner::generate().sign(&json!({}));
        let refused = verify_signature(&config, &stranger);
        assert_eq!(refused, Err(SignatureError::Signature));
    }

    #[test]
    fn malformed_and_tampered_tokens_are_refused() {
        let signer = TestSigner::generate();
        let config = es256(&[&signer]);
        for text in ["", "token", "a.b.c", "a.b", "\u{1F980}.x.y"] {
            let refused = verify_signature(&config, text);
            assert!(matches!(refused, Err(SignatureError::NotAJwt(_))), "{text}");
        }
        let (good, other) = (
            signer.sign(&json!({"sub": "web"})),
            signer.sign(&json!({"sub": "admin"})),
        );
        let good: Vec<&str> = good.split('.').collect();
        let payload = other.split('.').nth(1).unwrap();
        let mixed = [good[0], payload, good[2]].join(".");
        let refused = verify_signature(&config, &mixed);
        assert_eq!(refused, Err(SignatureError::Signature));
    }

    #[test]
    fn only_listed_algorithms_pass_and_rs256_without_a_list() {
        let signer = TestSigner::generate();
        let token = signer.sign(&json!({}));
        for listed in [&[][..], &[JwtAlgorithm::Es384], &[JwtAlgorithm::Es512]] {
            let config = config(listed, &[signer.public_key_pem()]);
            let refused = verify_signature(&config, &token);
            assert_eq!(refused, Err(SignatureError::Algorithm(Algorithm::ES256)));
        }
    }

    #[test]
    fn a_public_key_is_never_a_shared_secret() {
        let signer = TestSigner::generate();
        let key = jsonwebtoken::EncodingKey::from_secret(signer.public_key_pem().as_bytes());
        let header = jsonwebtoken::Header::new(Algorithm::HS256);
        let forged = jsonwebtoken::encode(&header, &json!({}), &key).unwrap();
        let refused = verify_signature(&es256(&[&signer]), &forged);
        assert_eq!(refused, Err(SignatureError::Algorithm(Algorithm::HS256)));
    }

    #[test]
    fn a_key_that_cannot_be_read_is_named() {
        let signer = TestSigner::generate();
        let garbage = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n";
        let config = config(&[JwtAlgorithm::Es256], &[garbage, signer.public_key_pem()]);
        let refused = verify_signature(&config, &signer.sign(&json!({})));
        assert_eq!(refused, Err(SignatureError::Key(0)));
    }
}
