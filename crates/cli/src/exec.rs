//! `exec`: runs a command on all nodes whose agents permit it, or on a selection, and prints their output.
//!
//! The job is a key that an event announces; agents write their output and exit codes below it. They remain
//! until the command ends, which then removes everything.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{ArgAction, Args};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use crate::agent::EXEC_EVENT;
use crate::input;
use crate::output::{line, text, warn};
use crate::server_api::{Api, ApiFlags, encoded, encoded_path};
use crate::signals::Interrupt;

/// The TTL of the session that holds the job, and when it is renewed.
const TTL: &str = "15s";
const RENEW: Duration = Duration::from_secs(5);
/// The additional time for the response of a blocking query.
const SLACK: Duration = Duration::from_secs(15);

#[derive(Args)]
pub(crate) struct Options {
    /// Regular expression for the names of nodes
    #[arg(long, default_value = "", value_name = "REGEXP")]
    node: String,
    /// Regular expression for the names of services
    #[arg(long, default_value = "", value_name = "REGEXP")]
    service: String,
    /// Regular expression for the tags of these services
    #[arg(long, default_value = "", value_name = "REGEXP")]
    tag: String,
    /// Prefix of the job's keys
    #[arg(long, default_value = "_rexec")]
    prefix: String,
    /// Run the command with a shell
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_name = "BOOL")]
    shell: bool,
    /// How long to wait without any response before the job ends
    #[arg(long, default_value = "2s", value_parser = input::duration, value_name = "TIME")]
    wait: Duration,
    /// How long servers may take to replicate the job before it is announced
    #[arg(long, default_value = "200ms", value_parser = input::duration, value_name = "TIME")]
    wait_repl: Duration,
    /// Print every step
    #[arg(long)]
    verbose: bool,
    /// COMMAND with its arguments, or - for a script on standard input
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Runs the command, and returns 2 if it failed on a node.
///
/// # Errors
///
/// If the job cannot be written, announced or followed.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let job = options.job()?;
    options.check()?;
    let mut interrupt = Interrupt::listen()?;
    let api = options.api.connect()?;
    let own = api.get("/v1/agent/self").value().await;
    let own = own.context("Error querying Consul agent")?;
    let datacenter = text(&own["Config"], "Datacenter");
    if let Some(other) = api.parameter("dc").filter(|dc| *dc != datacenter) {
        bail!("exec in another datacenter, {other:?}, is not supported: connect to an agent there");
    }
    let session = json!({"Name": "Remote Exec", "Behavior": "delete", "TTL": TTL});
    let session = api.put("/v1/session/create").json(&session).value().await;
    let session = session.context("Failed to create session")?;
    let exec = Exec {
        options: &options,
        api: &api,
        session: text(&session, "ID"),
    };
    let ended = tokio::select! {
        ended = exec.run(&job) => ended,
        error = exec.renew() => Err(error),
        () = interrupt.wait() => Ok(ExitCode::FAILURE),
    };
    let removed = exec.remove().await;
    let code = ended?;
    removed.map(|()| code)
}

impl Options {
    /// The job as agents read it.
    fn job(&self) -> anyhow::Result<Value> {
        let line = self.arguments.join(" ");
        let mut job = Map::new();
        match (line.as_str(), self.shell) {
            ("-", true) => {
                let script = input::bytes_or_file("-").context("Failed to read stdin")?;
                ensure!(!script.is_empty(), "Must specify a command to execute");
                job.insert("Script".to_owned(), STANDARD.encode(script).into());
            }
            ("-", false) => bail!("Cannot configure -shell=false when reading from stdin"),
            ("", _) => bail!("Must specify a command to execute"),
            (_, true) => drop(job.insert("Command".to_owned(), line.into())),
            (_, false) => drop(job.insert("Args".to_owned(), json!(self.arguments))),
        }
        let wait = u64::try_from(self.wait.as_nanos()).context("-wait is too long")?;
        job.insert("Wait".to_owned(), wait.into());
        Ok(job.into())
    }

