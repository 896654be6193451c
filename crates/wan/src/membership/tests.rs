//! Generated orders of probes, losses, starts, stops and removals: when the network works again, all agree.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn description(datacenter: usize, node: usize, incarnation: u64) -> Description {
    Description {
        node: format!("n{node}"),
        datacenter: format!("dc{datacenter}"),
        address: SocketAddr::from(([10, 0, datacenter as u8, node as u8 + 1], 8300)),
        incarnation,
        left: false,
        tags: BTreeMap::new(),
    }
}

/// Nine servers in three datacenters, of which any may run.
struct World {
    running: BTreeMap<usize, Membership>,
    now: Instant,
    starts: u64,
}

const SERVERS: usize = 9;

fn name(server: usize) -> ServerName {
    description(server % 3, server / 3, 0).name()
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            running: BTreeMap::new(),
            now: Instant::now(),
            starts: 0,
        };
        world.start(0);
        world
    }

    /// Starts a server that knows another one from its settings.
    fn start(&mut self, server: usize) {
        self.starts += 1;
        let own = description(server % 3, server / 3, self.starts * 1_000);
        let known = self.running.keys().next().copied();
        self.running.insert(server, Membership::new(own));
        if let Some(known) = known.filter(|known| *known != server) {
            self.exchange(server, known);
        }
    }

    /// One server probes another one, and both merge the list of the other one.
    fn exchange(&mut self, from: usize, to: usize) -> bool {
        let now = self.now;
        let asked = self.running[&from].list();
        let Some(other) = self.running.get_mut(&to) else {
            return false;
        };
        other.merge_list(asked, now);
        let answer = other.list();
        let asking = self.running.get_mut(&from).unwrap();
        asking.succeeded(&name(to), Duration::from_millis(5), answer, now);
        true
    }

    /// All servers probe whom they want; `lost` probes fail.
    fn round(&mut self, mut lost: impl FnMut() -> bool) {
        self.now += INTERVAL * 2;
        let now = self.now;
        for server in 0..SERVERS {
            let Some(asking) = self.running.get_mut(&server) else {
                continue;
            };
            for probe in asking.due(now) {
                let to = (0..SERVERS).find(|other| name(*other) == probe.to).unwrap();
                if lost() || !self.exchange(server, to) {
                    let asking = self.running.get_mut(&server).unwrap();
                    asking.failed(&probe.to, "lost".to_owned(), 0.5, now);
                }
            }
        }
    }

    fn alive_for(&self, server: usize) -> BTreeSet<ServerName> {
        let members = self.running[&server].members().into_iter();
        let alive = members.filter(|member| member.status == Status::Alive);
        alive
            .map(|member| member.name)
            .chain([name(server)])
            .collect()
    }
}

#[derive(Debug, Clone)]
enum Step {
    Start(usize),
    Kill(usize),
    Leave(usize),
    ForceLeave(usize, usize, bool),
    Round(Vec<bool>),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..SERVERS).prop_map(Step::Start),
        1 => (1..SERVERS).prop_map(Step::Kill),
        1 => (1..SERVERS).prop_map(Step::Leave),
        1 => (0..SERVERS, 0..SERVERS, any::<bool>())
            .prop_map(|(at, gone, prune)| Step::ForceLeave(at, gone, prune)),
        4 => prop::collection::vec(any::<bool>(), 1..8).prop_map(Step::Round),
    ];
    prop::collection::vec(step, 1..40)
}

fn play(world: &mut World, step: Step) {
    match step {
        Step::Start(server) if !world.running.contains_key(&server) => world.start(server),
        Step::Kill(server) => drop(world.running.remove(&server)),
        Step::Leave(server) => {
            if let Some(leaving) = world.running.get_mut(&server) {
                leaving.leave();
                // It sends its list to all that it can reach.
                for other in 0..SERVERS {
                    if other != server {
                        world.exchange(server, other);
                    }
                }
                world.running.remove(&server);
            }
        }
        Step::ForceLeave(at, gone, prune) if at != gone => {
            let now = world.now;
            if let Some(server) = world.running.get_mut(&at) {
                server.force_leave(&name(gone), prune, now);
            }
        }
        Step::Round(losses) => {
            let mut losses = losses.into_iter().cycle();
            world.round(|| losses.next() == Some(true));
        }
        Step::Start(_) | Step::ForceLeave(..) => {}
    }
}

