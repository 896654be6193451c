use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::model::OutlierDetection;

fn address(number: u8) -> Address {
    Address::Socket(([10, 0, 0, number], 1).into())
}

fn endpoint(number: u8, weight: u32, healthy: bool) -> Endpoint {
    Endpoint {
        address: address(number),
        healthy,
        weight,
    }
}

fn cluster(balancing: Balancing, priorities: Vec<Vec<Endpoint>>) -> Cluster {
    Cluster {
        name: "c".into(),
        stat_name: String::new(),
        hosts: Hosts::Static(std::sync::Arc::new(Endpoints { priorities })),
        connect_timeout: Duration::from_secs(5),
        balancing,
        max_connections: 1024,
        max_pending: 1024,
        outlier_detection: None,
        panic_threshold: 0.0,
        tls: None,
        keepalive: None,
    }
}

fn detection() -> OutlierDetection {
    OutlierDetection {
        consecutive_failures: 2,
        enforcing: 100,
        interval: Duration::from_secs(10),
        base_ejection: Duration::from_secs(30),
        max_ejection: Duration::from_secs(300),
        max_ejection_percent: 50,
        always_eject_one: true,
        success_rate: true,
    }
}

/// Uniform numbers that are the same in each run.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// How often each host is chosen.
fn counts(
    balancer: &mut Balancer,
    times: usize,
    random: &mut impl FnMut() -> u64,
) -> BTreeMap<HostId, usize> {
    let mut counts = BTreeMap::new();
    for _ in 0..times {
        *counts
            .entry(balancer.pick(random, &[]).unwrap().id)
            .or_default() += 1;
    }
    counts
}

fn some(healthy: usize, total: usize) -> Membership {
    Membership { total, healthy }
}

#[test]
fn shares_of_priorities_are_those_of_envoy() {
    let shares = |healthy: &[usize], threshold| {
        let priorities: Vec<_> = healthy.iter().map(|healthy| some(*healthy, 100)).collect();
        let loads = loads(&priorities, threshold);
        assert_eq!(loads.iter().map(|(load, _)| load).sum::<u32>(), 100);
        loads.into_iter().map(|(load, _)| load).collect::<Vec<_>>()
    };
    // The tables in Envoy's documentation on priority levels.
    assert_eq!(shares(&[100, 100], 0), [100, 0]);
    assert_eq!(shares(&[72, 72], 0), [100, 0]);
    assert_eq!(shares(&[71, 71], 0), [99, 1]);
    assert_eq!(shares(&[50, 50], 0), [70, 30]);
    assert_eq!(shares(&[25, 100], 0), [35, 65]);
    assert_eq!(shares(&[0, 100], 0), [0, 100]);
    assert_eq!(shares(&[25, 25], 0), [50, 50]);
    assert_eq!(shares(&[25, 25, 100], 0), [35, 35, 30]);
    assert_eq!(shares(&[25, 25, 20], 0), [37, 35, 28]);
    assert_eq!(shares(&[0, 0], 0), [100, 0]);
    assert_eq!(loads(&[], 50), []);
    // In panic.
    let panic = |healthy: &[usize]| {
        let priorities: Vec<_> = healthy.iter().map(|healthy| some(*healthy, 100)).collect();
        let loads = loads(&priorities, 50);
        loads
            .into_iter()
            .map(|(_, panic)| panic)
            .collect::<Vec<_>>()
    };
    assert_eq!(panic(&[72, 0]), [false, false]);
    assert_eq!(panic(&[30, 30]), [true, true]);
    assert_eq!(panic(&[55, 5]), [false, true]);
    assert_eq!(shares(&[0, 0], 50), [50, 50]);
    assert_eq!(
        loads(&[some(0, 1), some(0, 3)], 50),
        [(25, true), (75, true)]
    );
    assert_eq!(
        loads(&[some(0, 1), some(0, 299)], 50),
        [(1, true), (99, true)]
    );
}

#[test]
fn falls_back_to_any_priority_with_hosts() {
    // One of 200 bears less than a percent.
    let mut many: Vec<_> = (0..200).map(|n| endpoint(n, 1, false)).collect();
    many[7].healthy = true;
    let cluster = cluster(
        Balancing::RoundRobin,
        vec![vec![endpoint(201, 1, false)], many],
    );
    let mut balancer = Balancer::new(&cluster);
    assert_eq!(
        balancer.pick(&mut random(1), &[]).unwrap().address,
        address(7)
    );
    assert_eq!(
        aggregate(&[Some(&balancer)], 0.0, &mut random(1)),
        Some((0, 1))
    );
}

