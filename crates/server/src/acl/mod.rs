//! ACL enforcement: resolves tokens to permissions, and performs logins. The rules themselves are types of
//! [`legate_model::acl`].

mod agent_tokens;
mod error;
mod jwt;
mod login;
mod methods;
mod resolve;
mod tenants;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_model::Tenancy;
use legate_model::acl::{ANONYMOUS_SECRET, Authorizer, DefaultPolicy, PolicyLink, Rules, Token};
use legate_runtime::{BoxError, CancellationToken, Clock};
use legate_store::{Command, Reader, Store, TokenKey};
use tokio::time::{MissedTickBehavior, interval};

use self::resolve::{Kept, Setting};
use crate::config::ServerConfig;
pub(crate) use agent_tokens::{AgentTokens, TokenKind};
pub(crate) use error::AclError;
pub(crate) use login::{Login, Logins, replicated};
pub(crate) use methods::Methods;
pub(crate) use tenants::namespace_defaults;

/// The accessor id of the initial management token. Constant, so that a changed secret replaces the old one.
const INITIAL_ACCESSOR: &str = "00000000-0000-0000-0000-000000000003";

/// How often expired tokens are deleted. They are rejected as soon as they expire.
const SWEEP: Duration = Duration::from_secs(60);

/// Whether this secret denotes the anonymous token.
pub(crate) fn is_anonymous(token: &str) -> bool {
    token.is_empty() || token == ANONYMOUS_SECRET
}

/// Resolves tokens to their current permissions. Read-only.
#[derive(Clone)]
pub(crate) struct Rights {
    store: Reader,
    clock: Clock,
    config: Arc<ServerConfig>,
    kept: Arc<Kept>,
    agent: Arc<AgentTokens>,
}

impl Rights {
    pub(crate) fn new(
        store: Reader,
        clock: Clock,
        config: Arc<ServerConfig>,
        agent: Arc<AgentTokens>,
    ) -> Self {
        Self {
            store,
            clock,
            config,
            kept: Arc::default(),
            agent,
        }
    }

    /// The token for requests without one; empty for the anonymous token.
    pub(crate) fn default_token(&self) -> String {
        self.agent.of_requests()
    }

    /// The token for DNS queries; empty for the anonymous token.
    pub(crate) fn dns_token(&self) -> String {
        self.agent.of_dns()
    }

    /// The token for what is asked of the primary datacenter; empty for the anonymous token.
    pub(crate) fn replication_token(&self) -> String {
        self.agent.of_replication()
    }

    /// The stored token with this secret. An empty secret is the anonymous token.
    pub(crate) fn owner(&self, token: &str) -> Option<Arc<Token>> {
        let anonymous = is_anonymous(token);
        let secret = if anonymous { ANONYMOUS_SECRET } else { token };
        self.store.state().read().token_by_secret(secret)
    }

    /// Whether this is the agent's recovery token.
    pub(crate) fn is_recovery(&self, token: &str) -> bool {
        self.agent.is_recovery(token)
    }

    /// Whether ACLs are enabled. If not, all requests have all permissions.
    pub(crate) fn are_checked(&self) -> bool {
        self.config.acl.enabled
    }

    /// The tenancy of a request that names no namespace: the token's own, if it is in the same partition.
    pub(crate) fn own_namespace(&self, token: &str, tenancy: Tenancy) -> Tenancy {
        let owner = self.owner(token).filter(|_| self.are_checked());
        let own = owner.map(|token| token.tenancy());
        own.filter(|own| own.partition == tenancy.partition)
            .unwrap_or(tenancy)
    }

    /// The permissions of the token with this secret. An empty secret is the anonymous token, which exists even
    /// if it is not stored.
    ///
    /// # Errors
    /// [`AclError::NotFound`] if no token has this secret or it has expired, and [`AclError::BrokenPolicy`] if
    /// a policy of the token cannot be parsed.
    pub(crate) fn of(&self, token: &str) -> Result<Authorizer, AclError> {
        if !self.are_checked() {
            return Ok(Authorizer::manage_all());
        }
        if self.agent.is_recovery(token) {
            return Ok(recovery(&self.config.node_name));
        }
        let anonymous = is_anonymous(token);
        let secret = if anonymous { ANONYMOUS_SECRET } else { token };
        let state = self.store.state();
        let txn = state.read();
        let held = txn.token_by_secret(secret);
        let setting = Setting {
            datacenter: &self.config.datacenter,
            default: self.config.acl.default_policy,
        };
        match held {
            Some(held) if !held.is_expired(self.clock.now()) => {
                setting.of_stored(&txn, &held, &self.kept)
            }
            None if anonymous => Ok(setting.of_unstored(&Token::anonymous())),
            _ if txn.managed_since().is_none() => Err(AclError::NotBootstrapped),
            Some(_) | None => Err(AclError::NotFound),
        }
    }
}

/// The permissions of the recovery token: write this agent, read nodes. As in Consul.
fn recovery(node: &str) -> Authorizer {
    let rules = serde_json::json!({
        "agent": { node: { "policy": "write" } },
        "node_prefix": { "": { "policy": "read" } },
    });
    match Rules::parse(&rules.to_string()) {
        Ok(rules) => Authorizer::new([&rules], DefaultPolicy::Deny),
        Err(_) => Authorizer::deny_all(),
    }
}

/// The initial management token, from the settings.
pub(crate) fn initial_token(config: &ServerConfig, now: SystemTime) -> Option<Token> {
    let acl = &config.acl;
    let secret = acl.initial_management.as_ref().filter(|_| acl.enabled)?;
    Some(Token {
        accessor_id: INITIAL_ACCESSOR.to_owned(),
        secret_id: secret.clone(),
        description: "Initial Management Token".to_owned(),
        policies: vec![PolicyLink::global_management()],
        create_time: Some(now),
        ..Token::default()
    })
}

/// Deletes expired tokens until `stop`. In a secondary datacenter `only_local`: the primary deletes the others. Of several servers with one store, only the leader does; its successor
/// continues at once.
///
/// # Errors
/// Never: a failed deletion is retried.
pub(crate) async fn sweep(
    store: Store,
    clock: Clock,
    only_local: bool,
    stop: CancellationToken,
) -> Result<(), BoxError> {
    let mut rounds = interval(SWEEP);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut due = async || {
        rounds.tick().await;
        store.leadership().held().await;
    };
    while stop.run_until_cancelled(due()).await.is_some() {
        remove_expired(&store, clock.now(), only_local).await;
    }
    Ok(())
}

async fn remove_expired(store: &Store, now: SystemTime, only_local: bool) {
    let tokens = store.state().read().tokens_of_all();
    for token in tokens {
        if !token.is_expired(now) || (only_local && !token.local) {
            continue;
        }
        let accessor = token.accessor_id.clone();
        let removed = store
            .apply(Command::DeleteToken(TokenKey::Secret(
                token.secret_id.clone(),
            )))
            .await;
        match removed {
            Ok(_) => tracing::debug!(accessor, "expired token removed"),
            Err(error) => tracing::warn!(accessor, %error, "expired token not removed"),
        }
    }
}
