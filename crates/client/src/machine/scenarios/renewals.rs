//! Connections that are replaced while in use, and rejected tokens.

use super::*;

const TLS: Event = Event::FilesChanged {
    tls: true,
    bearer: false,
};

fn rejected() -> Event {
    Event::CallFailed {
        generation: 1,
        error: failure(ErrorKind::Rejected),
    }
}

fn lost() -> Event {
    Event::CallFailed {
        generation: 1,
        error: failure(ErrorKind::Server),
    }
}

#[test]
fn changed_certificates_replace_the_connection_while_it_is_in_use() {
    let mut story = Story::begin(NO_LOGIN, 1);
    story.connect().event(TLS);
    assert_eq!(story.delay(), SETTINGS.spread / 2, "not everybody at once");
    story
        .timer()
        .did(|action| matches!(action, Action::DialReplacement(dialed) if *dialed == server(1)));
    story
        .event(Event::Dialed(Ok(())))
        .did(|action| matches!(action, Action::CheckFeatures));
    story.event(Event::Features(Ok(FEATURES)));
    let [
        Action::PublishConnected { generation: 2 },
        Action::OpenWatch,
        Action::StartTimer(_),
    ] = story.actions.as_slice()
    else {
        panic!("{:?}", story.actions);
    };
    assert_eq!(story.delay(), SILENCE, "nothing more is due");
}

#[test]
fn certificates_that_change_before_there_is_a_connection_are_not_forgotten() {
    let mut story = Story::begin(NO_LOGIN, 1);
    // The current dial uses the old files.
    story.event(TLS).connect();
    assert_eq!(story.delay(), SETTINGS.spread / 2);
    // A dial after the change uses the new ones.
    let mut story = Story::begin(NO_LOGIN, 2);
    story
        .event(Event::Dialed(Err(failure(ErrorKind::Untrusted))))
        .event(TLS);
    story.now += FAILOVER;
    story.event(Event::Timer).connect();
    assert_eq!(story.delay(), SILENCE);
}

#[test]
fn new_files_end_a_long_wait() {
    for (login, bearer) in [(NO_LOGIN, false), (LOGIN, true)] {
        let mut story = Story::begin(login, 1);
        story.connect();
        story.event(Event::Configured);
        story.now += CALM;
        if bearer {
            // The token has expired, and every login fails.
            story.event(rejected());
            while story.machine.state != State::LoggingIn(server(1)) {
                story
                    .event(Event::Features(Err(failure(ErrorKind::Rejected))))
                    .timer();
            }
            story.event(Event::LoggedIn(Err(failure(ErrorKind::Server))));
        } else {
            story.event(lost());
        }
        while story.delay() < Duration::from_secs(20) {
            story.timer();
            story.event(Event::Resolved(Ok(vec![server(1)])));
            story.event(Event::Dialed(Err(failure(ErrorKind::Untrusted))));
        }
        let changed = Event::FilesChanged {
            tls: !bearer,
            bearer,
        };
        story
            .event(changed)
            .did(|action| matches!(action, Action::Resolve));
    }
    let mut story = Story::begin(NO_LOGIN, 1);
    story.event(Event::Dialed(Err(failure(ErrorKind::Server))));
    story.event(Event::FilesChanged {
        tls: false,
        bearer: true,
    });
    assert!(
        story.actions.is_empty(),
        "a bearer token helps only whom it lacks"
    );
}

#[test]
fn a_connection_that_is_lost_while_it_is_replaced_is_left() {
    let mut story = Story::begin(NO_LOGIN, 2);
    story.connect().event(TLS).timer().event(lost());
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
    story.timer().connect();
    assert_eq!(
        story.delay(),
        SILENCE,
        "the files were read for the new one"
    );
}

#[test]
fn a_rejection_that_is_not_confirmed_costs_no_login() {
    let mut story = Story::begin(LOGIN, 1);
    story.connect();
    story.event(Event::Configured);
    story.now += CALM;
    story
        .event(rejected())
        .did(|action| matches!(action, Action::CheckFeatures));
    story.event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
    // Another call is rejected.
    story.now += Duration::from_secs(5);
    story.event(Event::CallFailed {
        generation: 2,
        error: failure(ErrorKind::Rejected),
    });
    assert!(matches!(
        story.machine.state,
        State::BackingOff(Then::Login(_))
    ));
    story.timer().event(Event::LoggedIn(Ok(()))).timer();
    story.event(Event::Features(Ok(FEATURES)));
    // And again: each login has a longer delay than the one before.
    let mut logins = 0;
    while story.now < CALM + Duration::from_secs(600) {
        match story.machine.state {
            State::Connected { .. } => {
                let generation = story.machine.generation;
                story.now += Duration::from_secs(3);
                story.event(Event::CallFailed {
                    generation,
                    error: failure(ErrorKind::Rejected),
                })
            }
            State::CheckingFeatures(_) => story.event(Event::Features(Ok(FEATURES))),
            State::LoggingIn(_) => {
                logins += 1;
                story.event(Event::LoggedIn(Ok(())))
            }
            _ => story.timer(),
        };
    }
    assert!(logins < 30, "{logins} logins in ten minutes");
}
