//! Starting Envoy and waiting for it. Dropping an [`EnvoyProcess`] that still runs kills it, so
//! that no way out leaves an orphan.

use std::io;
use std::process::Stdio;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};

use super::document::Document;
use super::exit::{ExitReason, OomCounter};
use super::{Launch, SECRET_VARIABLES, SpawnError, arguments, parent_death};

/// A started Envoy, leader of its own process group.
#[derive(Debug)]
pub struct EnvoyProcess {
    child: Child,
    pid: Pid,
    oom: OomCounter,
    ended: Option<ExitReason>,
    killed: bool,
}

impl Launch {
    /// Starts Envoy with standard input closed and output inherited.
    ///
    /// Call it on a thread that lives as long as the process: when that thread ends, however it
    /// ends, the kernel kills Envoy.
    ///
    /// # Errors
    /// When the program cannot be started, or an extra argument contradicts the bootstrap
    /// document.
    pub fn spawn(&self) -> Result<EnvoyProcess, SpawnError> {
        let document = Document::new(&self.bootstrap)?;
        let mut command = Command::new(&self.executable);
        command.args(arguments::arguments(self, &document)?);
        for name in SECRET_VARIABLES
            .into_iter()
            .chain(self.secret_variables.iter().map(String::as_str))
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null()).process_group(0);
        parent_death::tie(&mut command, document.inherited());
        let oom = OomCounter::read();
        let child = command.spawn().map_err(|source| SpawnError::Start {
            executable: self.executable.clone(),
            advice: advice(&source),
            source,
        })?;
        let pid = child
            .id()
            .and_then(|pid| i32::try_from(pid).ok())
            .map(Pid::from_raw);
        let Some(pid) = pid else {
            // Only a child that was already waited for has no id, and nobody has.
            unreachable!("a child that was just started has a process id");
        };
        tracing::debug!(%pid, executable = %self.executable.display(), "started envoy");
        Ok(EnvoyProcess {
            child,
            pid,
            oom,
            ended: None,
            killed: false,
        })
    }
}

impl EnvoyProcess {
    /// The process id, also the id of its group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Waits for the end of the process. Cancel safe; later calls answer the same at once.
    pub async fn wait(&mut self) -> ExitReason {
        if let Some(reason) = &self.ended {
            return reason.clone();
        }
        let reason = match self.child.wait().await {
            Ok(status) => ExitReason::from_status(status, self.killed, &self.oom),
            Err(error) => ExitReason::Unobserved(error.to_string()),
        };
        self.ended = Some(reason.clone());
        reason
    }

    /// Sends SIGTERM to the process group, upon which Envoy ends at once with code 0.
    ///
    /// # Errors
    /// When the operating system refuses. A group that is gone already is no error.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends SIGKILL to the process group. [`EnvoyProcess::wait`] tells when it has worked.
    ///
    /// # Errors
    /// When the operating system refuses. A group that is gone already is no error.
    pub fn kill(&mut self) -> io::Result<()> {
        self.killed = true;
        self.signal(Signal::SIGKILL)
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // After the end of the process its number may belong to another.
        if self.ended.is_some() {
            return Ok(());
        }
        match killpg(self.pid, signal) {
            Ok(()) | Err(Errno::ESRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for EnvoyProcess {
    fn drop(&mut self) {
        if self.ended.is_none()
            && let Err(error) = self.kill()
        {
            tracing::warn!(pid = %self.pid, %error, "envoy could not be killed");
        }
    }
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::ENOENT) => "; see -envoy-executable-path",
        Some(Errno::EACCES) => {
            "; the file has to be executable for this user, see -envoy-executable-path"
        }
        Some(Errno::ENOEXEC) => {
            "; the file is not a program for this machine, see -envoy-executable-path"
        }
        Some(Errno::EPERM) => {
            "; a program with file capabilities needs them in the container's bounding set"
        }
        Some(Errno::E2BIG) => "; arguments and environment together are too large",
        _ => "",
    }
}
