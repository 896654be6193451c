//! Some resources are wrong and their client refuses every response that has one: the others arrive,
//! and what is wrong is not repeated.

use std::collections::{BTreeMap, BTreeSet};

use legate_resources::ResourceSet;
use proptest::prelude::*;

use super::tests::{ack, nack, request, resource, set};
use super::{Received, Session};
use crate::ResourceType::{Cluster, Listener};

/// Listeners by name: their version, and whether the client takes it.
type Listeners = BTreeMap<u8, (u8, bool)>;

fn name(id: u8) -> String {
    format!("l{id:02}")
}

fn resources(listeners: &Listeners) -> ResourceSet {
    set(listeners.iter().map(|(id, (version, good))| {
        let version = format!("{version}-{good}");
        (Listener, resource(&name(*id), &version, &[]))
    }))
}

/// A client that takes or refuses each response as a whole.
#[derive(Default)]
struct Client {
    has: BTreeMap<String, String>,
    /// How often each wrong version arrived, and whether it was alone then.
    wrong: BTreeMap<(String, String), (usize, bool)>,
    responses: usize,
}

impl Client {
    /// Answers until nothing more comes.
    fn run(&mut self, session: &mut Session) {
        loop {
            let responses = session.poll();
            if responses.is_empty() {
                return;
            }
            for response in responses {
                self.responses += 1;
                let alone = response.resources.len() == 1 && response.removed_resources.is_empty();
                let mut refused = false;
                for one in &response.resources {
                    if one.version.ends_with("false") {
                        refused = true;
                        let key = (one.name.clone(), one.version.clone());
                        let (times, was_alone) = self.wrong.entry(key).or_default();
                        assert!(!*was_alone, "{} comes again after it came alone", one.name);
                        *times += 1;
                        *was_alone |= alone;
                    }
                }
                let answer = match refused {
                    true => nack(&response),
                    false => {
                        for one in &response.resources {
                            self.has.insert(one.name.clone(), one.version.clone());
                        }
                        for name in &response.removed_resources {
                            self.has.remove(name);
                        }
                        ack(&response)
                    }
                };
                let received = session.on_request(answer);
                assert_eq!(matches!(received, Received::Refused(_)), refused);
            }
        }
    }
}

fn listeners() -> impl Strategy<Value = Listeners> {
    prop::collection::btree_map(0..24u8, (0..3u8, prop::bool::weighted(0.8)), 0..24)
}

proptest! {
    #[test]
    fn the_good_arrive_and_the_wrong_are_not_repeated(
        snapshots in prop::collection::vec(listeners(), 1..6),
    ) {
        let mut session = Session::new();
        let mut client = Client::default();
        session.on_request(request(Listener));
        for listeners in &snapshots {
            session.on_snapshot(resources(listeners));
            client.responses = 0;
            // What was gone or another version in between has changed.
            client.wrong.retain(|(name, version), _| {
                let mut all = listeners.iter();
                all.any(|(id, (number, good))| {
                    self::name(*id) == *name && format!("{number}-{good}") == *version
                })
            });
            client.run(&mut session);
            for (id, (version, good)) in listeners {
                let has = client.has.get(&name(*id));
                if *good {
                    prop_assert_eq!(has, Some(&format!("{version}-true")));
                }
            }
            let wanted: BTreeSet<String> = listeners.keys().map(|id| name(*id)).collect();
            prop_assert!(client.has.keys().all(|name| wanted.contains(name)));
            // Each response but one in two brings something or halves what is suspected.
            prop_assert!(client.responses <= 2 * listeners.len() + 12, "{}", client.responses);
            // The same snapshot again: a refused removal is tried again, what is wrong is not.
            let wrong = client.wrong.clone();
            session.on_snapshot(resources(listeners));
            client.run(&mut session);
            prop_assert_eq!(&client.wrong, &wrong);
        }
    }
}

#[test]
fn one_wrong_listener_among_many_is_found_and_stays_alone() {
    let mut session = Session::new();
    let mut client = Client::default();
    session.on_request(request(Cluster));
    session.on_request(request(Listener));
    let mut all: Listeners = (0..16).map(|id| (id, (1, id != 5))).collect();
    session.on_snapshot(resources(&all));
    client.run(&mut session);
    assert_eq!(client.has.len(), 15);
    let (times, alone) = client.wrong[&(name(5), "1-false".to_owned())];
    assert_eq!((times, alone), (5, true), "16, 8, 4, 2, 1");
    // Once it is found, the others do not come one by one.
    assert!(client.responses < 14, "{}", client.responses);
    // Another one changes: the wrong one does not come with it.
    all.insert(0, (2, true));
    session.on_snapshot(resources(&all));
    client.run(&mut session);
    assert_eq!(client.has[&name(0)], "2-true");
    assert_eq!(
        client.wrong.values().map(|(times, _)| times).sum::<usize>(),
        5
    );
    // It is mended.
    all.insert(5, (2, true));
    session.on_snapshot(resources(&all));
    client.run(&mut session);
    assert_eq!(client.has[&name(5)], "2-true");
}
