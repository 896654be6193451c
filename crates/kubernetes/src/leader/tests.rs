//! Several machines and one Lease, with reads, writes, lost responses and pauses in every order.

use std::time::Duration;

use proptest::prelude::*;
use tokio::time::Instant;

use super::machine::{Machine, Record, Step};
use super::{Lead, Times, Until};
use legate_runtime::Clock;

const MACHINES: usize = 3;

/// A step of one machine, or of time.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes, in milliseconds. Machines without events are paused.
    Pass(u64),
    Read(usize),
    /// A machine decides and sends.
    Send(usize),
    /// Its request arrives at the API server.
    Arrive(usize),
    /// The response arrives at the machine.
    Answer(usize),
    /// The request or its response is lost.
    Lose(usize),
    Release(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let machine = || 0..MACHINES;
    prop_oneof![
        3 => (0_u64..6_000).prop_map(Event::Pass),
        1 => (6_000_u64..40_000).prop_map(Event::Pass),
        4 => machine().prop_map(Event::Read),
        4 => machine().prop_map(Event::Send),
        4 => machine().prop_map(Event::Arrive),
        4 => machine().prop_map(Event::Answer),
        1 => machine().prop_map(Event::Lose),
        1 => machine().prop_map(Event::Release),
    ]
}

struct One {
    machine: Machine,
    sent: Option<(Record, Instant)>,
    answer: Option<(Option<Record>, Instant)>,
    until: Option<Instant>,
}

struct World {
    now: Instant,
    lease: Record,
    writes: u64,
    all: Vec<One>,
}

impl World {
    fn new() -> World {
        let one = |i: usize| One {
            machine: Machine::new(format!("operator-{i}"), Times::default()),
            sent: None,
            answer: None,
            until: None,
        };
        World {
            now: Instant::now(),
            lease: Record::default(),
            writes: 0,
            all: (0..MACHINES).map(one).collect(),
        }
    }

    fn write(&mut self, record: &Record) -> Option<Record> {
        if record.version != self.lease.version {
            return None;
        }
        self.writes += 1;
        self.lease = Record {
            version: Some(self.writes.to_string()),
            ..record.clone()
        };
        Some(self.lease.clone())
    }

    fn step(&mut self, event: &Event) {
        let (now, lease) = (self.now, self.lease.clone());
        match *event {
            Event::Pass(time) => self.now += Duration::from_millis(time),
            Event::Read(i) => self.all[i].machine.saw(lease, now),
            Event::Send(i) => {
                let one = &mut self.all[i];
                if one.sent.is_none()
                    && one.answer.is_none()
                    && let Step::Write(record) = one.machine.next(now)
                {
                    one.sent = Some((record, now));
                }
            }
            Event::Arrive(i) => {
                if let Some((record, at)) = self.all[i].sent.take() {
                    self.all[i].answer = Some((self.write(&record), at));
                }
            }
            Event::Answer(i) => {
                let one = &mut self.all[i];
                if let Some((Some(record), at)) = one.answer.take() {
                    one.machine.wrote(record, now);
                    one.until = Some(at + Times::default().renew_within);
                }
            }
            Event::Lose(i) => (self.all[i].sent, self.all[i].answer) = (None, None),
            Event::Release(i) => {
                let one = &mut self.all[i];
                // Like the driver, which has stopped its writers and has no request in flight.
                one.until = None;
                (one.sent, one.answer) = (None, None);
                if let Some(record) = one.machine.release() {
                    self.write(&record);
                }
            }
        }
    }

    fn leaders(&self) -> usize {
        let leads = |one: &&One| one.until.is_some_and(|until| self.now < until);
        self.all.iter().filter(leads).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn never_two_lead_at_a_time(events in proptest::collection::vec(event(), 1..120)) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
            prop_assert!(world.leaders() <= 1, "{event:?}");
        }
    }

    #[test]
    fn a_leader_is_elected_eventually(events in proptest::collection::vec(event(), 1..60), last in 0..MACHINES) {
        let mut world = World::new();
        for event in &events {
            world.step(event);
        }
        // Only one machine remains, which behaves like the driver.
        for _ in 0..20 {
            world.all[last].sent = None;
            world.all[last].answer = None;
            for event in [Event::Read(last), Event::Send(last), Event::Arrive(last), Event::Answer(last)] {
                world.step(&event);
            }
            world.step(&Event::Pass(1_000));
        }
        prop_assert_eq!(world.leaders(), 1);
    }
}

#[test]
fn a_free_lease_is_taken_and_a_held_one_is_waited_for() {
    let now = Instant::now();
    let mut machine = Machine::new("b".to_owned(), Times::default());
    assert_eq!(machine.next(now), Step::Wait, "nothing is known yet");
    let held = Record {
        holder: "a".to_owned(),
        transitions: 3,
        version: Some("7".to_owned()),
    };
    machine.saw(held.clone(), now);
    let almost = now + Duration::from_millis(14_999);
    machine.saw(held.clone(), almost);
    assert_eq!(machine.next(almost), Step::Wait);
    assert!(machine.is_others());
    let own = Record {
        holder: "b".to_owned(),
        transitions: 4,
        ..held
    };
    assert_eq!(
        machine.next(now + Duration::from_secs(15)),
        Step::Write(own.clone())
    );
    machine.wrote(own.clone(), now);
    let released = Record {
        holder: String::new(),
        ..own
    };
    assert_eq!(machine.release(), Some(released));
}

#[tokio::test(start_paused = true)]
async fn leadership_ends_by_either_clock() {
    let clock = Clock::at(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000));
    let until = |clock: &Clock| Until {
        monotonic: Instant::now() + Duration::from_secs(10),
        wall: clock.now() + Duration::from_secs(10),
    };
    let lead = Lead::new(until(&clock), clock.clone());
    assert!(lead.holds());
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(lead.holds());
    lead.extend(until(&clock));
    tokio::time::advance(Duration::from_secs(9)).await;
    assert!(lead.holds());
    // The machine was suspended: only the wall clock advanced.
    clock.skip(Duration::from_secs(1));
    assert!(!lead.holds());
}