#[test]
fn least_request_prefers_idle_hosts() {
    let hosts = vec![endpoint(1, 1, true), endpoint(2, 1, true)];
    let policy = Balancing::LeastRequest { choices: 2 };
    let mut balancer = Balancer::new(&cluster(policy, vec![hosts]));
    let mut random = random(1);
    let busy = balancer.pick(&mut random, &[]).unwrap().id;
    for _ in 0..9 {
        balancer.connecting(busy);
    }
    // A busy host is chosen only if both choices fall on it.
    let counts = counts(&mut balancer, 4000, &mut random);
    assert!((800..1200).contains(&counts[&busy]), "{counts:?}");
    // With weights, a host with connections waits longer.
    let hosts = vec![endpoint(1, 1, true), endpoint(2, 3, true)];
    balancer.update(&Endpoints {
        priorities: vec![hosts],
    });
    let counts = super::tests::counts(&mut balancer, 310, &mut random);
    assert!(
        (9..12).contains(&counts[&busy]) || (70..80).contains(&counts[&busy]),
        "{counts:?}"
    );
}

#[test]
fn overflow_comes_before_health() {
    let mut settings = cluster(Balancing::RoundRobin, vec![vec![endpoint(1, 1, false)]]);
    settings.max_connections = 2;
    let mut balancer = Balancer::new(&settings);
    let mut random = random(1);
    assert_eq!(balancer.pick(&mut random, &[]), Err(NoHost::NoneHealthy));
    balancer.acquire().unwrap();
    balancer.acquire().unwrap();
    assert_eq!(balancer.acquire(), Err(NoHost::Overflow));
    assert_eq!(balancer.pick(&mut random, &[]), Err(NoHost::Overflow));
    balancer.release();
    balancer.release();
    balancer.release();
    assert_eq!(balancer.active(), 0);
}

#[test]
fn as_many_are_dialled_at_once_as_allowed() {
    let hosts = vec![endpoint(1, 1, true)];
    let mut settings = cluster(Balancing::RoundRobin, vec![hosts]);
    settings.max_pending = 2;
    let mut balancer = Balancer::new(&settings);
    let mut random = || 0;
    let host = balancer.pick(&mut random, &[]).unwrap().id;
    balancer.connecting(host);
    balancer.connecting(host);
    assert_eq!(balancer.pick(&mut random, &[]), Err(NoHost::Pending));
    balancer.connected(host, Duration::ZERO);
    assert!(balancer.pick(&mut random, &[]).is_ok());
    balancer.connecting(host);
    assert_eq!(balancer.pick(&mut random, &[]), Err(NoHost::Pending));
    balancer.update(&Endpoints::default());
    assert_eq!(balancer.pick(&mut random, &[]), Err(NoHost::NoneHealthy));
    let Hosts::Static(endpoints) = &settings.hosts else {
        panic!("{:?}", settings.hosts);
    };
    balancer.update(endpoints);
    balancer.abandoned(host);
    assert!(balancer.pick(&mut random, &[]).is_ok());
    // Open connections do not count.
    balancer.closed(host);
    assert_eq!(balancer.active(), 1);
}