    fn check(&self) -> anyhow::Result<()> {
        for (what, expression) in [
            ("node", &self.node),
            ("service", &self.service),
            ("tag", &self.tag),
        ] {
            let compiled = regex::Regex::new(expression);
            compiled.with_context(|| format!("Failed to compile {what} filter regexp"))?;
        }
        ensure!(
            self.tag.is_empty() || !self.service.is_empty(),
            "Cannot provide tag filter without service filter."
        );
        Ok(())
    }
}

/// One execution.
struct Exec<'e> {
    options: &'e Options,
    api: &'e Api,
    session: &'e str,
}

/// What a node has written.
enum Found {
    Acknowledged,
    Heartbeat,
    Output(Vec<u8>),
    Exit(i64),
}

/// The nodes of which something was found.
#[derive(Default)]
struct Counts {
    acknowledged: usize,
    ended: usize,
    failed: usize,
}

impl Exec<'_> {
    /// Renews the session until it is lost.
    async fn renew(&self) -> anyhow::Error {
        loop {
            tokio::time::sleep(RENEW).await;
            let path = format!("/v1/session/renew/{}", encoded(self.session));
            match self.api.put(path).found().await {
                Ok(Some(_)) => {}
                Ok(None) => return anyhow!("Session renew failed: the session has expired"),
                Err(error) => return error.context("Session renew failed"),
            }
        }
    }

    /// Removes the session, after which no agent can write, and then all keys.
    async fn remove(&self) -> anyhow::Result<()> {
        let path = format!("/v1/session/destroy/{}", encoded(self.session));
        self.api.put(path).ok().await?;
        let keys = self.path("");
        self.api.delete(keys).flag("recurse", true).ok().await?;
        Ok(())
    }

    /// The API path of a key of the job.
    fn path(&self, rest: &str) -> String {
        let key = format!("{}/{}/{rest}", self.options.prefix, self.session);
        format!("/v1/kv/{}", encoded_path(&key))
    }

    fn verbose(&self, text: &str) -> anyhow::Result<()> {
        match self.options.verbose {
            true => line(text),
            false => Ok(()),
        }
    }

    async fn run(&self, job: &Value) -> anyhow::Result<ExitCode> {
        let session = self.session;
        self.verbose(&format!("Created remote execution session: {session}"))?;
        let ask = self.api.put(self.path("job")).query("acquire", session);
        let written = ask
            .json(job)
            .value()
            .await
            .context("Failed to create job file")?;
        ensure!(
            written == Value::Bool(true),
            "Failed to create job file: failed to acquire key"
        );
        self.verbose("Uploaded remote execution spec")?;
        tokio::time::sleep(self.options.wait_repl).await;

        let payload = json!({"Prefix": self.options.prefix, "Session": session}).to_string();
        let ask = self.api.put(format!("/v1/event/fire/{EXEC_EVENT}"));
        let ask = ask
            .maybe("node", &self.options.node)
            .maybe("service", &self.options.service)
            .maybe("tag", &self.options.tag);
        let fired = ask
            .bytes(payload)
            .value()
            .await
            .context("Failed to fire event")?;
        self.verbose(&format!(
            "Fired remote execution event: {}",
            text(&fired, "ID")
        ))?;
        self.follow().await
    }

    /// Prints what nodes write, until there is nothing new for a while.
    async fn follow(&self) -> anyhow::Result<ExitCode> {
        let begun = Instant::now();
        let (mut index, mut seen, mut counts) = (0, BTreeSet::new(), Counts::default());
        let mut quiet_since = begun;
        loop {
            // Nodes that are still working get more time.
            let times = 1 + u32::from(counts.acknowledged > counts.ended);
            let deadline = quiet_since + self.options.wait * times;
            let keys = tokio::time::timeout_at(deadline, self.keys(index)).await;
            let Ok(keys) = keys else {
                break;
            };
            let (reached, keys) = keys.context("Failed to read results")?;
            index = reached;
            // The end of a command follows its output, whatever the order of the keys.
            let (ends, others): (Vec<_>, Vec<_>) =
                keys.into_iter().partition(|key| key.ends_with("/exit"));
            for key in others.into_iter().chain(ends) {
                if seen.insert(key.clone()) && self.found(&key, &mut counts).await? {
                    quiet_since = Instant::now();
                }
            }
        }
        let Counts {
            acknowledged,
            ended,
            failed,
        } = counts;
        line(&format!(
            "{ended} / {acknowledged} node(s) completed / acknowledged"
        ))?;
        let seconds = begun.elapsed().as_secs_f64();
        self.verbose(&format!("Completed in {seconds:.2} seconds"))?;
        match failed > 0 || ended < acknowledged {
            true => Ok(ExitCode::from(2)),
            false => Ok(ExitCode::SUCCESS),
        }
    }

    /// The keys of the job that are not of this command, once the index is higher.
    async fn keys(&self, index: u64) -> anyhow::Result<(u64, Vec<String>)> {
        let wait = self.options.wait;
        let mut ask = self.api.get(self.path("")).flag("keys", true);
        if index > 0 {
            ask = ask
                .query("index", index.to_string())
                .query("wait", format!("{}ms", wait.as_millis()));
        }
        let answer = ask.within(wait + SLACK).ok().await?;
        let folder = format!("{}/{}/", self.options.prefix, self.session);
        let keys = answer.value()?;
        let keys = keys
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let keys = keys.filter_map(|key| key.strip_prefix(&folder));
        let keys = keys.filter(|key| *key != "job").map(ToOwned::to_owned);
        Ok((answer.index(), keys.collect()))
    }

    /// Prints a key. Returns whether it is one that agents write.
    async fn found(&self, key: &str, counts: &mut Counts) -> anyhow::Result<bool> {
        let Some((node, found)) = self.read(key).await? else {
            warn(&format!("Unknown key '{key}', ignoring."));
            return Ok(false);
        };
        match found {
            Found::Acknowledged => {
                counts.acknowledged += 1;
                self.verbose(&of_node(node, "acknowledged", true))?;
            }
            Found::Heartbeat => self.verbose(&of_node(node, "heartbeat received", true))?,
            Found::Output(bytes) => {
                line(&of_node(node, &String::from_utf8_lossy(&bytes), false))?;
            }
            Found::Exit(code) => {
                counts.ended += 1;
                counts.failed += usize::from(code != 0);
                line(&of_node(
                    node,
                    &format!("finished with exit code {code}"),
                    true,
                ))?;
            }
        }
        Ok(true)
    }

    /// The node of a key, and what it says.
    async fn read<'k>(&self, key: &'k str) -> anyhow::Result<Option<(&'k str, Found)>> {
        if let Some(node) = key.strip_suffix("/ack") {
            return Ok(Some((node, Found::Acknowledged)));
        }
        let exit = key.strip_suffix("/exit");
        let output = key.rsplit_once("/out/").map(|(node, _)| node);
        let Some(node) = exit.or(output) else {
            return Ok(None);
        };
        let pair = self.api.get(self.path(key)).value().await;
        let pair = pair.with_context(|| format!("Failed to read key '{key}'"))?;
        let value = STANDARD.decode(pair.get(0).map_or("", |pair| text(pair, "Value")))?;
        if exit.is_some() {
            let code = String::from_utf8_lossy(&value).parse();
            let code = code.with_context(|| format!("Failed to parse exit code of {node}"))?;
            return Ok(Some((node, Found::Exit(code))));
        }
        let found = match value.is_empty() {
            true => Found::Heartbeat,
            false => Found::Output(value),
        };
        Ok(Some((node, found)))
    }
}

/// A text of a node, with its name before each line.
fn of_node(node: &str, said: &str, is_status: bool) -> String {
    let arrow = if is_status { "==>" } else { "   " };
    let lines: Vec<String> = said
        .split('\n')
        .map(|line| format!("{arrow} {node}: {line}"))
        .collect();
    lines.join("\n").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_node() {
        assert_eq!(
            of_node("n1", "a\nb\n", false),
            "    n1: a\n    n1: b\n    n1:"
        );
        assert_eq!(of_node("n1", "acknowledged", true), "==> n1: acknowledged");
    }
}