proptest! {
    #[test]
    fn all_agree_once_nothing_is_lost(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            play(&mut world, step);
            for server in world.running.values() {
                prop_assert!(server.others.len() < SERVERS);
            }
        }
        // A server that was alone in its view may know nobody any more: it joins again, as its settings say.
        let all: Vec<usize> = world.running.keys().copied().collect();
        for server in &all[1..] {
            world.exchange(*server, all[0]);
        }
        for _ in 0..20 {
            world.round(|| false);
        }
        let running: BTreeSet<ServerName> = all.iter().map(|server| name(*server)).collect();
        for server in all {
            prop_assert_eq!(world.alive_for(server), running.clone());
        }
    }
}

fn two() -> (Membership, Instant) {
    let now = Instant::now();
    let mut own = Membership::new(description(0, 0, 1));
    own.merge_list(vec![description(1, 0, 1)], now);
    (own, now)
}

#[test]
fn a_server_fails_after_three_failed_probes_and_is_probed_less_often() {
    let (mut own, mut now) = two();
    let other = description(1, 0, 1).name();
    for probe in 1..=FAILURES {
        assert_eq!(own.members()[0].status, Status::Alive, "{probe}");
        assert_eq!(own.due(now).len(), 1);
        assert!(own.due(now).is_empty(), "one probe at a time");
        own.failed(&other, "refused".to_owned(), 0.0, now);
        now = own.next_probe().unwrap();
    }
    let failed = &own.members()[0];
    assert_eq!(failed.status, Status::Failed);
    assert_eq!(failed.error.as_deref(), Some("refused"));
    assert!(own.servers("dc1").is_empty());
    assert_eq!(own.list().len(), 1, "it is not in lists for others");
    for _ in 0..20 {
        own.due(now);
        own.failed(&other, String::new(), 1.0, now);
        assert!(own.next_probe().unwrap() - now <= LONGEST.mul_f64(1.2));
        now = own.next_probe().unwrap();
    }
    // It reaches this server, so it is probed at once.
    own.merge_list(vec![description(1, 0, 1)], now);
    assert_eq!(own.due(now).len(), 1);
    own.succeeded(&other, INTERVAL, vec![description(1, 0, 1)], now);
    assert_eq!(own.members()[0].status, Status::Alive);
}

/// The time in which a probe of a server that is cut off fails.
const LOST: Duration = Duration::from_secs(3);

/// Two servers, and when their probes that are on their way will have failed.
struct Cut {
    servers: [Membership; 2],
    lost_at: [Option<Instant>; 2],
    probes: usize,
}

impl Cut {
    /// What happens next. `works`: when the link is there again.
    fn step(&mut self, works: Instant, random: f64) -> Instant {
        let of = |side: usize| self.lost_at[side].or(self.servers[side].next_probe());
        let times = [0, 1].map(|side| of(side).unwrap());
        let side = usize::from(times[1] < times[0]);
        let (now, other) = (times[side], 1 - side);
        if self.lost_at[side].take().is_some() {
            self.servers[side].failed(&name(other), "cut".to_owned(), random, now);
            return now;
        }
        assert_eq!(self.servers[side].due(now).len(), 1);
        self.probes += 1;
        if now < works {
            self.lost_at[side] = Some(now + LOST);
            return now;
        }
        let asked = self.servers[side].list();
        self.servers[other].merge_list(asked, now);
        let answer = self.servers[other].list();
        self.servers[side].succeeded(&name(other), INTERVAL, answer, now);
        now
    }

    fn is_whole(&self) -> bool {
        let mut members = self.servers.iter().flat_map(Membership::members);
        members.all(|member| member.status == Status::Alive)
    }
}

proptest! {
    #[test]
    fn two_that_were_cut_off_for_long_find_each_other_soon(
        randoms in prop::collection::vec(0.0..=1.0_f64, 1..50),
        seconds in 600..3600_u64,
    ) {
        let start = Instant::now();
        let mut servers = [0, 1].map(|one| Membership::new(description(one, 0, 1)));
        servers[0].merge_list(vec![description(1, 0, 1)], start);
        servers[1].merge_list(vec![description(0, 0, 1)], start);
        let mut cut = Cut { servers, lost_at: [None; 2], probes: 0 };
        let mut randoms = randoms.into_iter().cycle();
        let works = start + Duration::from_secs(seconds);
        let mut now = start;
        while now < works {
            now = cut.step(works, randoms.next().unwrap());
        }
        // Not much more than one probe of each in the shortest pause.
        let most = 2 * (seconds as usize / 14 + 4);
        prop_assert!(cut.probes <= most, "{} probes in {} s", cut.probes, seconds);
        prop_assert!(!cut.is_whole());
        while !cut.is_whole() {
            now = cut.step(works, randoms.next().unwrap());
        }
        let took = now - works;
        prop_assert!(took <= Duration::from_secs(25), "{took:?}");
    }
}

