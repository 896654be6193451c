//! Sessions: creation, renewal, expiry, and their locks, with Consul's semantics.
//!
//! No clock is read here. A task of the server reads [`ReadTxn::expiring_sessions`] and
//! [`ReadTxn::lock_delays`], measures how long each has been unchanged, and ends it. It takes
//! the renewals of sessions, which are not stored, from [`crate::Renewals`].

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use legate_model::{
    CheckStatus, HealthCheck, NewSession, Session, SessionBehavior, Tenancy, TenancyName,
};

use crate::key::{Key, Table};
use crate::read::ReadTxn;
use crate::renewals::SessionKey;
use crate::row::Stored;
use crate::rows::{LockDelayRow, SessionRow};
use crate::write::WriteTxn;

/// A session with a TTL.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expiring {
    /// The tenancy of the session.
    pub tenancy: Tenancy,
    /// Its id.
    pub id: String,
    /// Its TTL.
    pub time_to_live: Duration,
    /// The index of the write that created it.
    pub since: u64,
}

impl Expiring {
    pub(crate) fn key(&self) -> SessionKey {
        SessionKey {
            tenancy: self.tenancy.clone(),
            id: self.id.clone(),
        }
    }
}

/// A key within its lock delay.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockDelay {
    /// The tenancy of the key.
    pub tenancy: Tenancy,
    /// The key.
    pub key: String,
    /// The duration of the delay.
    pub delay: Duration,
    /// The index of the write at which the delay started.
    pub since: u64,
}

/// Why a session cannot be created. Consul's texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionConflict {
    /// Its node does not exist.
    #[error("Missing node registration")]
    MissingNode,
    /// One of its checks does not exist.
    #[error("Missing check '{0}' registration")]
    MissingCheck(String),
    /// One of its checks is critical.
    #[error("Check '{0}' is in critical state")]
    CriticalCheck(String),
}

impl ReadTxn<'_> {
    /// A session by id.
    pub fn session(&self, id: &str) -> Option<Arc<Session>> {
        let row: Arc<SessionRow> = self.get(&[id])?;
        Some(Arc::clone(&row.session))
    }

    /// All sessions, ordered by id.
    pub fn sessions(&self) -> Vec<Arc<Session>> {
        sessions_of(&self.scan(&[]))
    }

    /// The sessions of a node, ordered by id.
    pub fn sessions_on(&self, node: &str) -> Vec<Arc<Session>> {
        let mut found = sessions_of(&self.find_all(Table::SessionsByNode, &[node]));
        let own = self.tenancy.shown_namespace();
        found.retain(|session| session.namespace == own);
        found
    }

    /// The index of the state.
    pub fn at(&self) -> u64 {
        self.state.index()
    }

    /// Whether everything was replaced after this index.
    pub fn replaced_after(&self, index: u64) -> bool {
        index < self.state.replaced_at()
    }

    /// The sessions with a TTL, in all tenancies, that were created after this index; all of them if everything was replaced after it.
    pub fn expiring_sessions(&self, after: u64) -> Vec<Expiring> {
        let rows = self.changed_after(Table::SessionsByChange, after);
        rows.filter_map(|(_, row)| expiring(&*row.get::<SessionRow>()?))
            .collect()
    }

    /// The keys, in all tenancies, whose lock delay started after this index; all of them if
    /// everything was replaced after it.
    pub fn lock_delays(&self, after: u64) -> Vec<LockDelay> {
        let rows = self.changed_after(Table::LockDelaysByChange, after);
        let delay = |(key, row): (&Key, &Stored)| {
            Some(lock_delay(&*row.get::<LockDelayRow>()?, &key.tenancy()?))
        };
        rows.filter_map(delay).collect()
    }

    fn changed_after(&self, index: Table, after: u64) -> impl Iterator<Item = (&Key, &Stored)> {
        let all = Key::table_of(index);
        let from = match self.replaced_after(after) {
            true => all.clone(),
            false => by_change(index, after + 1),
        };
        self.note(all.clone());
        let rows = self.state.found_from(all, from);
        rows.inspect(|(_, row)| self.seen(row))
    }

    /// Whether a session is as it was seen.
    pub fn is_expiring(&self, seen: &Expiring) -> bool {
        self.in_tenancy(&seen.tenancy, |txn| {
            let row: Option<Arc<SessionRow>> = txn.get(&[&seen.id]);
            row.is_some_and(|row| expiring(&row).as_ref() == Some(seen))
        })
    }

    /// Whether a lock delay is as it was seen.
    pub fn is_delayed(&self, seen: &LockDelay) -> bool {
        self.in_tenancy(&seen.tenancy, |txn| {
            let row: Option<Arc<LockDelayRow>> = txn.get_path(&seen.key);
            row.is_some_and(|row| lock_delay(&row, &seen.tenancy) == *seen)
        })
    }
}

/// The prefix of the entries of an index by the index of changes.
pub(crate) fn by_change(index: Table, change: u64) -> Key {
    Key::new(index, &Tenancy::default(), &[&sortable(change)])
}

/// Sorts as the numbers do.
pub(crate) fn sortable(number: u64) -> String {
    format!("{number:016x}")
}

