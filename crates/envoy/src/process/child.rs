//! Starts Envoy and waits for it. Dropping an [`EnvoyProcess`] that is still running kills it, so
//! that no code path leaves an orphan.

use std::fs::File;
use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use nix::errno::Errno;
use nix::sys::signal::Signal as NixSignal;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::exit::{ExitReason, oom_kills};
use super::identity::Identity;
use super::launch::{HotRestartRole, Launch, SpawnError};
use super::messages::{self, ForwardedStderr};
use super::running::{Process, ignore_missing, number};
use super::{arguments, parent_death};
use crate::executable::reject_foreign;

/// Environment variables with secrets of the dataplane, which are never passed to Envoy.
const SECRET_VARIABLES: [&str; 2] = [
    "DP_CREDENTIAL_STATIC_TOKEN",
    "DP_CREDENTIAL_LOGIN_BEARER_TOKEN",
];

/// A running Envoy, leader of its own process group.
#[derive(Debug)]
struct EnvoyProcess {
    child: Child,
    pid: Pid,
    identity: Option<Identity>,
    /// Value of [`oom_kills`] at its start.
    oom_kills: Option<u64>,
    /// Its standard error, if it is captured.
    errors: Option<ForwardedStderr>,
    ended: bool,
    killed: bool,
}

impl Launch {
    /// Checks that the user's arguments can be combined with the bootstrap document.
    ///
    /// # Errors
    /// When an extra argument conflicts with the document.
    pub fn check(&self) -> Result<(), SpawnError> {
        arguments::arguments(self, None).map(drop)
    }

    /// Starts Envoy, as a member of a hot restart family if it has a `place`. Standard input is
    /// closed and output is inherited. If standard error is `quoted`, a thread forwards it and
    /// keeps the last message for [`Process::last_message`].
    ///
    /// Call it on a thread that lives as long as the process: the kernel kills Envoy when that
    /// thread ends, for whatever reason.
    ///
    /// # Errors
    /// When the program cannot be started, or an extra argument conflicts with the bootstrap
    /// document.
    pub fn spawn(
        &self,
        place: Option<&HotRestartRole>,
        quoted: bool,
    ) -> Result<Box<dyn Process>, SpawnError> {
        let (mut command, file) = self.command(place)?;
        command.process_group(0);
        parent_death::tie(&mut command, NixSignal::SIGKILL, file.as_ref());
        let oom_kills = oom_kills();
        let mut spawn = || {
            let errors = quoted
                .then(|| ForwardedStderr::of(&mut command))
                .transpose()?;
            Ok((command.spawn()?, errors))
        };
        let (child, errors) = spawn().map_err(|source| self.not_started(source))?;
        let pid = child.id().and_then(number);
        let pid = pid.expect("a child that was just started has a process id");
        Ok(Box::new(EnvoyProcess {
            child,
            pid,
            identity: Identity::of(pid.as_raw_pid().unsigned_abs()),
            oom_kills,
            errors,
            ended: false,
            killed: false,
        }))
    }

    /// The command, and the file that it inherits.
    pub(super) fn command(
        &self,
        place: Option<&HotRestartRole>,
    ) -> Result<(Command, Option<File>), SpawnError> {
        let (arguments, file) = arguments::arguments(self, place)?;
        reject_foreign(&self.executable).map_err(|source| self.not_started(source))?;
        let mut command = Command::new(&self.executable);
        command.args(arguments);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        Ok((command, file))
    }

    pub(super) fn not_started(&self, error: io::Error) -> SpawnError {
        let (executable, advice) = (&self.executable, advice(&error));
        SpawnError(format!(
            "cannot start Envoy ({executable:?}): {error}{advice}"
        ))
    }

    /// Makes Envoy validate the bootstrap document without serving it; takes at most 30 s.
    ///
    /// # Errors
    /// When Envoy rejects it, or the validation could not be run.
    pub(crate) async fn validate(&self) -> Result<(), ValidationError> {
        let (mut command, file) = self.command(None)?;
        command
            .args(["--mode", "validate"])
            .kill_on_drop(true)
            .process_group(0);
        parent_death::tie(&mut command, NixSignal::SIGKILL, file.as_ref());
        let output = run_short(&mut command)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::TimedOut => SpawnError("Envoy took too long".to_owned()),
                _ => self.not_started(source),
            })?;
        match output.status.code() {
            Some(0) => Ok(()),
            Some(_) => {
                let message = messages::refusal(&String::from_utf8_lossy(&output.stderr));
                let silent = || format!("the check ended with {}", output.status);
                Err(ValidationError::Refused(message.unwrap_or_else(silent)))
            }
            None => Err(SpawnError(output.status.to_string()).into()),
        }
    }
}

/// Why a bootstrap document is not known to be valid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValidationError {
    /// Envoy rejects it with this message.
    #[error("{0}")]
    Refused(String),
    /// The validation could not be run, for this reason.
    #[error("the bootstrap document could not be checked: {0}")]
    Unknown(#[from] SpawnError),
}

/// Time limit for short runs of Envoy, such as a validation.
const VALIDATION_LIMIT: Duration = Duration::from_secs(30);

/// Runs a command that ends by itself and has little output.
pub(crate) async fn run_short(command: &mut Command) -> io::Result<Output> {
    timeout(VALIDATION_LIMIT, command.output())
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

impl Process for EnvoyProcess {
    /// The process id, which is also the id of its group.
    fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    fn identity(&self) -> Option<Identity> {
        self.identity.clone()
    }

    fn wait(&mut self) -> BoxFuture<'_, ExitReason> {
        async {
            let reason = match self.child.wait().await {
                Ok(status) => ExitReason::from_status(status, self.killed, self.oom_kills),
                Err(error) => ExitReason::Unobserved(error.to_string()),
            };
            self.ended = true;
            if let Some(errors) = &mut self.errors {
                errors.all().await;
            }
            reason
        }
        .boxed()
    }

    /// Signals the process group. On SIGTERM, Envoy exits at once with code 0.
    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        // After the process has ended its id may be reused.
        if self.ended {
            return Ok(());
        }
        self.killed |= signal == Signal::KILL;
        ignore_missing(kill_process_group(self.pid, signal))
    }

    fn last_message(&self) -> Option<String> {
        self.errors.as_ref()?.last_message()
    }

    /// A child cannot outlive this program, so nothing is detached.
    fn detach(self: Box<Self>) {}
}

impl Drop for EnvoyProcess {
    fn drop(&mut self) {
        if let Err(error) = self.signal(Signal::KILL) {
            tracing::warn!(pid = self.pid(), %error, "envoy could not be killed");
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
