//! Client for the servers' HTTP API, used for all reads and writes of `legate-k8s`.
//!
//! It pools connections, fails over to the next address, reloads the CA when its file changes, and
//! logs in again when its token has expired. It retries no request by itself except after a new
//! login.

mod answer;
pub(crate) mod calls;
mod credentials;
mod error;
mod flags;
mod options;
mod path;
#[cfg(test)]
pub(crate) mod tests;
mod transport;

use std::sync::Arc;

use http::{Method, StatusCode};
use legate_model::Secret;
use legate_runtime::Spawner;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::watch;

pub use self::answer::{ANSWER_SIZE, Answer};
pub use self::credentials::{Credentials, Login};
pub use self::error::ServersError;
pub use self::flags::ServerFlags;
pub use self::options::{Options, Tls};
pub use self::path::Path;
pub use self::transport::REQUEST_TIME;

use self::credentials::{RequestToken, Tokens};
use self::transport::{Ca, Transport, Verification};

/// A client for the servers. Clones share connections and token.
#[derive(Clone, Debug)]
pub struct Servers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    transport: Transport,
    tokens: Tokens,
}

impl Servers {
    /// Creates a client without connecting; connections live in the scope of `spawner`.
    ///
    /// # Errors
    ///
    /// If host or server name is invalid. A missing CA file is no error: it is read again for every
    /// request.
    pub fn new(options: Options, spawner: Spawner) -> Result<Servers, ServersError> {
        Servers::with(options, None, spawner)
    }

    /// Like [`Servers::new`], with the PEM of the CA instead of a file. The latest value is used;
    /// requests fail until there is one.
    ///
    /// # Errors
    ///
    /// As [`Servers::new`].
    pub fn trusting(
        options: Options,
        ca: watch::Receiver<Option<String>>,
        spawner: Spawner,
    ) -> Result<Servers, ServersError> {
        Servers::with(options, Some(ca), spawner)
    }

    fn with(
        options: Options,
        ca: Option<watch::Receiver<Option<String>>>,
        spawner: Spawner,
    ) -> Result<Servers, ServersError> {
        let tls = options.tls.map(|tls| Verification {
            ca: match (ca, tls.ca) {
                (Some(pem), _) => Ca::Pem(pem),
                (None, Some(file)) => Ca::File(file),
                (None, None) => Ca::System,
            },
            server_name: tls.server_name,
        });
        let shared = Shared {
            tokens: Tokens::new(options.credentials),
            transport: Transport::new(
                &options.host,
                options.port,
                options.partition,
                tls,
                spawner,
            )?,
        };
        Ok(Servers {
            shared: Arc::new(shared),
        })
    }

    /// Sends a request with the client's token and returns the response, whatever its status. Logs
    /// in if necessary, and again if the server no longer accepts the token.
    ///
    /// # Errors
    ///
    /// [`ServersError`] if there is no token, no server was reached, or none responded in time.
    pub async fn request(
        &self,
        method: Method,
        path: &Path,
        body: Option<&Value>,
    ) -> Result<Answer, ServersError> {
        let held = self.shared.tokens.current(&self.shared.transport).await?;
        let answer = self.send(&method, path, body, &held).await?;
        if !held.can_be_renewed() || !answer.token_is_gone() {
            return Ok(answer);
        }
        tracing::info!("the token is no longer valid: logging in again");
        let held = self
            .shared
            .tokens
            .renewed(&self.shared.transport, &held)
            .await?;
        self.send(&method, path, body, &held).await
    }

    async fn send(
        &self,
        method: &Method,
        path: &Path,
        body: Option<&Value>,
        held: &RequestToken,
    ) -> Result<Answer, ServersError> {
        let transport = &self.shared.transport;
        transport.send(method, path, body, held.token()).await
    }

    /// Sends a request with `token` instead of the client's own, for the bootstrap token of
    /// `acl-init`.
    ///
    /// # Errors
    ///
    /// As [`Servers::request`].
    pub async fn request_with_token(
        &self,
        method: Method,
        path: &Path,
        body: Option<&Value>,
        token: &Secret,
    ) -> Result<Answer, ServersError> {
        let transport = &self.shared.transport;
        transport.send(&method, path, body, Some(token)).await
    }

