//! Logins exchange an external proof of identity for a token. Logouts delete that token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use legate_model::acl::{AuthMethod, Bindings, PolicyLink, RoleLink, Token, Variables, bind};
use legate_model::{Secret, Tenancy, TenancyName};
use legate_runtime::Clock;
use legate_store::{Command, ReadTxn, Reader, TokenKey, WriteTxn, Writer};
use tokio::time::timeout;
use uuid::Uuid;

use super::error::AclError;
use super::methods::{Failure, Methods};
use super::tenants;
use crate::config::ServerConfig;

/// The maximum description of a login token, in bytes. Bounded because it is stored.
const MAX_DESCRIPTION: usize = 4 * 1024;

/// Prefix of the descriptions of login tokens. Consul's.
const DESCRIPTION: &str = "token created via login";

/// A login request.
#[derive(Debug)]
pub(crate) struct Login {
    /// The auth method to use.
    pub(crate) auth_method: String,
    /// The tenancy of the auth method.
    pub(crate) tenancy: Tenancy,
    /// The proof of identity.
    pub(crate) bearer: Secret,
    /// Metadata, shown in the token's description.
    pub(crate) meta: BTreeMap<String, String>,
}

/// Performs logins and logouts.
#[derive(Clone)]
pub(crate) struct Logins {
    reader: Reader,
    writer: Writer,
    clock: Clock,
    config: Arc<ServerConfig>,
    methods: Arc<Methods>,
}

impl Logins {
    pub(crate) fn new(
        reader: Reader,
        writer: Writer,
        clock: Clock,
        config: Arc<ServerConfig>,
        methods: Arc<Methods>,
    ) -> Self {
        Self {
            reader,
            writer,
            clock,
            config,
            methods,
        }
    }

    /// Verifies the bearer token and creates a token with the permissions that the method's binding rules
    /// grant.
    ///
    /// # Errors
    /// [`AclError`] tells whether the method, the bearer token or the rules are at fault. No token is created.
    pub(crate) async fn login(&self, login: &Login) -> Result<Token, AclError> {
        if !self.config.acl.enabled {
            return Err(AclError::Disabled);
        }
        if login.auth_method.is_empty() {
            let text = "the login names no auth method: set AuthMethod (the dataplane's \
                        login-auth-method)";
            return Err(AclError::BadRequest(text.to_owned()));
        }
        let of_method = login.tenancy.clone();
        let state = self.reader.state();
        let method = state
            .read()
            .within(of_method.clone())
            .auth_method(&login.auth_method);
        let method = method.ok_or_else(|| match tenants::exists(&state.read(), &of_method) {
            true => unknown(&login.auth_method),
            false => no_tenancy(&of_method),
        })?;
        let description = description(login)?;
        let variables = self.verified(&method, login).await?;
        let broken = |reason: String| AclError::BrokenMethod {
            name: method.name.clone(),
            reason,
        };
        let bindings = self.bindings(&method, &variables).map_err(broken)?;
        let tenancy = method.token_tenancy(&variables);
        let tenancy = tenancy.map_err(|error| broken(error.to_string()))?;
        let token = self.token(&method, &tenancy, &bindings, description);
        token
            .validate()
            .map_err(|error| broken(error.to_string()))?;
        let used = Arc::clone(&method);
        let write = move |txn: &mut WriteTxn| {
            txn.set_tenancy(of_method.clone());
            // If the method changed during verification, the result is no longer valid.
            let now = txn.read().auth_method(&used.name);
            if now.is_none_or(|now| now.modify_index != used.modify_index) {
                return Err(unknown(&used.name));
            }
            if !tenants::exists(&txn.read(), &tenancy) {
                return Err(AclError::NoNamespace {
                    method: used.name.clone(),
                    namespace: tenancy.namespace.to_string(),
                });
            }
            txn.set_tenancy(tenancy.clone());
            let token = linked(&txn.read(), token.clone(), &bindings, &of_method);
            if !gives_anything(&token) {
                return Err(AclError::NoBinding {
                    method: used.name.clone(),
                });
            }
            txn.put_token(token.clone())?;
            let txn = txn.read();
            let stored = txn.token_by_accessor(&token.accessor_id);
            Ok(stored.map_or(token, |stored| txn.shown_token(&stored)))
        };
        let (_, token) = self.writer.write(write).await?;
        tracing::info!(
            auth_method = method.name,
            accessor = token.accessor_id,
            "login"
        );
        Ok(token)
    }

    /// Verifies the bearer token with the method.
    async fn verified(
        &self,
        method: &Arc<AuthMethod>,
        login: &Login,
    ) -> Result<Variables, AclError> {
        let name = || method.name.clone();
        let now = self.clock.now();
        let verified = self.methods.verify(method, login.bearer.expose(), now);
        verified.await.map_err(|failure| match failure {
            Failure::Broken(reason) => AclError::BrokenMethod {
                name: name(),
                reason,
            },
            Failure::Unreachable(reason) => AclError::MethodUnavailable {
                name: name(),
                reason,
            },
            Failure::Refused(reason) => AclError::BearerRefused {
                method: name(),
                reason,
            },
        })
    }

