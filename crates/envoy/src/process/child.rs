//! Starting Envoy and waiting for it. Dropping an [`EnvoyProcess`] that still runs kills it, so
//! that no way out leaves an orphan.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::document::Document;
use super::exit::{ExitReason, OomCounter};
use super::words::{self, PassedOn};
use super::{Launch, Restart, SECRET_VARIABLES, SpawnError, arguments, parent_death};
use crate::executable::refuse_foreign;

/// A started Envoy, leader of its own process group.
#[derive(Debug)]
pub struct EnvoyProcess {
    child: Child,
    pid: Pid,
    oom: OomCounter,
    /// Where it is listened to.
    errors: Option<PassedOn>,
    ended: Option<ExitReason>,
    killed: bool,
}

impl Launch {
    /// Whether the user's arguments can be combined with the bootstrap document.
    ///
    /// # Errors
    /// When an extra argument contradicts the document.
    pub fn check(&self) -> Result<(), SpawnError> {
        let document = Document::new(&self.bootstrap)?;
        arguments::arguments(self, &Restart::Disabled, &document).map(drop)
    }

    /// Starts Envoy at its place in a hot restart, with standard input closed and output
    /// inherited. Where standard error is `quoted`, a thread passes it on, so that
    /// [`EnvoyProcess::last_words`] knows what was said.
    ///
    /// Call it on a thread that lives as long as the process: when that thread ends, however it
    /// ends, the kernel ends Envoy.
    ///
    /// # Errors
    /// When the program cannot be started, or an extra argument contradicts the bootstrap
    /// document.
    pub fn spawn(&self, restart: &Restart, quoted: bool) -> Result<EnvoyProcess, SpawnError> {
        let document = Document::new(&self.bootstrap)?;
        let mut command = self.command(restart, &document)?;
        command.process_group(0);
        parent_death::tie(&mut command, Signal::SIGKILL, document.inherited());
        let oom = OomCounter::read();
        let mut spawn = || {
            let errors = match quoted {
                true => {
                    let (errors, writer) = io::pipe()?;
                    command.stderr(writer);
                    Some(PassedOn::start(errors)?)
                }
                false => None,
            };
            Ok((command.spawn()?, errors))
        };
        let (child, errors) = spawn().map_err(|source| self.not_started(source))?;
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
            errors,
            ended: None,
            killed: false,
        })
    }

    /// Starts Envoy so that it lives on when this program ends, in a session of its own, and
    /// answers its process id. It is nobody's child here, so that it can be neither waited for nor
    /// asked how it ended. What it writes is appended to `log`; without one it goes where this
    /// program's output goes.
    ///
    /// # Errors
    /// As for [`Launch::spawn`], and when `log` cannot be written.
    pub fn spawn_detached(&self, restart: &Restart, log: Option<&Path>) -> Result<u32, SpawnError> {
        let document = Document::new(&self.bootstrap)?;
        let mut command = self.command(restart, &document)?;
        if let Some(path) = log {
            let file = open_log(path).and_then(|file| Ok((file.try_clone()?, file)));
            let (output, errors) = file.map_err(|error| {
                SpawnError(format!("Envoy's log {path:?} cannot be written: {error}"))
            })?;
            command.stdout(output).stderr(errors);
        }
        let mut spawn = || {
            let (mut reader, writer) = io::pipe()?;
            parent_death::detach(&mut command, document.inherited(), writer.as_fd());
            // Only the process in between is a child; it has ended by now.
            drop(command.spawn()?);
            drop(writer);
            let mut pid = [0; size_of::<u32>()];
            reader.read_exact(&mut pid)?;
            Ok(u32::from_ne_bytes(pid))
        };
        let pid = spawn().map_err(|source| self.not_started(source))?;
        tracing::debug!(pid, executable = %self.executable.display(), "started envoy, detached");
        Ok(pid)
    }

    fn not_started(&self, error: io::Error) -> SpawnError {
        let (executable, advice) = (&self.executable, advice(&error));
        SpawnError(format!(
            "cannot start Envoy ({executable:?}): {error}{advice}"
        ))
    }

    /// Has Envoy check the bootstrap document without serving it; 30 s at most.
    ///
    /// # Errors
    /// When Envoy refuses it, and when that could not be found out.
    pub(crate) async fn validate(&self) -> Result<(), ValidationError> {
        let unknown = |error: &dyn std::fmt::Display| ValidationError::Unknown(error.to_string());
        let document = Document::new(&self.bootstrap).map_err(|error| unknown(&error))?;
        let command = self.command(&Restart::Disabled, &document);
        let mut command = command.map_err(|error| unknown(&error))?;
        command
            .args(["--mode", "validate"])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0);
        parent_death::tie(&mut command, Signal::SIGKILL, document.inherited());
        let output = run_short(&mut command)
            .await
            .map_err(|source| match source.kind() {
                io::ErrorKind::TimedOut => unknown(&"Envoy took too long"),
                _ => unknown(&self.not_started(source)),
            })?;
        match output.status.code() {
            Some(0) => Ok(()),
            Some(_) => Err(ValidationError::Refused(complaint(&output))),
            None => Err(unknown(&output.status)),
        }
    }

    fn command(&self, restart: &Restart, document: &Document) -> Result<Command, SpawnError> {
        refuse_foreign(&self.executable).map_err(|source| self.not_started(source))?;
        let mut command = Command::new(&self.executable);
        command.args(arguments::arguments(self, restart, document)?);
        for name in SECRET_VARIABLES {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        Ok(command)
    }
}

