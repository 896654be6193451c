//! Runs child programs of commands, with or without a shell, and stops them when this program gets a
//! signal.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::server_api::environment;

/// How long a program may take to stop after SIGTERM.
const GRACE: Duration = Duration::from_secs(5);

/// A command for these words, either executed directly or joined for a shell.
///
/// # Errors
///
/// If there are none.
pub(crate) fn command(words: &[String], shell: bool) -> anyhow::Result<Command> {
    ensure!(!words.is_empty(), "need an executable to run");
    if !shell {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        return Ok(command);
    }
    let shell = environment("SHELL").unwrap_or_else(|| "/bin/sh".to_owned());
    let mut command = Command::new(shell);
    command.arg("-c").arg(words.join(" "));
    Ok(command)
}

/// Runs a program to completion with an input; `None` if `stop` completed first, which stops it.
///
/// # Errors
///
/// If it cannot be started.
pub(crate) async fn run(
    mut command: Command,
    input: &[u8],
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Option<ExitStatus>> {
    command.stdin(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("Error starting handler")?;
    let stdin = child.stdin.take();
    let ended = async {
        let write = async {
            if let Some(mut stdin) = stdin {
                // The program may not read its input.
                let _ = stdin.write_all(input).await;
            }
        };
        tokio::join!(write, child.wait()).1
    };
    let status = tokio::select! {
        status = ended => Some(status),
        () = stop => None,
    };
    match status {
        Some(status) => Ok(Some(status.context("Error executing handler")?)),
        None => end(&mut child).await.map(|_| None),
    }
}

/// Stops a program with SIGTERM, and kills it if it does not stop.
///
/// # Errors
///
/// If the system refuses.
pub(crate) async fn end(child: &mut Child) -> anyhow::Result<ExitStatus> {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // It may have ended already.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if let Ok(status) = tokio::time::timeout(GRACE, child.wait()).await {
        return Ok(status?);
    }
    child.start_kill()?;
    Ok(child.wait().await?)
}

/// Formats an exit status like Go.
pub(crate) fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal: {signal}"),
        (None, None) => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_shell_gets_all_words() {
        let words = [
            "read x; test \"$x\" = given &&".to_owned(),
            "exit 7".to_owned(),
        ];
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(words.join(" "));
        let status = run(command, b"given\n", std::future::pending())
            .await
            .unwrap();
        assert_eq!(status.unwrap().code(), Some(7));
    }

    #[tokio::test]
    async fn a_program_is_stopped_with_sigterm() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let status = end(&mut child).await.unwrap();
        assert!(!status.success());
    }
}
