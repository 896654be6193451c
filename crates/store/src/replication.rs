//! The rows of the primary datacenter that all datacenters have: config entries, namespaces, partitions, federation
//! states, and what is not local to a datacenter in the ACL tables.
//!
//! [`ReadTxn::replication`] is what the primary sends: the rows that have changed since an index. [`Position`] is how
//! far a secondary has followed, and [`WriteTxn::replicate`] applies a row there. Applying rows again, or rows that are
//! the same already, changes nothing. Nothing is sent or received here.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use legate_model::acl::{AuthMethod, BindingRule, Policy, PolicyLink, Role, Token};
use legate_model::{ConfigEntry, FederationState, Namespace, Partition, Tenancy, TenancyName};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::access::TokenKey;
use crate::key::{Key, Table};
use crate::read::ReadTxn;
use crate::rejected::Rejected;
use crate::row::{Row, Stored};
use crate::state::State;
use crate::stored_tables::{decode, is_secret};
use crate::tenants::Tenant;
use crate::write::WriteTxn;

/// The tables, each after those that its rows refer to.
const TABLES: [Table; 9] = [
    Table::Partitions,
    Table::Policies,
    Table::Roles,
    Table::Namespaces,
    Table::AuthMethods,
    Table::BindingRules,
    Table::Tokens,
    Table::ConfigEntries,
    Table::FederationStates,
];

/// The tables that are replicated without ACLs, too.
const WITHOUT_ACLS: [Table; 4] = [
    Table::Partitions,
    Table::Namespaces,
    Table::ConfigEntries,
    Table::FederationStates,
];

/// What a secondary has of the primary.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Since {
    /// The cluster id of the primary that it follows. Another primary's rows are sent from the beginning.
    pub mesh: String,
    /// The primary's index up to which it has all rows. 0: it has none.
    pub index: u64,
}

/// The rows of the primary that have changed since an index.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Replication {
    /// The cluster id of the primary.
    pub mesh: String,
    /// The primary's index: these rows are all changes up to it.
    pub index: u64,
    /// The rows, each after those that it refers to.
    pub rows: Vec<ReplicatedRow>,
    /// By number of table, the names of all rows, if some may have been removed.
    remaining: BTreeMap<u8, Vec<Names>>,
}

/// The tenancy and the names in a row's key.
type Names = Vec<String>;

/// A row with its key.
#[derive(Clone, Serialize, Deserialize)]
pub struct ReplicatedRow {
    table: u8,
    names: Names,
    row: Box<RawValue>,
}

impl fmt::Debug for ReplicatedRow {
    /// Omits the row, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplicatedRow")
            .field(&self.table)
            .field(&self.names)
            .finish()
    }
}

/// A row of the primary that cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{row} of the primary datacenter cannot be applied: {reason}")]
pub struct NotReplicated {
    row: String,
    reason: String,
}

/// Why a row cannot be applied.
#[derive(Debug, thiserror::Error)]
enum Obstacle {
    #[error(transparent)]
    Rejected(#[from] Rejected),
    #[error("the {kind} {name:?} of this datacenter is still being deleted")]
    Deleting { kind: &'static str, name: String },
    #[error(
        "auth method {0:?} is local to this datacenter: delete it here, so that the one of the primary can have its name"
    )]
    LocalMethod(String),
    #[error(
        "rows of its table are not replicated: update the servers of both datacenters to the same version"
    )]
    Table,
}

impl Replication {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.remaining.is_empty()
    }

    /// The keys of the rows of a table, if some may have been removed.
    fn keys_of(&self, table: Table) -> HashSet<Key> {
        let names = self.remaining.get(&(table as u8));
        let keys = names.into_iter().flatten();
        keys.map(|names| Key::of_parts(table as u8, names))
            .collect()
    }
}

/// How far this datacenter has followed a primary, stored together with the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FollowedRow {
    since: Since,
    pub(crate) modify_index: u64,
}

/// How far a secondary follows the primary: what is stored, and what was answered since without a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position {
    since: Since,
    /// When all rows here were last replaced together, by which some may be older than the position.
    replaced_at: u64,
}

