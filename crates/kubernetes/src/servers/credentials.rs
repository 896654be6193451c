//! The token for requests: none, from a file, or from a login.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path as FilePath, PathBuf};

use http::Method;
use legate_model::Secret;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use super::answer::Answer;
use super::error::ServersError;
use super::path::Path;
use super::transport::Transport;

/// The maximum size of a token file, in bytes.
const FILE_SIZE: u64 = 64 * 1024;

/// The source of the token for requests.
#[derive(Clone, Debug, Default)]
pub enum Credentials {
    /// The servers' anonymous token.
    #[default]
    None,
    /// One token.
    Token(Secret),
    /// A file with one token (`--token-file`), read for every request.
    File(PathBuf),
    /// A token obtained by login.
    Login(Login),
}

/// The parameters of `POST /v1/acl/login`.
#[derive(Clone, Debug)]
pub struct Login {
    /// Name of the auth method (`--login-auth-method`).
    pub auth_method: String,
    /// File with the bearer token (`--login-bearer-token-file`), read for every login.
    pub bearer_token_file: PathBuf,
    /// Metadata stored with the token for identification, for example `pod`.
    pub meta: BTreeMap<String, String>,
}

/// The credentials, and the token of the last login.
#[derive(Debug)]
pub(super) struct Tokens {
    credentials: Credentials,
    /// Locked during a login, so that only one is in flight.
    login: Mutex<LoggedIn>,
}

#[derive(Debug, Default)]
struct LoggedIn {
    token: Option<Secret>,
    /// The number of logins so far.
    generation: u64,
}

/// The token of one request.
#[derive(Clone, Debug)]
pub(super) struct RequestToken {
    token: Option<Secret>,
    /// The login that created it; `None` if it is not from a login.
    generation: Option<u64>,
}

impl RequestToken {
    pub(super) fn token(&self) -> Option<&Secret> {
        self.token.as_ref()
    }

    /// Whether another login can replace it.
    pub(super) fn can_be_renewed(&self) -> bool {
        self.generation.is_some()
    }
}

/// The used fields of a login's response.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Token {
    #[serde(rename = "SecretID")]
    secret_id: Secret,
}

impl Tokens {
    pub(super) fn new(credentials: Credentials) -> Tokens {
        Tokens {
            credentials,
            login: Mutex::default(),
        }
    }

    /// The current token; logs in if there is none yet.
    pub(super) async fn current(
        &self,
        transport: &Transport,
    ) -> Result<RequestToken, ServersError> {
        self.held(transport, None).await
    }

    /// A token to replace `old`, which the servers no longer accept. If another request has logged
    /// in meanwhile, that token is used.
    pub(super) async fn renewed(
        &self,
        transport: &Transport,
        old: &RequestToken,
    ) -> Result<RequestToken, ServersError> {
        self.held(transport, old.generation).await
    }

    async fn held(
        &self,
        transport: &Transport,
        gone: Option<u64>,
    ) -> Result<RequestToken, ServersError> {
        let fixed = |token| RequestToken {
            token,
            generation: None,
        };
        let login = match &self.credentials {
            Credentials::None => return Ok(fixed(None)),
            Credentials::Token(token) => return Ok(fixed(Some(token.clone()))),
            Credentials::File(path) => {
                return read_file(path, "--token-file").map(|token| fixed(Some(token)));
            }
            Credentials::Login(login) => login,
        };
        let mut state = self.login.lock().await;
        let usable = gone != Some(state.generation);
        if !usable || state.token.is_none() {
            state.token = None;
            state.token = Some(log_in(login, transport).await?);
            state.generation += 1;
        }
        Ok(RequestToken {
            token: state.token.clone(),
            generation: Some(state.generation),
        })
    }

    pub(super) async fn logout(&self, transport: &Transport) -> Result<(), ServersError> {
        let Some(token) = self.login.lock().await.token.take() else {
            return Ok(());
        };
        let path = Path::of(["acl", "logout"]);
        let answer = transport
            .send(&Method::POST, &path, None, Some(&token))
            .await?;
        if answer.status.is_success() {
            return Ok(());
        }
        Err(transport.refusal(&Method::POST, &path, &answer))
    }
}

async fn log_in(login: &Login, transport: &Transport) -> Result<Secret, ServersError> {
    let bearer = read_file(&login.bearer_token_file, "--login-bearer-token-file")?;
    let path = Path::of(["acl", "login"]);
    let body = json!({
        "AuthMethod": login.auth_method,
        "BearerToken": bearer.expose(),
        "Meta": login.meta,
    });
    let answer = transport
        .send(&Method::POST, &path, Some(&body), None)
        .await?;
    if !answer.status.is_success() {
        return Err(refused(login, &answer));
    }
    let token: Token = serde_json::from_slice(&answer.body).map_err(|_| {
        // The decoder's error could contain a part of the token.
        ServersError::BadAnswer {
            method: Method::POST,
            url: transport.url(&path),
            reason: "it is not a token".to_owned(),
        }
    })?;
    tracing::info!(auth_method = login.auth_method, "logged in to the servers");
    Ok(token.secret_id)
}

fn refused(login: &Login, answer: &Answer) -> ServersError {
    ServersError::Login {
        method: login.auth_method.clone(),
        status: answer.status,
        text: answer.text(),
    }
}

fn read_file(path: &FilePath, setting: &'static str) -> Result<Secret, ServersError> {
    let refused = |reason: String| ServersError::TokenFile {
        path: path.to_owned(),
        setting,
        reason,
    };
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let mut text = String::new();
    let length = file
        .take(FILE_SIZE + 1)
        .read_to_string(&mut text)
        .map_err(|error| refused(error.to_string()))?;
    if length as u64 > FILE_SIZE {
        return Err(refused(format!("it is longer than {FILE_SIZE} bytes")));
    }
    match text.trim() {
        "" => Err(refused("it is empty".to_owned())),
        token => Ok(Secret::new(token)),
    }
}
