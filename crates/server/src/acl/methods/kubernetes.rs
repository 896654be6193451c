//! Verifies Kubernetes service account tokens with the cluster's API server (TokenReview).

use http::StatusCode;
use legate_model::acl::{KubernetesConfig, SERVICE_NAME_ANNOTATION, ServiceAccount, Variables};
use serde::Deserialize;
use serde_json::{Value, json};

use super::failure::Failure;
use super::fetch::{Client, Reply};

/// The part of a TokenReview that the API server fills in (`authentication.k8s.io/v1`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct Review {
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    error: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
    uid: String,
}

/// Submits a token for review, and returns the variables of its service account.
pub(super) async fn review(
    client: &Client,
    config: &KubernetesConfig,
    bearer: &str,
) -> Result<Variables, Failure> {
    let host = config.url();
    let url = format!("{host}/apis/authentication.k8s.io/v1/tokenreviews");
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": bearer},
    });
    let reviewer = Some(&config.service_account_jwt);
    let reply = client.post(&url, reviewer, &body).await;
    let reply = answered(&host, "review the token", reply)?;
    let review: Review = reply
        .json()
        .map_err(|error| Failure::Unreachable(format!("{host}: {error}")))?;
    let ReviewStatus {
        authenticated,
        error,
        user,
    } = review.status;
    if !authenticated {
        let reason = if error.is_empty() {
            "it is not valid"
        } else {
            &error
        };
        return Err(Failure::Refused(format!(
            "the Kubernetes API server {host} does not accept the service account token: {reason}"
        )));
    }
    let account = ServiceAccount::of_user(&user.username, &user.uid).ok_or_else(|| {
        Failure::Refused(format!(
            "{:?} at the Kubernetes API server {host} is not a service account",
            user.username
        ))
    })?;
    with_other_name(client, config, account).await
}

/// An annotation may override the service account's name.
async fn with_other_name(
    client: &Client,
    config: &KubernetesConfig,
    mut account: ServiceAccount,
) -> Result<Variables, Failure> {
    let host = config.url();
    let ServiceAccount {
        namespace, name, ..
    } = &account;
    let url = format!("{host}/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
    let reply = client.get(&url, Some(&config.service_account_jwt)).await;
    let about = format!("read the service account {namespace}/{name}");
    let object: Value = answered(&host, &about, reply)?
        .json()
        .map_err(|error| Failure::Unreachable(format!("{host}: {error}")))?;
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(SERVICE_NAME_ANNOTATION));
    if let Some(other) = annotation.and_then(Value::as_str) {
        other.clone_into(&mut account.name);
    }
    Ok(account.variables())
}

/// The response of an API server, if it was successful.
fn answered(host: &str, what: &str, reply: Result<Reply, String>) -> Result<Reply, Failure> {
    let reply = reply.map_err(|error| {
        Failure::Unreachable(format!(
            "cannot {what}: the Kubernetes API server {host}: {error}"
        ))
    })?;
    match reply.status {
        status if status.is_success() => Ok(reply),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(Failure::Broken(format!(
            "cannot {what}: the Kubernetes API server {host} refuses ServiceAccountJWT, {}; it needs \
             the cluster role system:auth-delegator and the right to get serviceaccounts",
            reply.summary()
        ))),
        StatusCode::NOT_FOUND => Err(Failure::Refused(format!(
            "cannot {what}: the Kubernetes API server {host}: {}",
            reply.summary()
        ))),
        _ => Err(Failure::Unreachable(format!(
            "cannot {what}: the Kubernetes API server {host}: {}",
            reply.summary()
        ))),
    }
}
