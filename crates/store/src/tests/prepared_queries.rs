//! Prepared queries: lookup, names and wake-ups, and sequences of random changes compared with a
//! naive model.

use std::collections::BTreeMap;

use futures_util::FutureExt;
use legate_model::{PreparedQuery, QueryTemplate, Secret, ServiceQuery, UnusableQuery};
use proptest::prelude::*;

use super::durable::open;
use super::{rows, watch, woken};
use crate::{QueryConflict, ReadTxn, Rejected, Store, WriteError, WriteTxn};

fn query(id: &str, name: &str, service: &str) -> PreparedQuery {
    PreparedQuery {
        id: id.to_owned(),
        name: name.to_owned(),
        service: ServiceQuery {
            service: service.to_owned(),
            ..ServiceQuery::default()
        },
        ..PreparedQuery::default()
    }
}

fn template(id: &str, name: &str, service: &str) -> PreparedQuery {
    PreparedQuery {
        template: QueryTemplate {
            r#type: "name_prefix_match".to_owned(),
            ..QueryTemplate::default()
        },
        ..query(id, name, service)
    }
}

/// Operations of a store in memory complete at once.
fn write(
    store: &Store,
    mut change: impl FnMut(&mut WriteTxn) -> Result<(), Rejected> + Send + 'static,
) -> Result<(), Rejected> {
    let transaction = move |txn: &mut WriteTxn| change(txn).map_err(WriteError::Rejected);
    let written = store.write(transaction).now_or_never();
    match written.expect("nothing to wait for") {
        Ok(_) => Ok(()),
        Err(WriteError::Rejected(rejected)) => Err(rejected),
        Err(WriteError::Unavailable(error)) => panic!("{error}"),
    }
}

fn put(store: &Store, query: PreparedQuery) -> Result<(), Rejected> {
    write(store, move |txn| txn.put_prepared_query(query.clone()))
}

/// The service of a query, found by an id or a name.
fn found(txn: &ReadTxn<'_>, id_or_name: &str) -> Result<Option<String>, UnusableQuery> {
    let found = txn.find_prepared_query(id_or_name)?;
    Ok(found.map(|query| query.service.service.clone()))
}

#[test]
fn a_query_is_found_by_id_then_name_then_the_longest_template() {
    let store = Store::new();
    for query in [
        query("id-1", "web", "plain"),
        template("id-2", "", "any-${name.full}"),
        template("id-3", "geo-", "geo-${name.suffix}"),
        template("id-4", "Geo-db", "db"),
        template("id-5", "id-1-", "no id"),
    ] {
        put(&store, query).unwrap();
    }
    let state = store.state();
    let txn = state.read();
    for (name, expected) in [
        ("id-1", "plain"),
        ("ID-1", "plain"),
        ("WEB", "plain"),
        ("webs", "any-webs"),
        ("geo-", "geo-"),
        ("geo-api", "geo-api"),
        ("geo-db-1", "db"),
        ("geo-d", "geo-d"),
        ("GEO-x", "geo-GEO-x"),
        ("\u{e9}t\u{e9}", "any-\u{e9}t\u{e9}"),
        ("id-1-x", "no id"),
    ] {
        assert_eq!(found(&txn, name), Ok(Some(expected.to_owned())), "{name}");
    }
    assert_eq!(found(&txn, "id-3"), Err(UnusableQuery::TemplateById));
    assert_eq!(found(&txn, ""), Ok(None));
    assert_eq!(found(&txn, &"x".repeat(513)), Ok(None));
}

#[test]
fn a_name_resolves_to_one_query() {
    let store = Store::new();
    put(&store, query("id-1", "web", "a")).unwrap();
    put(&store, template("id-2", "", "b")).unwrap();
    for (query, expected) in [
        (
            query("id-3", "WEB", "c"),
            "name 'WEB' aliases an existing query name",
        ),
        (
            query("id-3", "id-1", "c"),
            "name 'id-1' aliases an existing query ID",
        ),
        (
            template("id-3", "", "c"),
            "a query template with an empty name already exists",
        ),
    ] {
        let before = store.state().index();
        let rejected = put(&store, query).unwrap_err();
        assert_eq!(rejected.to_string(), expected);
        assert_eq!(store.state().index(), before);
    }
    // The query may keep its own name, and an unchanged query is not written.
    let before = store.state().index();
    put(&store, query("id-1", "web", "a")).unwrap();
    assert_eq!(store.state().index(), before);
    put(&store, query("id-1", "api", "a")).unwrap();
    put(&store, query("id-3", "web", "c")).unwrap();
    let state = store.state();
    let txn = state.read();
    let changed = txn.prepared_query("id-1").unwrap();
    assert_eq!((changed.create_index, changed.modify_index), (2, 4));
    assert_eq!(found(&txn, "web"), Ok(Some("c".to_owned())));
}

#[test]
fn the_number_of_queries_is_bounded() {
    let store = Store::new();
    write(&store, |txn| {
        (0..10_000).try_for_each(|n| {
            // `put_prepared_query` counts the existing ones, which would be slow.
            txn.put(query(&format!("id-{n}"), &format!("q{n}"), "web"));
            Ok(())
        })
    })
    .unwrap();
    let rejected = put(&store, query("one more", "one more", "web")).unwrap_err();
    assert_eq!(rejected, Rejected::PreparedQuery(QueryConflict::TooMany));
    put(&store, query("id-7", "changed", "web")).unwrap();
    write(&store, |txn| {
        txn.remove_prepared_query("id-8");
        Ok(())
    })
    .unwrap();
    put(&store, query("one more", "one more", "web")).unwrap();
}

