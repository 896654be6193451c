//! Programs as checks, in the style of Nagios plugins: exit code 0 is passing, 1 is warning, all
//! others are critical. The check's output is what they print.
//!
//! Each program runs in its own process group, which is killed at the end of the run, so that no
//! child processes remain.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use legate_model::CheckStatus;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::output::{Output, RunResult};

/// Size of the read buffer.
const CHUNK: usize = 4096;

/// Runs a program. The last `size` bytes of its output are retained.
pub(super) async fn run(arguments: &[String], limit: Duration, size: usize) -> RunResult {
    let started = start(arguments);
    let (mut child, group) = match started {
        Ok(started) => started,
        Err(error) => {
            let program = arguments.first().map_or("", String::as_str);
            return (CheckStatus::Critical, format!("{program}: {error}"));
        }
    };
    let mut output = Output::new(size);
    let ended = timeout(limit, finish(&mut child, &mut output)).await;
    drop(group);
    match ended {
        Ok(Ok(code)) => (status(code), output.text()),
        Ok(Err(error)) => (CheckStatus::Critical, error.to_string()),
        Err(_) => {
            // Wait for the killed process, so that runs of a check never overlap.
            let _ = child.wait().await;
            output.timed_out(limit)
        }
    }
}

/// The status for an exit code; `None` means that a signal ended the program.
pub(super) fn status(code: Option<i32>) -> CheckStatus {
    match code {
        Some(0) => CheckStatus::Passing,
        Some(1) => CheckStatus::Warning,
        _ => CheckStatus::Critical,
    }
}

fn start(arguments: &[String]) -> io::Result<(Child, Group)> {
    let (program, arguments) = arguments
        .split_first()
        .ok_or_else(|| io::Error::other("no program is set"))?;
    let child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    Ok((child, Group(group.map(Pid::from_raw))))
}

/// Reads until the program, and all processes that write to its pipes, have ended.
async fn finish(child: &mut Child, output: &mut Output) -> io::Result<Option<i32>> {
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let [mut first, mut second] = [[0; CHUNK]; 2];
    while stdout.is_some() || stderr.is_some() {
        tokio::select! {
            read = some(&mut stdout, &mut first) => output.add(&first[..read?]),
            read = some(&mut stderr, &mut second) => output.add(&second[..read?]),
        }
    }
    Ok(child.wait().await?.code())
}

/// Reads the next bytes. A pipe at its end is removed, and reading from a removed pipe never
/// completes.
async fn some<R: AsyncRead + Unpin>(from: &mut Option<R>, into: &mut [u8]) -> io::Result<usize> {
    let Some(pipe) = from else {
        return std::future::pending().await;
    };
    let read = pipe.read(into).await?;
    if read == 0 {
        *from = None;
    }
    Ok(read)
}

/// The process group of a program. Dropping it kills the group.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Usually it has ended already.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}
