//! Changes as values that can be passed on.

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::{ConfigEntry, ConfigKind, Intention, PreparedQuery, ServiceName};

use crate::access::TokenKey;
use crate::ca_state::CaState;
use crate::registration::{Deregistration, Registration};
use crate::rejected::Rejected;
use crate::write::WriteTxn;

/// A change of the tables, applied atomically.
#[derive(Debug, Clone)]
pub enum Command {
    /// Upserts a node, an instance on it, and checks.
    Register(Box<Registration>),
    /// Removes an instance with its checks, a check, or a node with everything on it.
    Deregister(Deregistration),
    /// Upserts a config entry.
    UpsertConfigEntry {
        /// The entry, validated and normalised.
        entry: Box<ConfigEntry>,
        /// Applied only if this is the modify index of the stored entry; 0: only if there is none.
        cas: Option<u64>,
    },
    /// Removes a config entry. A no-op if it does not exist.
    DeleteConfigEntry {
        /// The kind, such as `service-defaults`.
        kind: ConfigKind,
        /// The entry's name.
        name: String,
        /// Applied only if this is the modify index of the stored entry.
        cas: Option<u64>,
    },
    /// Upserts one source in the `service-intentions` entry of its destination.
    UpsertIntention(Box<Intention>),
    /// Removes one source from the `service-intentions` entry of its destination, and with the last
    /// source the entry.
    DeleteIntention {
        /// The source service in the destination's tenancy, or `*`.
        source: String,
        /// The destination service, or `*`.
        destination: String,
    },
    /// Replaces the CA's roots and signing key.
    SetCa(Box<CaState>),
    /// Upserts a token by its accessor id.
    UpsertToken(Box<Token>),
    /// Removes a token. A no-op if it does not exist.
    DeleteToken(TokenKey),
    /// Upserts a policy by its id.
    UpsertPolicy(Box<Policy>),
    /// Removes a policy; links to it grant nothing any more. A no-op if it does not exist.
    DeletePolicy {
        /// Its id.
        id: String,
    },
    /// Upserts a role by its id.
    UpsertRole(Box<Role>),
    /// Removes a role; links to it grant nothing any more. A no-op if it does not exist.
    DeleteRole {
        /// Its id.
        id: String,
    },
    /// Upserts an auth method.
    UpsertAuthMethod(Box<AuthMethod>),
    /// Removes an auth method with its binding rules and the tokens of its logins.
    DeleteAuthMethod {
        /// Its name.
        name: String,
    },
    /// Upserts a binding rule by its id.
    UpsertBindingRule(Box<BindingRule>),
    /// Removes a binding rule.
    DeleteBindingRule {
        /// Its id.
        id: String,
    },
    /// Upserts a prepared query by its id.
    UpsertPreparedQuery(Box<PreparedQuery>),
    /// Removes a prepared query. A no-op if it does not exist.
    DeletePreparedQuery {
        /// Its id.
        id: String,
    },
    /// Several commands as one atomic change with one index.
    All(Vec<Command>),
}

impl WriteTxn {
    /// Applies a command.
    ///
    /// # Errors
    /// [`Rejected`] names the problem. The transaction must be aborted then.
    pub fn apply(&mut self, command: Command) -> Result<(), Rejected> {
        match command {
            Command::Register(registration) => self.register(*registration)?,
            Command::Deregister(what) => self.deregister(&what),
            Command::UpsertConfigEntry { entry, cas } => self.put_config_entry(*entry, cas)?,
            Command::DeleteConfigEntry { kind, name, cas } => {
                self.remove_config_entry(kind, &name, cas)?;
            }
            Command::UpsertIntention(intention) => self.put_intention(*intention)?,
            Command::DeleteIntention {
                source,
                destination,
            } => {
                let source = ServiceName::new(&self.tenancy, &source);
                self.remove_intention(&source, &destination)?;
            }
            Command::SetCa(ca) => self.put_ca(*ca),
            Command::UpsertToken(token) => self.put_token(*token)?,
            Command::DeleteToken(key) => self.remove_token(&key),
            Command::UpsertPolicy(policy) => self.put_policy(*policy)?,
            Command::DeletePolicy { id } => self.remove_policy(&id),
            Command::UpsertRole(role) => self.put_role(*role)?,
            Command::DeleteRole { id } => self.remove_role(&id),
            Command::UpsertAuthMethod(method) => self.put_auth_method(*method)?,
            Command::DeleteAuthMethod { name } => self.remove_auth_method(&name),
            Command::UpsertBindingRule(rule) => self.put_binding_rule(*rule)?,
            Command::DeleteBindingRule { id } => self.remove_binding_rule(&id),
            Command::UpsertPreparedQuery(query) => self.put_prepared_query(*query)?,
            Command::DeletePreparedQuery { id } => self.remove_prepared_query(&id),
            Command::All(commands) => {
                for command in commands {
                    self.apply(command)?;
                }
            }
        }
        Ok(())
    }
}
