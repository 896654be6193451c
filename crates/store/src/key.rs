//! Keys of rows and of index entries, in one ordered byte space in which related entries are
//! adjacent.
//!
//! A key consists of a table and a list of parts, beginning with the tenancy. Each part ends with a
//! zero byte, so that a key cut after a part is the prefix of everything below it. Readers record
//! such prefixes, and commits wake them. Keys are stored: their encoding never changes.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use legate_model::{DEFAULT_TENANCY, Tenancy};

/// The scope of a table's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The mesh as a whole.
    Mesh,
    /// A partition, the same for all of its namespaces.
    Partition,
    /// A namespace of a partition.
    Namespace,
}

/// Declares the tables with the names in their keys, their numbers, and the scopes of their rows.
macro_rules! tables {
    ($($(#[$names:meta])* $table:ident = $number:literal, $scope:ident;)*) => {
        /// A table of rows, or an index on one. The number is the first byte of stored keys.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub(crate) enum Table {
            $($(#[$names])* $table = $number,)*
        }

        impl Table {
            /// The scope of the table's rows. A row of a wider scope is the same row from every
            /// namespace.
            pub(crate) fn scope(self) -> Scope {
                match self {
                    $(Self::$table => Scope::$scope,)*
                }
            }
        }
    };
}

tables! {
    /// Node name.
    Nodes = 1, Partition;
    /// Node name, instance id.
    Instances = 2, Namespace;
    /// Node name, check id.
    Checks = 3, Namespace;
    /// Kind, name.
    ConfigEntries = 4, Namespace;
    /// Accessor id.
    Tokens = 5, Namespace;
    /// Name.
    AuthMethods = 6, Namespace;
    /// Id.
    BindingRules = 7, Namespace;
    /// One row.
    Ca = 8, Mesh;
    /// One row.
    Management = 9, Mesh;
    /// Service name.
    VirtualIps = 10, Namespace;
    /// Number.
    FreedVirtualIps = 11, Mesh;
    /// One row.
    LastVirtualIp = 12, Mesh;
    /// Id.
    Policies = 13, Namespace;
    /// Id.
    Roles = 14, Namespace;
    /// Node name, check id.
    AgentChecks = 15, Namespace;
    /// Id.
    PreparedQueries = 16, Mesh;
    /// Directories and name of a key of the KV store, case-sensitive.
    Kv = 17, Namespace;
    /// Id.
    Sessions = 18, Namespace;
    /// As [`Table::Kv`].
    LockDelays = 29, Namespace;
    /// Node name.
    Coordinates = 19, Partition;
    /// One row.
    Autopilot = 23, Mesh;
    /// Name.
    Peerings = 30, Partition;
    /// Node name, instance id.
    FileServices = 24, Namespace;
    /// Name.
    Namespaces = 27, Partition;
    /// Name.
    Partitions = 28, Mesh;
    /// One row.
    CaConfiguration = 22, Mesh;
    /// Gateway name.
    Gateways = 31, Namespace;
    /// Gateway name, transport, port.
    GatewayListeners = 32, Namespace;
    /// Gateway name; namespace, name, transport and port of a Service in Kubernetes.
    GatewayEndpoints = 33, Namespace;
    /// Gateway name, secret name.
    GatewaySecrets = 34, Namespace;
    /// Gateway name.
    GatewayStatuses = 35, Namespace;
    /// One row.
    Followed = 36, Mesh;
    /// Datacenter.
    FederationStates = 37, Mesh;
    /// Name of the peering.
    PeeringStreams = 38, Partition;
    /// Name of the peering.
    TrustBundles = 39, Partition;

    // Indexes, which are derived from rows and not stored.
    /// Node id.
    NodeIds = 128, Partition;
    /// Service name, node name, instance id.
    InstancesByService = 129, Namespace;
    /// The service reached in the mesh, node name, instance id.
    InstancesByDestination = 130, Namespace;
    /// Node name, instance id or nothing, check id.
    ChecksByOwner = 131, Namespace;
    /// Service name, node name, check id.
    ChecksByService = 132, Namespace;
    // A secret is looked up before its tenancy is known.
    /// The secret of a token.
    TokensBySecret = 133, Mesh;
    /// Auth method, id.
    BindingRulesByMethod = 134, Namespace;
    /// Auth method, namespace of the token, accessor id.
    TokensByMethod = 135, Namespace;
    /// IP address, node name.
    NodesByAddress = 136, Partition;
    /// IP address, node name, instance id.
    InstancesByAddress = 137, Namespace;
    /// Name.
    PoliciesByName = 138, Namespace;
    /// Name.
    RolesByName = 139, Namespace;
    // The networks of two partitions may use the same addresses.
    /// IP address.
    ManualVirtualIps = 140, Partition;
    /// The service that may receive requests, kind, name.
    ConfigEntriesByDestination = 141, Namespace;
    /// Name.
    PreparedQueriesByName = 142, Mesh;
    /// Name of a template, may be empty.
    PreparedQueryTemplates = 143, Mesh;
    /// Session id, directories and name of a key of the KV store.
    KvBySession = 144, Namespace;
    // Nodes belong to the partition, and their end affects all namespaces.
    /// Node name, session id.
    SessionsByNode = 145, Partition;
    /// Node name, namespace of the check, check id, session id.
    SessionsByCheck = 146, Partition;
    /// Session id, query id.
    PreparedQueriesBySession = 147, Mesh;
    /// Index of the creation, partition, session id, for sessions with a TTL.
    SessionsByChange = 148, Mesh;
    /// Index of the write, partition, namespace, directories and name of a key of the KV store.
    LockDelaysByChange = 149, Mesh;
    /// Id.
    PeeringsById = 151, Mesh;
    // Few, but of every service: the other kinds would be most of the catalog.
    /// Kind of gateway, namespace, service name, node name, instance id.
    GatewayInstances = 150, Partition;
    // What other datacenters have, see [`crate::mirror`]. Not stored.
    /// What it is, datacenter, partition, namespace and name of a service.
    Remote = 254, Mesh;
    /// Shared results: name of the query, its argument.
    Queries = 255, Namespace;
}

/// The maximum number of directories of a path that are separate parts. Each adds cost to writes
/// below it.
const DIRECTORIES: usize = 16;

const END: u8 = 0;
const ESCAPE: u8 = 1;

/// The key of a row or index entry, or a prefix of several.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key(Arc<[u8]>);

impl Key {
    /// A key in the table for one tenancy, with case-insensitive names.
    pub(crate) fn new(table: Table, tenancy: &Tenancy, names: &[&str]) -> Self {
        let mut bytes = Self::begin(table, tenancy);
        for name in names {
            push(&mut bytes, &fold(name));
        }
        Self(bytes.into())
    }

    /// The prefix of a table's keys in all tenancies.
    pub(crate) fn table_of(table: Table) -> Self {
        Self([table as u8].as_slice().into())
    }

    /// The same with one case-sensitive name, such as a secret.
    pub(crate) fn exact(table: Table, tenancy: &Tenancy, name: &str) -> Self {
        let mut bytes = Self::begin(table, tenancy);
        push(&mut bytes, name);
        Self(bytes.into())
    }

    /// A case-sensitive path such as `a/b/c`, after some names. Its first directories are parts, so
    /// that they can be watched. Keys sort as the paths do.
    pub(crate) fn path(table: Table, tenancy: &Tenancy, names: &[&str], path: &str) -> Self {
        let mut bytes = Self::new(table, tenancy, names).0.to_vec();
        let (directories, rest) = split(path);
        for part in directories {
            push(&mut bytes, part);
        }
        push(&mut bytes, rest);
        Self(bytes.into())
    }

    /// The common prefix of the keys of all paths that start with a text. It may end within a part,
    /// so it cannot be watched.
    pub(crate) fn path_prefix(table: Table, tenancy: &Tenancy, prefix: &str) -> Self {
        let mut key = Self::path(table, tenancy, &[], prefix).0.to_vec();
        key.pop();
        Self(key.into())
    }

    /// The longest prefix of [`Self::path_prefix`] that can be watched.
    pub(crate) fn path_directory(table: Table, tenancy: &Tenancy, prefix: &str) -> Self {
        let mut bytes = Self::begin(table, tenancy);
        for part in split(prefix).0 {
            push(&mut bytes, part);
        }
        Self(bytes.into())
    }

    fn begin(table: Table, tenancy: &Tenancy) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.push(table as u8);
        let peer = &*tenancy.peer;
        let (partition, namespace, peer) = match table.scope() {
            Scope::Mesh => (DEFAULT_TENANCY, DEFAULT_TENANCY, ""),
            Scope::Partition => (&*tenancy.partition, DEFAULT_TENANCY, peer),
            Scope::Namespace => (&*tenancy.partition, &*tenancy.namespace, peer),
        };
        for part in [partition, namespace, peer] {
            push(&mut bytes, part);
        }
        bytes
    }

    /// A key from its table and [its parts](Self::parts).
    pub(crate) fn of_parts(table: u8, parts: &[String]) -> Self {
        let mut bytes = vec![table];
        for part in parts {
            push(&mut bytes, part);
        }
        Self(bytes.into())
    }

    /// A key from its stored form.
    pub(crate) fn from_bytes(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The key in stored form.
    pub(crate) fn to_bytes(&self) -> Arc<[u8]> {
        Arc::clone(&self.0)
    }

    /// The first byte: the table's number.
    pub(crate) fn table(&self) -> u8 {
        self.0.first().copied().unwrap_or_default()
    }

    /// The tenancy and the names after it. `None` for invalid bytes.
    pub(crate) fn parts(&self) -> Option<Vec<String>> {
        let mut parts = Vec::new();
        let mut part = Vec::new();
        let mut bytes = self.0.iter().skip(1);
        while let Some(byte) = bytes.next() {
            match *byte {
                END => parts.push(String::from_utf8(std::mem::take(&mut part)).ok()?),
                ESCAPE => part.push(bytes.next()?.checked_sub(1)?),
                other => part.push(other),
            }
        }
        part.is_empty().then_some(parts)
    }

    /// The tenancy of the row. `None` for invalid bytes.
    pub(crate) fn tenancy(&self) -> Option<Tenancy> {
        let mut parts = self.parts()?.into_iter();
        Some(Tenancy {
            partition: parts.next()?.into(),
            namespace: parts.next()?.into(),
            peer: parts.next()?.into(),
        })
    }

    /// Whether this key is the prefix or below it.
    pub(crate) fn is_below(&self, prefix: &Key) -> bool {
        self.0.starts_with(&prefix.0)
    }

    /// The key itself and every prefix that ends after a part, the longest first, down to the
    /// table.
    pub(crate) fn prefixes(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.0.iter().enumerate().rev();
        ends.filter(|(at, byte)| **byte == END || *at == 0)
            .map(|(at, _)| &self.0[..=at])
    }
}

impl std::borrow::Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Key {
    /// Omits parts that may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.table() == Table::TokensBySecret as u8 {
            return write!(f, "{}:***", self.table());
        }
        write!(f, "{}:", self.table())?;
        f.debug_list()
            .entries(self.parts().unwrap_or_default())
            .finish()
    }
}

/// Folds a name for keys: names are case-insensitive in Consul.
pub(crate) fn fold(name: &str) -> Cow<'_, str> {
    if name.chars().any(char::is_uppercase) {
        name.to_lowercase().into()
    } else {
        name.into()
    }
}

