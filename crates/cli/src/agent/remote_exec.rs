//! Commands of `consul exec` on this agent's node, if `disable_remote_exec = false`.
//!
//! An event names a job in the key-value store. The agent acknowledges the job, runs it, and writes its
//! output and its exit code below the job, as Consul's agents do. Whoever may fire the event `_rexec` and write
//! these keys can run any command as the agent's user.

use std::collections::VecDeque;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use legate_model::Secret;
use legate_runtime::{CancellationToken, Spawner};
use legate_server::ServerConfig;
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::process::Command;
use tokio::time::{Instant, timeout_at};

use super::watches::own_address;
use crate::output::text;
use crate::server_api::{Api, ApiFlags, encoded_path};
use crate::subprocess;
use crate::watch::{Changes, Query};

/// The name of the event.
pub(crate) const EVENT: &str = "_rexec";

/// The maximum size of one key with output, in bytes, and how long output is collected before it is written.
const OUTPUT_SIZE: usize = 4096;
const OUTPUT_DELAY: Duration = Duration::from_millis(500);

/// The exit code of a command that could not be run, and of one that a signal ended.
const NOT_RUN: i32 = 255;
const KILLED: i32 = -1;

/// The most jobs that run at a time; others wait. The most that wait; more are ignored.
const MAX_JOBS: usize = 16;
const MAX_WAITING: usize = 256;

/// The payload of the event.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Announced {
    prefix: String,
    session: String,
}

/// A job in the key-value store.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Job {
    /// A line for the shell.
    command: String,
    /// A program with its arguments, instead.
    args: Vec<String>,
    /// A script in base64, instead.
    script: String,
    /// How long the client waits for output, in nanoseconds.
    wait: u64,
}

/// Starts to wait for jobs. Requires the HTTP API without TLS.
pub(super) fn start(token: Option<Secret>, server: &ServerConfig, spawner: &Spawner) {
    let Some(address) = own_address(server) else {
        return;
    };
    let flags = ApiFlags {
        token,
        ..ApiFlags::default()
    };
    let waiting = wait(flags, address, server.node_name.clone(), spawner.token());
    spawner.spawn("remote execution", waiting);
}

async fn wait(
    flags: ApiFlags,
    address: String,
    node: String,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let api = flags.of_server(&address, false)?;
    let query = Query {
        kind: "event".to_owned(),
        name: EVENT.to_owned(),
        ..Query::default()
    };
    let report = |text: &str| tracing::error!("remote execution: {text}");
    let (mut changes, mut waiting) = (Changes::default(), VecDeque::new());
    let mut running = FuturesUnordered::new();
    loop {
        while running.len() < MAX_JOBS
            && let Some(payload) = waiting.pop_front()
        {
            running.push(job(&api, &node, payload, &stop));
        }
        tokio::select! {
            () = stop.cancelled() => break,
            Some(()) = running.next() => {}
            change = changes.next(&query, &api, report) => {
                let (_, events) = change?;
                let events = events.as_array().into_iter().flatten();
                for event in events {
                    match waiting.len() < MAX_WAITING {
                        true => waiting.push_back(text(event, "Payload").to_owned()),
                        false => tracing::warn!("too many jobs wait: one is ignored"),
                    }
                }
            }
        }
    }
    // The programs are being stopped.
    while running.next().await.is_some() {}
    Ok(())
}

/// Runs the job that an event announces. Failures are logged.
async fn job(api: &Api, node: &str, payload: String, stop: &CancellationToken) {
    let done = async {
        let payload = STANDARD
            .decode(payload)
            .context("the payload is not base64")?;
        let announced: Announced =
            serde_json::from_slice(&payload).context("failed to decode remote exec event")?;
        let run = Run {
            api,
            announced: &announced,
            node,
        };
        let Some(job) = run.job().await? else {
            tracing::debug!("remote exec aborted, job spec missing");
            return Ok(());
        };
        run.write("ack", Vec::new()).await?;
        let code = run.execute(&job, stop).await;
        let code = code.unwrap_or_else(|error| {
            tracing::error!(error = %format!("{error:#}"), "failed to run remote exec");
            NOT_RUN
        });
        run.write("exit", code.to_string().into_bytes()).await
    };
    let done: anyhow::Result<()> = done.await;
    if let Err(error) = done {
        tracing::error!(error = %format!("{error:#}"), "remote execution");
    }
}

/// One job on this node.
struct Run<'r> {
    api: &'r Api,
    announced: &'r Announced,
    node: &'r str,
}

