//! A process that outlives its supervisor, started by this supervisor or an earlier one. It is not a
//! child, so its end is detected by polling, and its exit status is unknown.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::process::{
    PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::time::sleep;

use super::exit::ExitReason;
use super::identity::{Identity, start_time};
use super::launch::{HotRestartRole, Launch, SpawnError};
use super::messages::LogTail;
use super::parent_death;
use super::running::{Process, ignore_missing, number};

/// Polling interval for the end of the process.
const POLL: Duration = Duration::from_millis(200);
/// The same after the process was asked to end.
const FAST_POLL: Duration = Duration::from_millis(20);

/// A process that is identified by its identity.
#[derive(Debug)]
pub(crate) struct DetachedProcess {
    identity: Identity,
    /// A file descriptor of the process, safe against reuse of its id; `None` on kernels before 5.3.
    handle: Option<OwnedFd>,
    poll: Duration,
    /// The log that it writes to.
    log: LogTail,
    /// Whether to kill it when dropped, like any supervised process.
    held: bool,
}

impl Launch {
    /// Starts Envoy in its own session, so that it outlives this program. Its output is appended to
    /// `log`.
    ///
    /// # Errors
    /// As for [`Launch::spawn`], and when `log` cannot be written, or Envoy has already exited or
    /// cannot be inspected. In the latter case it is killed, because it could not be supervised.
    pub(crate) fn spawn_detached(
        &self,
        place: Option<&HotRestartRole>,
        log: &Path,
    ) -> Result<Box<dyn Process>, SpawnError> {
        let (mut command, inherited) = self.command(place)?;
        let tail = LogTail::from_now(log);
        // Readable by its owner only.
        let file = File::options()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(log);
        let files = file.and_then(|file| Ok((file.try_clone()?, file)));
        let (output, errors) = files.map_err(|error| {
            SpawnError(format!("Envoy's log {log:?} cannot be written: {error}"))
        })?;
        command.stdout(output).stderr(errors);
        let mut spawn = || {
            let (mut reader, writer) = io::pipe()?;
            parent_death::detach(&mut command, inherited.as_ref(), writer.as_fd());
            // The direct child is only an intermediate process, which has exited by now.
            drop(command.spawn()?);
            drop(writer);
            let mut pid = [0; size_of::<u32>()];
            reader.read_exact(&mut pid)?;
            Ok(u32::from_ne_bytes(pid))
        };
        let pid = spawn().map_err(|source| self.not_started(source))?;
        let process = DetachedProcess::started(pid, tail).map_err(SpawnError)?;
        Ok(Box::new(process))
    }
}

impl DetachedProcess {
    /// The process with this identity, if it is still running. It writes to `log`.
    ///
    /// # Errors
    /// When it is not running; the text says how a process with the same id differs.
    pub(crate) fn find(identity: Identity, log: &Path) -> Result<Self, String> {
        // The handle is opened before the verification, so it refers to the verified process.
        let handle = handle(identity.pid);
        identity.verify()?;
        Ok(Self::new(identity, handle, LogTail::from_now(log)))
    }

    /// The process with this id, which was just started.
    fn started(pid: u32, log: LogTail) -> Result<Self, String> {
        let handle = handle(pid);
        match Identity::of(pid) {
            Some(identity) => Ok(Self::new(identity, handle, log)),
            None if start_time(pid).is_some() => Err(kill_uninspectable(pid)),
            None => {
                let message = log.last_message().map(|message| format!(": {message}"));
                let message = message.unwrap_or_default();
                Err(format!("envoy ended at once, see its log{message}"))
            }
        }
    }

    fn new(identity: Identity, handle: Option<OwnedFd>, log: LogTail) -> Self {
        Self {
            identity,
            handle,
            poll: POLL,
            log,
            held: true,
        }
    }
}