#[test]
fn removed_hosts_are_counted_down() {
    let hosts = |numbers: &[u8]| Endpoints {
        priorities: vec![numbers.iter().map(|n| endpoint(*n, 1, true)).collect()],
    };
    let mut settings = cluster(Balancing::RoundRobin, Vec::new());
    settings.outlier_detection = Some(detection());
    let mut balancer = Balancer::new(&settings);
    balancer.update(&hosts(&[1]));
    let mut random = random(1);
    let first = balancer.pick(&mut random, &[]).unwrap().id;
    for _ in 0..3 {
        balancer.connecting(first);
    }
    balancer.connected(first, Duration::ZERO);
    balancer.failed(first, Duration::ZERO, &mut random);
    balancer.update(&hosts(&[2]));
    assert_eq!(balancer.membership_changes(), 2);
    assert_eq!((balancer.active(), balancer.hosts().count()), (2, 1));
    // It does not count as a failure of a member.
    assert!(!balancer.failed(first, Duration::ZERO, &mut random));
    // Back again, it has its connections, and no failures.
    balancer.update(&hosts(&[2, 1]));
    let back = balancer.hosts().find(|host| host.id == first).unwrap();
    assert_eq!((back.active, back.address), (1, &address(1)));
    balancer.update(&hosts(&[2]));
    balancer.closed(first);
    balancer.closed(first);
    assert_eq!(balancer.active(), 0);
    assert_eq!((balancer.hosts.len(), balancer.by_address.len()), (1, 1));
    // Reports about it do nothing.
    balancer.connecting(first);
    balancer.connected(first, Duration::ZERO);
    assert_eq!(balancer.active(), 0);
}

#[test]
fn aggregates_take_the_first_that_can() {
    let hosts =
        |priorities: Vec<Vec<Endpoint>>| Balancer::new(&cluster(Balancing::RoundRobin, priorities));
    let none = hosts(vec![Vec::new(), vec![endpoint(1, 1, false)]]);
    let half = hosts(vec![vec![endpoint(2, 1, true), endpoint(3, 1, false)]]);
    let all = hosts(vec![
        vec![endpoint(4, 1, false)],
        vec![endpoint(5, 1, true)],
    ]);
    let members = [Some(&none), None, Some(&half), Some(&all)];
    let mut random = random(1);
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for _ in 0..10_000 {
        *counts
            .entry(aggregate(&members, 0.0, &mut random).unwrap())
            .or_default() += 1;
    }
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [(2, 0), (3, 1)]);
    assert!((6800..7200).contains(&counts[&(2, 0)]), "{counts:?}");
    assert_eq!(aggregate(&[Some(&none), None], 0.0, &mut random), None);
    assert_eq!(aggregate(&[], 50.0, &mut random), None);
}

fn policies() -> impl Strategy<Value = Balancing> {
    prop_oneof![
        Just(Balancing::RoundRobin),
        Just(Balancing::LeastRequest { choices: 2 }),
        Just(Balancing::Random),
    ]
}

fn some_endpoints() -> impl Strategy<Value = Endpoints> {
    let parts = (0_u8..6, 1_u32..4, proptest::bool::weighted(0.7));
    let endpoint = parts.prop_map(|(number, weight, healthy)| endpoint(number, weight, healthy));
    let priority = proptest::collection::vec(endpoint, 0..5);
    proptest::collection::vec(priority, 0..3).prop_map(|priorities| Endpoints { priorities })
}

#[derive(Debug, Clone)]
enum Event {
    Update(Endpoints),
    /// A connection begins; it avoids so many of the hosts of others.
    Pick(usize),
    Connected(proptest::sample::Index),
    Failed(proptest::sample::Index),
    Abandoned(proptest::sample::Index),
    Closed(proptest::sample::Index),
    Wait(u64),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let connection = any::<proptest::sample::Index>;
    let event = prop_oneof![
        2 => some_endpoints().prop_map(Event::Update),
        8 => (0_usize..3).prop_map(Event::Pick),
        4 => connection().prop_map(Event::Connected),
        6 => connection().prop_map(Event::Failed),
        1 => connection().prop_map(Event::Abandoned),
        3 => connection().prop_map(Event::Closed),
        3 => (1_u64..40).prop_map(Event::Wait),
    ];
    proptest::collection::vec(event, 1..120)
}

/// What is known of a member.
#[derive(Default, Clone)]
struct Member {
    healthy: bool,
    failures: u32,
    ejected: Option<(u64, u64)>,
    ejections: u64,
    returned: Option<u64>,
}

/// The same in the simplest way.
#[derive(Default)]
struct Naive {
    members: BTreeMap<Address, Member>,
    /// Open connections, and whether each is connected.
    connections: Vec<(HostId, Address, bool)>,
    now: u64,
}

impl Naive {
    fn update(&mut self, endpoints: &Endpoints) {
        let mut members = BTreeMap::new();
        for endpoint in endpoints.priorities.iter().flatten() {
            let before = self
                .members
                .get(&endpoint.address)
                .cloned()
                .unwrap_or_default();
            members.entry(endpoint.address.clone()).or_insert(Member {
                healthy: endpoint.healthy,
                ..before
            });
        }
        self.members = members;
    }

