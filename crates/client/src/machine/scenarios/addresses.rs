//! Load balancers, lists of unreachable addresses, and stale names.

use super::*;

const BALANCER: u8 = 100;

/// Connected through a balancer to servers whose own addresses are 1 and 2.
fn behind_a_balancer() -> Story {
    let machine = Machine::new(SETTINGS, Box::new(|| 0.5));
    let mut story = Story {
        machine,
        now: Duration::ZERO,
        actions: Vec::new(),
    };
    story.event(Event::Start);
    story.event(Event::Resolved(Ok(vec![server(BALANCER)])));
    story.connect();
    story.event(Event::Servers(vec![server(1), server(2)]));
    story
}

fn lost(story: &Story) -> Event {
    Event::CallFailed {
        generation: story.machine.generation,
        error: failure(ErrorKind::Server),
    }
}

#[test]
fn a_balancers_address_is_dialled_again_before_addresses_behind_it() {
    let mut story = behind_a_balancer();
    story.event(lost(&story)).timer();
    assert_eq!(
        story.dialed(),
        Some(server(BALANCER)),
        "another server may answer there"
    );
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Server))))
        .timer();
    let mut others = vec![story.dialed().unwrap()];
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Server))))
        .timer();
    others.push(story.dialed().unwrap());
    others.sort();
    assert_eq!(
        others,
        [server(1), server(2)],
        "when it is gone, the servers' own addresses are tried"
    );
    story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    story.did(|action| {
        matches!(
            action,
            Action::RoundFailed {
                list_misleads: true
            }
        )
    });
    story
        .timer()
        .event(Event::Resolved(Ok(vec![server(BALANCER)])));
    assert_eq!(story.dialed(), Some(server(BALANCER)));
}

#[test]
fn addresses_behind_a_balancer_are_not_tried_again_and_again() {
    let mut story = behind_a_balancer();
    story.event(lost(&story)).timer();
    // They are tried once.
    for _ in 0..3 {
        story
            .event(Event::Dialed(Err(failure(ErrorKind::Server))))
            .timer();
    }
    story.event(Event::Resolved(Ok(vec![server(BALANCER)])));
    for _ in 0..5 {
        assert_eq!(story.dialed(), Some(server(BALANCER)));
        // The balancer is reachable, but its server cannot serve.
        story.event(Event::Dialed(Ok(())));
        story
            .event(Event::Features(Err(failure(ErrorKind::Server))))
            .timer();
        story.event(Event::Resolved(Ok(vec![server(BALANCER)])));
    }
    story.connect();
    story.event(Event::Servers(vec![server(1), server(2)]));
    story.event(lost(&story)).timer();
    assert_eq!(story.dialed(), Some(server(BALANCER)));
}

#[test]
fn a_balancer_whose_servers_shed_load_is_not_hammered() {
    let mut story = behind_a_balancer();
    story.event(Event::Configured);
    let mut dials = 1;
    while story.now < Duration::from_secs(3600) {
        let refused = Err(failure(ErrorKind::Server));
        match story.machine.state {
            State::Connected { .. } => story.event(lost(&story)),
            State::Resolving => story.event(Event::Resolved(Ok(vec![server(BALANCER)]))),
            State::Dialing(address) if address == server(BALANCER) => {
                dials += 1;
                story.connect();
                story.event(Event::Servers(vec![server(1), server(2)]))
            }
            State::Dialing(_) => story.event(Event::Dialed(refused)),
            State::BackingOff(_) => story.timer(),
            state => panic!("{state:?}"),
        };
    }
    assert!(dials < 2 * 80, "{dials} dials in an hour");
}

#[test]
fn servers_that_know_each_other_by_the_configured_addresses_are_next_to_each_other() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.connect();
    story.event(Event::Servers(vec![server(1), server(2), server(3)]));
    story.event(lost(&story)).timer();
    assert_eq!(story.dialed(), Some(server(3)), "never tried");
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Server))))
        .timer();
    assert!(story.dialed().is_some());
    story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    story.did(|action| {
        matches!(
            action,
            Action::RoundFailed {
                list_misleads: true
            }
        )
    });
}

#[test]
fn configured_addresses_replace_a_list_of_unreachable_servers() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.connect();
    let State::Connected { server: used, .. } = story.machine.state else {
        panic!("{:?}", story.machine.state);
    };
    // The list contains the server in use and an unreachable one.
    story.event(Event::Servers(vec![used, server(9)]));
    story.event(lost(&story)).timer();
    assert_eq!(story.dialed(), Some(server(9)));
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Server))))
        .timer();
    let other = if used == server(1) {
        server(2)
    } else {
        server(1)
    };
    assert_eq!(story.dialed(), Some(other), "in the same round");
}

#[test]
fn names_that_were_looked_up_long_ago_are_looked_up_again() {
    let settings = Settings {
        watch: false,
        ..SETTINGS
    };
    let mut story = Story::with(settings, 2);
    story.connect();
    story.event(lost(&story)).timer();
    assert!(story.dialed().is_some(), "just looked up");
    story.connect();
    story.now += NAMES;
    story
        .event(lost(&story))
        .timer()
        .did(|action| matches!(action, Action::Resolve));
    // The name resolves to another address by now.
    story.event(Event::Resolved(Ok(vec![server(7)])));
    assert_eq!(story.dialed(), Some(server(7)));
}

#[test]
fn the_loss_of_a_server_does_not_discredit_the_list() {
    for listed in [1, 3] {
        let mut story = Story::begin(NO_LOGIN, 1);
        story.connect();
        story.event(Event::Servers((1..=listed).map(server).collect()));
        story.now += WORKING;
        story.event(lost(&story));
        for _ in 1..listed {
            story
                .timer()
                .event(Event::Dialed(Err(failure(ErrorKind::Server))));
        }
        story.did(|action| {
            matches!(
                action,
                Action::RoundFailed {
                    list_misleads: false
                }
            )
        });
    }
}
