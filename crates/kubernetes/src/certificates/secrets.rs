//! Material in Secrets: read, replaced and made by whichever replica comes first. The API server
//! refuses a change that was made from an older state, and then everything is looked at again.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use legate_identity::IdentityError;

use super::material::{Material, Policy, Step};

/// How often a state that others change meanwhile is looked at again.
const ATTEMPTS: usize = 5;

/// There is no usable certificate.
#[derive(Debug, thiserror::Error)]
pub(super) enum SecretError {
    /// The API server.
    #[error("the Secret {name} cannot be {what}: {source}")]
    Api {
        /// The Secret.
        name: String,
        /// What was asked for.
        what: &'static str,
        /// What the API server says.
        source: Box<kube::Error>,
    },
    /// Somebody has changed the Secret.
    #[error(
        "the Secret {name} holds no CA of this operator: {reason}; restore it, or delete it to \
             have a new CA made, which every sidecar and server has to be restarted for"
    )]
    Damaged {
        /// The Secret.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A certificate cannot be made.
    #[error("no certificate can be made: {0}")]
    Identity(#[from] IdentityError),
    /// Others change it all the time.
    #[error("the Secret {name} is changed by others all the time")]
    Contended {
        /// The Secret.
        name: String,
    },
}

impl SecretError {
    fn api(name: &str, what: &'static str) -> impl FnOnce(kube::Error) -> SecretError {
        let name = name.to_owned();
        move |source| SecretError::Api {
            name,
            what,
            source: Box::new(source),
        }
    }
}

/// What becomes of a Secret that holds something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damaged {
    /// It is replaced: nobody depends on what was in it.
    Replace,
    /// It stays, and somebody has to look.
    Refuse,
}

/// Brings a Secret up to date. Answers with what it holds, and until when nothing is due.
///
/// # Errors
/// [`SecretError`]; what was there stays as it is.
pub(super) async fn ensure(
    secrets: &Api<Secret>,
    name: &str,
    policy: &Policy,
    damaged: Damaged,
    now: SystemTime,
) -> Result<(Material, SystemTime), SecretError> {
    for _ in 0..ATTEMPTS {
        let found = secrets.get_opt(name).await;
        let found = found.map_err(SecretError::api(name, "read"))?;
        let none = BTreeMap::new();
        let data = found.as_ref().and_then(|secret| secret.data.as_ref());
        let material = match Material::read(data.unwrap_or(&none)) {
            Ok(material) => material,
            Err(reason) if damaged == Damaged::Refuse => {
                let name = name.to_owned();
                return Err(SecretError::Damaged { name, reason });
            }
            Err(reason) => {
                tracing::warn!(secret = name, reason, "the Secret is of no use: made again");
                None
            }
        };
        let step = Step::due(material.as_ref(), policy, now)?;
        if let (Step::Keep(until), Some(material)) = (step, &material) {
            return Ok((material.clone(), until));
        }
        if let Some(new) = step.take(material, policy, now)?
            && write(secrets, name, found, new.data()).await?
        {
            tracing::info!(secret = name, ?step, "certificates have changed");
        }
    }
    Err(SecretError::Contended {
        name: name.to_owned(),
    })
}

/// Makes a Secret hold a copy of certificates that are kept elsewhere.
///
/// # Errors
/// [`SecretError`].
pub(super) async fn copy(
    secrets: &Api<Secret>,
    name: &str,
    data: &[(&str, &str)],
) -> Result<(), SecretError> {
    let data = data.iter().map(|(key, text)| {
        let bytes = ByteString(text.as_bytes().to_owned());
        ((*key).to_owned(), bytes)
    });
    let data: BTreeMap<String, ByteString> = data.collect();
    for _ in 0..ATTEMPTS {
        let found = secrets.get_opt(name).await;
        let found = found.map_err(SecretError::api(name, "read"))?;
        let same = found.as_ref().and_then(|secret| secret.data.as_ref()) == Some(&data);
        if same || write(secrets, name, found, data.clone()).await? {
            return Ok(());
        }
    }
    Err(SecretError::Contended {
        name: name.to_owned(),
    })
}

/// Answers false where somebody else was faster.
async fn write(
    secrets: &Api<Secret>,
    name: &str,
    found: Option<Secret>,
    data: BTreeMap<String, ByteString>,
) -> Result<bool, SecretError> {
    let parameters = PostParams::default();
    let (what, written) = match found {
        Some(secret) => {
            // With the version that was read, so that nobody's change is lost.
            let secret = Secret {
                data: Some(data),
                ..secret
            };
            (
                "replaced",
                secrets.replace(name, &parameters, &secret).await,
            )
        }
        None => {
            let label = "app.kubernetes.io/managed-by".to_owned();
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.to_owned()),
                    labels: Some([(label, "legate-k8s".to_owned())].into()),
                    ..ObjectMeta::default()
                },
                data: Some(data),
                ..Secret::default()
            };
            ("made", secrets.create(&parameters, &secret).await)
        }
    };
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(SecretError::api(name, what)(error)),
    }
}
