//! `lock`: runs a program while holding a lock.

mod held;

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::{ArgAction, Args};
use tokio::process::Command;

use self::held::{Lock, Released};
use crate::input;
use crate::local_agent::node_name;
use crate::output::{line, warn};
use crate::server_api::ApiFlags;
use crate::signals::Interrupt;
use crate::subprocess;

#[derive(Args)]
pub(crate) struct Options {
    /// Exit with code 2 if the program fails
    #[arg(long)]
    child_exit_code: bool,
    /// Maximum number of holders
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    n: u32,
    /// Retries against an unresponsive server before the lock counts as lost
    #[arg(long, default_value_t = 3, value_name = "NUMBER")]
    monitor_retry: u32,
    /// Name of the session
    #[arg(long, default_value = "")]
    name: String,
    /// Pass standard input to the program
    #[arg(long)]
    pass_stdin: bool,
    /// Run the program with a shell
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_name = "BOOL")]
    shell: bool,
    /// How long to wait for the lock [default: unlimited]
    #[arg(long, alias = "try", value_parser = input::duration, value_name = "DURATION")]
    timeout: Option<Duration>,
    /// Print progress
    #[arg(long)]
    verbose: bool,
    /// PREFIX of the lock's keys, PROGRAM, and its arguments
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// How the program ended.
enum End {
    Finished { well: bool },
    Lost,
    Interrupted,
}

/// Acquires the lock, runs the program, and releases the lock.
///
/// # Errors
///
/// If the lock cannot be acquired.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    ensure!(options.n > 0, "Lock holder limit must be positive");
    let [prefix, program @ ..] = options.arguments.as_slice() else {
        anyhow::bail!("Key prefix and child command must be specified");
    };
    ensure!(
        !program.is_empty(),
        "Key prefix and child command must be specified"
    );
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty()).collect();
    let prefix = &parts.join("/");
    ensure!(
        options.n == 1 || !prefix.is_empty(),
        "Lock setup failed: missing prefix"
    );
    let name = match options.name.as_str() {
        "" => format!("Consul lock for '{}' at '{prefix}'", program.join(" ")),
        name => name.to_owned(),
    };
    let mut interrupt = Interrupt::listen()?;
    let api = options.api.connect()?;
    node_name(&api).await?;
    let say = |text: &str| match options.verbose {
        true => line(text),
        false => Ok(()),
    };
    match options.n {
        1 => say(&format!("Setting up lock at path: {prefix}/.lock"))?,
        n => say(&format!(
            "Setting up semaphore (limit {n}) at prefix: {prefix}"
        ))?,
    }
    say("Attempting lock acquisition")?;
    let failed = "Lock acquisition failed";
    let lock = Lock::new(&api, prefix, options.n, &name)
        .await
        .context(failed)?;
    let acquired = tokio::select! {
        acquired = lock.acquire(options.timeout) => acquired.context(failed),
        () = interrupt.wait() => Ok(false),
    };
    if !matches!(acquired, Ok(true)) {
        lock.abandon().await;
        acquired?;
        anyhow::bail!("Shutdown triggered or timeout during lock acquisition");
    }
    say("Starting handler")?;
    let end = guarded(&options, program, &lock, &mut interrupt).await;
    match &end {
        Ok(End::Finished { .. }) => say("Child terminated, releasing lock")?,
        Ok(End::Lost) => say("Lock lost, killing child")?,
        Ok(End::Interrupted) => say("Shutdown triggered, killing child")?,
        Err(error) => warn(&format!("{error:#}")),
    }
    match lock.release().await.context("Lock release failed")? {
        Released::Removed => say("Cleanup succeeded")?,
        Released::InUse => say("Cleanup aborted, lock in use")?,
    }
    match end {
        Ok(End::Finished { well: true }) => Ok(ExitCode::SUCCESS),
        Ok(End::Finished { well: false }) | Err(_) if options.child_exit_code => {
            Ok(ExitCode::from(2))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Runs the program while the lock is held.
async fn guarded(
    options: &Options,
    program: &[String],
    lock: &Lock<'_>,
    interrupt: &mut Interrupt,
) -> anyhow::Result<End> {
    let mut command: Command = subprocess::command(program, options.shell)?;
    command.env("CONSUL_LOCK_HELD", "true").kill_on_drop(true);
    if !options.pass_stdin {
        command.stdin(Stdio::null());
    }
    let mut child = command.spawn().context("Error starting handler")?;
    let end = tokio::select! {
        status = child.wait() => {
            let status = status.context("Error running handler")?;
            if !status.success() {
                warn(&format!("Error running handler: {}", subprocess::shown(status)));
            }
            return Ok(End::Finished { well: status.success() });
        }
        () = lock.lost(options.monitor_retry) => End::Lost,
        () = interrupt.wait() => End::Interrupted,
    };
    subprocess::end(&mut child).await?;
    Ok(end)
}
