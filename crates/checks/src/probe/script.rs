//! Programs as checks, as Nagios' plugins are: exit code 0 passes, 1 warns, everything else is
//! critical; what they print is the output.
//!
//! A program leads a process group of its own, which ends with the run, so that nothing that it has
//! started stays behind.

use std::collections::VecDeque;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use legate_model::CheckStatus;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::Found;

/// What is read at one time.
const CHUNK: usize = 4096;

/// Runs a program; `size` bytes of the end of what it prints are kept.
pub(super) async fn run(arguments: &[String], limit: Duration, size: usize) -> Found {
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
        Ok(Ok(code)) => {
            let status = match code {
                Some(0) => CheckStatus::Passing,
                Some(1) => CheckStatus::Warning,
                _ => CheckStatus::Critical,
            };
            (status, output.text())
        }
        Ok(Err(error)) => (CheckStatus::Critical, error.to_string()),
        Err(_) => {
            // No two runs of a check at one time: it is killed, and this takes no time.
            let _ = child.wait().await;
            let text = format!("Timed out ({limit:?}) running check\n\n{}", output.text());
            (CheckStatus::Critical, text.trim_end().to_owned())
        }
    }
}

fn start(arguments: &[String]) -> io::Result<(Child, Group)> {
    let (program, arguments) = arguments
        .split_first()
        .ok_or_else(|| io::Error::other("there is no program to run"))?;
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

/// Reads until the program, and all that write to its pipes, have ended.
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

/// What comes next; a pipe that has ended is taken away, and one that is away says nothing.
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

/// The process group of a program; dropping it ends all of it.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // Mostly it has ended already.
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
}

/// The end of what a program prints.
struct Output {
    kept: VecDeque<u8>,
    size: usize,
    whole: u64,
}

impl Output {
    fn new(size: usize) -> Self {
        Self {
            kept: VecDeque::new(),
            size,
            whole: 0,
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.whole += bytes.len() as u64;
        let bytes = &bytes[bytes.len().saturating_sub(self.size)..];
        let over = (self.kept.len() + bytes.len()).saturating_sub(self.size);
        self.kept.drain(..over);
        self.kept.extend(bytes);
    }

    fn text(mut self) -> String {
        let kept = self.kept.len();
        let text = String::from_utf8_lossy(self.kept.make_contiguous()).into_owned();
        if self.whole > kept as u64 {
            return format!("Captured {kept} of {} bytes\n...\n{text}", self.whole);
        }
        text
    }
}
