//! An outage of all servers for minutes, with tokio's clock paused: a simulated driver without IO.

use tokio::time::{Instant, sleep_until};

use super::*;

/// Kind of outage.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Away {
    /// Connections break and are refused.
    Refusing,
    /// Nothing responds, but connections stay open.
    Silent,
}

const SERVERS: u8 = 3;
const FROM: Duration = Duration::from_secs(100);
const UNTIL: Duration = Duration::from_secs(700);
const DIAL: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(10);

struct Network {
    machine: Machine,
    away: Away,
    started: Instant,
    /// When the outage is over.
    ends: Duration,
    operation: Option<(Instant, Action)>,
    timer: Option<Instant>,
    dials: Vec<Duration>,
    /// When the session became connected, and when it lost the connection.
    connected: Vec<Duration>,
    lost: Vec<Duration>,
}

impl Network {
    fn new(away: Away, mut seed: u64) -> Self {
        let random = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        Self {
            machine: Machine::new(SETTINGS, Box::new(random)),
            away,
            started: Instant::now(),
            ends: UNTIL,
            operation: None,
            timer: None,
            dials: Vec::new(),
            connected: Vec::new(),
            lost: Vec::new(),
        }
    }

    fn is_away(&self) -> bool {
        (FROM..self.ends).contains(&self.started.elapsed())
    }

    fn happen(&mut self, event: Event) {
        let now = self.started.elapsed();
        for action in self.machine.handle(now, event) {
            let silent = self.is_away() && self.away == Away::Silent;
            let takes = match action {
                Action::Resolve => Duration::ZERO,
                Action::Dial(_) => {
                    self.dials.push(now);
                    if silent { DIAL } else { Duration::ZERO }
                }
                Action::CheckFeatures if silent => ANSWER,
                Action::CheckFeatures => Duration::ZERO,
                Action::StartTimer(delay) => {
                    self.timer = Some(Instant::now() + delay);
                    continue;
                }
                Action::PublishConnected { .. } => {
                    self.connected.push(now);
                    continue;
                }
                Action::PublishConnecting(_) => {
                    self.operation = None;
                    if self.connected.len() > self.lost.len() {
                        self.lost.push(now);
                    }
                    continue;
                }
                Action::PublishFailed(error) => panic!("{error}"),
                _ => continue,
            };
            assert!(self.operation.is_none());
            self.operation = Some((Instant::now() + takes, action));
        }
    }

