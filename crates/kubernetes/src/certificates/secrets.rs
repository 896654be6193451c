//! Certificates in Secrets: read, created and updated by any replica. The API server refuses an
//! update based on an older version; the Secret is then read again.

use std::collections::BTreeMap;
use std::time::SystemTime;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::PostParams;
use legate_identity::{CertificateInfo, IdentityError};

use super::material::{self, Material, Pair, Policy, Step};

/// How many conflicts with concurrent changes are retried.
const ATTEMPTS: usize = 5;

/// No usable certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    /// The API server returned an error.
    #[error("the Secret {name} cannot be {what}: {source}")]
    Api {
        /// The Secret.
        name: String,
        /// The failed operation.
        what: &'static str,
        /// The API server's error.
        source: Box<kube::Error>,
    },
    /// The content of the Secret was changed by others.
    #[error(
        "the Secret {name} holds no CA of this operator: {reason}; restore it, or delete it to \
             have a new CA made, which every sidecar and server has to be restarted for"
    )]
    Damaged {
        /// The Secret.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A certificate could not be created.
    #[error("no certificate can be made: {0}")]
    Identity(#[from] IdentityError),
    /// Too many conflicts with concurrent changes.
    #[error("the Secret {name} is changed by others continuously")]
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

/// How to treat a Secret with invalid content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damaged {
    /// Replace it: its content can be created again without harm.
    Replace,
    /// Keep it, and report an error for a user to resolve.
    Refuse,
}

/// Brings a Secret up to date. Returns its content, and when the next step is due.
///
/// # Errors
/// [`SecretError`]; the Secret is unchanged then.
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
                tracing::warn!(
                    secret = name,
                    reason,
                    "the content of the Secret is invalid: replacing it"
                );
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
            tracing::info!(secret = name, ?step, "certificates changed");
        }
    }
    Err(SecretError::Contended {
        name: name.to_owned(),
    })
}

/// Brings a Secret with a certificate of `ca` up to date. Returns when it is replaced. Content that cannot be used is
/// replaced at once.
///
/// # Errors
/// [`SecretError`]; the Secret is unchanged then.
pub(super) async fn ensure_leaf(
    secrets: &Api<Secret>,
    name: &str,
    ca: &Pair,
    policy: &Policy,
    now: SystemTime,
) -> Result<SystemTime, SecretError> {
    let authority = CertificateInfo::from_pem(&ca.cert)?;
    for _ in 0..ATTEMPTS {
        let found = secrets.get_opt(name).await;
        let found = found.map_err(SecretError::api(name, "read"))?;
        let data = found.as_ref().and_then(|secret| secret.data.as_ref());
        let held = data.and_then(material::leaf);
        if let Some(due) = held.and_then(|leaf| material::renewal(&leaf, &authority, policy, now)) {
            return Ok(due);
        }
        let leaf = material::sign(ca, policy, now)?;
        if write(secrets, name, found, material::leaf_data(&leaf)).await? {
            tracing::info!(secret = name, "signed a certificate for the servers");
        }
    }
    Err(SecretError::Contended {
        name: name.to_owned(),
    })
}

/// Makes a Secret a copy of certificates stored elsewhere.
///
/// # Errors
/// [`SecretError`].
pub(crate) async fn copy(
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

/// Returns false if the Secret was changed concurrently.
async fn write(
    secrets: &Api<Secret>,
    name: &str,
    found: Option<Secret>,
    data: BTreeMap<String, ByteString>,
) -> Result<bool, SecretError> {
    let parameters = PostParams::default();
    let (what, written) = match found {
        Some(secret) => {
            // With the version that was read, so that concurrent changes are not overwritten.
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