impl Position {
    /// What to ask the primary for, in this state of the secondary.
    pub fn ask(&mut self, state: &State) -> Since {
        if state.replaced_at() != self.replaced_at {
            *self = Self {
                since: state.read().followed().unwrap_or_default(),
                replaced_at: state.replaced_at(),
            };
        }
        self.since.clone()
    }

    /// To be called when all rows of an answer were applied.
    pub fn advance(&mut self, answer: &Replication) {
        self.since = Since {
            mesh: answer.mesh.clone(),
            index: answer.index,
        };
    }
}

/// Why an answer must not be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotFollowed {
    /// The server that answered has older rows than those that were applied.
    #[error(
        "a server of the primary datacenter is behind: it has index {index}, and {known} was applied already"
    )]
    Behind {
        /// Its index.
        index: u64,
        /// The index up to which rows were applied.
        known: u64,
    },
    /// The primary is another one than before.
    #[error(
        "the primary datacenter has the cluster id {mesh:?}, and {known:?} was followed: its state was lost, or \
         primary_datacenter names another one; to follow it, start this datacenter once without primary_datacenter"
    )]
    OtherMesh {
        /// Its cluster id.
        mesh: String,
        /// The cluster id that was followed.
        known: String,
    },
    /// Namespaces or partitions would be removed by following a primary for the first time.
    #[error(
        "{names} of this datacenter would be removed with all that they contain: create what is needed in the primary \
         datacenter first"
    )]
    Tenants {
        /// The namespaces and partitions.
        names: String,
    },
}

impl ReadTxn<'_> {
    /// The replicated rows that have changed since, or all of them if it is not known what the secondary has. `acls`:
    /// with the ACL tables.
    ///
    /// # Errors
    /// If a row has no JSON form.
    pub fn replication(&self, since: &Since, acls: bool) -> serde_json::Result<Replication> {
        let mesh = self
            .ca()
            .map_or_else(String::new, |ca| ca.cluster_id.clone());
        let state = self.state;
        let is_known =
            since.mesh == mesh && (state.replaced_at()..=state.index()).contains(&since.index);
        let since = if is_known { since.index } else { 0 };
        let mut answer = Replication {
            mesh,
            index: state.index(),
            ..Replication::default()
        };
        // Whether these rows are replicated depends on their contents and on each other.
        let methods = [Table::AuthMethods, Table::BindingRules];
        let all_methods = methods.iter().any(|table| self.has_changed(*table, since));
        for table in TABLES {
            if !acls && !WITHOUT_ACLS.contains(&table) {
                continue;
            }
            let prefix = Key::table_of(table);
            let is_method = methods.contains(&table);
            let with_names =
                since == 0 || state.removed_below(&prefix) > since || (is_method && all_methods);
            let mut names = Vec::new();
            for (key, row) in state.below(&prefix) {
                if !self.is_replicated(key, row) {
                    continue;
                }
                let of_row = key.parts().unwrap_or_default();
                if row.modify_index > since || (is_method && all_methods) {
                    answer.rows.push(ReplicatedRow {
                        table: table as u8,
                        names: of_row.clone(),
                        row: json(row)?,
                    });
                }
                if with_names {
                    names.push(of_row);
                }
            }
            if with_names {
                answer.remaining.insert(table as u8, names);
            }
            self.note(prefix);
        }
        Ok(answer)
    }

    /// How far this datacenter has followed a primary. `None`: it never has.
    pub fn followed(&self) -> Option<Since> {
        let row = self.get::<FollowedRow>(&[]);
        row.map(|row| row.since.clone())
    }

    /// Checks that an answer can be applied.
    ///
    /// # Errors
    /// [`NotFollowed`].
    fn may_follow(&self, answer: &Replication) -> Result<(), NotFollowed> {
        match self.followed() {
            Some(known) if known.mesh != answer.mesh => Err(NotFollowed::OtherMesh {
                mesh: answer.mesh.clone(),
                known: known.mesh,
            }),
            Some(known) if known.index > answer.index => Err(NotFollowed::Behind {
                index: answer.index,
                known: known.index,
            }),
            Some(_) => Ok(()),
            None => {
                let names = self.tenants_besides(answer);
                match names.is_empty() {
                    true => Ok(()),
                    false => Err(NotFollowed::Tenants {
                        names: names.join(", "),
                    }),
                }
            }
        }
    }

    /// The namespaces and partitions that the primary does not have.
    fn tenants_besides(&self, answer: &Replication) -> Vec<String> {
        let mut names = Vec::new();
        for table in [Table::Partitions, Table::Namespaces] {
            let (remaining, prefix) = (answer.keys_of(table), Key::table_of(table));
            let rows = self.state.below(&prefix);
            let absent = rows.filter(|(key, _)| !remaining.contains(*key));
            let tenants = absent.filter_map(|(_, row)| tenant(row));
            names.extend(tenants.map(|(what, name)| format!("{what} {name}")));
        }
        names
    }

    fn has_changed(&self, table: Table, since: u64) -> bool {
        let prefix = Key::table_of(table);
        let mut rows = self.state.below(&prefix);
        self.state.removed_below(&prefix) > since || rows.any(|(_, row)| row.modify_index > since)
    }

    /// Whether a row of one of the tables is the same in all datacenters.
    fn is_replicated(&self, key: &Key, row: &Stored) -> bool {
        if let Some(token) = row.get::<Token>() {
            return !token.local;
        }
        if let Some(method) = row.get::<AuthMethod>() {
            return !method.token_locality.is_local();
        }
        match row.get::<BindingRule>().zip(key.tenancy()) {
            Some((rule, tenancy)) => self.in_tenancy(&tenancy, |txn| txn.has_global_method(&rule)),
            None => true,
        }
    }

    fn has_global_method(&self, rule: &BindingRule) -> bool {
        let method = self.auth_method(&rule.auth_method);
        method.is_some_and(|method| !method.token_locality.is_local())
    }
}

