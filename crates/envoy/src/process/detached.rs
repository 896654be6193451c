//! A process that lives on when its supervisor ends, started by this one or by another. It is not a
//! child, so that its end is found by looking for it, and how it ended remains unknown.

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
use super::launch::{Launch, Place, SpawnError};
use super::parent_death;
use super::running::{Process, gone_is_fine, number};
use super::words::LogTail;

/// How often is looked whether a process still runs.
const POLL: Duration = Duration::from_millis(200);
/// How often once it was asked to end.
const FAST_POLL: Duration = Duration::from_millis(20);

/// A process that was found by its identity.
#[derive(Debug)]
pub(crate) struct DetachedProcess {
    identity: Identity,
    /// The process itself, whoever has its number by now; kernels before 5.3 do not have this.
    handle: Option<OwnedFd>,
    poll: Duration,
    /// What it writes.
    log: LogTail,
    /// Ends it when dropped, as any supervisor does.
    held: bool,
}

impl Launch {
    /// Starts Envoy so that it lives on when this program ends, in a session of its own. What it
    /// writes is appended to `log`.
    ///
    /// # Errors
    /// As for [`Launch::spawn`], and when `log` cannot be written, or Envoy has ended already or must
    /// not be looked at. The latter is ended: nobody could supervise it.
    pub(crate) fn spawn_detached(
        &self,
        place: Option<&Place>,
        log: &Path,
    ) -> Result<Box<dyn Process>, SpawnError> {
        let (mut command, inherited) = self.command(place)?;
        let tail = LogTail::from_now(log);
        // Only its owner may read what Envoy writes.
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
            // Only the process in between is a child; it has ended by now.
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
    /// The process, if it still runs; it writes to `log`.
    ///
    /// # Errors
    /// Says in what a process of the same number differs.
    pub(crate) fn find(identity: Identity, log: &Path) -> Result<Self, String> {
        // What is verified after that is what the handle is of: it is the older of the two.
        let handle = handle(identity.pid);
        identity.verify()?;
        Ok(Self::new(identity, handle, LogTail::from_now(log)))
    }

    /// The process that was just started under this number.
    fn started(pid: u32, log: LogTail) -> Result<Self, String> {
        let handle = handle(pid);
        match Identity::of(pid) {
            Some(identity) => Ok(Self::new(identity, handle, log)),
            None if start_time(pid).is_some() => Err(give_up(pid)),
            None => {
                let words = log.last_words().map(|words| format!(": {words}"));
                let words = words.unwrap_or_default();
                Err(format!("envoy ended at once; its log says why{words}"))
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

/// A handle of the process that has this number now.
fn handle(pid: u32) -> Option<OwnedFd> {
    pidfd_open(number(pid)?, PidfdFlags::empty()).ok()
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = number(pid).ok_or(io::ErrorKind::InvalidInput)?;
    gone_is_fine(kill_process(pid, signal))
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

impl Process for DetachedProcess {
    fn pid(&self) -> u32 {
        self.identity.pid
    }

    /// It may run another program than at first.
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
            // Where this program collects orphans, nobody else would.
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
            Some(handle) => gone_is_fine(pidfd_send_signal(handle, signal)),
            // The best that can be done: it is looked at directly before.
            None if self.identity.lives().is_err() => Ok(()),
            None => send(self.identity.pid, signal),
        }
    }

    fn last_words(&self) -> Option<String> {
        self.log.last_words()
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
        // It was collected with that.
        child.wait().unwrap_err();
    }

    #[tokio::test]
    async fn a_signal_reaches_nobody_who_got_the_number_meanwhile() {
        let (mut child, mut stranger) = (shell("read line"), shell("read line"));
        let mut process = started(&child);
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
