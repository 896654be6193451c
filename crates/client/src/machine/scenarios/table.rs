//! Every kind of failure at every stage, with its consequence.

use super::*;

/// The stage of a failure. The first group is before the first connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    FirstDial,
    FirstLogin,
    FirstCheck,
    Watch,
    Probe,
    Poll,
    ReportedCall,
    LaterDial,
    LaterLogin,
    LaterCheck,
    ReplacingDial,
    ReplacingCheck,
}

/// Consequence of a failure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Follows {
    /// The session ends.
    Over,
    /// The next server is dialled after a short delay.
    NextServer,
    /// The same server is asked again whether it accepts the token.
    AskAgain,
    /// Another token is requested from the same server.
    LoginAgain,
    /// The connection stays in use.
    Stay,
}

const STAGES: [Stage; 12] = [
    Stage::FirstDial,
    Stage::FirstLogin,
    Stage::FirstCheck,
    Stage::Watch,
    Stage::Probe,
    Stage::Poll,
    Stage::ReportedCall,
    Stage::LaterDial,
    Stage::LaterLogin,
    Stage::LaterCheck,
    Stage::ReplacingDial,
    Stage::ReplacingCheck,
];

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Untrusted,
    ErrorKind::Rejected,
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Unreachable,
    ErrorKind::Server,
];

/// All rules in one place.
fn rule(stage: Stage, kind: ErrorKind, login: bool) -> Follows {
    use ErrorKind::{Invalid, Rejected, Unsupported};
    match (stage, kind) {
        (Stage::FirstLogin, Invalid) => Follows::Over,
        (Stage::FirstLogin, Rejected) => Follows::LoginAgain,
        // A proxy carries traffic, and the cause may be fixed.
        (Stage::LaterLogin, Invalid | Rejected) => Follows::LoginAgain,
        (Stage::Watch, Unsupported) => Follows::Stay,
        (Stage::ReplacingDial, _) => Follows::Stay,
        (Stage::ReplacingCheck, kind) if kind != Rejected => Follows::Stay,
        // A token is replaced only after several rejections.
        (
            Stage::FirstCheck
            | Stage::LaterCheck
            | Stage::Watch
            | Stage::Probe
            | Stage::Poll
            | Stage::ReportedCall
            | Stage::ReplacingCheck,
            Rejected,
        ) if login => Follows::AskAgain,
        _ => Follows::NextServer,
    }
}

/// A session at this stage; `None` if the stage does not exist with these settings.
fn reach(stage: Stage, login: bool) -> Option<Story> {
    let watch = stage != Stage::Poll;
    let settings = Settings {
        login,
        watch,
        ..SETTINGS
    };
    let mut story = Story::with(settings, 2);
    if matches!(stage, Stage::FirstLogin | Stage::LaterLogin) && !login {
        return None;
    }
    match stage {
        Stage::FirstDial => return Some(story),
        Stage::FirstLogin => {
            story.event(Event::Dialed(Ok(())));
            return Some(story);
        }
        Stage::FirstCheck => {
            story.event(Event::Dialed(Ok(())));
            if login {
                story.event(Event::LoggedIn(Ok(()))).timer();
            }
            return Some(story);
        }
        _ => story.connect(),
    };
    let State::Connected { server: used, .. } = story.machine.state else {
        panic!("{:?}", story.machine.state);
    };
    go_on(&mut story, stage, used);
    Some(story)
}

/// Continues from a connection to this server.
fn go_on(story: &mut Story, stage: Stage, used: SocketAddr) {
    let lost = |kind| Event::CallFailed {
        generation: 1,
        error: failure(kind),
    };
    match stage {
        Stage::Probe | Stage::Poll => {
            story
                .timer()
                .did(|action| matches!(action, Action::CheckFeatures));
        }
        Stage::ReportedCall => story.now += CALM,
        Stage::LaterDial | Stage::LaterCheck => {
            story.event(lost(ErrorKind::Server)).timer();
            story.event(Event::Servers(vec![used]));
            if stage == Stage::LaterCheck {
                story.event(Event::Dialed(Ok(())));
            }
            // Another server is available.
            story.machine.servers.clear_round();
        }
        Stage::LaterLogin => {
            story.now += CALM;
            story.event(lost(ErrorKind::Rejected));
            while story.machine.state != State::LoggingIn(used) {
                story
                    .event(Event::Features(Err(failure(ErrorKind::Rejected))))
                    .timer();
            }
        }
        Stage::ReplacingDial | Stage::ReplacingCheck => {
            story
                .event(Event::FilesChanged {
                    tls: true,
                    bearer: false,
                })
                .timer();
            if stage == Stage::ReplacingCheck {
                story.event(Event::Dialed(Ok(())));
            }
        }
        _ => {}
    }
}

fn fail(story: &mut Story, stage: Stage, kind: ErrorKind) -> Follows {
    let failure = failure(kind);
    let event = match stage {
        Stage::FirstDial | Stage::LaterDial | Stage::ReplacingDial => Event::Dialed(Err(failure)),
        Stage::FirstLogin | Stage::LaterLogin => Event::LoggedIn(Err(failure)),
        Stage::Watch => Event::WatchEnded(failure),
        Stage::ReportedCall => Event::CallFailed {
            generation: 1,
            error: failure,
        },
        _ => Event::Features(Err(failure)),
    };
    story.event(event);
    match story.machine.state {
        State::Failed => Follows::Over,
        State::BackingOff(Then::Dial | Then::Resolve) => Follows::NextServer,
        State::BackingOff(Then::CheckFeatures(_)) | State::CheckingFeatures(_) => Follows::AskAgain,
        State::BackingOff(Then::Login(_)) => Follows::LoginAgain,
        State::Connected { .. } => Follows::Stay,
        state => panic!("{state:?}"),
    }
}

#[test]
fn every_kind_of_failure_at_every_stage_has_its_consequence() {
    let mut rows = 0;
    for login in [NO_LOGIN, LOGIN] {
        for stage in STAGES {
            for kind in KINDS {
                let Some(mut story) = reach(stage, login) else {
                    continue;
                };
                let follows = fail(&mut story, stage, kind);
                let row = format!("{kind:?} at {stage:?} with login: {login}");
                assert_eq!(follows, rule(stage, kind, login), "{row}");
                rows += 1;
                if follows != Follows::Over && follows != Follows::Stay {
                    story.heal(&row);
                }
            }
        }
    }
    assert_eq!(rows, KINDS.len() * (10 + 12));
}

#[test]
fn a_failed_replacement_is_repeated_later() {
    for stage in [Stage::ReplacingDial, Stage::ReplacingCheck] {
        let mut story = reach(stage, LOGIN).unwrap();
        fail(&mut story, stage, ErrorKind::Server);
        story.did(|action| matches!(action, Action::ReplacementFailed(_)));
        story.did(|action| matches!(action, Action::OpenWatch));
        assert_eq!(story.delay(), Duration::from_secs(15), "{stage:?}");
        story.timer();
        assert!(matches!(
            story.machine.state,
            State::Connected {
                activity: Activity::DialingReplacement,
                ..
            }
        ));
    }
}