/// The checks of a session, each with its namespace.
fn checks_of(session: &Session) -> impl Iterator<Item = (&TenancyName, &str)> {
    static OWN: LazyLock<TenancyName> = LazyLock::new(TenancyName::default);
    let plain = session.checks.iter().chain(&session.node_checks);
    let of_services = session.service_checks.iter().flatten();
    plain
        .map(|id| (&*OWN, id.as_str()))
        .chain(of_services.map(|check| (&check.namespace, check.id.as_str())))
}

fn sessions_of(rows: &[Arc<SessionRow>]) -> Vec<Arc<Session>> {
    rows.iter().map(|row| Arc::clone(&row.session)).collect()
}

fn expiring(row: &SessionRow) -> Option<Expiring> {
    Some(Expiring {
        id: row.session.id.clone(),
        tenancy: Tenancy::new(&row.session.partition, &row.session.namespace),
        time_to_live: row.session.time_to_live()?,
        since: row.session.create_index,
    })
}

fn lock_delay(row: &LockDelayRow, tenancy: &Tenancy) -> LockDelay {
    LockDelay {
        key: row.key.clone(),
        tenancy: tenancy.clone(),
        delay: row.delay,
        since: row.modify_index,
    }
}

impl WriteTxn {
    /// Creates a session, whose id is already set.
    ///
    /// # Errors
    /// [`SessionConflict`]
    pub fn create_session(&mut self, new: NewSession) -> Result<(), SessionConflict> {
        let NewSession {
            mut session,
            default_check,
        } = new;
        let read = self.read();
        let Some(node) = read.node(&session.node) else {
            return Err(SessionConflict::MissingNode);
        };
        if default_check {
            session
                .node_checks
                .retain(|id| read.check(&node.node, id).is_some());
        }
        for (namespace, id) in checks_of(&session) {
            let tenancy = self.tenancy.in_namespace(namespace);
            match read.in_tenancy(&tenancy, |txn| txn.check(&node.node, id)) {
                None => return Err(SessionConflict::MissingCheck(id.to_owned())),
                Some(check) if check.status == CheckStatus::Critical => {
                    return Err(SessionConflict::CriticalCheck(id.to_owned()));
                }
                Some(_) => {}
            }
        }
        session.namespace = self.tenancy.shown_namespace();
        session.partition = self.tenancy.shown_partition();
        session.create_index = self.index();
        session.modify_index = self.index();
        self.put(SessionRow {
            session: Arc::new(session),
            renewals: 0,
        });
        Ok(())
    }

    /// Ends a session and removes the queries that are bound to it. Its locked keys are released or
    /// deleted, and cannot be locked during the lock delay. A no-op if it does not exist.
    pub fn end_session(&mut self, id: &str) {
        let Some(session) = self.read().session(id) else {
            return;
        };
        self.remove::<SessionRow>(&[id]);
        self.remove_queries_of_session(&session.id);
        let delay = session.closed_for();
        for entry in self.read().kv_locked_by(&session.id) {
            match session.behavior {
                SessionBehavior::Release => self.release_kv(&entry),
                SessionBehavior::Delete => self.kv_delete(&entry.key),
            }
            if !delay.is_zero() {
                let modify_index = self.index();
                let key = entry.key.clone();
                self.put(LockDelayRow {
                    key,
                    delay,
                    modify_index,
                });
            }
        }
    }

    /// Ends a session whose TTL is over, unless it is another one by now.
    pub fn expire_session(&mut self, expired: &Expiring) {
        if self.read().is_expiring(expired) {
            self.in_tenancy(&expired.tenancy, |txn| txn.end_session(&expired.id));
        }
    }

    /// Ends a lock delay, unless it was replaced in the meantime.
    pub fn end_lock_delay(&mut self, over: &LockDelay) {
        if self.read().is_delayed(over) {
            self.in_tenancy(&over.tenancy, |txn| {
                txn.remove_path::<LockDelayRow>(&over.key);
            });
        }
    }

    /// Ends the sessions that depend on a check that is critical or removed.
    pub(crate) fn end_sessions_of_check(&mut self, check: &HealthCheck) {
        let home = Tenancy::new(&check.partition, &check.namespace);
        let names = [&*check.node, &*home.namespace, &*check.check_id];
        let rows = self.read().find_all(Table::SessionsByCheck, &names);
        for session in sessions_of(&rows) {
            let own = Tenancy::new(&self.tenancy.shown_partition(), &session.namespace);
            // A check in the session's namespace may have the same id as one in the default
            // namespace.
            let by_service = session.service_checks.iter().flatten().any(|one| {
                one.id.eq_ignore_ascii_case(&check.check_id)
                    && own.in_namespace(&one.namespace) == home
            });
            if own == home || check.service_id.is_empty() || by_service {
                self.in_tenancy(&own, |txn| txn.end_session(&session.id));
            }
        }
    }

    /// Ends the sessions of a node, in all namespaces.
    pub(crate) fn end_sessions_on(&mut self, node: &str) {
        let rows = self.read().find_all(Table::SessionsByNode, &[node]);
        for session in sessions_of(&rows) {
            let own = Tenancy::new(&self.tenancy.shown_partition(), &session.namespace);
            self.in_tenancy(&own, |txn| txn.end_session(&session.id));
        }
    }
}
