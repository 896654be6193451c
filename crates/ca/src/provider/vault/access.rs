//! The token for requests to Vault: configured, or from a login, which is repeated when the token is
//! no longer valid. Tokens are renewed before they expire.

use std::time::Duration;

use http::{Method, StatusCode};
use legate_model::Secret;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::client::{Client, VaultError};
use crate::settings::{Given, VaultAccess, VaultLogin, VaultProof};

/// Fraction of a token's lifetime after which it is renewed.
const RENEW_AFTER: f64 = 0.66;
/// Delay before a failed renewal is retried.
const RETRY: Duration = Duration::from_secs(30);
/// The minimum interval between renewals.
const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Sends requests to a Vault with a valid token, if one can be obtained.
pub(super) struct Access {
    client: Client,
    namespace: String,
    how: VaultAccess,
    token: Mutex<Option<Token>>,
}

#[derive(Clone)]
struct Token {
    secret: Secret,
    /// When the token must be renewed; `None` while this is unknown.
    due: Due,
}

#[derive(Clone, Copy)]
enum Due {
    Unknown,
    Never,
    At(Instant),
}

impl Access {
    pub(super) fn new(client: Client, how: VaultAccess, namespace: String) -> Self {
        let token = match &how {
            VaultAccess::Token(secret) => Some(Token {
                secret: secret.clone(),
                due: Due::Unknown,
            }),
            VaultAccess::Login(_) => None,
        };
        Self {
            client,
            namespace,
            how,
            token: Mutex::new(token),
        }
    }

    /// Sends a request with the token. If Vault refuses the token, logs in again and retries once.
    pub(super) async fn call(
        &self,
        method: Method,
        namespace: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<Value, VaultError> {
        let token = self.token().await?;
        let ask = |token: Secret, body| {
            let method = method.clone();
            async move {
                let asked = self
                    .client
                    .call(method, namespace, path, Some(&token), body);
                asked.await
            }
        };
        let answer = ask(token.clone(), body.clone()).await;
        let refused =
            matches!(&answer, Err(error) if error.status() == Some(StatusCode::FORBIDDEN));
        if !refused || matches!(self.how, VaultAccess::Token(_)) {
            return answer;
        }
        // The token is valid but lacks permission; so would another one.
        if self.ask_about(&token).await.is_ok() {
            return answer;
        }
        self.forget(&token).await;
        ask(self.token().await?, body).await
    }

    /// Verifies that the token is valid.
    pub(super) async fn look_up(&self) -> Result<(), VaultError> {
        let token = self.token().await?;
        let about = self.ask_about(&token).await?;
        let mut held = self.token.lock().await;
        if let Some(held) = held.as_mut().filter(|held| held.secret == token) {
            let given = matches!(self.how, VaultAccess::Token(_));
            held.due = match given && about["data"]["renewable"] == false {
                true => Due::Never,
                false => due(&about["data"], "ttl"),
            };
        }
        Ok(())
    }

    async fn ask_about(&self, token: &Secret) -> Result<Value, VaultError> {
        let path = "auth/token/lookup-self";
        let asked = self
            .client
            .call(Method::GET, &self.namespace, path, Some(token), None);
        asked.await
    }

    /// Renews the token when it is due. Returns the time until the next renewal.
    pub(super) async fn keep(&self) -> Option<Duration> {
        let held = self.token.lock().await.clone()?;
        let now = Instant::now();
        match held.due {
            Due::Never => return None,
            Due::At(at) if at > now => return Some(at - now),
            Due::Unknown => {
                if let Err(error) = self.look_up().await {
                    tracing::warn!(%error, "cannot look up the token for Vault");
                    return Some(RETRY);
                }
                return self.wait().await;
            }
            Due::At(_) => {}
        }
        let path = "auth/token/renew-self";
        let asked = self.client.call(
            Method::POST,
            &self.namespace,
            path,
            Some(&held.secret),
            Some(json!({})),
        );
        match asked.await {
            Ok(answer) => {
                let mut current = self.token.lock().await;
                if let Some(current) = current.as_mut().filter(|now| now.secret == held.secret) {
                    current.due = due(&answer["auth"], "lease_duration");
                }
                drop(current);
                return self.wait().await;
            }
            Err(error) if matches!(self.how, VaultAccess::Login(_)) => {
                tracing::info!(%error, "logging in to Vault again");
                self.forget(&held.secret).await;
                if let Err(error) = self.token().await {
                    tracing::warn!(%error, "no valid token for Vault: trying again");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot renew the token for Vault: trying again");
            }
        }
        Some(RETRY)
    }

    /// The time until the next renewal.
    async fn wait(&self) -> Option<Duration> {
        match self.token.lock().await.as_ref()?.due {
            Due::Never => None,
            Due::Unknown => Some(RETRY),
            Due::At(at) => Some(
                at.saturating_duration_since(Instant::now())
                    .max(MIN_INTERVAL),
            ),
        }
    }

    /// Drops the token, unless it was replaced meanwhile.
    async fn forget(&self, token: &Secret) {
        let mut held = self.token.lock().await;
        if held.as_ref().is_some_and(|held| held.secret == *token) {
            *held = None;
        }
    }

    async fn token(&self) -> Result<Secret, VaultError> {
        // Held during the login, so that all waiting callers share one login.
        let mut held = self.token.lock().await;
        if let Some(token) = &*held {
            return Ok(token.secret.clone());
        }
        let VaultAccess::Login(login) = &self.how else {
            let reason = "there is no token".to_owned();
            return Err(VaultError::Login { reason });
        };
        let path = format!("auth/{}/login", login.mount);
        let body = proof(login)?;
        let asked = self
            .client
            .call(Method::POST, &self.namespace, &path, None, Some(body));
        let answer = asked.await?;
        let secret = answer["auth"]["client_token"].as_str().unwrap_or_default();
        if secret.is_empty() {
            return Err(VaultError::answer(&path, "it has no client token"));
        }
        let token = Token {
            secret: secret.into(),
            due: due(&answer["auth"], "lease_duration"),
        };
        let secret = token.secret.clone();
        *held = Some(token);
        Ok(secret)
    }
}

/// When to renew a token whose lifetime in seconds is in this field.
fn due(about: &Value, field: &str) -> Due {
    let seconds = about[field].as_f64().unwrap_or_default();
    if seconds <= 0.0 {
        return Due::Never;
    }
    let wait = Duration::try_from_secs_f64(seconds * RENEW_AFTER);
    let at = wait.ok().and_then(|wait| Instant::now().checked_add(wait));
    at.map_or(Due::Never, Due::At)
}

fn proof(login: &VaultLogin) -> Result<Value, VaultError> {
    Ok(match &login.proof {
        VaultProof::Jwt { role, jwt } => json!({ "role": role, "jwt": given(jwt)? }),
        VaultProof::AppRole { role_id, secret_id } => {
            let mut body = json!({ "role_id": given(role_id)? });
            if let Some(secret) = secret_id {
                body["secret_id"] = given(secret)?.into();
            }
            body
        }
    })
}

/// Files are read for each login, since their contents are replaced from time to time.
fn given(value: &Given) -> Result<String, VaultError> {
    match value {
        Given::Value(text) => Ok(text.expose().to_owned()),
        Given::File(path) => match std::fs::read_to_string(path) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(error) => Err(VaultError::Login {
                reason: format!("{}: {error}", path.display()),
            }),
        },
    }
}
