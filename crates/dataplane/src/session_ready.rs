//! The readiness component for the session with a server. Until there is a session, it shows which
//! server was tried last, the outcome, and the next step.
//!
//! It never makes a serving proxy unready: once everything else has been ready, traffic continues
//! without servers, and this component stays ready. It then marks the session as configured.

use std::fmt::Write;
use std::time::Duration;

use legate_client::{Session, SessionSnapshot, SessionState, Stage};
use legate_runtime::{Readiness, ReadyHandle, ReadyState, Spawner};
use tokio::time::{Instant, sleep};

/// Name of the component.
const NAME: &str = "session";

/// Refresh interval of the shown reason, which also changes between state changes of the session,
/// for example by the time left.
const REFRESH: Duration = Duration::from_secs(1);

/// Registers the component, and keeps it up to date until the scope of `spawner` stops.
pub fn watch(session: Session, readiness: &Readiness, spawner: &Spawner) {
    let handle = readiness.register(NAME);
    let follow = follow(session, readiness.clone(), handle);
    spawner.spawn_until_stop("session readiness", follow);
}

async fn follow(session: Session, mut readiness: Readiness, handle: ReadyHandle) {
    let mut states = session.subscribe();
    let mut has_served = false;
    loop {
        if !has_served && serves(&readiness) {
            has_served = true;
            session.configured();
        }
        let state = states.borrow_and_update().clone();
        match &state {
            SessionState::Connected(_) => handle.ready(),
            _ if has_served => handle.ready(),
            SessionState::Connecting { last_error } => {
                let error = last_error.as_ref().map(ToString::to_string);
                handle.pending(reason(error, &session.snapshot()));
            }
            SessionState::Failed(error) => handle.failed(error.to_string()),
            SessionState::Closed => handle.pending("closed"),
        }
        let looks = matches!(state, SessionState::Connecting { .. }) && !has_served;
        tokio::select! {
            changed = states.changed() => if changed.is_err() {
                return;
            },
            () = readiness.changed(), if !has_served => {}
            () = sleep(REFRESH), if looks => {}
        }
    }
}

/// Whether everything else is ready.
fn serves(readiness: &Readiness) -> bool {
    let report = readiness.report();
    let mut others = report.iter().filter(|part| part.name != NAME).peekable();
    others.peek().is_some() && others.all(|part| part.state == ReadyState::Ready)
}

/// The last error and the current step.
fn reason(error: Option<String>, snapshot: &SessionSnapshot) -> String {
    let mut text = error.map(|error| error + "; ").unwrap_or_default();
    if snapshot.servers.len() > 1 {
        let _ = write!(text, "{} servers are known, ", snapshot.servers.len());
    }
    let server = match snapshot.server {
        Some(server) => format!("server {server}"),
        None => "a server".to_owned(),
    };
    let _ = match snapshot.stage {
        Stage::Finding => write!(text, "looking up the servers of -addresses"),
        Stage::Dialing => write!(text, "connecting to {server}"),
        Stage::LoggingIn => write!(text, "logging in at {server}"),
        Stage::Checking => write!(text, "requesting the features of {server}"),
        Stage::Waiting => {
            let left = snapshot.next_attempt.map(|at| at - Instant::now());
            let left = left.unwrap_or_default().as_secs_f64().ceil();
            write!(text, "trying again in {left} s")
        }
        Stage::Connected | Stage::Failed | Stage::Closed => {
            write!(text, "{}", snapshot.stage.as_str())
        }
    };
    text
}
