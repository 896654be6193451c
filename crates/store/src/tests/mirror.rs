//! Ranges of other datacenters: when readers are woken, what is pending, and which ranges go. Time is paused.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use legate_model::{CheckServiceNode, ServiceKind, ServiceName, Tenancy, TenancyName};
use proptest::prelude::*;
use tokio::time::Instant;

use super::{apply, instance, node, register, watch, woken};
use crate::mirror::OPEN;
use crate::{Follower, Kept, MAX_RANGES, Mirror, Range, ReadTxn, Remote, Store, UNUSED, Watch};

/// A driver that knows dc2.
fn mirror(store: &Store) -> Mirror {
    let mirror = store.mirror();
    mirror.set_datacenters(vec!["dc2".into()]);
    mirror
}

fn web() -> Range {
    of("web")
}

fn of(service: &str) -> Range {
    Range::instances("DC2", &ServiceName::new(&Tenancy::default(), service))
}

/// A value that differs by its number.
fn value(number: u16) -> Vec<CheckServiceNode> {
    let mut instance = instance("web", "w");
    instance.port = number;
    vec![CheckServiceNode {
        node: node("n").into(),
        service: instance.into(),
        checks: Vec::new(),
    }]
}

fn ports(remote: &Remote) -> Vec<u16> {
    match remote {
        Remote::Known(list) => list.iter().map(|one| one.service.port).collect(),
        Remote::Pending | Remote::Failed(_) => Vec::new(),
    }
}

fn read(store: &Store, range: &Range) -> (Remote, bool) {
    let state = store.state();
    let txn = state.read();
    (txn.remote(range), txn.is_pending())
}

fn taken(mirror: &Mirror) -> Vec<Range> {
    mirror.wanted().now_or_never().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_range_is_wanted_once_and_pending_until_the_first_attempt_has_ended() {
    let store = Store::new();
    let mirror = mirror(&store);
    let mut reader = watch(&store, |txn| txn.remote(&web()));
    assert_eq!(read(&store, &web()), (Remote::Pending, true));
    assert_eq!(taken(&mirror), [web()]);
    assert_eq!(taken(&mirror), []);

    mirror.fail(&web(), "away", Instant::now());
    assert!(woken(&mut reader));
    assert_eq!(read(&store, &web()), (Remote::Failed("away".into()), false));
    let mut reader = watch(&store, |txn| txn.remote(&web()));
    mirror.fail(&web(), "still away", Instant::now());
    assert!(!woken(&mut reader), "nothing has changed for readers");

    mirror.set(&web(), value(1));
    assert!(woken(&mut reader));
    assert_eq!(ports(&read(&store, &web()).0), [1]);
    mirror.set(&web(), value(1));
    assert!(!woken(&mut reader), "an equal value wakes nobody");

    let lost = Instant::now();
    mirror.fail(&web(), "cut", lost);
    assert!(!woken(&mut reader), "the value stays");
    let status = &mirror.list(lost + Duration::from_secs(7))[0];
    assert_eq!(status.age, Some(Duration::from_secs(7)));
    assert_eq!(
        (status.is_connected, status.error.as_deref()),
        (false, Some("cut"))
    );
    mirror.set(&web(), value(1));
    let status = &mirror.list(lost + Duration::from_secs(9))[0];
    assert_eq!(status.age, Some(Duration::ZERO));
    assert_eq!((status.is_connected, status.error.as_deref()), (true, None));
}

#[tokio::test(start_paused = true)]
async fn without_a_driver_ranges_fail_and_with_one_they_are_wanted() {
    let store = Store::new();
    let mut reader = watch(&store, |txn| txn.remote(&web()));
    assert!(matches!(read(&store, &web()), (Remote::Failed(_), false)));
    let mirror = mirror(&store);
    assert!(woken(&mut reader));
    assert_eq!(read(&store, &web()), (Remote::Pending, true));
    assert_eq!(taken(&mirror), [web()]);
}

#[tokio::test(start_paused = true)]
async fn what_is_pending_is_so_through_shared_and_cached_values() {
    let store = Store::new();
    let mirror = mirror(&store);
    let shared = |txn: &ReadTxn<'_>| {
        txn.shared("outer", "", |txn| {
            ports(&txn.shared("inner", "", |txn| txn.remote(&web())))
        })
    };
    let (follower, mut kept) = (Follower::default(), Kept::default());
    let mut cached = || {
        let state = store.state();
        let txn = state.read();
        let found = kept.get(&txn, Some(&follower), shared);
        (found, txn.is_pending())
    };
    assert_eq!(cached(), (Arc::new(vec![]), true));
    assert_eq!(cached(), (Arc::new(vec![]), true), "cached as well");
    let other = store.state();
    let txn = other.read().within(Tenancy::default());
    txn.in_tenancy(
        &Tenancy::new(&"p".parse().unwrap(), &TenancyName::default()),
        |txn| {
            txn.remote(&web());
        },
    );
    assert!(txn.is_pending(), "through another tenancy");

    mirror.fail(&web(), "away", Instant::now());
    assert!(
        follower.changed().now_or_never().is_some(),
        "an equal value, but no longer pending"
    );
    assert_eq!(cached(), (Arc::new(vec![]), false));
    mirror.set(&web(), value(3));
    assert!(follower.changed().now_or_never().is_some());
    assert_eq!(cached(), (Arc::new(vec![3]), false));
}

