//! Logins: a foreign proof of identity is exchanged for a token; and logouts, which end it.

use std::collections::BTreeMap;
use std::sync::Arc;

use legate_model::Secret;
use legate_model::acl::{AuthMethod, Bindings, Token, TokenLocality, bind};
use legate_runtime::Clock;
use legate_store::{Command, Reader, TokenKey, WriteTxn, Writer};
use uuid::Uuid;

use super::AclError;
use super::jwt::{SignatureError, verify_signature};
use crate::config::ServerConfig;

/// The longest proof that is looked at, in bytes. JWTs travel in HTTP headers and are far shorter.
const MAX_BEARER: usize = 64 * 1024;

/// What the descriptions of tokens from logins begin with. Consul's.
const DESCRIPTION: &str = "token created via login";

/// Somebody who wants a token.
#[derive(Debug)]
pub(crate) struct Login {
    /// How the proof is checked.
    pub(crate) auth_method: String,
    /// The proof.
    pub(crate) bearer: Secret,
    /// What people should see about the login.
    pub(crate) meta: BTreeMap<String, String>,
}

/// Exchanges proofs for tokens, and ends those.
#[derive(Clone)]
pub(crate) struct Logins {
    reader: Reader,
    writer: Writer,
    clock: Clock,
    config: Arc<ServerConfig>,
}

impl Logins {
    pub(crate) fn new(
        reader: Reader,
        writer: Writer,
        clock: Clock,
        config: Arc<ServerConfig>,
    ) -> Self {
        Self {
            reader,
            writer,
            clock,
            config,
        }
    }

    /// Makes a token for the bearer, with what the method's binding rules give.
    ///
    /// # Errors
    /// [`AclError`] says whether the method, the proof or the rules are in the way. No token is
    /// made then.
    pub(crate) async fn login(&self, login: &Login) -> Result<Token, AclError> {
        if !self.config.acl.enabled {
            return Err(AclError::Disabled);
        }
        if login.auth_method.is_empty() {
            let text = "the login names no auth method: set AuthMethod (the dataplane's \
                        login-auth-method)";
            return Err(AclError::BadRequest(text.to_owned()));
        }
        let method = self.reader.state().read().auth_method(&login.auth_method);
        let method = method.ok_or_else(|| unknown(&login.auth_method))?;
        let bindings = self.bindings(&method, login)?;
        let token = self.token(&method, &bindings, login);
        let made = token.clone();
        let used = Arc::clone(&method);
        let write = move |txn: &mut WriteTxn| {
            // A method that has changed since the proof was checked gives nothing.
            let now = txn.read().auth_method(&used.name);
            if now.is_none_or(|now| now.modify_index != used.modify_index) {
                return Err(unknown(&used.name));
            }
            Ok(txn.put_token(made.clone())?)
        };
        self.writer.write(write).await?;
        tracing::info!(
            auth_method = method.name,
            accessor = token.accessor_id,
            "login"
        );
        Ok(token)
    }

    /// Checks the proof, and what it gives.
    fn bindings(&self, method: &AuthMethod, login: &Login) -> Result<Bindings, AclError> {
        let broken = |reason: String| AclError::BrokenMethod {
            name: method.name.clone(),
            reason,
        };
        let refused = |reason: String| AclError::BearerRefused {
            method: method.name.clone(),
            reason,
        };
        if method.r#type != AuthMethod::JWT {
            return Err(AclError::UnsupportedMethod {
                name: method.name.clone(),
                kind: method.r#type.clone(),
            });
        }
        let config = method.jwt().map_err(|error| broken(error.to_string()))?;
        let bearer = login.bearer.expose();
        if bearer.is_empty() || bearer.len() > MAX_BEARER {
            return Err(refused(format!(
                "the bearer token has {} bytes, and must have 1 to {MAX_BEARER}",
                bearer.len()
            )));
        }
        let claims = verify_signature(&config, bearer).map_err(|error| match error {
            SignatureError::Key(_) => broken(error.to_string()),
            error => refused(error.to_string()),
        })?;
        config
            .verify_claims(&claims, self.clock.now())
            .map_err(|error| refused(error.to_string()))?;
        let rules = self.reader.state().read().binding_rules(&method.name);
        let rules = rules.iter().map(AsRef::as_ref);
        let bindings = bind(rules, &config.project(&claims), &self.config.datacenter)
            .map_err(|error| broken(error.to_string()))?;
        if bindings.is_empty() {
            return Err(AclError::NoBinding {
                method: method.name.clone(),
            });
        }
        Ok(bindings)
    }

    fn token(&self, method: &AuthMethod, bindings: &Bindings, login: &Login) -> Token {
        let now = self.clock.now();
        let ttl = method.max_token_ttl;
        let description = if login.meta.is_empty() {
            DESCRIPTION.to_owned()
        } else {
            format!("{DESCRIPTION}: {}", serde_json::json!(login.meta))
        };
        Token {
            accessor_id: Uuid::new_v4().to_string(),
            secret_id: Secret::new(Uuid::new_v4().to_string()),
            description,
            policies: bindings.policies.clone(),
            service_identities: bindings.service_identities.clone(),
            node_identities: bindings.node_identities.clone(),
            local: method.token_locality == TokenLocality::Local,
            auth_method: method.name.clone(),
            expiration_time: (!ttl.is_zero()).then(|| now + ttl),
            create_time: Some(now),
            ..Token::default()
        }
    }

    /// Ends a token that a login made. A token that does not exist (any more) is no error.
    ///
    /// # Errors
    /// [`AclError::NotALogin`] for tokens that people made.
    pub(crate) async fn logout(&self, token: &str) -> Result<(), AclError> {
        if !self.config.acl.enabled {
            return Err(AclError::Disabled);
        }
        if token.is_empty() {
            let text = "the logout names no token: send the secret of the token to end";
            return Err(AclError::BadRequest(text.to_owned()));
        }
        let Some(held) = self.reader.state().read().token_by_secret(token) else {
            return Ok(());
        };
        if held.auth_method.is_empty() {
            return Err(AclError::NotALogin);
        }
        let key = TokenKey::Secret(Secret::new(token));
        self.writer.apply(Command::DeleteToken(key)).await?;
        tracing::info!(
            auth_method = held.auth_method,
            accessor = held.accessor_id,
            "logout"
        );
        Ok(())
    }
}

fn unknown(name: &str) -> AclError {
    AclError::UnknownMethod {
        name: name.to_owned(),
    }
}
