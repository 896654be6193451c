//! Verifies proofs of identity for auth methods: with keys, or through a Kubernetes API server. Binding rules
//! are applied elsewhere.

mod failure;
mod fetch;
mod keys;
mod kubernetes;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use legate_model::Tenancy;
use legate_model::acl::{
    AuthMethod, JwtConfig, KeySource, KubernetesConfig, MethodConfig, Variables,
};
use legate_store::Reader;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

pub(crate) use self::failure::Failure;
use self::fetch::Client;
use self::keys::Keys;
use super::jwt::{self, SignatureError};

/// Timeout of a verification, including requests to external servers.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The maximum length of a bearer token, in bytes. JWTs are sent in HTTP headers and are far shorter.
const MAX_BEARER: usize = 64 * 1024;

/// The verifiers of the stored auth methods. Cached across logins, with fetched keys and the system's CA
/// certificates.
pub(crate) struct Methods {
    reader: Reader,
    known: Mutex<HashMap<(Tenancy, String), Arc<Known>>>,
}

struct Known {
    method: Arc<AuthMethod>,
    verifier: Verifier,
}

enum Verifier {
    /// With keys from the settings.
    Keys(JwtConfig),
    /// With fetched keys.
    Fetched(JwtConfig, Keys),
    Kubernetes(KubernetesConfig, Client),
}

impl Methods {
    pub(crate) fn new(reader: Reader) -> Self {
        Self {
            reader,
            known: Mutex::default(),
        }
    }

    /// Verifies a bearer token and returns the variables that binding rules use.
    ///
    /// # Errors
    /// [`Failure`] tells whether the method, an external server or the token is at fault.
    pub(crate) async fn verify(
        &self,
        method: &Arc<AuthMethod>,
        bearer: &str,
        now: SystemTime,
    ) -> Result<Variables, Failure> {
        if bearer.is_empty() || bearer.len() > MAX_BEARER {
            return Err(Failure::Refused(format!(
                "the bearer token has {} bytes, and must have 1 to {MAX_BEARER}",
                bearer.len()
            )));
        }
        let verified = async {
            let known = self.known(method).await?;
            known.verifier.verify(bearer, now).await
        };
        timeout(TIME_LIMIT, verified).await.unwrap_or_else(|_| {
            let limit = TIME_LIMIT.as_secs();
            let host = server_url(method);
            Err(Failure::Unreachable(format!(
                "{host}: no response within {limit} s"
            )))
        })
    }

    /// Checks that a method can work before it is stored. Fetches its keys if they are at a URL.
    ///
    /// # Errors
    /// The reason, as a text for users.
    pub(crate) async fn check(method: AuthMethod) -> Result<(), String> {
        let text = |failure| match failure {
            Failure::Broken(text) | Failure::Unreachable(text) | Failure::Refused(text) => text,
        };
        let verifier = build(Arc::new(method)).await.map_err(text)?;
        match &verifier {
            Verifier::Keys(config) => {
                let bad = |pem: &&String| jwt::public_key(pem).is_none();
                match config.keys.iter().position(|pem| bad(&pem)) {
                    Some(at) => Err(SignatureError::Key(at).to_string()),
                    None => Ok(()),
                }
            }
            Verifier::Fetched(config, keys) => {
                keys.get(config.key_source(), None).await.map(|_| ())
            }
            Verifier::Kubernetes(..) => Ok(()),
        }
    }

    async fn known(&self, method: &Arc<AuthMethod>) -> Result<Arc<Known>, Failure> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let current = |known: &Known, method: &AuthMethod| {
            let of = |method: &AuthMethod| (method.create_index, method.modify_index);
            of(&known.method) == of(method)
        };
        let place = (method.tenancy(), method.name.clone());
        if let Some(known) = lock().get(&place).filter(|known| current(known, method)) {
            return Ok(known.clone());
        }
        let known = Arc::new(Known {
            method: method.clone(),
            verifier: build(method.clone()).await?,
        });
        let mut all = lock();
        // Evict verifiers of deleted and changed methods.
        let stored = self.reader.state();
        all.retain(|(tenancy, name), known| {
            let method = stored.read().within(tenancy.clone()).auth_method(name);
            method.is_some_and(|method| current(known, &method))
        });
        // If another login was faster, both use its verifier.
        Ok(all.entry(place).or_insert(known).clone())
    }
}

/// Builds a verifier. Reads CA certificates from files, so it runs on a blocking thread.
async fn build(method: Arc<AuthMethod>) -> Result<Verifier, Failure> {
    let built = spawn_blocking(move || {
        let config = method.settings();
        let config = config.map_err(|error| Failure::Broken(error.to_string()))?;
        let client = |ca: &str, field| Client::new(ca, field).map_err(Failure::Broken);
        Ok(match config {
            MethodConfig::Jwt(config) => match config.key_source() {
                KeySource::Static(_) => Verifier::Keys(config),
                KeySource::Jwks(at) => {
                    let keys = Keys::new(client(at.ca, "JWKSCACert")?);
                    Verifier::Fetched(config, keys)
                }
                KeySource::Discovery(at) => {
                    let keys = Keys::new(client(at.ca, "OIDCDiscoveryCACert")?);
                    Verifier::Fetched(config, keys)
                }
            },
            MethodConfig::Kubernetes(config) => {
                let client = client(&config.ca_cert, "CACert")?;
                Verifier::Kubernetes(config, client)
            }
        })
    });
    let failed = |error: tokio::task::JoinError| Failure::Unreachable(error.to_string());
    built.await.map_err(failed)?
}

impl Verifier {
    async fn verify(&self, bearer: &str, now: SystemTime) -> Result<Variables, Failure> {
        match self {
            Self::Keys(config) => judge(config, &jwt::verify_signature(config, bearer)?, now),
            Self::Fetched(config, keys) => {
                let source = config.key_source();
                jwt::check_form(bearer)?;
                let first = keys.get(source, None).await;
                let first = first.map_err(Failure::Unreachable)?;
                let claims = match jwt::verify_with_set(config, &first, bearer) {
                    Err(SignatureError::Signature) => {
                        let newer = keys.get(source, Some(&first)).await;
                        let newer = newer.map_err(Failure::Unreachable)?;
                        jwt::verify_with_set(config, &newer, bearer)?
                    }
                    verified => verified?,
                };
                judge(config, &claims, now)
            }
            Self::Kubernetes(config, client) => {
                jwt::check_form(bearer)?;
                kubernetes::review(client, config, bearer).await
            }
        }
    }
}

/// Validates the claims of a token with a valid signature.
fn judge(
    config: &JwtConfig,
    claims: &legate_model::Opaque,
    now: SystemTime,
) -> Result<Variables, Failure> {
    let refused = |error: legate_model::acl::ClaimError| Failure::Refused(error.to_string());
    config.verify_claims(claims, now).map_err(refused)?;
    config.project(claims).map_err(refused)
}

/// The URL of a method's external server; empty if it has none.
fn server_url(method: &AuthMethod) -> String {
    match method.settings() {
        Ok(MethodConfig::Kubernetes(config)) => config.url(),
        Ok(MethodConfig::Jwt(config)) => match config.key_source() {
            KeySource::Jwks(at) | KeySource::Discovery(at) => at.url.to_owned(),
            KeySource::Static(_) => String::new(),
        },
        Err(_) => String::new(),
    }
}