impl Run<'_> {
    fn key(&self, rest: &str) -> String {
        let Announced { prefix, session } = self.announced;
        format!(
            "/v1/kv/{}",
            encoded_path(&format!("{prefix}/{session}/{rest}"))
        )
    }

    async fn job(&self) -> anyhow::Result<Option<Job>> {
        let found = self.api.get(self.key("job")).found().await;
        let found = found.context("failed to get remote exec job")?;
        let Some(found) = found else {
            return Ok(None);
        };
        let value = found.get(0).map_or("", |pair| text(pair, "Value"));
        let value = STANDARD.decode(value)?;
        let job = serde_json::from_slice(&value).context("failed to decode remote exec spec")?;
        Ok(Some(job))
    }

    /// Writes a key of this node, as long as the session of the job exists.
    async fn write(&self, rest: &str, value: Vec<u8>) -> anyhow::Result<()> {
        let key = self.key(&format!("{}/{rest}", self.node));
        let ask = self
            .api
            .put(key)
            .query("acquire", self.announced.session.as_str());
        let written = ask.bytes(value).value().await;
        let written =
            written.with_context(|| format!("failed to write {rest} of a remote exec job"))?;
        ensure!(
            written == Value::Bool(true),
            "failed to write {rest}: the session of the job has ended"
        );
        Ok(())
    }

    /// Runs the command, and returns its exit code.
    async fn execute(&self, job: &Job, stop: &CancellationToken) -> anyhow::Result<i32> {
        let script = STANDARD
            .decode(&job.script)
            .context("the script is not base64")?;
        let file = match script.is_empty() {
            true => None,
            false => Some(script_file(&script).context("failed to make tmp file")?),
        };
        let mut command = match &file {
            Some(file) => {
                let path = file.display().to_string();
                subprocess::command(&[path], true)?
            }
            None if job.args.is_empty() => {
                subprocess::command(std::slice::from_ref(&job.command), true)?
            }
            None => subprocess::command(&job.args, false)?,
        };
        tracing::info!(job = self.announced.session, "remote exec");
        self.stream(&mut command, Duration::from_nanos(job.wait), stop)
            .await
    }

    async fn stream(
        &self,
        command: &mut Command,
        wait: Duration,
        stop: &CancellationToken,
    ) -> anyhow::Result<i32> {
        let (reader, writer) = std::io::pipe()?;
        let mut output = pipe::Receiver::from_owned_fd(reader.into())?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .kill_on_drop(true);
        let mut child = command.spawn().context("failed to start remote exec")?;
        // It holds the other ends of the pipe.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let written = async {
            for number in 0_u32.. {
                let (part, is_last) = collected(&mut output, wait).await?;
                if !part.is_empty() || !is_last {
                    // Without output, it shows the client that the command still runs.
                    self.write(&format!("out/{number:05x}"), part).await?;
                }
                if is_last {
                    break;
                }
            }
            anyhow::Ok(())
        };
        let written = stop.run_until_cancelled(written).await;
        let status = match written {
            Some(Ok(())) => child.wait().await?,
            Some(Err(error)) => {
                subprocess::end(&mut child).await?;
                return Err(error);
            }
            None => subprocess::end(&mut child).await?,
        };
        Ok(status.code().unwrap_or(KILLED))
    }
}

/// The next part of the output, which is empty if there was none for `wait`, and whether it is the last.
async fn collected(
    output: &mut pipe::Receiver,
    wait: Duration,
) -> std::io::Result<(Vec<u8>, bool)> {
    let mut part = Vec::new();
    let mut deadline = Instant::now() + wait.max(OUTPUT_DELAY);
    while part.len() < OUTPUT_SIZE {
        let mut more = vec![0; OUTPUT_SIZE - part.len()];
        let Ok(read) = timeout_at(deadline, output.read(&mut more)).await else {
            break;
        };
        let length = read?;
        if length == 0 {
            return Ok((part, true));
        }
        if part.is_empty() {
            deadline = Instant::now() + OUTPUT_DELAY;
        }
        part.extend_from_slice(&more[..length]);
    }
    Ok((part, false))
}

/// An executable file with the script.
fn script_file(script: &[u8]) -> std::io::Result<tempfile::TempPath> {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt as _;
    let mut file = tempfile::Builder::new().prefix("rexec").tempfile()?;
    file.write_all(script)?;
    let permissions = std::fs::Permissions::from_mode(0o700);
    file.as_file().set_permissions(permissions)?;
    Ok(file.into_temp_path())
}