/// The kind and name of a namespace or partition that can be removed and is not being removed.
fn tenant(row: &Stored) -> Option<(&'static str, TenancyName)> {
    let (what, name, deleted_at) = match (row.get::<Namespace>(), row.get::<Partition>()) {
        (Some(row), _) => ("namespace", row.name.clone(), row.deleted_at),
        (_, Some(row)) => ("partition", row.name.clone(), row.deleted_at),
        (None, None) => return None,
    };
    (!name.is_default() && deleted_at.is_none()).then_some((what, name))
}

fn json(row: &Stored) -> serde_json::Result<Box<RawValue>> {
    let text = row.to_bytes()?;
    serde_json::from_slice(&text)
}

impl ReplicatedRow {
    /// Its size in bytes, without its key.
    pub fn size(&self) -> usize {
        self.row.get().len()
    }
}

impl WriteTxn {
    /// Checks that an answer can be applied, and stores which primary is followed.
    ///
    /// # Errors
    /// [`NotFollowed`].
    pub fn begin_to_follow(&mut self, answer: &Replication) -> Result<(), NotFollowed> {
        self.read().may_follow(answer)?;
        if self.read().followed().is_none() {
            self.put_followed(&answer.mesh, 0);
        }
        Ok(())
    }

    /// Stores that all rows of an answer were applied.
    pub fn set_followed(&mut self, answer: &Replication) {
        self.put_followed(&answer.mesh, answer.index);
    }

    fn put_followed(&mut self, mesh: &str, index: u64) {
        let since = Since {
            mesh: mesh.to_owned(),
            index,
        };
        let modify_index = self.index();
        self.put(FollowedRow {
            since,
            modify_index,
        });
    }

    /// Forgets that a primary was followed: this datacenter is independent now.
    pub fn unset_followed(&mut self) {
        self.remove::<FollowedRow>(&[]);
    }

    /// Removes up to `limit` rows that the primary does not have. Namespaces and partitions are marked as deleted.
    /// Returns whether that were all.
    pub fn remove_unreplicated(
        &mut self,
        answer: &Replication,
        limit: usize,
        now: SystemTime,
    ) -> bool {
        let mut left = limit;
        // Rows that refer to others first.
        for table in TABLES.into_iter().rev() {
            if !answer.remaining.contains_key(&(table as u8)) {
                continue;
            }
            let remaining = answer.keys_of(table);
            let prefix = Key::table_of(table);
            for key in self.keys_below(&prefix, usize::MAX) {
                if remaining.contains(&key) || !self.may_remove(&key) {
                    continue;
                }
                if left == 0 {
                    return false;
                }
                left -= 1;
                self.remove_replicated(table, key, now);
            }
        }
        true
    }

