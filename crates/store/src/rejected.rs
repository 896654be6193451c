//! Why the tables refuse a change. Texts that Consul also has are the same, because its clients
//! match them. Limits are declared next to the errors that name them.

use legate_model::virtual_ip;

/// The maximum number of prepared queries.
pub(crate) const MAX_QUERIES: usize = 10_000;

/// The maximum total size of prepared queries, in MiB of JSON.
pub(crate) const MAX_TOTAL_MIB: usize = 64;

/// The maximum number of partitions, and of namespaces in each.
pub(crate) const MAX_TENANTS: usize = 4096;

/// Why a command was refused. The tables are unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The registration refers to a node that does not exist, without its address.
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
        /// The service id of the check.
        service_id: String,
        /// The node of the check.
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
    /// Another node with a live agent has the name. The beginning of the text is Consul's.
    #[error(
        "Node name {node} is reserved by node {held} with name {node} ({address}), so that a node with \
         id {asked} cannot have it: choose another name, send that id or none, or deregister that \
         node first"
    )]
    NodeNameTaken {
        /// The node's name.
        node: String,
        /// The id of the existing node.
        held: String,
        /// The address of the existing node.
        address: String,
        /// The id that was sent.
        asked: String,
    },
    /// A required value is empty.
    #[error("{field} is missing: {hint}")]
    Missing {
        /// The field's name in the API.
        field: &'static str,
        /// How to set it.
        hint: &'static str,
    },
    /// Another write changed the object since the caller read it.
    #[error(
        "{object} has modify index {actual} and not {expected}: it was changed in between; \
         read it again and retry"
    )]
    CasMismatch {
        /// The object to change.
        object: String,
        /// The index that the caller sent; 0: it must not exist.
        expected: u64,
        /// The index it has; 0: it does not exist.
        actual: u64,
    },
    /// The result would not be a valid config entry.
    #[error("{entry} would become invalid: {reason}")]
    InvalidEntry {
        /// The entry, as `kind/name`.
        entry: String,
        /// The reason, and what to do.
        reason: String,
    },
    /// A binding rule refers to an auth method that does not exist.
    #[error("auth method {name:?} does not exist: create it before its binding rules")]
    MissingAuthMethod {
        /// The name of the auth method.
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
    /// Another policy or role has this name. Consul's text, which its clients match.
    #[error("Invalid {kind}: A {kind} with Name {name:?} already exists")]
    NameTaken {
        /// `Policy` or `Role`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// A token or role is linked to a policy or role that does not exist. Consul's text.
    #[error("No such ACL {kind} with {by} {value:?}")]
    MissingLink {
        /// `policy` or `role`.
        kind: &'static str,
        /// The key of the lookup: `ID` or `name`.
        by: &'static str,
        /// The id or name.
        value: String,
    },
    /// The prepared query conflicts with stored ones, or exceeds a limit.
    #[error(transparent)]
    PreparedQuery(#[from] QueryConflict),
    /// The namespace or partition does not exist or does not allow the change.
    #[error(transparent)]
    Tenant(#[from] TenantConflict),
    /// Another token has this secret.
    #[error("this secret id belongs to another token already: choose another, or leave it out")]
    SecretTaken,
}

/// Why a query cannot be stored. Consul's texts, which its clients match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QueryConflict {
    /// Another query has the name.
    #[error("name '{name}' aliases an existing query name")]
    Name {
        /// The name.
        name: String,
    },
    /// The name is the id of another query, which it would hide.
    #[error("name '{name}' aliases an existing query ID")]
    Id {
        /// The name.
        name: String,
    },
    /// The session that the query is bound to does not exist.
    #[error("invalid session {id:?}")]
    Session {
        /// The id of the session.
        id: String,
    },
    /// There is already a template that matches every name.
    #[error("a query template with an empty name already exists")]
    EmptyTemplate,
    /// The maximum number of queries is reached.
    #[error("there are {MAX_QUERIES} prepared queries, and no more are allowed: delete some")]
    TooMany,
    /// The maximum total size is exceeded.
    #[error(
        "all prepared queries together would have more than {MAX_TOTAL_MIB} MiB: delete some, or make \
         them smaller"
    )]
    TooLarge,
}

/// Why a write in a tenancy, or of a namespace or partition, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TenantConflict {
    /// There is no such partition.
    #[error("Partition {0:?} does not exist: create it first")]
    NoPartition(String),
    /// There is no such namespace.
    #[error("Namespace {namespace:?} does not exist in partition {partition:?}: create it first")]
    NoNamespace {
        /// The name of the namespace.
        namespace: String,
        /// The partition of the namespace.
        partition: String,
    },
    /// The tenant is being deleted, so that nothing can be added.
    #[error("{kind} {name:?} is being deleted: wait until it is gone")]
    Deleting {
        /// `Namespace` or `Partition`.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The default namespace and partition cannot be deleted.
    #[error("{kind} \"default\" cannot be deleted")]
    Builtin {
        /// `Namespace` or `Partition`.
        kind: &'static str,
    },
    /// The maximum number is reached.
    #[error("there are {MAX_TENANTS} {kind}s, and no more are allowed: delete some")]
    TooMany {
        /// `namespace` or `partition`.
        kind: &'static str,
    },
}