#[test]
fn the_size_of_all_queries_is_bounded() {
    let store = Store::new();
    let sized = |id: &str, bytes: usize| {
        let name = format!("q-{id}");
        let rest = query(id, &name, "").size();
        query(id, &name, &"s".repeat(bytes - rest))
    };
    // 1,023 times 64 KiB, and all but a hundred bytes of the last 64 KiB.
    write(&store, move |txn| {
        (0..1023).for_each(|n| txn.put(sized(&format!("id-{n}"), 64 * 1024)));
        txn.put(sized("last", 64 * 1024 - 1000));
        Ok(())
    })
    .unwrap();
    let too_large = Err(Rejected::PreparedQuery(QueryConflict::TooLarge));
    assert_eq!(put(&store, sized("new", 1001)), too_large);
    assert_eq!(put(&store, sized("last", 64 * 1024 + 1)), too_large);
    put(&store, sized("new", 1000)).unwrap();
    assert_eq!(put(&store, sized("new", 1001)), too_large);
    put(&store, sized("id-7", 60 * 1024)).unwrap();
    put(&store, sized("new", 1001)).unwrap();
}

#[test]
fn a_store_that_is_too_large_already_may_shrink() {
    let store = Store::new();
    let large = "s".repeat(33 * 1024 * 1024);
    write(&store, move |txn| {
        txn.put(query("id-1", "a", &large));
        txn.put(query("id-2", "b", &large));
        Ok(())
    })
    .unwrap();
    let smaller = "s".repeat(32 * 1024 * 1024);
    put(&store, query("id-1", "a", &smaller)).unwrap();
}

#[tokio::test]
async fn queries_survive_a_restart_with_their_tokens_sealed() {
    let directory = tempfile::tempdir().unwrap();
    let opened = open(directory.path()).await;
    let with_token = PreparedQuery {
        token: Secret::new("a very secret token"),
        ..template("id-1", "geo-", "${name.full}")
    };
    let put = move |txn: &mut WriteTxn| {
        let put = txn.put_prepared_query(with_token.clone());
        put.map_err(WriteError::Rejected)
    };
    opened.store.write(put).await.unwrap();
    let before = rows(&opened.store);
    opened.stop().await;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let text = std::fs::read(file.unwrap().path()).unwrap();
        let mut windows = text.windows(11);
        assert!(!windows.any(|window| window == b"very secret"));
    }
    let opened = open(directory.path()).await;
    assert_eq!(rows(&opened.store), before);
    let state = opened.store.state();
    assert_eq!(found(&state.read(), "geo-a"), Ok(Some("geo-a".to_owned())));
    drop(state);
    opened.stop().await;
}

#[test]
fn only_changes_that_may_affect_a_lookup_wake() {
    let store = Store::new();
    put(&store, query("id-1", "web", "a")).unwrap();
    let mut by_name = watch(&store, |txn| found(txn, "web"));
    let mut by_template = watch(&store, |txn| found(txn, "geo-x"));
    put(&store, query("id-2", "api", "b")).unwrap();
    assert!(!woken(&mut by_name) && !woken(&mut by_template));
    put(&store, template("id-3", "geo-", "c")).unwrap();
    assert!(!woken(&mut by_name) && woken(&mut by_template));
}

const NAMES: [&str; 6] = ["", "a", "ab", "abc", "b", "1"];

proptest! {
    #[test]
    fn finding_and_waking_follow_the_changes(
        changes in prop::collection::vec((0..3_usize, 0..6_usize, 0..3_u8), 1..30),
    ) {
        let store = Store::new();
        let mut naive: BTreeMap<String, PreparedQuery> = BTreeMap::new();
        for (id, name, kind) in changes {
            let id = id.to_string();
            let changed = match kind {
                0 => None,
                1 => Some(query(&id, NAMES[name], &format!("plain-{id}"))),
                _ => Some(template(&id, NAMES[name], &format!("template-{id}"))),
            };
            // Names of plain queries are validated earlier.
            if changed.as_ref().is_some_and(|one| one.name.is_empty() && !one.is_template()) {
                continue;
            }
            let state = store.state();
            let asked = NAMES.map(|name| {
                let txn = state.read();
                let answer = found(&txn, name);
                (name, answer, store.watch(&txn.into_reads()))
            });
            match changed {
                None => {
                    naive.remove(&id);
                    write(&store, move |txn| {
                        txn.remove_prepared_query(&id);
                        Ok(())
                    }).unwrap();
                }
                Some(one) => {
                    let mut others = naive.values().filter(|other| other.id != id);
                    let taken = others.any(|other| other.name == one.name)
                        || naive.contains_key(&one.name);
                    prop_assert_eq!(put(&store, one.clone()).is_err(), taken);
                    if !taken {
                        naive.insert(id, one);
                    }
                }
            }
            let state = store.state();
            for (name, before, mut watch) in asked {
                let answer = found(&state.read(), name);
                prop_assert_eq!(&answer, &expected(&naive, name), "{}", name);
                prop_assert!(woken(&mut watch) || answer == before, "{} sleeps on", name);
            }
        }
    }
}

fn expected(
    naive: &BTreeMap<String, PreparedQuery>,
    name: &str,
) -> Result<Option<String>, UnusableQuery> {
    if name.is_empty() {
        return Ok(None);
    }
    if let Some(query) = naive.get(name) {
        return match query.is_template() {
            true => Err(UnusableQuery::TemplateById),
            false => Ok(Some(query.service.service.clone())),
        };
    }
    let fits = |query: &&PreparedQuery| {
        query.name == name || (query.is_template() && name.starts_with(&query.name))
    };
    let longest = naive
        .values()
        .filter(fits)
        .max_by_key(|query| query.name.len());
    Ok(longest.map(|query| query.service.service.clone()))
}