    /// Whether a row that exists was replicated, and is not being removed.
    fn may_remove(&self, key: &Key) -> bool {
        let read = self.read();
        let Some(row) = read.state.get(key) else {
            return false;
        };
        let tables = [Table::Namespaces, Table::Partitions];
        match tables.iter().any(|table| *table as u8 == key.table()) {
            true => tenant(row).is_some(),
            false => read.is_replicated(key, row),
        }
    }

    fn remove_replicated(&mut self, table: Table, key: Key, now: SystemTime) {
        let Some(tenancy) = key.tenancy() else { return };
        let read = self.read();
        let Some(row) = read.state.get(&key).cloned() else {
            return;
        };
        drop(read);
        self.in_tenancy(&tenancy, |txn| match table {
            Table::Namespaces => {
                if let Some(row) = row.get::<Namespace>() {
                    let tenant = Tenant::Namespace(tenancy.in_namespace(&row.name));
                    // Only the default one cannot be, and it is never removed.
                    let _ = txn.mark_deleted(&tenant, now);
                }
            }
            Table::Partitions => {
                if let Some(row) = row.get::<Partition>() {
                    let _ = txn.mark_deleted(&Tenant::Partition(row.name.clone()), now);
                }
            }
            Table::AuthMethods => {
                if let Some(row) = row.get::<AuthMethod>() {
                    txn.remove_auth_method(&row.name);
                }
            }
            Table::ConfigEntries => {
                if let Some(row) = row.get::<ConfigEntry>() {
                    // Without an index to compare, it cannot be refused.
                    let _ = txn.remove_config_entry(row.kind(), row.name(), None);
                }
            }
            _ => {
                txn.remove_key(key);
            }
        });
    }

    /// Applies a row of the primary.
    ///
    /// # Errors
    /// [`NotReplicated`] names the row.
    pub fn replicate(&mut self, row: &ReplicatedRow, now: SystemTime) -> Result<(), NotReplicated> {
        let key = Key::of_parts(row.table, &row.names);
        let refused = |reason: String| NotReplicated {
            row: match TABLES.iter().find(|table| **table as u8 == row.table) {
                Some(table) => format!("{table:?} {}", row.names.join("/")),
                None => format!("a row of table {}", row.table),
            },
            reason,
        };
        let stored = decode(&key, row.row.get().as_bytes());
        // The decoder's error may quote the row.
        let stored = stored.map_err(|error| match is_secret(&key) {
            true => refused("it cannot be read".to_owned()),
            false => refused(error.to_string()),
        })?;
        let tenancy = key.tenancy().unwrap_or_default();
        let put = self.in_tenancy(&tenancy, |txn| txn.put_replicated(&tenancy, &stored, now));
        put.map_err(|error| refused(error.to_string()))
    }