    /// Runs until then.
    async fn live(&mut self, end: Duration) {
        let end = self.started + end;
        loop {
            let operation = self.operation.as_ref().map(|(due, _)| *due);
            let next = operation.into_iter().chain(self.timer).min().unwrap_or(end);
            if next >= end {
                sleep_until(end).await;
                return;
            }
            sleep_until(next).await;
            let down = self.is_away();
            let refused = || failure(ErrorKind::Unreachable);
            let failed = || failure(ErrorKind::Server);
            let event = match self.operation.take_if(|(due, _)| *due <= Instant::now()) {
                Some((_, Action::Resolve)) => {
                    Event::Resolved(Ok((1..=SERVERS).map(server).collect()))
                }
                Some((_, Action::Dial(_))) if down => Event::Dialed(Err(refused())),
                Some((_, Action::Dial(_))) => Event::Dialed(Ok(())),
                Some((_, _)) if down => Event::Features(Err(failed())),
                Some((_, _)) => Event::Features(Ok(FEATURES)),
                None => {
                    self.timer = None;
                    Event::Timer
                }
            };
            self.happen(event);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_minutes_is_noticed_survived_and_over_soon() {
    let cases = [Away::Refusing, Away::Silent]
        .into_iter()
        .flat_map(|away| [(away, true), (away, false)]);
    for (away, configured) in cases {
        // The longest pause, and the number of rounds that fit into the outage.
        let (pause, rounds) = match configured {
            true => (Duration::from_secs(90), 40),
            false => (Duration::from_millis(4_500), 300),
        };
        // A minute of pauses that are half a second on average.
        let rounds = rounds + if away == Away::Refusing { 160 } else { 0 };
        for seed in 0..50 {
            let mut network = Network::new(away, seed);
            network.happen(Event::Start);
            if configured {
                network.happen(Event::Configured);
            }
            network.live(FROM).await;
            assert_eq!(
                (network.connected.len(), network.dials.len()),
                (1, 1),
                "{away:?} {seed}"
            );
            if away == Away::Refusing {
                network.happen(Event::CallFailed {
                    generation: 1,
                    error: failure(ErrorKind::Server),
                });
            }
            network.live(UNTIL + Duration::from_secs(300)).await;
            let [lost] = network.lost.as_slice() else {
                panic!("{:?}", network.lost)
            };
            let noticed = *lost - FROM;
            assert!(
                noticed <= SILENCE.mul_f64(1.25) + ANSWER,
                "{away:?} {seed}: noticed after {noticed:?}"
            );
            let [_, back] = network.connected.as_slice() else {
                panic!("{:?}", network.connected)
            };
            let over = *back - UNTIL;
            // The longest delay, and the rest of a running round.
            let longest = pause + u32::from(SERVERS) * (DIAL + FAILOVER);
            assert!(
                over <= longest,
                "{away:?} {configured} {seed}: connected after {over:?}"
            );
            let during = network
                .dials
                .iter()
                .filter(|at| (FROM..UNTIL).contains(*at))
                .count();
            assert!(
                during < rounds * usize::from(SERVERS),
                "{away:?} {seed}: {during} dials"
            );
            // Every known server is tried, round after round.
            assert!(
                during >= 8 * usize::from(SERVERS),
                "{away:?} {seed}: {during} dials"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn servers_that_restart_are_used_within_a_second() {
    for seed in 0..200 {
        let mut network = Network::new(Away::Refusing, seed);
        network.ends = FROM + Duration::from_secs(6);
        network.happen(Event::Start);
        network.happen(Event::Configured);
        network.live(FROM).await;
        network.happen(Event::CallFailed {
            generation: 1,
            error: failure(ErrorKind::Server),
        });
        network.live(UNTIL).await;
        let [_, back] = network.connected.as_slice() else {
            panic!("{:?}", network.connected)
        };
        // The last pause, and the delays between the servers of the round before.
        let over = *back - network.ends;
        let most = RESTART_RETRY + u32::from(SERVERS) * FAILOVER;
        assert!(over <= most, "{seed}: connected after {over:?}");
    }
}

#[test]
fn servers_that_respond_but_fail_are_given_time() {
    let mut story = Story::begin(NO_LOGIN, 1);
    story.event(Event::Configured);
    let mut fail = |kind| {
        let delay = story.event(Event::Dialed(Err(failure(kind)))).delay();
        story.timer().event(Event::Resolved(Ok(vec![server(1)])));
        delay
    };
    let backoff = [500, 750, 1_125].map(Duration::from_millis);
    assert_eq!(fail(ErrorKind::Server), backoff[0]);
    assert_eq!(fail(ErrorKind::Unreachable), RESTART_RETRY.mul_f64(0.5));
    assert_eq!(fail(ErrorKind::Server), backoff[1]);
    while fail(ErrorKind::Unreachable) == RESTART_RETRY.mul_f64(0.5) {}
    assert!(fail(ErrorKind::Unreachable) > backoff[2], "after a minute");
}

#[test]
fn an_hour_of_trouble_is_forgotten_after_seconds_of_work() {
    let mut story = Story::begin(NO_LOGIN, 1);
    story.event(Event::Configured);
    story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    while story.now < Duration::from_secs(3600) {
        story.timer().event(Event::Resolved(Ok(vec![server(1)])));
        story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    }
    assert_eq!(story.delay(), Duration::from_secs(60));
    story.timer().event(Event::Resolved(Ok(vec![server(1)])));
    story.connect();
    story.now += WORKING;
    story.event(Event::CallFailed {
        generation: 1,
        error: failure(ErrorKind::Server),
    });
    assert_eq!(story.delay(), Duration::from_millis(500));
}