#[tokio::test(start_paused = true)]
async fn a_range_goes_when_nobody_has_used_it_for_a_minute() {
    let store = Store::new();
    let mirror = mirror(&store);
    let shared = |txn: &ReadTxn<'_>| {
        txn.shared("outer", "", |txn| {
            ports(&txn.shared("inner", "", |txn| txn.remote(&web())))
        })
    };
    let reader = watch(&store, shared);
    assert_eq!(taken(&mirror), [web()]);
    mirror.set(&web(), value(1));
    let start = Instant::now();
    assert_eq!(mirror.drop_unused(start + 2 * UNUSED), []);
    drop(reader);
    assert_eq!(mirror.drop_unused(start + 2 * UNUSED), []);
    assert!(!mirror.list(start)[0].is_used);
    let before = store.state();
    assert_eq!(mirror.drop_unused(start + 3 * UNUSED), [web()]);
    assert_eq!(mirror.list(start), []);

    // Who has read it before it was dropped does not take it for known.
    let txn = before.read();
    assert_eq!(ports(&txn.remote(&web())), [1]);
    let mut late = store.watch(&txn.into_reads());
    assert!(woken(&mut late));
    assert_eq!(taken(&mirror), [web()]);
    assert_eq!(read(&store, &web()), (Remote::Pending, true));
    mirror.set(&of("unknown"), value(1));
    assert_eq!(mirror.list(start).len(), 1, "what was dropped is not set");
}

#[tokio::test(start_paused = true)]
async fn commits_and_restores_keep_the_values() {
    let store = Store::new();
    let mirror = mirror(&store);
    let mut reader = watch(&store, |txn| txn.remote(&web()));
    mirror.set(&web(), value(1));
    mirror.set_datacenters(vec!["dc2".into()]);
    assert!(woken(&mut reader));
    let index = store.state().index();
    let mut names = watch(&store, |txn| txn.other_datacenters());
    let mut saved = Vec::new();
    store.save(&mut saved).unwrap();
    apply(
        &store,
        register(node("n"), Some(instance("api", "a")), vec![]),
    );
    assert_eq!(store.state().index(), index + 1, "the mirror has no index");
    let snapshot = store.read_snapshot(std::io::Cursor::new(saved)).unwrap();
    store.restore(snapshot).await.unwrap();
    assert_eq!(ports(&read(&store, &web()).0), [1]);
    assert!(!woken(&mut names));
    mirror.set_datacenters(vec!["dc2".into(), "dc3".into()]);
    assert!(woken(&mut names));
}

/// A range of a namespace.
fn within(namespace: &str, service: usize) -> Range {
    let tenancy = Tenancy::new(&TenancyName::default(), &namespace.parse().unwrap());
    let service = ServiceName::new(&tenancy, &format!("s{service}"));
    Range::instances("dc2", &service)
}

/// Reads ranges of a namespace until one is refused, and watches those that it got. Returns how many these are.
fn take(store: &Store, namespace: &str, most: usize) -> (usize, Watch) {
    let got = Cell::new(0);
    let watch = watch(store, |txn| {
        let refused = |n: &usize| txn.remote(&within(namespace, *n)) != Remote::Pending;
        got.set((0..most).find(refused).unwrap_or(most));
    });
    (got.get(), watch)
}

