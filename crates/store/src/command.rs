//! Changes as values, for those who pass them on, and what comes of a change.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use legate_model::acl::{AuthMethod, BindingRule, Policy, Role, Token};
use legate_model::{
    CaRoots, ConfigEntry, ConfigKind, HealthCheck, Intention, Node, PreparedQuery, Secret,
    ServiceInstance, ServiceName, virtual_ip,
};
use serde::{Deserialize, Serialize};

use crate::prepared_queries::QueryConflict;
use crate::tenants::TenantConflict;
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

/// A node, and what is registered on it in the same step.
#[derive(Debug, Clone)]
pub struct Registration {
    /// The node. Its indexes are ignored.
    pub node: Node,
    /// An instance on the node. Its indexes are ignored; an empty id means the service's name.
    pub service: Option<ServiceInstance>,
    /// Checks of the node (without a service id) or of an instance on it. An empty check id means
    /// the check's name.
    pub checks: Vec<HealthCheck>,
    /// Leaves a node that exists as it is, and refuses one that does not exist.
    pub skip_node_update: bool,
}

/// What to remove: the instance when it is named, else the check when it is named, else the node
/// with everything on it. What does not exist is no error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deregistration {
    /// The node's name.
    pub node: String,
    /// The instance's id.
    pub service_id: Option<String>,
    /// The check's id.
    pub check_id: Option<String>,
}

/// How a token is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenKey {
    /// By the public half.
    Accessor(String),
    /// By the secret half.
    Secret(Secret),
}

/// The CA's state: what is public, and the key that signs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaState {
    /// The root certificates, of which one is active. Their indexes are ignored.
    pub roots: Arc<CaRoots>,
    /// The PEM of the active root's private key.
    pub signing_key: Secret,
    /// The UUID at the front of the trust domain, chosen once.
    pub cluster_id: String,
    /// By id, what has to be known about roots until nobody needs them any more. A root that is not
    /// here became active before this was kept.
    #[serde(default)]
    pub lives: BTreeMap<String, RootLife>,
}

/// How long a root is needed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct RootLife {
    /// When another root became active instead.
    #[serde(default)]
    pub rotated_out: Option<SystemTime>,
    /// The longest lifetime of any leaf that it may have signed.
    pub longest_leaf: Duration,
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

/// What a transaction did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The index of the tables afterwards.
    pub index: u64,
    /// Whether anything changed. A write of what is there already changes nothing, takes no index
    /// and wakes nobody.
    pub changed: bool,
}

/// Why a command was refused. The tables are as they were before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The registration names a node that does not exist and does not describe it.
    #[error(
        "node {node:?} is not registered: register it first, or send its address with this \
         registration"
    )]
    MissingNode {
        /// The node's name.
        node: String,
    },
    /// The check belongs to an instance that is not on its node.
    #[error(
        "check {check:?} belongs to service {service_id:?}, which is not registered on node \
         {node:?}: register the service first, or together with the check"
    )]
    MissingService {
        /// The check's id.
        check: String,
        /// The id that was looked for.
        service_id: String,
        /// The node that was looked at.
        node: String,
    },
    /// The check is for another node than the one of the registration.
    #[error(
        "check {check:?} is for node {check_node:?}, but the registration is for node {node:?}: \
         register it with its own node"
    )]
    CheckOnOtherNode {
        /// The check's id.
        check: String,
        /// The node the check names.
        check_node: String,
        /// The node of the registration.
        node: String,
    },
    /// Another node has the name, and an agent watches over it. What stands first is Consul's.
    #[error(
        "Node name {node} is reserved by node {held} with name {node} ({address}), so that a node with \
         id {asked} cannot have it: choose another name, send that id or none, or deregister that \
         node first"
    )]
    NodeNameTaken {
        /// The node's name.
        node: String,
        /// The id it has.
        held: String,
        /// The address it has.
        address: String,
        /// The id that was sent.
        asked: String,
    },
    /// A value that must not be empty is empty.
    #[error("{field} is missing: {hint}")]
    Missing {
        /// The field, as the API calls it.
        field: &'static str,
        /// What to send.
        hint: &'static str,
    },
    /// The stored object is not the one the caller has seen.
    #[error(
        "{object} has modify index {actual} and not {expected}: somebody changed it in between; \
         read it again and repeat"
    )]
    CasMismatch {
        /// What was to be changed.
        object: String,
        /// The index the caller sent; 0: it must not exist.
        expected: u64,
        /// The index it has; 0: it does not exist.
        actual: u64,
    },
    /// The result would not be a valid config entry.
    #[error("{entry} would become invalid: {reason}")]
    InvalidEntry {
        /// The entry, as `kind/name`.
        entry: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A binding rule speaks of an auth method that does not exist.
    #[error("auth method {name:?} does not exist: create it before its binding rules")]
    MissingAuthMethod {
        /// The name that was looked for.
        name: String,
    },
    /// All virtual IPs are in use.
    #[error(
        "service {service:?} needs a virtual IP and all {count} are in use: remove services or \
         config entries of services that are not used any more",
        count = virtual_ip::COUNT
    )]
    NoVirtualIpLeft {
        /// The service that needs one.
        service: String,
    },
    /// Another policy or role has this name. Consul's text, which its clients look for.
    #[error("Invalid {kind}: A {kind} with Name {name:?} already exists")]
    NameTaken {
        /// What has the name: `Policy` or `Role`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A token or role is linked to a policy or role that does not exist. Consul's text.
    #[error("No such ACL {kind} with {by} {value:?}")]
    MissingLink {
        /// What is missing: `policy` or `role`.
        kind: &'static str,
        /// What it was looked for by: `ID` or `name`.
        by: &'static str,
        /// The id or name.
        value: String,
    },
    /// The prepared query conflicts with those that are stored, or is one too many.
    #[error(transparent)]
    PreparedQuery(#[from] QueryConflict),
    /// The namespace or partition does not permit it.
    #[error(transparent)]
    Tenant(#[from] TenantConflict),
    /// Another token has this secret.
    #[error("this secret id belongs to another token already: choose another, or leave it out")]
    SecretTaken,
}

impl fmt::Display for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accessor(id) => f.write_str(id),
            Self::Secret(_) => f.write_str("***"),
        }
    }
}