/// Only its owner may read what Envoy writes.
fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

/// Why a bootstrap document was not found to be good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValidationError {
    /// Envoy refuses it, in these words.
    #[error("{0}")]
    Refused(String),
    /// Envoy did not say, for this reason.
    #[error("the bootstrap document could not be checked: {0}")]
    Unknown(String),
}

/// How long a run of Envoy may take that only answers a question.
const VALIDATION_LIMIT: Duration = Duration::from_secs(30);

/// Runs a command that ends by itself and says little.
pub(crate) async fn run_short(command: &mut Command) -> io::Result<Output> {
    timeout(VALIDATION_LIMIT, command.output())
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// How a critical line looks in either format.
const CRITICAL: [&str; 2] = ["[critical]", r#""@level":"critical""#];

/// The last line that says something is critical, else the last line of all.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let mut lines = text.lines().filter(|line| !line.trim().is_empty()).rev();
    let critical = lines
        .clone()
        .find(|line| CRITICAL.iter().any(|mark| line.contains(mark)));
    match critical.or_else(|| lines.next()) {
        Some(line) => line.chars().take(words::LENGTH).collect(),
        None => format!("the check ended with {}", output.status),
    }
}

impl EnvoyProcess {
    /// The process id, also the id of its group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Waits for the end of the process. Cancel safe; later calls answer the same at once.
    pub async fn wait(&mut self) -> ExitReason {
        let reason = match &self.ended {
            Some(reason) => reason.clone(),
            None => {
                let reason = match self.child.wait().await {
                    Ok(status) => ExitReason::from_status(status, self.killed, &self.oom),
                    Err(error) => ExitReason::Unobserved(error.to_string()),
                };
                self.ended.insert(reason).clone()
            }
        };
        if let Some(errors) = &mut self.errors {
            errors.all().await;
        }
        reason
    }

    /// The last line that it wrote to standard error and that may tell what is wrong, where that
    /// is passed on.
    pub fn last_words(&self) -> Option<String> {
        self.errors.as_ref()?.last_words()
    }

    /// Sends SIGTERM to the process group, upon which Envoy ends at once with code 0.
    ///
    /// # Errors
    /// When the operating system refuses. A group that is gone already is no error.
    pub fn terminate(&mut self) -> io::Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// Sends SIGKILL to the process group. [`EnvoyProcess::wait`] returns when it has worked.
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