#[tokio::test(start_paused = true)]
async fn ranges_that_find_no_place_fail_until_there_is_room() {
    let store = Store::new();
    let mirror = mirror(&store);
    let (got, readers) = take(&store, "many", OPEN);
    assert_eq!(got, OPEN);
    assert_eq!(taken(&mirror).len(), OPEN);
    assert_eq!(mirror.last_refused(Instant::now()), None);
    let further = within("many", OPEN);
    let mut late = watch(&store, |txn| txn.remote(&further));
    assert!(matches!(read(&store, &further), (Remote::Failed(_), false)));
    let later = Instant::now() + Duration::from_secs(7);
    let refused = mirror.last_refused(later).unwrap();
    assert_eq!(
        (refused.range, refused.age),
        (further.clone(), Duration::from_secs(7))
    );
    drop(readers);
    mirror.drop_unused(Instant::now());
    assert_eq!(mirror.drop_unused(Instant::now() + UNUSED).len(), OPEN);
    assert!(woken(&mut late));
    assert_eq!(read(&store, &further), (Remote::Pending, true));
}

#[tokio::test(start_paused = true)]
async fn a_tenancy_with_few_ranges_finds_places_beside_those_that_take_what_they_can() {
    let store = Store::new();
    let mirror = mirror(&store);
    let mut readers = vec![take(&store, "few", 3)];
    let mut got = Vec::new();
    for number in 0..10 {
        let (taken, watch) = take(&store, &format!("many-{number}"), MAX_RANGES);
        got.push(taken);
        readers.push((taken, watch));
    }
    assert!(got[0] >= OPEN - 3, "{got:?}");
    assert_eq!(
        mirror.list(Instant::now()).len(),
        got.iter().sum::<usize>() + 3
    );
    let (next, _held) = take(&store, "next", MAX_RANGES);
    assert!(next >= 85, "{next} after {got:?}");
    let (few, _held) = take(&store, "few", 20);
    assert_eq!(few, 20);
    // The gateways of the partition have a share of their own.
    let gateways = Range::mesh_gateways("dc2", "default");
    assert_eq!(read(&store, &gateways), (Remote::Pending, true));
    let _held_too = watch(&store, |txn| txn.remote(&gateways));
    // Who has less takes the places of one that goes.
    readers.remove(1);
    mirror.drop_unused(Instant::now());
    assert_eq!(mirror.drop_unused(Instant::now() + UNUSED).len(), got[0]);
    let (again, _held) = take(&store, "next", 1000);
    assert_eq!(again, 1000);
}

#[tokio::test(start_paused = true)]
async fn a_datacenter_that_is_not_known_takes_no_place_and_wakes_readers_when_it_is() {
    let store = Store::new();
    let mirror = mirror(&store);
    let of = |datacenter: &str| Range::instances(datacenter, &"web".into());
    let far = of("dc3");
    let mut reader = watch(&store, |txn| txn.remote(&far));
    let mut other = watch(&store, |txn| txn.remote_if_known(&far));
    assert_eq!(
        read(&store, &far),
        (Remote::Pending, true),
        "it may join yet"
    );
    assert_eq!(taken(&mirror), []);
    mirror.set_joined();
    assert!(woken(&mut reader));
    let mut reader = watch(&store, |txn| txn.remote(&far));
    assert!(matches!(read(&store, &far), (Remote::Failed(_), false)));
    assert_eq!(mirror.list(Instant::now()), []);
    assert_eq!(&*mirror.unknown_datacenters()[0].0, "dc3");
    let many = watch(&store, |txn| {
        (0..1000).for_each(|n| drop(txn.remote(&of(&format!("invented-{n}")))));
    });
    assert_eq!(mirror.unknown_datacenters().len(), 100);

    mirror.set_datacenters(vec!["dc2".into(), "dc4".into()]);
    assert!(!woken(&mut reader), "another one joins");
    mirror.set_datacenters(vec!["dc2".into(), "dc3".into()]);
    assert!(woken(&mut reader) && woken(&mut other));
    assert_eq!(read(&store, &far), (Remote::Pending, true));
    assert_eq!(taken(&mirror), std::slice::from_ref(&far));
    drop((many, reader, other));
    mirror.drop_unused(Instant::now());
    assert_eq!(mirror.unknown_datacenters(), []);

    // One that goes leaves its ranges as they were, until nobody uses them.
    let _reader = watch(&store, |txn| txn.remote(&far));
    mirror.set(&far, value(3));
    mirror.set_datacenters(vec!["dc2".into()]);
    assert_eq!(ports(&read(&store, &far).0), [3]);
}