/// Splits a path into its first directories, each with its slash, and the rest.
fn split(path: &str) -> (Vec<&str>, &str) {
    let mut directories = Vec::new();
    let mut rest = path;
    while directories.len() < DIRECTORIES
        && let Some(slash) = rest.find('/')
    {
        let (directory, behind) = rest.split_at(slash + 1);
        directories.push(directory);
        rest = behind;
    }
    (directories, rest)
}

/// Zero ends a part, so zero and the escape byte are escaped. The order of parts is preserved.
fn push(bytes: &mut Vec<u8>, part: &str) {
    for byte in part.bytes() {
        if byte <= ESCAPE {
            bytes.push(ESCAPE);
            bytes.push(byte + 1);
        } else {
            bytes.push(byte);
        }
    }
    bytes.push(END);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(names: &[&str]) -> Key {
        Key::new(Table::Nodes, &Tenancy::default(), names)
    }

    #[test]
    fn names_are_folded_and_secrets_are_not() {
        assert_eq!(key(&["Web"]), key(&["web"]));
        let secret = |name| Key::exact(Table::TokensBySecret, &Tenancy::default(), name);
        assert_ne!(secret("A"), secret("a"));
        assert!(!format!("{:?}", secret("hidden")).contains("hidden"));
    }

    #[test]
    fn a_name_is_not_below_a_shorter_one() {
        assert!(key(&["web", "1"]).is_below(&key(&["web"])));
        assert!(!key(&["web-2"]).is_below(&key(&["web"])));
    }

    #[test]
    fn rows_of_wider_scope_are_shared_by_namespaces() {
        let name = |text: &str| text.parse().unwrap();
        let tenancy = Tenancy::new(&name("p"), &name("n"));
        let key = |table| Key::new(table, &tenancy, &["a"]).tenancy().unwrap();
        assert_eq!(key(Table::Instances), tenancy);
        assert_eq!(key(Table::Nodes), tenancy.of_partition());
        assert_eq!(key(Table::PreparedQueries), Tenancy::default());
    }

    #[test]
    fn prefixes_end_behind_parts() {
        let full = key(&["a", "b"]);
        let found: Vec<Key> = full.prefixes().map(Key::from_bytes).collect();
        assert_eq!(found[..3], [full.clone(), key(&["a"]), key(&[])]);
        // Including namespace, partition and table.
        assert_eq!(found.len(), 6);
        assert_eq!(found[5], Key::table_of(Table::Nodes));
    }

    proptest! {
        #[test]
        fn parts_come_back_and_keep_their_order(
            a in "[\\x00-\\x03a-c]{0,4}", b in "[\\x00-\\x03a-c]{0,4}",
            c in "[\\x00-\\x03a-c]{0,4}",
        ) {
            let names = |key: &Key| key.parts().unwrap()[3..].to_vec();
            prop_assert_eq!(names(&key(&[&a, &b])), [a.clone(), b.clone()]);
            prop_assert_eq!(key(&[&a]).cmp(&key(&[&b])), a.cmp(&b));
            prop_assert_eq!(key(&[&a, &c]).is_below(&key(&[&b])), a == b);
            prop_assert_eq!(key(&[&a]).tenancy(), Some(Tenancy::default()));
            let again = Key::of_parts(key(&[&a]).table(), &key(&[&a]).parts().unwrap());
            prop_assert_eq!(again, key(&[&a]));
        }

        #[test]
        fn paths_keep_their_order_and_stand_below_their_prefixes(
            a in "[\\x00-\\x020ab/]{0,40}", b in "[\\x00-\\x020ab/]{0,6}",
        ) {
            let path = |path: &str| Key::path(Table::Kv, &Tenancy::default(), &[], path);
            prop_assert_eq!(path(&a).cmp(&path(&b)), a.cmp(&b));
            prop_assert_eq!(path(&a).parts().unwrap()[3..].concat(), a.clone());
            let prefix = Key::path_prefix(Table::Kv, &Tenancy::default(), &b);
            prop_assert_eq!(path(&a).is_below(&prefix), a.starts_with(&b));
            let directory = Key::path_directory(Table::Kv, &Tenancy::default(), &b);
            prop_assert!(prefix.is_below(&directory));
            let woken = path(&a).prefixes().any(|key| key == &*directory.to_bytes());
            prop_assert!(woken || !a.starts_with(&b));
        }
    }
}