/// A handle of the process that currently has this id.
fn handle(pid: u32) -> Option<OwnedFd> {
    pidfd_open(number(pid)?, PidfdFlags::empty()).ok()
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = number(pid).ok_or(io::ErrorKind::InvalidInput)?;
    ignore_missing(kill_process(pid, signal))
}

/// Kills a process that was just started but cannot be inspected. Returns the error message.
fn kill_uninspectable(pid: u32) -> String {
    let ended = match send(pid, Signal::KILL) {
        Ok(()) => String::new(),
        Err(error) => format!(", nor could it be killed ({error})"),
    };
    format!(
        "process {pid} cannot be inspected, for example because its program file has capabilities, \
         so it cannot be supervised{ended}; use a program without them, or no -envoy-state-dir"
    )
}

impl Process for DetachedProcess {
    fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// It may have executed another program since.
    fn identity(&self) -> Option<Identity> {
        let now = Identity::of(self.identity.pid);
        let same = now.filter(|now| now.start_time == self.identity.start_time);
        same.or_else(|| Some(self.identity.clone()))
    }

    fn wait(&mut self) -> BoxFuture<'_, ExitReason> {
        async {
            while self.identity.lives().is_ok() {
                sleep(self.poll).await;
            }
            let id = match &self.handle {
                Some(handle) => Some(WaitId::PidFd(handle.as_fd())),
                None => number(self.identity.pid).map(WaitId::Pid),
            };
            // If this program is a reaper, no other process collects it.
            if let Some(id) = id {
                let _ = waitid(id, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
            }
            ExitReason::Unobserved("it is not a child of its supervisor".to_owned())
        }
        .boxed()
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        self.poll = FAST_POLL;
        match &self.handle {
            Some(handle) => ignore_missing(pidfd_send_signal(handle, signal)),
            // Not race-free without a handle, but checked immediately before.
            None if self.identity.lives().is_err() => Ok(()),
            None => send(self.identity.pid, signal),
        }
    }

    fn last_message(&self) -> Option<String> {
        self.log.last_message()
    }

    fn detach(mut self: Box<Self>) {
        self.held = false;
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

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Child, Command, Stdio};

    use super::*;

    fn started(child: &Child) -> DetachedProcess {
        let log = LogTail::from_now(Path::new("/dev/null"));
        DetachedProcess::started(child.id(), log).unwrap()
    }

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        command.spawn().unwrap()
    }

    #[tokio::test]
    async fn a_script_that_becomes_another_program_is_still_the_process() {
        let mut child = shell("read line; exec sleep 600");
        let mut process = started(&child);
        let script = process.identity().unwrap();
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        while script.verify().is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(process.wait().now_or_never().is_none(), "it runs");
        let program = process.identity().unwrap();
        program.verify().unwrap();
        assert_ne!(program.executable, script.executable);
        process.signal(Signal::TERM).unwrap();
        let reason = process.wait().await;
        assert!(matches!(reason, ExitReason::Unobserved(_)), "{reason:?}");
        // `wait` has reaped it.
        child.wait().unwrap_err();
    }

    #[tokio::test]
    async fn a_signal_does_not_reach_a_process_that_reuses_the_id() {
        let (mut child, mut stranger) = (shell("read line"), shell("read line"));
        let mut process = started(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        // Simulates a reused process id that the checks did not detect.
        process.identity = Identity::of(stranger.id()).unwrap();
        process.signal(Signal::TERM).unwrap();
        process.signal(Signal::KILL).unwrap();
        drop(process);
        stranger.stdin.take().unwrap().write_all(b"end\n").unwrap();
        assert!(stranger.wait().unwrap().success(), "it was signalled");
    }

    #[test]
    fn a_process_that_cannot_be_inspected_is_killed() {
        let mut child = shell("read line");
        let reason = kill_uninspectable(child.id());
        assert!(reason.contains("-envoy-state-dir"), "{reason}");
        assert!(!child.wait().unwrap().success());
    }
}