    /// Evaluates the method's binding rules.
    fn bindings(&self, method: &AuthMethod, variables: &Variables) -> Result<Bindings, String> {
        let state = self.reader.state();
        let rules = state
            .read()
            .within(method.tenancy())
            .binding_rules(&method.name);
        let rules = rules.iter().map(AsRef::as_ref);
        let bound = bind(rules, variables, &self.config.datacenter);
        bound.map_err(|error| error.to_string())
    }

    /// The token, without links to policies and roles, which are resolved in the transaction.
    fn token(
        &self,
        method: &AuthMethod,
        tenancy: &Tenancy,
        bindings: &Bindings,
        description: String,
    ) -> Token {
        let now = self.clock.now();
        let ttl = method.max_token_ttl;
        Token {
            accessor_id: Uuid::new_v4().to_string(),
            secret_id: Secret::new(Uuid::new_v4().to_string()),
            description,
            service_identities: bindings.service_identities.clone(),
            node_identities: bindings.node_identities.clone(),
            templated_policies: bindings.templated_policies.clone(),
            local: method.token_locality.is_local(),
            auth_method: method.name.clone(),
            auth_method_namespace: method_namespace(method, tenancy),
            expiration_time: (!ttl.is_zero()).then(|| now + ttl),
            create_time: Some(now),
            ..Token::default()
        }
        .of(tenancy)
    }

    /// Deletes a token that a login created. No-op if the token does not exist.
    ///
    /// # Errors
    /// [`AclError::NotALogin`] for other tokens.
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

/// The auth method's namespace as shown on its tokens.
fn method_namespace(method: &AuthMethod, token: &Tenancy) -> TenancyName {
    let own = method.tenancy();
    match own.is_default_namespace() && token.is_default_namespace() {
        true => TenancyName::default(),
        false => own.namespace.parse().unwrap_or_default(),
    }
}

/// Links the policies and roles that exist now. As in Consul, others are skipped. Only auth methods of the
/// namespace `default` can link to policies and roles of that namespace.
fn linked(txn: &ReadTxn<'_>, mut token: Token, bindings: &Bindings, of_method: &Tenancy) -> Token {
    let above = of_method.is_default_namespace();
    let policies = bindings.policies.iter();
    let policies = policies.filter_map(|name| match above {
        true => txn.linked_policy("", name),
        false => txn.policy_by_name(name),
    });
    token.policies = policies
        .map(|policy| PolicyLink {
            id: policy.id.clone(),
            name: policy.name.clone(),
        })
        .collect();
    let roles = bindings.roles.iter();
    let roles = roles.filter_map(|name| match above {
        true => txn.linked_role("", name),
        false => txn.role_by_name(name),
    });
    token.roles = roles
        .map(|role| RoleLink {
            id: role.id.clone(),
            name: role.name.clone(),
        })
        .collect();
    token
}

fn gives_anything(token: &Token) -> bool {
    !token.policies.is_empty()
        || !token.roles.is_empty()
        || !token.templated_policies.is_empty()
        || !token.service_identities.is_empty()
        || !token.node_identities.is_empty()
}

/// The token's description, with the login's metadata.
fn description(login: &Login) -> Result<String, AclError> {
    if login.meta.is_empty() {
        return Ok(DESCRIPTION.to_owned());
    }
    let text = format!("{DESCRIPTION}: {}", serde_json::json!(login.meta));
    if text.len() > MAX_DESCRIPTION {
        return Err(AclError::BadRequest(format!(
            "the login's Meta is too long: as JSON it may have {} bytes",
            MAX_DESCRIPTION - DESCRIPTION.len() - 2
        )));
    }
    Ok(text)
}

fn no_tenancy(tenancy: &Tenancy) -> AclError {
    AclError::BadRequest(format!(
        "namespace {:?} of partition {:?} does not exist: create it, or correct the login settings",
        tenancy.namespace, tenancy.partition
    ))
}

fn unknown(name: &str) -> AclError {
    AclError::UnknownMethod {
        name: name.to_owned(),
    }
}

/// How long a login in a secondary datacenter waits until its global token is replicated.
const REPLICATION: Duration = Duration::from_secs(5);

/// Waits until this datacenter knows a token of the primary, because the caller uses it at once.
pub(crate) async fn replicated(reader: &Reader, secret: &str) {
    let known = async {
        loop {
            let mut watch = {
                let state = reader.state();
                let txn = state.read();
                if txn.token_by_secret(secret).is_some() {
                    return;
                }
                reader.watch(&txn.into_reads())
            };
            watch.changed().await;
        }
    };
    if timeout(REPLICATION, known).await.is_err() {
        tracing::warn!("the token of a login is not replicated yet: its owner must try again");
    }
}
