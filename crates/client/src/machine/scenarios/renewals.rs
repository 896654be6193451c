//! Connections and tokens that are replaced while they are in use.

use super::super::event::Step;
use super::*;

const TLS: Event = Event::FilesChanged {
    tls: true,
    bearer: false,
};

fn rejected() -> Event {
    Event::CallFailed {
        generation: 1,
        failure: failure(FailureKind::Rejected),
    }
}

fn lost() -> Event {
    Event::CallFailed {
        generation: 1,
        failure: failure(FailureKind::Server),
    }
}

fn with_lifetime(seconds: u64) -> Story {
    let settings = Settings {
        credential: Credential::Login,
        token_lifetime: Some(Duration::from_secs(seconds)),
        ..SETTINGS
    };
    let mut story = Story::with(settings, 2);
    story.connect();
    story
}

/// Until the token is replaced: signs of life are given meanwhile.
fn until_login(story: &mut Story) {
    while !story
        .actions
        .iter()
        .any(|action| matches!(action, Action::LoginBeside))
    {
        match story.machine.state {
            State::Connected {
                link: Link::Probing,
                ..
            } => story.event(Event::Features(Ok(FEATURES))),
            _ => story.timer(),
        };
        assert!(
            story.now < Duration::from_secs(100_000),
            "{:?}",
            story.machine.state
        );
    }
}

#[test]
fn changed_certificates_replace_the_connection_while_it_is_in_use() {
    let mut story = Story::begin(Credential::None, 1);
    story.connect().event(TLS);
    assert_eq!(story.delay(), SETTINGS.spread / 2, "not everybody at once");
    story
        .timer()
        .did(|action| matches!(action, Action::CloseWatch));
    story.did(|action| matches!(action, Action::DialBeside(dialed) if *dialed == server(1)));
    story
        .event(Event::Dialed(Ok(())))
        .did(|action| matches!(action, Action::CheckFeatures));
    story.event(Event::Features(Ok(FEATURES)));
    let [
        Action::Adopt,
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
    let mut story = Story::begin(Credential::None, 1);
    // Somebody dials with the old ones right now.
    story.event(TLS).connect();
    assert_eq!(story.delay(), SETTINGS.spread / 2);
    // Whoever dials after the change has the new ones.
    let mut story = Story::begin(Credential::None, 2);
    story
        .event(Event::Dialed(Err(failure(FailureKind::Untrusted))))
        .event(TLS);
    story.now += FAILOVER;
    story.event(Event::Timer).connect();
    assert_eq!(story.delay(), SILENCE);
}

#[test]
fn new_files_end_a_long_wait() {
    for (credential, bearer) in [(Credential::None, false), (Credential::Login, true)] {
        let mut story = Story::begin(credential, 1);
        story.connect();
        story.event(Event::Configured);
        story.now += CALM;
        story.event(lost());
        while story.delay() < Duration::from_secs(20) {
            story.timer();
            story.event(Event::Resolved(Ok(vec![server(1)])));
            story.event(Event::Dialed(Err(failure(FailureKind::Untrusted))));
        }
        story.machine.token.needed = bearer;
        let changed = Event::FilesChanged {
            tls: !bearer,
            bearer,
        };
        story
            .event(changed)
            .did(|action| matches!(action, Action::Resolve));
    }
    let mut story = Story::begin(Credential::None, 1);
    story.event(Event::Dialed(Err(failure(FailureKind::Server))));
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
    let mut story = Story::begin(Credential::None, 2);
    story.connect().event(TLS).timer().event(lost());
    story.did(|action| matches!(action, Action::CancelOperation));
    story.did(|action| matches!(action, Action::Abandon));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
    story.timer().connect();
    assert_eq!(
        story.delay(),
        SILENCE,
        "the files were read for the new one"
    );
}

#[test]
fn a_token_of_known_lifetime_is_replaced_in_time() {
    let mut story = with_lifetime(1000);
    until_login(&mut story);
    assert_eq!(story.now.as_secs(), 750);
    story.event(Event::LoggedIn(Ok(())));
    assert_eq!(story.delay(), SETTLE);
    // It takes a moment to be known.
    story
        .timer()
        .event(Event::Features(Err(failure(FailureKind::Rejected))));
    assert_eq!(story.delay(), SETTLE);
    story.timer().event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::Adopt));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
    until_login(&mut story);
    assert_eq!(story.now.as_secs(), 1500, "counted from the login");
}

#[test]
fn a_token_that_ends_while_it_is_replaced_changes_nothing() {
    let mut story = with_lifetime(1000);
    until_login(&mut story);
    story.event(rejected());
    assert!(story.actions.is_empty(), "{:?}", story.actions);
    story.event(Event::LoggedIn(Ok(()))).event(rejected());
    story.now += SETTLE;
    story
        .event(Event::Timer)
        .did(|action| matches!(action, Action::CheckFeatures));
    story.event(rejected()).event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
}

