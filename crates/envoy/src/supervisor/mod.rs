//! Joins process, admin interface and state machine: [`run`] starts the machine's timers, makes
//! its calls and feeds back what happens, until Envoy is gone. A shutdown is bounded by one
//! deadline, grace period and time to quit together.

mod machine;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::sleep;

pub use machine::{Action, Event, Exit, Machine, REAP_WAIT, State, SupervisorConfig, Timer};

use crate::admin::AdminClient;
use crate::process::{EnvoyProcess, ExitReason};

/// How often a starting Envoy is asked whether it is ready.
pub const READY_POLL: Duration = Duration::from_millis(50);

/// A process that can be supervised.
pub trait Supervised: Send {
    /// Waits for its end. Has to be cancel safe.
    fn wait(&mut self) -> impl Future<Output = ExitReason> + Send;
    /// Asks it to end by signal.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn terminate(&mut self) -> io::Result<()>;
    /// Kills it.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    fn kill(&mut self) -> io::Result<()>;
}

/// An admin interface that can be told what a supervisor wants. Each call has to be bounded.
pub trait Control: Clone + Send + 'static {
    /// Whether the process serves.
    fn ready(&self) -> impl Future<Output = bool> + Send;
    /// Drains inbound listeners.
    fn drain(&self) -> impl Future<Output = Result<(), String>> + Send;
    /// Ends the process.
    fn quit(&self) -> impl Future<Output = Result<(), String>> + Send;
}

impl Supervised for EnvoyProcess {
    fn wait(&mut self) -> impl Future<Output = ExitReason> + Send {
        EnvoyProcess::wait(self)
    }

    fn terminate(&mut self) -> io::Result<()> {
        EnvoyProcess::terminate(self)
    }

    fn kill(&mut self) -> io::Result<()> {
        EnvoyProcess::kill(self)
    }
}

impl Control for AdminClient {
    async fn ready(&self) -> bool {
        AdminClient::ready(self).await.unwrap_or(false)
    }

    async fn drain(&self) -> Result<(), String> {
        self.drain_listeners()
            .await
            .map_err(|error| error.to_string())
    }

    async fn quit(&self) -> Result<(), String> {
        AdminClient::quit(self)
            .await
            .map_err(|error| error.to_string())
    }
}

/// How urgently the process shall end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Live,
    ShutDown,
    Kill,
}

/// Tells a running supervisor what to do and sees where its process is.
#[derive(Debug, Clone)]
pub struct Handle {
    wish: watch::Sender<Wish>,
    state: watch::Receiver<State>,
}

/// The supervisor's end of a [`Handle`].
#[derive(Debug)]
pub struct Controls {
    wish: watch::Receiver<Wish>,
    state: watch::Sender<State>,
}

/// A connected pair: the handle for those who want something, the controls for [`run`].
pub fn handle() -> (Handle, Controls) {
    let (wish, wished) = watch::channel(Wish::Live);
    let (state, seen) = watch::channel(State::Starting);
    (
        Handle { wish, state: seen },
        Controls {
            wish: wished,
            state,
        },
    )
}

impl Handle {
    /// Asks for an orderly end. Asking again changes nothing.
    pub fn shut_down(&self) {
        self.raise(Wish::ShutDown);
    }

    /// Asks for an end at once.
    pub fn kill(&self) {
        self.raise(Wish::Kill);
    }

    /// Where the process is.
    pub fn state(&self) -> State {
        *self.state.borrow()
    }

    /// Waits for the next change of state; `None` when the supervisor has ended.
    pub async fn changed(&mut self) -> Option<State> {
        self.state.changed().await.ok()?;
        Some(*self.state.borrow_and_update())
    }

    fn raise(&self, wish: Wish) {
        self.wish.send_if_modified(|current| {
            let rises = wish > *current;
            if rises {
                *current = wish;
            }
            rises
        });
    }
}

type Pending = FuturesUnordered<Pin<Box<dyn Future<Output = Event> + Send>>>;

/// Supervises `process` until it is gone. Dropping the future drops, and so kills, the process.
pub async fn run<P: Supervised, A: Control>(
    mut process: P,
    admin: A,
    config: SupervisorConfig,
    controls: Controls,
) -> Exit {
    let Controls { mut wish, state } = controls;
    let mut machine = Machine::new(config);
    let mut pending = Pending::new();
    let probe = admin.clone();
    pending.push(Box::pin(async move {
        while !probe.ready().await {
            sleep(READY_POLL).await;
        }
        Event::Ready
    }));
    loop {
        let event = tokio::select! {
            biased;
            reason = process.wait() => Event::Exited(reason),
            event = wished(&mut wish) => event,
            Some(event) = pending.next() => event,
        };
        let before = machine.state();
        for action in machine.on(event) {
            perform(action, &mut process, &admin, &pending);
        }
        if machine.state() != before {
            announce(machine.state(), config);
            state.send_replace(machine.state());
        }
        if let Some(exit) = machine.exit() {
            return exit.clone();
        }
    }
}

/// The next wish; pending for ever when nobody can wish any more.
async fn wished(wish: &mut watch::Receiver<Wish>) -> Event {
    loop {
        if wish.changed().await.is_err() {
            return std::future::pending().await;
        }
        match *wish.borrow_and_update() {
            Wish::Live => {}
            Wish::ShutDown => return Event::ShutdownRequested,
            Wish::Kill => return Event::KillRequested,
        }
    }
}

fn perform<P: Supervised, A: Control>(
    action: Action,
    process: &mut P,
    admin: &A,
    pending: &Pending,
) {
    let admin = admin.clone();
    match action {
        Action::Drain => pending.push(Box::pin(async move {
            if let Err(error) = admin.drain().await {
                tracing::warn!(%error, "error while draining Envoy listeners");
            }
            // Nothing follows from it: the grace period runs on.
            std::future::pending().await
        })),
        Action::Quit => pending.push(Box::pin(async move {
            match admin.quit().await {
                Ok(()) => Event::QuitDone,
                Err(error) => {
                    tracing::warn!(%error, "envoy did not confirm that it quits, sending SIGTERM");
                    Event::QuitFailed
                }
            }
        })),
        Action::Terminate => report(process.terminate(), "SIGTERM"),
        Action::Kill => report(process.kill(), "SIGKILL"),
        Action::Start(timer, after) => pending.push(Box::pin(async move {
            sleep(after).await;
            match timer {
                Timer::Grace => Event::GraceElapsed,
                Timer::Deadline => Event::DeadlineElapsed,
                Timer::Reap => Event::ReapElapsed,
            }
        })),
    }
}

fn report(sent: io::Result<()>, signal: &'static str) {
    if let Err(error) = sent {
        tracing::warn!(%error, signal, "envoy could not be signalled");
    }
}

fn announce(state: State, config: SupervisorConfig) {
    match state {
        State::Draining => tracing::info!(
            seconds = config.grace.as_secs(),
            drain = config.drain,
            "waiting before terminating dataplane proxy"
        ),
        State::Killing => tracing::warn!("killing envoy"),
        State::Starting | State::Running | State::Quitting | State::Exited => {
            tracing::debug!(?state, "envoy");
        }
    }
}

#[cfg(test)]
mod tests;