    /// Gets a JSON document.
    ///
    /// # Errors
    ///
    /// As [`Servers::request`], or if the server refuses or the body is unexpected.
    pub async fn get_json<T: DeserializeOwned>(&self, path: &Path) -> Result<T, ServersError> {
        let answer = self.request(Method::GET, path, None).await?;
        self.decode(&Method::GET, path, &answer)
    }

    /// Like [`Servers::get_json`], with the index for the next blocking query.
    ///
    /// # Errors
    ///
    /// As [`Servers::get_json`], or if the response has no index.
    pub async fn get_indexed<T: DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<(T, u64), ServersError> {
        let answer = self.request(Method::GET, path, None).await?;
        let value = self.decode(&Method::GET, path, &answer)?;
        let index = answer.index.ok_or_else(|| ServersError::BadAnswer {
            url: self.shared.transport.url(path),
            method: Method::GET,
            reason: "it has no X-Consul-Index".to_owned(),
        })?;
        Ok((value, index))
    }

    /// Like [`Servers::get_json`]; `None` if the object does not exist (404 or `null`).
    ///
    /// # Errors
    ///
    /// As [`Servers::get_json`].
    pub async fn find_json<T: DeserializeOwned>(
        &self,
        path: &Path,
    ) -> Result<Option<T>, ServersError> {
        let answer = self.request(Method::GET, path, None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        self.decode(&Method::GET, path, &answer)
    }

    /// Puts `body` and decodes the response; `()` accepts any response.
    ///
    /// # Errors
    ///
    /// As [`Servers::get_json`].
    pub async fn put_json<T: DeserializeOwned>(
        &self,
        path: &Path,
        body: &impl Serialize,
    ) -> Result<T, ServersError> {
        let body = serde_json::to_value(body).map_err(|error| ServersError::Body {
            path: path.to_string(),
            reason: error.to_string(),
        })?;
        let answer = self.request(Method::PUT, path, Some(&body)).await?;
        self.decode(&Method::PUT, path, &answer)
    }

    /// Sends a JSON document with POST and decodes the response.
    ///
    /// # Errors
    ///
    /// As [`Servers::put_json`].
    pub async fn post_json<T: DeserializeOwned>(
        &self,
        path: &Path,
        body: &Value,
    ) -> Result<T, ServersError> {
        let answer = self.request(Method::POST, path, Some(body)).await?;
        self.decode(&Method::POST, path, &answer)
    }

    /// Deletes an object. `false` if it did not exist (404).
    ///
    /// # Errors
    ///
    /// As [`Servers::get_json`].
    pub async fn delete(&self, path: &Path) -> Result<bool, ServersError> {
        let answer = self.request(Method::DELETE, path, None).await?;
        if answer.status == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        self.refused(&Method::DELETE, path, &answer)?;
        Ok(true)
    }

    /// Destroys the token of the login. A no-op without a login.
    ///
    /// # Errors
    ///
    /// As [`Servers::request`]; the token then expires by itself.
    pub async fn logout(&self) -> Result<(), ServersError> {
        self.shared.tokens.logout(&self.shared.transport).await
    }

    fn refused(&self, method: &Method, path: &Path, answer: &Answer) -> Result<(), ServersError> {
        if answer.status.is_success() {
            return Ok(());
        }
        Err(self.shared.transport.refusal(method, path, answer))
    }

    fn decode<T: DeserializeOwned>(
        &self,
        method: &Method,
        path: &Path,
        answer: &Answer,
    ) -> Result<T, ServersError> {
        self.refused(method, path, answer)?;
        // Some calls have an empty response.
        let body: &[u8] = match answer.body.trim_ascii() {
            [] => b"null",
            body => body,
        };
        serde_json::from_slice(body).map_err(|error| ServersError::BadAnswer {
            url: self.shared.transport.url(path),
            method: method.clone(),
            reason: error.to_string(),
        })
    }
}