    fn usable(&self) -> BTreeSet<Address> {
        let all = self.members.iter();
        let usable = all.filter(|(_, of)| of.healthy && of.ejected.is_none());
        usable.map(|(address, _)| address.clone()).collect()
    }

    fn ejected(&self) -> usize {
        self.members
            .values()
            .filter(|of| of.ejected.is_some())
            .count()
    }

    /// Whether the failure ejects the host.
    fn failed(&mut self, address: &Address) -> bool {
        let (ejected, total, now) = (self.ejected(), self.members.len(), self.now);
        let Some(member) = self
            .members
            .get_mut(address)
            .filter(|of| of.ejected.is_none())
        else {
            return false;
        };
        member.failures += 1;
        if member.failures < 2 {
            return false;
        }
        member.failures = 0;
        if ejected > 0 && (ejected + 1) * 2 > total {
            return false;
        }
        member.ejections = (member.ejections + 1).min(11);
        member.ejected = Some((now, (member.ejections * 30).min(300)));
        true
    }

    fn sweep(&mut self, now: u64) {
        for member in self.members.values_mut() {
            match member.ejected {
                Some((since, length)) if now - since >= length => {
                    member.ejected = None;
                    member.failures = 0;
                    member.returned = Some(now);
                }
                Some(_) => {}
                None if member.returned.is_some_and(|returned| now - returned >= 10) => {
                    member.ejections = member.ejections.saturating_sub(1);
                }
                None => {}
            }
        }
    }
}

fn wait(seconds: u64, balancer: &mut Balancer, naive: &mut Naive) {
    for _ in 0..seconds {
        naive.now += 1;
        if naive.now.is_multiple_of(10) {
            naive.sweep(naive.now);
        }
        let now = Duration::from_secs(naive.now);
        if balancer.next_tick() == Some(now) {
            balancer.tick(now);
        }
    }
}

/// Does one event with both, and compares the answer.
fn step(
    event: Event,
    balancer: &mut Balancer,
    naive: &mut Naive,
    random: &mut impl FnMut() -> u64,
) -> Result<(), TestCaseError> {
    let find = |naive: &Naive, index: &proptest::sample::Index, open: bool| {
        let of = naive
            .connections
            .iter()
            .enumerate()
            .filter(|(_, (_, _, connected))| *connected == open);
        let of: Vec<usize> = of.map(|(at, _)| at).collect();
        (!of.is_empty()).then(|| *index.get(&of))
    };
    match event {
        Event::Update(endpoints) => {
            naive.update(&endpoints);
            balancer.update(&endpoints);
        }
        Event::Pick(avoid) => {
            let tried: Vec<_> = naive
                .connections
                .iter()
                .take(avoid)
                .map(|(id, _, _)| *id)
                .collect();
            let usable = naive.usable();
            match balancer.pick(random, &tried) {
                Err(NoHost::Overflow) => prop_assert!(naive.connections.len() >= 8),
                Err(NoHost::Pending) => prop_assert!(false, "no limit is that low"),
                Err(NoHost::NoneHealthy) => prop_assert!(usable.is_empty()),
                Ok(host) => {
                    prop_assert!(naive.connections.len() < 8);
                    prop_assert!(usable.contains(&host.address));
                    let known: Vec<_> = balancer
                        .hosts()
                        .map(|host| (host.id, host.address.clone()))
                        .collect();
                    prop_assert!(known.contains(&(host.id, host.address.clone())));
                    let others = known
                        .iter()
                        .any(|(id, address)| usable.contains(address) && !tried.contains(id));
                    prop_assert!(!tried.contains(&host.id) || !others);
                    balancer.connecting(host.id);
                    naive.connections.push((host.id, host.address, false));
                }
            }
        }
        Event::Connected(index) => {
            if let Some(at) = find(naive, &index, false) {
                let (id, address, connected) = &mut naive.connections[at];
                *connected = true;
                balancer.connected(*id, Duration::from_secs(naive.now));
                if let Some(member) = naive.members.get_mut(address) {
                    member.failures = 0;
                }
            }
        }
        Event::Failed(index) => {
            if let Some(at) = find(naive, &index, false) {
                let (id, address, _) = naive.connections.remove(at);
                let now = Duration::from_secs(naive.now);
                prop_assert_eq!(balancer.failed(id, now, random), naive.failed(&address));
            }
        }
        Event::Abandoned(index) => {
            if let Some(at) = find(naive, &index, false) {
                balancer.abandoned(naive.connections.remove(at).0);
            }
        }
        Event::Closed(index) => {
            if let Some(at) = find(naive, &index, true) {
                balancer.closed(naive.connections.remove(at).0);
            }
        }
        Event::Wait(seconds) => wait(seconds, balancer, naive),
    }
    Ok(())
}

