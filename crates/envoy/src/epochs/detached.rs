//! A process that lives on when its supervisor ends, started by this one or by another. It is not a
//! child, so that its end is found by looking for it, and how it ended remains unknown.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::host::Process;
use super::identity::Identity;
use crate::process::{EnvoyProcess, ExitReason};

/// How often is looked whether a process still runs.
const POLL: Duration = Duration::from_millis(200);
/// How often once it was told to end.
const FAST_POLL: Duration = Duration::from_millis(20);

/// A process that was found by its identity.
#[derive(Debug)]
pub struct DetachedProcess {
    identity: Identity,
    poll: Interval,
    /// Ends it when dropped, as any supervisor does.
    held: bool,
}

impl DetachedProcess {
    /// The process, if it still runs.
    ///
    /// # Errors
    /// Says in what a process of the same number differs.
    pub fn find(identity: Identity) -> Result<Self, super::identity::Mismatch> {
        identity.verify()?;
        Ok(Self::new(identity))
    }

    pub(super) fn new(identity: Identity) -> Self {
        Self {
            identity,
            poll: every(POLL),
            held: true,
        }
    }

    /// Signals nobody else: the process is looked at directly before.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.identity.verify().is_err() {
            return Ok(());
        }
        self.poll = every(FAST_POLL);
        let pid = i32::try_from(self.identity.pid).map_err(io::Error::other)?;
        match kill(Pid::from_raw(pid), signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

impl Process for DetachedProcess {
    fn pid(&self) -> u32 {
        self.identity.pid
    }

    fn identity(&self) -> Option<Identity> {
        Some(self.identity.clone())
    }

    async fn wait(&mut self) -> ExitReason {
        while self.identity.verify().is_ok() {
            self.poll.tick().await;
        }
        // Where this program collects orphans, nobody else would.
        if let Ok(pid) = i32::try_from(self.identity.pid) {
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
        ExitReason::Unobserved("it is not a child of its supervisor".to_owned())
    }

    fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::SIGTERM)
    }

    fn kill(&mut self) -> io::Result<()> {
        self.signal(Signal::SIGKILL)
    }

    fn detach(mut self) {
        self.held = false;
    }
}

impl Drop for DetachedProcess {
    fn drop(&mut self) {
        if self.held
            && let Err(error) = self.signal(Signal::SIGKILL)
        {
            tracing::warn!(pid = self.identity.pid, %error, "envoy could not be killed");
        }
    }
}

/// An Envoy.
#[derive(Debug)]
pub enum Envoy {
    /// A child of this program, which ends with it.
    Child(EnvoyProcess, Option<Identity>),
    /// One that lives on without a supervisor.
    Detached(DetachedProcess),
}

impl Process for Envoy {
    fn pid(&self) -> u32 {
        match self {
            Self::Child(process, _) => process.pid(),
            Self::Detached(process) => process.pid(),
        }
    }

    fn identity(&self) -> Option<Identity> {
        match self {
            Self::Child(_, identity) => identity.clone(),
            Self::Detached(process) => process.identity(),
        }
    }

    async fn wait(&mut self) -> ExitReason {
        match self {
            Self::Child(process, _) => process.wait().await,
            Self::Detached(process) => process.wait().await,
        }
    }

    fn terminate(&mut self) -> io::Result<()> {
        match self {
            Self::Child(process, _) => process.terminate(),
            Self::Detached(process) => process.terminate(),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Child(process, _) => process.kill(),
            Self::Detached(process) => process.kill(),
        }
    }

    fn detach(self) {
        match self {
            // It cannot live on.
            Self::Child(process, _) => drop(process),
            Self::Detached(process) => process.detach(),
        }
    }
}
