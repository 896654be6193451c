//! A process that lives on when its supervisor ends, started by this one or by another. It is not a
//! child, so that its end is found by looking for it, and how it ended remains unknown.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal,
    waitid,
};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::host::Process;
use super::identity::{Identity, start_time};
use crate::process::{EnvoyProcess, ExitReason, LogTail};

/// How often is looked whether a process still runs.
const POLL: Duration = Duration::from_millis(200);
/// How often once it was asked to end.
const FAST_POLL: Duration = Duration::from_millis(20);

/// A process that was found by its identity.
#[derive(Debug)]
pub struct DetachedProcess {
    identity: Identity,
    /// The process itself, whoever has its number by now; kernels before 5.3 do not have this.
    handle: Option<OwnedFd>,
    poll: Interval,
    /// What it writes.
    log: Option<LogTail>,
    /// Ends it when dropped, as any supervisor does.
    held: bool,
}

impl DetachedProcess {
    /// The process, if it still runs.
    ///
    /// # Errors
    /// Says in what a process of the same number differs.
    pub fn find(identity: Identity) -> Result<Self, String> {
        // What is verified after that is what the handle is of: it is the older of the two.
        let handle = handle(identity.pid);
        identity.verify()?;
        Ok(Self::new(identity, handle))
    }

    /// The process that was just started under this number.
    ///
    /// # Errors
    /// When it has ended already, or must not be looked at. The latter is ended: nobody could
    /// supervise it.
    pub(super) fn started(pid: u32) -> Result<Self, String> {
        let handle = handle(pid);
        match Identity::of(pid) {
            Some(identity) => Ok(Self::new(identity, handle)),
            None if start_time(pid).is_none() => {
                Err("envoy ended at once; its log says why".to_owned())
            }
            None => Err(give_up(pid)),
        }
    }

    fn new(identity: Identity, handle: Option<OwnedFd>) -> Self {
        Self {
            identity,
            handle,
            poll: every(POLL),
            log: None,
            held: true,
        }
    }

    /// Its log, for what it says at last.
    #[must_use]
    pub(super) fn logging_to(mut self, log: Option<LogTail>) -> Self {
        self.log = log;
        self
    }

    /// Signals nobody else.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        self.poll = every(FAST_POLL);
        let sent = match &self.handle {
            Some(handle) => pidfd_send_signal(handle, signal),
            // The best that can be done: it is looked at directly before.
            None if self.identity.lives().is_err() => return Ok(()),
            None => return send(self.identity.pid, signal),
        };
        gone_is_fine(sent)
    }
}

/// A handle of the process that has this number now.
fn handle(pid: u32) -> Option<OwnedFd> {
    pidfd_open(number(pid)?, PidfdFlags::empty()).ok()
}

fn number(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = number(pid).ok_or(io::ErrorKind::InvalidInput)?;
    gone_is_fine(kill_process(pid, signal))
}

fn gone_is_fine(sent: rustix::io::Result<()>) -> io::Result<()> {
    match sent {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends a process that was just started and must not be looked at. Answers what to do about it.
fn give_up(pid: u32) -> String {
    let ended = match send(pid, Signal::KILL) {
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

impl DetachedProcess {
    /// What it can be found by again; it may run another program than at first.
    fn identity(&self) -> Identity {
        let now = Identity::of(self.identity.pid);
        let same = now.filter(|now| now.start_time == self.identity.start_time);
        same.unwrap_or_else(|| self.identity.clone())
    }

    async fn wait(&mut self) -> ExitReason {
        while self.identity.lives().is_ok() {
            self.poll.tick().await;
        }
        let id = match &self.handle {
            Some(handle) => Some(WaitId::PidFd(handle.as_fd())),
            None => number(self.identity.pid).map(WaitId::Pid),
        };
        // Where this program collects orphans, nobody else would.
        if let Some(id) = id {
            let _ = waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        }
        ExitReason::Unobserved("it is not a child of its supervisor".to_owned())
    }
}

impl Drop for DetachedProcess {
    fn drop(&mut self) {
        if self.held
            && let Err(error) = self.signal(Signal::KILL)
        {
            tracing::warn!(pid = self.identity.pid, %error, "envoy could not be killed");
        }
    }
}

/// An Envoy.
#[derive(Debug)]
pub enum Envoy {
    /// A child of this program, which ends with it.
    Child(Box<EnvoyProcess>, Option<Identity>),
    /// One that lives on without a supervisor.
    Detached(DetachedProcess),
}

impl Process for Envoy {
    fn pid(&self) -> u32 {
        match self {
            Self::Child(process, _) => process.pid(),
            Self::Detached(process) => process.identity.pid,
        }
    }

    fn identity(&self) -> Option<Identity> {
        match self {
            Self::Child(_, identity) => identity.clone(),
            Self::Detached(process) => Some(process.identity()),
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
            Self::Detached(process) => process.signal(Signal::TERM),
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        match self {
            Self::Child(process, _) => process.kill(),
            Self::Detached(process) => process.signal(Signal::KILL),
        }
    }

    fn last_words(&self) -> Option<String> {
        match self {
            Self::Child(process, _) => process.last_words(),
            Self::Detached(process) => process.log.as_ref()?.last_words(),
        }
    }

    fn detach(self) {
        match self {
            // It cannot live on.
            Self::Child(process, _) => drop(process),
            Self::Detached(mut process) => process.held = false,
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
        let script = process.identity();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while script.verify().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(process.wait().now_or_never().is_none(), "it runs");
        let program = process.identity();
        program.verify().unwrap();
        assert_ne!(program.executable, script.executable);
        process.signal(Signal::TERM).unwrap();
        let reason = process.wait().await;
        assert!(matches!(reason, ExitReason::Unobserved(_)), "{reason:?}");
        // It was collected with that.
        child.wait().unwrap_err();
    }

    #[tokio::test]
    async fn a_signal_reaches_nobody_who_got_the_number_meanwhile() {
        let (mut child, mut stranger) = (shell("read line"), shell("read line"));
        let mut process = DetachedProcess::started(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // As if its number were another's now, and every look at that came too early.
        process.identity = Identity::of(stranger.id()).unwrap();
        process.signal(Signal::TERM).unwrap();
        process.signal(Signal::KILL).unwrap();
        drop(process);
        stranger.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(stranger.wait().unwrap().success(), "it was signalled");
    }

    #[test]
    fn a_process_that_must_not_be_looked_at_is_not_left_to_itself() {
        let mut child = shell("read line");
        let reason = give_up(child.id());
        assert!(reason.contains("-envoy-state-dir"), "{reason}");
        assert!(!child.wait().unwrap().success());
    }
}