#[test]
fn gateways_are_found_by_kind_in_all_namespaces() {
    let store = Store::new();
    let gateways = |txn: &ReadTxn<'_>| txn.gateways_of_kind(ServiceKind::MeshGateway);
    let mut reader = watch(&store, gateways);
    apply(
        &store,
        register(node("n"), Some(instance("web", "w")), vec![]),
    );
    assert!(!woken(&mut reader));
    let mut gateway = instance("gateway", "g");
    gateway.kind = ServiceKind::MeshGateway;
    apply(&store, register(node("n"), Some(gateway), vec![]));
    assert!(woken(&mut reader));
    let state = store.state();
    let found = gateways(&state.read());
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].service.id, "g");
}

/// What happens, in any order.
#[derive(Debug, Clone)]
enum Step {
    /// A reader reads ranges, and watches them.
    Read(usize, Vec<usize>, bool),
    /// It goes.
    Leave(usize),
    Set(usize, u16),
    Fail(usize),
    Commit,
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let (reader, range) = (0..4usize, 0..3usize);
    prop_oneof![
        (
            reader.clone(),
            prop::collection::vec(range.clone(), 1..3),
            any::<bool>()
        )
            .prop_map(|(reader, ranges, shared)| Step::Read(reader, ranges, shared)),
        reader.prop_map(Step::Leave),
        (range.clone(), 1..4u16).prop_map(|(range, value)| Step::Set(range, value)),
        range.prop_map(Step::Fail),
        Just(Step::Commit),
        (1..90u64).prop_map(Step::Wait),
    ]
}

/// Some ranges with their values, and whether one is pending.
type Picture = (Vec<Remote>, usize, bool);

fn picture(store: &Store, ranges: &[usize], shared: bool) -> (Picture, crate::Reads) {
    let state = store.state();
    let txn = state.read();
    let read = |txn: &ReadTxn<'_>, n: &usize| match shared {
        true => (*txn.shared("range", &n.to_string(), |txn| {
            txn.remote(&of(&n.to_string()))
        }))
        .clone(),
        false => txn.remote(&of(&n.to_string())),
    };
    let values = ranges.iter().map(|n| read(&txn, n)).collect();
    let nodes = txn.nodes().len();
    let is_pending = txn.is_pending();
    ((values, nodes, is_pending), txn.into_reads())
}

struct Reader {
    ranges: Vec<usize>,
    shared: bool,
    picture: Picture,
    watch: Watch,
}

proptest! {
    #[test]
    fn no_reader_misses_a_change_and_unused_ranges_go(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .start_paused(true).enable_time().build().unwrap();
        runtime.block_on(run(steps));
    }
}

async fn run(steps: Vec<Step>) {
    let store = Store::new();
    let mirror = mirror(&store);
    let mut readers: [Option<Reader>; 4] = Default::default();
    let mut commits = 0;
    for step in steps {
        let now = Instant::now();
        match step {
            Step::Read(at, ranges, shared) => {
                let (picture, reads) = picture(&store, &ranges, shared);
                let watch = store.watch(&reads);
                readers[at] = Some(Reader {
                    ranges,
                    shared,
                    picture,
                    watch,
                });
            }
            Step::Leave(at) => readers[at] = None,
            Step::Set(range, number) => mirror.set(&of(&range.to_string()), value(number)),
            Step::Fail(range) => mirror.fail(&of(&range.to_string()), "away", now),
            Step::Commit => {
                commits += 1;
                apply(&store, register(node(&format!("n{commits}")), None, vec![]));
            }
            Step::Wait(seconds) => {
                tokio::time::advance(Duration::from_secs(seconds)).await;
                mirror.drop_unused(Instant::now());
            }
        }
        for reader in readers.iter_mut().flatten() {
            let (now, reads) = picture(&store, &reader.ranges, reader.shared);
            if woken(&mut reader.watch) {
                (reader.picture, reader.watch) = (now, store.watch(&reads));
            } else {
                assert_eq!(now, reader.picture, "a change was missed");
            }
            let list = mirror.list(Instant::now());
            let is_used = |n: &usize| {
                list.iter()
                    .any(|one| one.range == of(&n.to_string()) && one.is_used)
            };
            assert!(
                reader.ranges.iter().all(is_used),
                "a range in use was dropped"
            );
        }
        // What is pending is wanted or was taken, so it gets a value or a reason.
        drop(taken(&mirror));
    }
    readers = Default::default();
    drop(readers);
    mirror.drop_unused(Instant::now());
    mirror.drop_unused(Instant::now() + UNUSED);
    assert_eq!(mirror.list(Instant::now()), []);
    assert_eq!(store.state().queries.kept(), 0);
}
