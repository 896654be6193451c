//! Some resources are invalid, and the client rejects every response that contains one. The other
//! resources must arrive, and invalid ones must not be repeated.

use std::collections::{BTreeMap, BTreeSet};

use legate_resources::ResourceSet;
use proptest::prelude::*;

use super::tests::{ack, nack, request, resource, set};
use super::{Received, Session};
use crate::ResourceType::{Cluster, Listener};

/// Listeners by name: version, and whether it is valid.
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

/// A client that accepts or rejects each response as a whole.
#[derive(Default)]
struct Client {
    has: BTreeMap<String, String>,
    /// How often each invalid version arrived, and whether it was alone at the last time.
    wrong: BTreeMap<(String, String), (usize, bool)>,
    responses: usize,
}

impl Client {
    /// Answers responses until there are no more.
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
    fn valid_resources_arrive_and_invalid_ones_are_not_repeated(
        snapshots in prop::collection::vec(listeners(), 1..6),
    ) {
        let mut session = Session::new();
        let mut client = Client::default();
        session.on_request(request(Listener));
        for listeners in &snapshots {
            session.on_snapshot(resources(listeners));
            client.responses = 0;
            // Listeners that were absent or had another version in between have changed.
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
            // At least every second response delivers something or halves the suspects.
            prop_assert!(client.responses <= 2 * listeners.len() + 12, "{}", client.responses);
            // The same snapshot again: a rejected removal is retried, invalid versions are not.
            let wrong = client.wrong.clone();
            session.on_snapshot(resources(listeners));
            client.run(&mut session);
            prop_assert_eq!(&client.wrong, &wrong);
        }
    }
}

#[test]
fn one_invalid_listener_among_many_is_isolated() {
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
    // Once it is isolated, the others do not arrive one by one.
    assert!(client.responses < 14, "{}", client.responses);
    // Another listener changes: the invalid one is not sent with it.
    all.insert(0, (2, true));
    session.on_snapshot(resources(&all));
    client.run(&mut session);
    assert_eq!(client.has[&name(0)], "2-true");
    assert_eq!(
        client.wrong.values().map(|(times, _)| times).sum::<usize>(),
        5
    );
    // The listener is fixed.
    all.insert(5, (2, true));
    session.on_snapshot(resources(&all));
    client.run(&mut session);
    assert_eq!(client.has[&name(5)], "2-true");
}
