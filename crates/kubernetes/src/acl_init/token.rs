//! The first token, and that of secondary datacenters: generated and stored in a Secret before the servers get it, so
//! that a crash in between cannot lose it.

use std::collections::BTreeMap;
use std::path::Path as FilePath;

use http::{Method, StatusCode};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use legate_model::Secret;
use serde_json::{Value, json};
use uuid::Uuid;

use super::failure::Failure;
use super::objects::Reviewer;
use super::options::{Options, Secondary};
use crate::servers::{Path, Servers};

/// The key in the Secret.
const KEY: &str = "token";

/// Returns the configured token, or that of the Secret, which is created if it does not exist. In a secondary
/// datacenter it is that of the primary.
pub(super) async fn choose(client: &Client, options: &Options) -> Result<Secret, Failure> {
    if let Some(secondary) = options.secondary() {
        return of_file(secondary.token_file, "--replication-token-file");
    }
    if let Some(file) = &options.bootstrap_token_file {
        return of_file(file, "--bootstrap-token-file");
    }
    let remedy = "put a management token there, or delete the Secret to have one generated for servers \
                  without ACL bootstrap";
    of_secret(client, options, &options.token_secret(), remedy).await
}

/// The token for secondary datacenters.
pub(super) async fn of_replication(client: &Client, options: &Options) -> Result<Secret, Failure> {
    let remedy = "delete the Secret to have another one generated";
    of_secret(client, options, &options.replication_secret(), remedy).await
}

fn of_file(file: &FilePath, flag: &str) -> Result<Secret, Failure> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::Final(format!("cannot read {shown} ({flag}): {error}")))?;
    not_empty(text.trim()).ok_or_else(|| Failure::Final(format!("{shown} ({flag}) is empty")))
}

/// The token of a Secret, which is created if it does not exist.
async fn of_secret(
    client: &Client,
    options: &Options,
    name: &str,
    remedy: &str,
) -> Result<Secret, Failure> {
    let secrets: Api<KubeSecret> = Api::namespaced(client.clone(), &options.namespace);
    let about = || format!("the Secret {}/{name}", options.namespace);
    let held = secrets.get_opt(name).await;
    if let Some(held) = held.map_err(|error| Failure::of_kube(&about(), &error))? {
        let token = value(&held, KEY).and_then(|text| not_empty(text.trim()));
        return token.ok_or_else(|| Failure::Final(format!("{} has no {KEY}: {remedy}", about())));
    }
    let token = Uuid::new_v4().to_string();
    let secret = KubeSecret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/managed-by".to_owned(),
                "legate-k8s".to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(
            KEY.to_owned(),
            ByteString(token.clone().into_bytes()),
        )])),
        ..KubeSecret::default()
    };
    // If a concurrent Job created the Secret first, the next attempt reads that token.
    let made = secrets.create(&PostParams::default(), &secret).await;
    made.map_err(|error| Failure::of_kube(&about(), &error))?;
    tracing::info!(secret = name, "created the Secret of a token");
    Ok(Secret::new(token))
}

/// Bootstraps the servers' ACLs with the token, unless they have it already.
pub(super) async fn introduce(
    servers: &Servers,
    options: &Options,
    token: &Secret,
) -> Result<(), Failure> {
    if is_known(servers, token).await? {
        return Ok(());
    }
    let path = Path::of(["acl", "bootstrap"]).of_mesh();
    let body = json!({"BootstrapSecret": token.expose()});
    let answer = servers
        .request_with_token(Method::PUT, &path, Some(&body), &Secret::default())
        .await?;
    match answer.status {
        StatusCode::OK => {
            tracing::info!("bootstrapped the servers' ACLs");
            Ok(())
        }
        // A concurrent Job may have bootstrapped with the same token.
        StatusCode::FORBIDDEN if is_known(servers, token).await? => Ok(()),
        StatusCode::FORBIDDEN => Err(Failure::Final(format!(
            "the servers have had a first token before, and it is not the one of {}: put a token that \
             may do everything there, or let the servers have a first token again ({})",
            match &options.bootstrap_token_file {
                Some(file) => format!("{} (--bootstrap-token-file)", file.display()),
                None => format!(
                    "the Secret {}/{}, key {KEY}",
                    options.namespace,
                    options.token_secret()
                ),
            },
            answer.text()
        ))),
        StatusCode::BAD_REQUEST => Err(Failure::Final(format!(
            "the servers do not take the token as their first one: {}",
            answer.text()
        ))),
        _ => Err(Failure::of_answer("PUT", &path, &answer)),
    }
}

/// Waits until the servers of a secondary datacenter follow the primary: then they know the replication token.
pub(super) async fn replicated(
    servers: &Servers,
    secondary: Secondary<'_>,
    token: &Secret,
) -> Result<(), Failure> {
    if is_known(servers, token).await? {
        return Ok(());
    }
    let path = Path::of(["acl", "replication"]).of_mesh();
    let answer = servers
        .request_with_token(Method::GET, &path, None, &Secret::default())
        .await?;
    let status: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let reason = status["LastErrorMessage"].as_str().unwrap_or_default();
    let reason = match reason {
        "" => "nothing is replicated yet",
        reason => reason,
    };
    Err(Failure::Later(format!(
        "the servers of {} do not follow the primary datacenter {} with the token of --replication-token-file: {reason}",
        secondary.datacenter, secondary.primary
    )))
}

pub(super) async fn is_known(servers: &Servers, token: &Secret) -> Result<bool, Failure> {
    let path = Path::of(["acl", "token", "self"]).of_mesh();
    let answer = servers
        .request_with_token(Method::GET, &path, None, token)
        .await?;
    match answer.status {
        StatusCode::OK => Ok(true),
        StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => Ok(false),
        StatusCode::UNAUTHORIZED => Err(Failure::Final(format!(
            "the servers run without access control ({}): turn it on there (legate-server --acl, \
             Consul's acl.enabled)",
            answer.text()
        ))),
        _ => Err(Failure::of_answer("GET", &path, &answer)),
    }
}

/// The reviewer's credentials, once Kubernetes has filled in its Secret.
pub(super) async fn reviewer(client: &Client, options: &Options) -> Result<Reviewer, Failure> {
    let name = options.reviewer_secret();
    let about = format!("the Secret {}/{name}", options.namespace);
    let secrets: Api<KubeSecret> = Api::namespaced(client.clone(), &options.namespace);
    let held = secrets.get(&name).await;
    let held = held.map_err(|error| Failure::of_kube(&about, &error))?;
    let of = |key: &str| {
        value(&held, key)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| {
                Failure::Later(format!(
                    "{about} has no {key}: Kubernetes fills it in for the service account that it names"
                ))
            })
    };
    Ok(Reviewer {
        ca: of("ca.crt")?,
        token: Secret::new(of("token")?.trim()),
    })
}

fn value(secret: &KubeSecret, key: &str) -> Option<String> {
    let bytes = &secret.data.as_ref()?.get(key)?.0;
    String::from_utf8(bytes.clone()).ok()
}

fn not_empty(text: &str) -> Option<Secret> {
    (!text.is_empty()).then(|| Secret::new(text))
}