#[test]
fn a_connection_that_is_lost_during_a_login_waits_for_it() {
    let mut story = with_lifetime(1000);
    until_login(&mut story);
    story.event(lost());
    assert!(
        story.actions.is_empty(),
        "a token must not get lost: {:?}",
        story.actions
    );
    story.event(Event::LoggedIn(Ok(())));
    story.did(|action| matches!(action, Action::Adopt));
    story.did(|action| matches!(action, Action::PublishConnecting(_)));
    story.timer();
    if matches!(story.machine.state, State::Resolving) {
        story.event(Event::Resolved(Ok(vec![server(1), server(2)])));
    }
    story.event(Event::Dialed(Ok(())));
    story.did(|action| matches!(action, Action::CheckFeatures));
    story.event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
}

#[test]
fn a_shutdown_during_such_a_login_logs_out_what_it_gives() {
    let mut story = with_lifetime(1000);
    until_login(&mut story);
    story.event(Event::Shutdown);
    assert_eq!(story.delay(), LOGOUT);
    story.event(Event::LoggedIn(Err(failure(FailureKind::Server))));
    story.did(|action| matches!(action, Action::Logout(_)));
    story
        .event(Event::LoggedOut)
        .did(|action| matches!(action, Action::Finish));
}

#[test]
fn a_lifetime_is_learned_from_tokens_that_end() {
    let mut story = Story::begin(Credential::Login, 1);
    story.connect();
    for end in [1, 2] {
        let login = story.machine.token.last_login.unwrap();
        // Accepted until 3600 s, noticed by the next sign of life.
        loop {
            match story.machine.state {
                State::Connected {
                    link: Link::Probing,
                    ..
                } if story.now - login < Duration::from_secs(3600) => {
                    story.event(Event::Features(Ok(FEATURES)))
                }
                State::Connected {
                    link: Link::Watching,
                    ..
                } => story.timer(),
                State::LoggingIn(_) => break,
                _ => match story
                    .actions
                    .iter()
                    .any(|action| matches!(action, Action::StartTimer(_)))
                {
                    true => story.timer(),
                    false => story.event(Event::Features(Err(failure(FailureKind::Rejected)))),
                },
            };
        }
        assert!(
            story.now - login < Duration::from_secs(3600 + 76),
            "end {end}"
        );
        story
            .event(Event::LoggedIn(Ok(())))
            .timer()
            .event(Event::Features(Ok(FEATURES)));
    }
    let login = story.machine.token.last_login.unwrap();
    until_login(&mut story);
    let age = (story.now - login).as_secs();
    assert!((2_600..2_700).contains(&age), "{age}");
}

#[test]
fn a_rejection_that_is_not_confirmed_costs_no_login() {
    let mut story = Story::begin(Credential::Login, 1);
    story.connect();
    story.event(Event::Configured);
    story.now += CALM;
    story
        .event(rejected())
        .did(|action| matches!(action, Action::CheckFeatures));
    story.event(Event::Features(Ok(FEATURES)));
    story.did(|action| matches!(action, Action::PublishConnected { generation: 2 }));
    // Somebody insists.
    story.now += Duration::from_secs(5);
    story.event(Event::CallFailed {
        generation: 2,
        failure: failure(FailureKind::Rejected),
    });
    assert!(matches!(
        story.machine.state,
        State::BackingOff(Then::Login(_))
    ));
    story.timer().event(Event::LoggedIn(Ok(()))).timer();
    story.event(Event::Features(Ok(FEATURES)));
    // And again: each login waits longer than the one before.
    let mut logins = 0;
    while story.now < CALM + Duration::from_secs(600) {
        match story.machine.state {
            State::Connected { .. } => {
                let generation = story.machine.generation;
                story.now += Duration::from_secs(3);
                story.event(Event::CallFailed {
                    generation,
                    failure: failure(FailureKind::Rejected),
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

#[test]
fn a_replacement_at_a_server_that_cannot_configure_proxies_is_refused() {
    let mut story = Story::begin(Credential::None, 1);
    story
        .connect()
        .event(TLS)
        .timer()
        .event(Event::Dialed(Ok(())));
    story.event(Event::Features(Ok(Features {
        bootstrap: false,
        watch: true,
    })));
    story.did(|action| matches!(action, Action::RenewalFailed(error) if matches!(**error, SessionError::MissingFeature { .. })));
    assert!(!matches!(
        story.machine.state,
        State::Connected {
            link: Link::Renewing(Step::Checking),
            ..
        }
    ));
}
