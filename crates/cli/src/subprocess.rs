//! Programs that commands run: with a shell or without, ended with this program's own signals.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::server_api::environment;
use crate::signals::Interrupt;

/// How long a program that is asked to end may take.
const GRACE: Duration = Duration::from_secs(5);

/// A command for these words: as they are, or joined for a shell.
///
/// # Errors
///
/// When there are none.
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

/// Runs a program with an input to its end; `None` when a signal for this program came first, and has
/// ended it.
///
/// # Errors
///
/// When it cannot be started.
pub(crate) async fn run(
    mut command: Command,
    input: &[u8],
    interrupt: &mut Interrupt,
) -> anyhow::Result<Option<ExitStatus>> {
    command.stdin(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("Error starting handler")?;
    let stdin = child.stdin.take();
    let ended = async {
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program need not read its input.
                let _ = stdin.write_all(input).await;
            }
        };
        tokio::join!(write, child.wait()).1
    };
    let status = tokio::select! {
        status = ended => Some(status),
        () = interrupt.wait() => None,
    };
    match status {
        Some(status) => Ok(Some(status.context("Error executing handler")?)),
        None => end(&mut child).await.map(|_| None),
    }
}

/// Asks a program to end, and ends it when it does not.
///
/// # Errors
///
/// When the system refuses.
pub(crate) async fn end(child: &mut Child) -> anyhow::Result<ExitStatus> {
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        // It may have ended by itself.
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
    if let Ok(status) = tokio::time::timeout(GRACE, child.wait()).await {
        return Ok(status?);
    }
    child.start_kill()?;
    Ok(child.wait().await?)
}

/// How a program ended, in the words of Go.
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
        let mut interrupt = Interrupt::listen().unwrap();
        let words = [
            "read x; test \"$x\" = given &&".to_owned(),
            "exit 7".to_owned(),
        ];
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(words.join(" "));
        let status = run(command, b"given\n", &mut interrupt).await.unwrap();
        assert_eq!(status.unwrap().code(), Some(7));
    }

    #[tokio::test]
    async fn a_program_is_asked_to_end() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let status = end(&mut child).await.unwrap();
        assert!(!status.success());
    }
}