#[test]
fn who_has_left_is_remembered_for_three_days() {
    let (mut own, now) = two();
    let other = description(1, 0, 1).name();
    assert!(own.force_leave(&other, false, now));
    assert!(!own.force_leave(&description(2, 0, 1).name(), false, now));
    own.merge_list(vec![description(1, 0, 1)], now);
    assert_eq!(
        own.members()[0].status,
        Status::Left,
        "the descriptions of others are older"
    );
    assert!(own.due(now + REMEMBERED / 2).is_empty());
    assert_eq!(own.members().len(), 1);
    own.due(now + REMEMBERED);
    assert!(own.members().is_empty());
}

#[test]
fn hostile_lists_are_bounded() {
    let (mut own, now) = two();
    let many = (0..MOST * 3).map(|node| Description {
        node: format!("x{node}"),
        ..description(1, 0, 1)
    });
    own.merge_list(many.collect(), now);
    let more = (0..MOST).map(|node| Description {
        node: format!("y{node}"),
        ..description(1, 0, 1)
    });
    own.merge_list(more.collect(), now);
    assert!(own.members().len() <= MOST);
    let count = own.members().len();
    let bad = |change: fn(&mut Description)| {
        let mut bad = description(2, 0, 9);
        change(&mut bad);
        bad
    };
    own.merge_list(
        vec![
            bad(|it| it.node = "../x".to_owned()),
            bad(|it| it.datacenter = String::new()),
            bad(|it| it.incarnation = u64::MAX),
            // Nor is it believed of this server, which could not contradict.
            Description {
                incarnation: u64::MAX,
                left: true,
                ..description(0, 0, 1)
            },
            bad(|it| it.address.set_port(0)),
            bad(|it| it.address.set_ip([0, 0, 0, 0].into())),
            bad(|it| drop(it.tags.insert("a".to_owned(), "x".repeat(200)))),
            bad(|it| it.tags = (0..20).map(|n| (n.to_string(), String::new())).collect()),
        ],
        now,
    );
    assert_eq!(own.members().len(), count);
    assert_eq!(own.datacenters(), ["dc0", "dc1"]);
    assert_eq!(own.own().incarnation, 1);
}

#[test]
fn datacenters_are_ordered_by_their_distance() {
    let now = Instant::now();
    let mut own = Membership::new(description(0, 0, 1));
    for (datacenter, millis) in [(1, 80), (2, 20), (3, 50)] {
        let there = description(datacenter, 0, 1);
        own.merge_list(vec![there.clone()], now);
        own.succeeded(
            &there.name(),
            Duration::from_millis(millis),
            vec![there],
            now,
        );
    }
    own.merge_list(vec![description(4, 0, 1)], now);
    assert_eq!(own.datacenters(), ["dc0", "dc2", "dc3", "dc1", "dc4"]);
}

#[test]
fn the_longest_list_fits_into_a_message() {
    let now = Instant::now();
    let longest = |node: usize| {
        let tag = |n: usize| (format!("{n:02}"), "\\".repeat(TAGS.1 - 2));
        Description {
            node: format!("{node:03}{}", "n".repeat(60)),
            datacenter: "d".repeat(63),
            incarnation: HIGHEST - 1,
            tags: (0..TAGS.0).map(tag).collect(),
            ..description(0, 0, 0)
        }
    };
    let mut own = Membership::new(longest(999));
    own.merge_list((0..MOST).map(longest).collect(), now);
    let list = own.list();
    assert_eq!(list.len(), MOST + 1);
    let message = serde_json::to_vec(&list).unwrap();
    assert!(
        message.len() <= crate::exchange::LONGEST,
        "{}",
        message.len()
    );
}

#[test]
fn an_older_description_of_this_server_is_no_other_server() {
    let now = Instant::now();
    let mut own = Membership::new(description(0, 0, 1_000));
    // It was at another address before it was restarted.
    let before = description(0, 5, 7);
    own.merge_list(
        vec![Description {
            node: "n0".to_owned(),
            ..before
        }],
        now,
    );
    assert_eq!(own.own().incarnation, 1_000);
    // Others believe that it has left.
    let left = Description {
        left: true,
        ..description(0, 0, 1_000)
    };
    own.merge_list(vec![left], now);
    assert_eq!((own.own().incarnation, own.own().left), (1_001, false));
}
