//! Keys, locks and sessions: sequences of random changes compared with a naive model, wake-ups,
//! restarts and snapshots.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt;
use legate_model::{CheckStatus, HealthCheck, KvEntry, KvValue, NewSession, Session, Tenancy};
use legate_model::{ServiceCheck, SessionBehavior};
use proptest::prelude::*;

use super::durable::open;
use super::{apply, check, deregister, index_of, instance, node, register, rows, watch, woken};
use crate::{
    Expiring, KvWrite, LockDelay, LockError, ReadTxn, SessionConflict, SessionKey, Store,
    Unavailable, WriteTxn,
};

const NODES: [&str; 2] = ["n1", "n2"];
const KEYS: [&str; 7] = ["a", "a/", "a/b", "a/b/c", "ab", "A/b", "z"];
const PREFIXES: [&str; 6] = ["", "a", "a/", "a/b", "a/b/", "x"];
const SESSIONS: [&str; 4] = ["s1", "s2", "s3", "s4"];

fn write<T: Send + 'static>(
    store: &Store,
    mut change: impl FnMut(&mut WriteTxn) -> T + Send + 'static,
) -> T {
    let transaction = move |txn: &mut WriteTxn| Ok::<_, Unavailable>(change(txn));
    let written = store.write(transaction).now_or_never();
    written.expect("nothing to wait for").unwrap().1
}

fn value(key: &str, value: &str) -> KvWrite {
    KvWrite {
        key: key.to_owned(),
        flags: 0,
        value: KvValue::from(value.as_bytes()),
    }
}

fn set(store: &Store, key: &str, text: &str) -> u64 {
    let change = value(key, text);
    write(store, move |txn| txn.kv_set(change.clone())).modify_index
}

fn session(id: &str, node: &str) -> Session {
    Session {
        id: id.to_owned(),
        node: node.to_owned(),
        lock_delay: Duration::from_secs(1),
        ..Session::default()
    }
}

fn create(store: &Store, session: Session) -> Result<(), SessionConflict> {
    let new = NewSession {
        session,
        default_check: false,
    };
    write(store, move |txn| txn.create_session(new.clone()))
}

fn lock(store: &Store, key: &str, session: &str) -> Result<bool, LockError> {
    let (change, session) = (value(key, "locked"), session.to_owned());
    write(store, move |txn| {
        Ok(txn.kv_lock(change.clone(), &session)?.is_some())
    })
}

fn passing(id: &str, service: &str) -> HealthCheck {
    HealthCheck {
        status: CheckStatus::Passing,
        ..check(id, service)
    }
}

fn with_checks(status: CheckStatus) -> crate::Command {
    let failing = HealthCheck {
        status,
        ..check("c", "")
    };
    register(node("n1"), Some(instance("web", "w")), vec![failing])
}

/// A model without indexes.
#[derive(Debug, Default, Clone)]
struct Naive {
    keys: BTreeMap<String, KvEntry>,
    sessions: BTreeMap<String, Session>,
    delayed: BTreeSet<String>,
    nodes: BTreeSet<String>,
    failing: BTreeSet<String>,
}