proptest! {
    /// The shares of hosts follow their weights; without weights for policies that have none.
    #[test]
    fn shares_follow_weights(
        weights in proptest::collection::vec(1_u32..20, 1..8),
        policy in policies(),
        seed in any::<u64>(),
    ) {
        let hosts: Vec<_> = weights.iter().enumerate().map(|(n, weight)| endpoint(n as u8, *weight, true)).collect();
        let mut balancer = Balancer::new(&cluster(policy, vec![hosts]));
        let sum: u32 = weights.iter().sum();
        let mut random = random(seed);
        let even = policy == Balancing::Random || weights.iter().all(|weight| *weight == weights[0]);
        let exact = policy == Balancing::RoundRobin || !even;
        let times = if exact { 40 * sum as usize } else { 1000 * weights.len() };
        let counts = counts(&mut balancer, times, &mut random);
        for host in balancer.hosts() {
            let share = match even {
                true => times / weights.len(),
                false => 40 * host.weight as usize,
            };
            let near = if exact { weights.len() + 1 } else { 200 };
            let count = counts.get(&host.id).copied().unwrap_or(0);
            prop_assert!(count.abs_diff(share) <= near, "{count} of {share}, {counts:?}, {weights:?}");
        }
    }

    /// In any order of events, it does what the naive one does, and its counts are right.
    #[test]
    fn does_what_a_naive_one_does(
        events in events(),
        policy in policies(),
        seed in any::<u64>(),
    ) {
        let mut settings = cluster(policy, Vec::new());
        settings.max_connections = 8;
        settings.outlier_detection = Some(detection());
        let mut balancer = Balancer::new(&settings);
        let mut naive = Naive::default();
        let mut random = random(seed);
        for event in events {
            step(event.clone(), &mut balancer, &mut naive, &mut random)?;
            prop_assert_eq!(balancer.active(), naive.connections.len() as u64, "{:?}", event);
            for host in balancer.hosts() {
                let connections = naive.connections.iter().filter(|(id, _, _)| *id == host.id).count();
                prop_assert_eq!(host.active, connections as u64);
                prop_assert_eq!(host.ejected, naive.members[host.address].ejected.is_some());
            }
            let all = balancer.membership();
            prop_assert_eq!((all.total, all.healthy), (naive.members.len(), naive.usable().len()));
            let counters = balancer.outlier().unwrap();
            prop_assert_eq!(counters.ejections_active, naive.ejected() as u64);
            // Nothing is kept of hosts that are gone.
            let known: BTreeSet<_> = naive.connections.iter().map(|(_, address, _)| address.clone()).collect();
            let gone = known.iter().filter(|address| !naive.members.contains_key(address)).count();
            prop_assert_eq!(balancer.hosts.len(), all.total + gone);
            prop_assert_eq!(balancer.by_address.len(), balancer.hosts.len());
        }
    }

    /// In panic, unhealthy hosts are chosen as well, and nothing else than hosts.
    #[test]
    fn panic_uses_all(endpoints in some_endpoints(), policy in policies(), seed in any::<u64>()) {
        let mut settings = cluster(policy, endpoints.priorities.clone());
        settings.panic_threshold = 100.0;
        let mut balancer = Balancer::new(&settings);
        let mut random = random(seed);
        let all: BTreeSet<_> = balancer.hosts().map(|host| host.id).collect();
        for _ in 0..20 {
            match balancer.pick(&mut random, &[]) {
                Ok(host) => prop_assert!(all.contains(&host.id)),
                Err(error) => prop_assert!(error == NoHost::NoneHealthy && all.is_empty()),
            }
        }
    }
}
