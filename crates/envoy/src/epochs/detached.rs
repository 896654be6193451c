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
use super::identity::{Identity, start_time};
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

    /// The process that was just started under this number.
    ///
    /// # Errors
    /// When it has ended already, or must not be looked at. The latter is ended: nobody could
    /// supervise it.
    pub(super) fn started(pid: u32) -> Result<Self, String> {
        match Identity::of(pid) {
            Some(identity) => Ok(Self::new(identity)),
            None if start_time(pid).is_none() => {
                Err("envoy ended at once; its log says why".to_owned())
            }
            None => Err(give_up(pid)),
        }
    }

    fn new(identity: Identity) -> Self {
        Self {
            identity,
            poll: every(POLL),
            held: true,
        }
    }

    /// Signals nobody else: the process is looked at directly before.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        if self.identity.lives().is_err() {
            return Ok(());
        }
        self.poll = every(FAST_POLL);
        send(self.identity.pid, signal)
    }
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    match kill(Pid::from_raw(pid), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends a process that was just started and must not be looked at. Answers what to do about it.
fn give_up(pid: u32) -> String {
    let ended = match send(pid, Signal::SIGKILL) {
        Ok(()) => String::new(),
        Err(error) => format!(", and could not be ended either ({error})"),
    };
    format!(
        "process {pid} must not be looked at, as one whose program file has capabilities, so that \
         it could not be supervised{ended}; use a program without them, or no -envoy-state-dir"
    )
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
        let now = Identity::of(self.identity.pid);
        let same = now.filter(|now| now.start_time == self.identity.start_time);
        Some(same.unwrap_or_else(|| self.identity.clone()))
    }

    async fn wait(&mut self) -> ExitReason {
        while self.identity.lives().is_ok() {
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Child, Command, Stdio};

    use futures_util::FutureExt;

    use super::*;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command.spawn().unwrap()
    }

    #[tokio::test]
    async fn a_script_that_becomes_another_program_is_still_the_process() {
        let mut child = shell("read line; exec sleep 600");
        let mut process = DetachedProcess::started(child.id()).unwrap();
        let script = process.identity().unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while script.verify().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(process.wait().now_or_never().is_none(), "it runs");
        let program = process.identity().unwrap();
        program.verify().unwrap();
        assert_ne!(program.executable, script.executable);
        process.terminate().unwrap();
        let reason = process.wait().await;
        assert!(matches!(reason, ExitReason::Unobserved(_)), "{reason:?}");
        // It was collected with that.
        child.wait().unwrap_err();
    }

    #[test]
    fn a_process_that_must_not_be_looked_at_is_not_left_to_itself() {
        let mut child = shell("read line");
        let reason = give_up(child.id());
        assert!(reason.contains("-envoy-state-dir"), "{reason}");
        assert!(!child.wait().unwrap().success());
    }
}