#[derive(Debug, Clone)]
enum Act {
    Node(&'static str, bool),
    Remove(&'static str, bool),
    Create(&'static str, &'static str, bool, bool),
    End(&'static str),
    Set(&'static str, bool),
    Cas(&'static str, bool),
    Lock(&'static str, &'static str),
    Unlock(&'static str, &'static str),
    Delete(&'static str),
    DeleteCas(&'static str, bool),
    DeleteTree(&'static str),
    EndDelays,
}

fn any_act() -> impl Strategy<Value = Act> {
    let one = |of: &'static [&'static str]| prop::sample::select(of);
    let (nodes, keys, sessions) = (&NODES[..], &KEYS[..], &SESSIONS[..]);
    let yes = any::<bool>;
    prop_oneof![
        3 => (one(nodes), yes()).prop_map(|(n, passing)| Act::Node(n, passing)),
        1 => (one(nodes), yes()).prop_map(|(n, whole)| Act::Remove(n, whole)),
        4 => (one(sessions), one(nodes), yes(), yes())
            .prop_map(|(s, n, check, delete)| Act::Create(s, n, check, delete)),
        1 => one(sessions).prop_map(Act::End),
        3 => (one(keys), yes()).prop_map(|(k, v)| Act::Set(k, v)),
        2 => (one(keys), yes()).prop_map(|(k, fresh)| Act::Cas(k, fresh)),
        6 => (one(keys), one(sessions)).prop_map(|(k, s)| Act::Lock(k, s)),
        2 => (one(keys), one(sessions)).prop_map(|(k, s)| Act::Unlock(k, s)),
        2 => one(keys).prop_map(Act::Delete),
        1 => (one(keys), yes()).prop_map(|(k, fresh)| Act::DeleteCas(k, fresh)),
        1 => one(&PREFIXES[..]).prop_map(Act::DeleteTree),
        1 => Just(Act::EndDelays),
    ]
}

impl Naive {
    fn put(&mut self, key: &str, text: &str, index: u64, change: impl FnOnce(&mut KvEntry)) {
        let old = self.keys.get(key).cloned();
        let mut entry = old.clone().unwrap_or_else(|| KvEntry {
            key: key.to_owned(),
            create_index: index,
            ..KvEntry::default()
        });
        entry.value = KvValue::from(text.as_bytes());
        change(&mut entry);
        if old.as_ref() != Some(&entry) {
            entry.modify_index = index;
        }
        self.keys.insert(key.to_owned(), entry);
    }

    fn end(&mut self, ended: impl Fn(&Session) -> bool, index: u64) {
        let all = std::mem::take(&mut self.sessions);
        let (ended, left): (Vec<_>, Vec<_>) = all.into_values().partition(ended);
        self.sessions = left.into_iter().map(|s| (s.id.clone(), s)).collect();
        for session in ended {
            let held = self.keys.values_mut().filter(|e| e.session == session.id);
            for entry in held {
                self.delayed.insert(entry.key.clone());
                entry.session.clear();
                entry.modify_index = match session.behavior {
                    SessionBehavior::Release => index,
                    SessionBehavior::Delete => 0,
                };
            }
            self.keys.retain(|_, entry| entry.modify_index > 0);
        }
    }

    fn modified(&self, key: &str) -> u64 {
        self.keys.get(key).map_or(0, |entry| entry.modify_index)
    }

    /// Applies an action to the store and the model, and compares the results.
    fn act(&mut self, store: &Store, act: &Act) {
        let index = store.state().index() + 1;
        match act.clone() {
            Act::Node(name, passes) => {
                let status = match passes {
                    true => CheckStatus::Passing,
                    false => CheckStatus::Critical,
                };
                let check = HealthCheck {
                    status,
                    ..check("c", "")
                };
                apply(store, register(node(name), None, vec![check]));
                self.nodes.insert(name.to_owned());
                self.failing.remove(name);
                if !passes {
                    self.failing.insert(name.to_owned());
                    self.end(|s| s.node == name && !s.node_checks.is_empty(), index);
                }
            }
            Act::Remove(name, whole) => {
                apply(store, deregister(name, None, (!whole).then_some("c")));
                self.end(
                    |s| s.node == name && (whole || !s.node_checks.is_empty()),
                    index,
                );
                // A session cannot depend on a check that does not exist.
                self.failing.insert(name.to_owned());
                if whole {
                    self.nodes.remove(name);
                }
            }
            Act::Create(id, name, checked, deletes) => {
                if self.sessions.contains_key(id) {
                    return;
                }
                let mut new = session(id, name);
                new.node_checks = checked.then(|| "c".to_owned()).into_iter().collect();
                if deletes {
                    new.behavior = SessionBehavior::Delete;
                }
                let made = create(store, new.clone()).is_ok();
                let may = self.nodes.contains(name) && !(checked && self.failing.contains(name));
                assert_eq!(made, may);
                if made {
                    self.sessions.insert(id.to_owned(), new);
                }
            }
            Act::End(id) => {
                write(store, move |txn| txn.end_session(id));
                self.end(|s| s.id == id, index);
            }
            Act::EndDelays => {
                write(store, |txn| {
                    for delay in txn.read().lock_delays(0) {
                        txn.end_lock_delay(&delay);
                    }
                });
                self.delayed.clear();
            }
            keys => self.act_on_keys(store, keys, index),
        }
    }

    fn act_on_keys(&mut self, store: &Store, act: Act, index: u64) {
        let fresh = |naive: &Self, key, fresh: bool| naive.modified(key) + u64::from(!fresh);
        match act {
            Act::Set(key, first) => {
                let text = if first { "1" } else { "2" };
                set(store, key, text);
                self.put(key, text, index, |_| {});
            }
            Act::Cas(key, is_fresh) => {
                let (seen, change) = (fresh(self, key, is_fresh), value(key, "cas"));
                let done = write(store, move |txn| txn.kv_cas(change.clone(), seen).is_some());
                assert_eq!(done, is_fresh);
                if done {
                    self.put(key, "cas", index, |_| {});
                }
            }
            Act::Lock(key, id) => {
                let held = self.keys.get(key).map_or("", |entry| &entry.session);
                let expected = match self.sessions.contains_key(id) {
                    true => Ok(held.is_empty() || held == id),
                    false => Err(LockError::UnknownSession(id.to_owned())),
                };
                assert_eq!(lock(store, key, id), expected);
                if expected == Ok(true) {
                    self.put(key, "locked", index, |entry| {
                        entry.lock_index += u64::from(entry.session.is_empty());
                        entry.session = id.to_owned();
                    });
                }
            }
            Act::Unlock(key, id) => {
                let held = self.keys.get(key).is_some_and(|entry| entry.session == id);
                let change = value(key, "free");
                let done = write(store, move |txn| txn.kv_unlock(change.clone(), id));
                assert_eq!(done.unwrap().is_some(), held);
                if held {
                    self.put(key, "free", index, |entry| entry.session.clear());
                }
            }
            Act::Delete(key) => {
                write(store, move |txn| txn.kv_delete(key));
                self.keys.remove(key);
            }
            Act::DeleteCas(key, is_fresh) => {
                let seen = fresh(self, key, is_fresh);
                let done = write(store, move |txn| txn.kv_delete_cas(key, seen));
                assert_eq!(done, is_fresh || !self.keys.contains_key(key));
                if done {
                    self.keys.remove(key);
                }
            }
            Act::DeleteTree(prefix) => {
                write(store, move |txn| txn.kv_delete_tree(prefix));
                self.keys.retain(|key, _| !key.starts_with(prefix));
            }
            _ => {}
        }
    }

    fn below(&self, prefix: &str) -> Vec<KvEntry> {
        let below = self.keys.values().filter(|e| e.key.starts_with(prefix));
        below.cloned().collect()
    }
}

fn listed(txn: &ReadTxn<'_>, prefix: &str) -> Vec<KvEntry> {
    let found = txn.kv_below(prefix);
    found.iter().map(|entry| KvEntry::clone(entry)).collect()
}

fn assert_same(store: &Store, naive: &Naive) {
    let state = store.state();
    let txn = state.read();
    for prefix in PREFIXES {
        assert_eq!(listed(&txn, prefix), naive.below(prefix), "{prefix}");
    }
    for key in KEYS {
        assert_eq!(txn.kv(key).as_deref(), naive.keys.get(key), "{key}");
        assert_eq!(
            txn.is_lock_delayed(key),
            naive.delayed.contains(key),
            "{key}"
        );
    }
    let ids = |sessions: Vec<std::sync::Arc<Session>>| -> Vec<String> {
        sessions.iter().map(|session| session.id.clone()).collect()
    };
    let all: Vec<_> = naive.sessions.keys().cloned().collect();
    assert_eq!(ids(txn.sessions()), all);
    for name in NODES {
        let of_node = naive.sessions.values().filter(|s| s.node == name);
        let of_node: Vec<_> = of_node.map(|session| session.id.clone()).collect();
        assert_eq!(ids(txn.sessions_on(name)), of_node);
    }
}

/// Applies one action. Readers of the changed keys wake and see a newer index.
fn step(store: &Store, naive: &mut Naive, act: &Act) {
    let reads: Vec<_> = PREFIXES
        .into_iter()
        .map(|prefix| {
            let state = store.state();
            let txn = state.read();
            let found = listed(&txn, prefix);
            let reads = txn.into_reads();
            (prefix, found, store.watch(&reads), reads.index())
        })
        .collect();
    naive.act(store, act);
    assert_same(store, naive);
    let after = store.state();
    for (prefix, before, mut watch, old) in reads {
        let txn = after.read();
        let differs = listed(&txn, prefix) != before;
        let new = txn.into_reads().index();
        assert!(new >= old, "{prefix} went back from {old} to {new}");
        assert_eq!(new > old, differs, "{prefix}: {old} and {new}");
        assert!(woken(&mut watch) || !differs, "{prefix} sleeps on");
    }
}

proptest! {
    #[test]
    fn keys_locks_and_sessions_follow_the_model(
        acts in prop::collection::vec(any_act(), 1..60),
    ) {
        let store = Store::new();
        let mut naive = Naive::default();
        for act in acts {
            step(&store, &mut naive, &act);
        }
    }
}

#[test]
fn a_removal_below_a_prefix_raises_its_index() {
    let store = Store::new();
    for key in ["web/1", "web/2", "www"] {
        set(&store, key, "x");
    }
    let below = |prefix: &'static str| move |txn: &ReadTxn<'_>| txn.kv_below(prefix).len();
    let (web, w) = (
        index_of(&store, below("web/")),
        index_of(&store, below("w")),
    );
    let mut others = watch(&store, below("db/"));
    write(&store, |txn| txn.kv_delete("web/1"));
    let now = store.state().index();
    assert!(web < now && w < now);
    assert_eq!(index_of(&store, below("web/")), now);
    assert_eq!(index_of(&store, below("w")), now);
    assert!(index_of(&store, below("ww")) < now);
    assert!(!woken(&mut others), "another directory");
}

/// A write deep below a watched prefix wakes a bounded number of prefixes.
#[test]
fn deep_paths_are_watched_from_every_directory() {
    let store = Store::new();
    let deep = "d/".repeat(1000);
    set(&store, &deep, "x");
    let mut watches: Vec<_> = [0, 2, 20, 40, 1000, 1999]
        .map(|length| {
            let prefix = deep[..length].to_owned();
            watch(&store, move |txn| txn.kv_below(&prefix).len())
        })
        .into_iter()
        .collect();
    set(&store, &deep, "y");
    assert!(watches.iter_mut().all(woken));
}

#[test]
fn ten_thousand_watches_are_woken_individually() {
    let store = Store::new();
    let mut waiting: Vec<_> = (0..10_000)
        .map(|i| watch(&store, move |txn| txn.kv_below(&format!("app/{i}/")).len()))
        .collect();
    set(&store, "app/77/x", "1");
    set(&store, "app", "1");
    let woke = waiting
        .iter_mut()
        .enumerate()
        .filter_map(|(i, watch)| woken(watch).then_some(i));
    assert_eq!(woke.collect::<Vec<_>>(), [77]);
}

#[test]
fn a_session_needs_its_node_and_checks() {
    let store = Store::new();
    let missing = create(&store, session("s", "n1")).unwrap_err();
    assert_eq!(missing.to_string(), "Missing node registration");
    apply(&store, with_checks(CheckStatus::Passing));
    let on = |checks: &[&str], services: &[&str]| Session {
        node_checks: checks.iter().map(|id| (*id).to_owned()).collect(),
        service_checks: Some(
            services
                .iter()
                .map(|id| ServiceCheck {
                    id: (*id).to_owned(),
                    ..ServiceCheck::default()
                })
                .collect(),
        ),
        ..session("s", "N1")
    };
    let missing = create(&store, on(&["x"], &[])).unwrap_err();
    assert_eq!(missing.to_string(), "Missing check 'x' registration");
    // A default check that the node lacks is omitted.
    let default = NewSession {
        session: on(&["serfHealth"], &[]),
        default_check: true,
    };
    write(&store, move |txn| txn.create_session(default.clone())).unwrap();
    let made = store.state().read().session("S").unwrap();
    assert!(made.node_checks.is_empty());
    write(&store, |txn| txn.end_session("s"));

    apply(&store, register(node("n1"), None, vec![passing("wc", "w")]));
    create(&store, on(&["c"], &["wc"])).unwrap();
    assert_eq!(lock(&store, "k", "s"), Ok(true));
    apply(&store, deregister("n1", Some("w"), None));
    let state = store.state();
    let txn = state.read();
    assert!(txn.session("s").is_none() && txn.is_lock_delayed("k"));
    assert_eq!(txn.kv("k").unwrap().session, "");
    apply(&store, with_checks(CheckStatus::Critical));
    let critical = create(&store, on(&["c"], &[])).unwrap_err();
    assert_eq!(critical.to_string(), "Check 'c' is in critical state");
}

#[test]
fn only_unchanged_sessions_and_delays_expire() {
    let store = Store::new();
    apply(&store, register(node("n1"), None, Vec::new()));
    let brief = Session {
        ttl: "10s".to_owned(),
        ..session("s", "n1")
    };
    create(&store, brief).unwrap();
    create(&store, session("for ever", "n1")).unwrap();
    lock(&store, "k", "s").unwrap();
    let seen = store.state().read().expiring_sessions(0);
    let [first]: &[Expiring; 1] = seen.as_slice().try_into().unwrap();
    let first = first.clone();
    let index = index_of(&store, |txn| txn.session("s"));
    let renewed = |id: &str| {
        let session = SessionKey {
            tenancy: Tenancy::default(),
            id: id.to_owned(),
        };
        let renewed = store.writer().renew(session).now_or_never();
        renewed.unwrap().unwrap()
    };
    assert_eq!(
        ["s", "for ever", "nobody"].map(renewed),
        [true, true, false]
    );
    assert_eq!(index_of(&store, |txn| txn.session("s")), index);
    assert_eq!(store.renewals().len(), 1, "only one of them has a TTL");
    assert!(store.renewals().take(&first).is_some());
    let other = Expiring {
        since: first.since + 1,
        ..first
    };
    write(&store, move |txn| txn.expire_session(&other));
    assert!(
        store.state().read().session("s").is_some(),
        "it is another one"
    );
    write(&store, |txn| {
        for expired in txn.read().expiring_sessions(0) {
            txn.expire_session(&expired);
        }
    });
    let state = store.state();
    assert!(state.read().session("s").is_none());
    let delays = state.read().lock_delays(0);
    let [delay]: &[LockDelay; 1] = delays.as_slice().try_into().unwrap();
    assert_eq!((&*delay.key, delay.delay), ("k", Duration::from_secs(1)));
    let (stale, over) = (
        LockDelay {
            since: 1,
            ..delay.clone()
        },
        delay.clone(),
    );
    write(&store, move |txn| txn.end_lock_delay(&stale));
    assert!(store.state().read().is_lock_delayed("k"));
    write(&store, move |txn| txn.end_lock_delay(&over));
    assert!(!store.state().read().is_lock_delayed("k"));
}

#[tokio::test]
async fn changed_sessions_and_delays_are_found_without_reading_the_others() {
    let store = Store::new();
    apply(&store, register(node("n1"), None, Vec::new()));
    let brief = |id| Session {
        ttl: "10s".to_owned(),
        ..session(id, "n1")
    };
    for id in ["a", "b", "c"] {
        create(&store, brief(id)).unwrap();
    }
    create(&store, session("for ever", "n1")).unwrap();
    let changed = |after| {
        let found = store.state().read().expiring_sessions(after);
        let ids: Vec<String> = found.into_iter().map(|session| session.id).collect();
        ids
    };
    assert_eq!(changed(0), ["a", "b", "c"]);
    let after = store.state().index();
    assert!(changed(after).is_empty());
    create(&store, brief("d")).unwrap();
    assert_eq!(changed(after), ["d"]);
    assert!(changed(after + 1).is_empty());
    lock(&store, "k", "a").unwrap();
    let after = store.state().index();
    write(&store, |txn| txn.end_session("a"));
    let delays = |after| store.state().read().lock_delays(after).len();
    assert_eq!((delays(after), delays(after + 1)), (1, 0));
    assert_eq!(changed(0), ["b", "c", "d"]);

    // After a restore, all are new.
    let rows: Vec<_> = store
        .state()
        .all()
        .map(|(k, r)| (k.clone(), r.clone()))
        .collect();
    let (restored, _) = store.state().replaced(after + 100, rows);
    assert_eq!(restored.read().expiring_sessions(after + 50).len(), 3);
    assert_eq!(restored.read().expiring_sessions(after + 100).len(), 0);
}

#[tokio::test]
async fn keys_and_locks_survive_restarts_and_snapshots() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let change = |txn: &mut WriteTxn| -> Result<(), crate::WriteError> {
        txn.apply(register(node("n1"), None, Vec::new()))?;
        for id in ["s", "t"] {
            let session = session(id, "n1");
            let new = NewSession {
                session,
                default_check: false,
            };
            assert_eq!(txn.create_session(new), Ok(()));
        }
        txn.kv_set(value("a/secret", "the secret value"));
        assert!(txn.kv_lock(value("a/locked", ""), "s").is_ok());
        assert!(txn.kv_lock(value("a/closed", ""), "t").is_ok());
        txn.end_session("t");
        Ok(())
    };
    opened.store.write(change).await.unwrap();
    let (index, before) = rows(&opened.store);
    let mut saved = Vec::new();
    opened.store.save(&mut saved).unwrap();
    opened.stop().await;
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), (index, before.clone()));
    let gone = |txn: &mut WriteTxn| -> Result<(), crate::WriteError> {
        txn.apply(deregister("n1", None, None))?;
        txn.kv_delete_tree("");
        Ok(())
    };
    opened.store.write(gone).await.unwrap();
    assert!(opened.store.state().read().sessions().is_empty());
    let snapshot = opened
        .store
        .read_snapshot(std::io::Cursor::new(&*saved))
        .unwrap();
    opened.store.restore(snapshot).await.unwrap();
    assert_eq!(rows(&opened.store).1, before);
    let state = opened.store.state();
    let txn = state.read();
    assert_eq!(txn.kv("a/locked").unwrap().session, "s");
    assert!(txn.is_lock_delayed("a/closed"));
    drop(txn);
    opened.stop().await;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap_or_default();
        let found = bytes.windows(16).any(|part| part == b"the secret value");
        assert!(!found, "a value stands in a file as it is");
    }
}