    fn put_replicated(
        &mut self,
        tenancy: &Tenancy,
        row: &Stored,
        now: SystemTime,
    ) -> Result<(), Obstacle> {
        if let Some(row) = row.get::<ConfigEntry>() {
            self.put_config_entry(ConfigEntry::clone(&row), None)?;
        } else if let Some(row) = row.get::<Token>() {
            self.put_replicated_token(&row);
        } else if let Some(row) = row.get::<Policy>() {
            let holder = self.read().policy_by_name(&row.name);
            self.remove_other::<Policy>(holder.map(|holder| holder.id.clone()), &row.id);
            self.put_same(&*row);
        } else if let Some(row) = row.get::<Role>() {
            let holder = self.read().role_by_name(&row.name);
            self.remove_other::<Role>(holder.map(|holder| holder.id.clone()), &row.id);
            self.put_same(&*row);
        } else if let Some(row) = row.get::<AuthMethod>() {
            let existing = self.read().auth_method(&row.name);
            if existing.is_some_and(|existing| existing.token_locality.is_local()) {
                return Err(Obstacle::LocalMethod(row.name.clone()));
            }
            self.put_same(&*row);
        } else if let Some(row) = row.get::<BindingRule>() {
            if !self.read().has_global_method(&row) {
                return Err(Obstacle::LocalMethod(row.auth_method.clone()));
            }
            self.put_same(&*row);
        } else if let Some(row) = row.get::<Namespace>() {
            if row.deleted_at.is_some() {
                let tenant = Tenant::Namespace(tenancy.in_namespace(&row.name));
                return Ok(self.mark_deleted(&tenant, now)?);
            }
            let existing = self.read().namespace(&row.name);
            refuse_deleted(
                "namespace",
                &row.name,
                existing.and_then(|row| row.deleted_at),
            )?;
            self.put_same(&*row);
        } else if let Some(row) = row.get::<Partition>() {
            if row.deleted_at.is_some() {
                return Ok(self.mark_deleted(&Tenant::Partition(row.name.clone()), now)?);
            }
            let existing = self.read().partition(&row.name);
            refuse_deleted(
                "partition",
                &row.name,
                existing.and_then(|row| row.deleted_at),
            )?;
            self.put_same(&*row);
        } else if let Some(row) = row.get::<FederationState>() {
            self.put_same(&*row);
        } else {
            return Err(Obstacle::Table);
        }
        Ok(())
    }

    fn put_replicated_token(&mut self, token: &Token) {
        let secret = &token.secret_id;
        let holder = self.read().token_by_secret(secret.expose());
        let is_other = |holder: &Arc<Token>| {
            holder.accessor_id != token.accessor_id || holder.tenancy() != token.tenancy()
        };
        if holder.is_some_and(|holder| is_other(&holder)) {
            self.remove_token(&TokenKey::Secret(secret.clone()));
        }
        let manages = token.policies.iter().any(PolicyLink::is_global_management);
        if manages && self.read().managed_since().is_none() {
            self.reset_management();
        }
        self.put_same(token);
    }

    /// Removes another row with the name of a replicated one. The primary has no two with a name, so that the other one
    /// has another name there, or does not exist.
    fn remove_other<R: Row>(&mut self, holder: Option<String>, id: &str) {
        if let Some(holder) = holder.filter(|holder| !holder.eq_ignore_ascii_case(id)) {
            self.remove::<R>(&[&holder]);
        }
    }

    /// Puts a row as it is at the primary, which has validated it, with indexes of this store.
    fn put_same<R: Row + Indexed>(&mut self, row: &R) {
        let key = row.key(&self.tenancy);
        let read = self.read();
        let existing = read.state.get(&key).and_then(Stored::get::<R>);
        drop(read);
        let index = self.index();
        let (created, modified) = existing
            .as_ref()
            .map_or((index, index), |row| row.indexes_of());
        let mut row = row.with_indexes(created, modified);
        if existing.is_some_and(|existing| *existing == row) {
            return;
        }
        row = row.with_indexes(created, index);
        self.put(row);
    }
}

fn refuse_deleted(
    kind: &'static str,
    name: &TenancyName,
    deleted_at: Option<SystemTime>,
) -> Result<(), Obstacle> {
    let name = name.to_string();
    deleted_at.map_or(Ok(()), |_| Err(Obstacle::Deleting { kind, name }))
}

/// Rows with the indexes of their first and last write.
trait Indexed: PartialEq {
    fn indexes_of(&self) -> (u64, u64);
    fn with_indexes(&self, created: u64, modified: u64) -> Self;
}

macro_rules! indexed {
    ($($row:ty),+) => {$(
        impl Indexed for $row {
            fn indexes_of(&self) -> (u64, u64) {
                (self.create_index, self.modify_index)
            }

            fn with_indexes(&self, create_index: u64, modify_index: u64) -> Self {
                Self { create_index, modify_index, ..self.clone() }
            }
        }
    )+};
}

indexed!(
    AuthMethod,
    BindingRule,
    FederationState,
    Namespace,
    Partition,
    Policy,
    Role,
    Token
);
