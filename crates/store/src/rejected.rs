//! Why the tables refuse a change. The texts are for people; those that Consul has are its own, which its
//! clients look for. A bound stands with the refusal that names it.

use legate_model::virtual_ip;

/// How many prepared queries there may be.
pub(crate) const MAX_QUERIES: usize = 10_000;

/// How large all of them may be together, in MiB of their JSON.
pub(crate) const MAX_TOTAL_MIB: usize = 64;

/// How many partitions there may be, and how many namespaces in each.
pub(crate) const MAX_TENANTS: usize = 4096;

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

/// Why a query cannot be stored. Consul's texts, which its clients look for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryConflict {
    /// Another query has the name.
    #[error("name '{name}' aliases an existing query name")]
    Name {
        /// The name.
        name: String,
    },
    /// The name is the id of a query, by which that one is found.
    #[error("name '{name}' aliases an existing query ID")]
    Id {
        /// The name.
        name: String,
    },
    /// The session that it is bound to does not exist.
    #[error("invalid session {id:?}")]
    Session {
        /// The id that was given.
        id: String,
    },
    /// There is a template for every name already.
    #[error("a query template with an empty name already exists")]
    EmptyTemplate,
    /// No more fit.
    #[error("there are {MAX_QUERIES} prepared queries, and no more are allowed: delete some")]
    TooMany,
    /// They are too large together.
    #[error(
        "all prepared queries together would have more than {MAX_TOTAL_MIB} MiB: delete some, or make \
         them smaller"
    )]
    TooLarge,
}

/// Why something cannot be written for a tenant, or a tenant cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantConflict {
    /// There is no such partition.
    #[error("Partition {0:?} does not exist: create it first")]
    NoPartition(String),
    /// There is no such namespace.
    #[error("Namespace {namespace:?} does not exist in partition {partition:?}: create it first")]
    NoNamespace {
        /// What was asked for.
        namespace: String,
        /// Where it was looked for.
        partition: String,
    },
    /// Nothing is added to what goes.
    #[error("{kind} {name:?} is being deleted: wait until it is gone")]
    Deleting {
        /// `Namespace` or `Partition`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// It is always there.
    #[error("{kind} \"default\" cannot be deleted")]
    Builtin {
        /// `Namespace` or `Partition`.
        kind: &'static str,
    },
    /// No more fit.
    #[error("there are {MAX_TENANTS} {kind}s, and no more are allowed: delete some")]
    TooMany {
        /// `namespace` or `partition`.
        kind: &'static str,
    },
}
