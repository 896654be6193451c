//! Changes as values, for those who pass them on.

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::{ConfigEntry, ConfigKind, Intention, PreparedQuery, ServiceName};

use crate::access::TokenKey;
use crate::ca_state::CaState;
use crate::registration::{Deregistration, Registration};
use crate::rejected::Rejected;
use crate::write::WriteTxn;

/// One change of the tables. Applied completely or not at all.
#[derive(Debug, Clone)]
pub enum Command {
    /// Adds or replaces a node, an instance on it, and checks.
    Register(Box<Registration>),
    /// Removes an instance with its checks, a check, or a node with everything on it.
    Deregister(Deregistration),
    /// Adds or replaces a config entry.
    UpsertConfigEntry {
        /// The entry, valid and normalised.
        entry: Box<ConfigEntry>,
        /// Only when the stored entry's modify index is this one; 0: only when there is none.
        cas: Option<u64>,
    },
    /// Removes a config entry. An entry that does not exist is no error.
    DeleteConfigEntry {
        /// The kind, such as `service-defaults`.
        kind: ConfigKind,
        /// The entry's name.
        name: String,
        /// Only when the stored entry's modify index is this one.
        cas: Option<u64>,
    },
    /// Adds or replaces one source in the `service-intentions` entry of its destination.
    UpsertIntention(Box<Intention>),
    /// Removes one source from the `service-intentions` entry of its destination, and the entry
    /// with its last source.
    DeleteIntention {
        /// The source service, or `*`, of the destination's tenancy.
        source: String,
        /// The destination service, or `*`.
        destination: String,
    },
    /// Replaces the CA's roots and signing key.
    SetCa(Box<CaState>),
    /// Adds or replaces a token, found by its accessor id.
    UpsertToken(Box<Token>),
    /// Removes a token. A token that does not exist is no error.
    DeleteToken(TokenKey),
    /// Adds or replaces a policy, found by its id.
    UpsertPolicy(Box<Policy>),
    /// Removes a policy, and with it what it gave. A policy that does not exist is no error.
    DeletePolicy {
        /// Its id.
        id: String,
    },
    /// Adds or replaces a role, found by its id.
    UpsertRole(Box<Role>),
    /// Removes a role, and with it what it gave. A role that does not exist is no error.
    DeleteRole {
        /// Its id.
        id: String,
    },
    /// Adds or replaces a way to log in.
    UpsertAuthMethod(Box<AuthMethod>),
    /// Removes a way to log in with its binding rules and the tokens made through it.
    DeleteAuthMethod {
        /// Its name.
        name: String,
    },
    /// Adds or replaces a binding rule, found by its id.
    UpsertBindingRule(Box<BindingRule>),
    /// Removes a binding rule.
    DeleteBindingRule {
        /// Its id.
        id: String,
    },
    /// Adds or replaces a prepared query, found by its id.
    UpsertPreparedQuery(Box<PreparedQuery>),
    /// Removes a prepared query. A query that does not exist is no error.
    DeletePreparedQuery {
        /// Its id.
        id: String,
    },
    /// Several commands as one change with one index: all of them, or none.
    All(Vec<Command>),
}

impl WriteTxn {
    /// Applies a command.
    ///
    /// # Errors
    /// [`Rejected`] says what the command lacks. The transaction must be given up then.
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
