//! `watch`: waits for changes, and runs a program on each or prints the first result.

use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{ArgAction, Args};
use serde_json::Value;
use tokio::process::Command;

use crate::output::{json as pretty, line, text, warn};
use crate::server_api::{Api, ApiFlags, Ask, encoded, encoded_path};
use crate::signals::Interrupt;
use crate::subprocess;

/// The wait time of blocking queries.
const WAIT: Duration = Duration::from_secs(5 * 60);
/// The additional time for their response.
const SLACK: Duration = Duration::from_secs(30);
/// The initial and the maximum delay before a failed query is retried.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_RETRY: Duration = Duration::from_secs(180);

/// The query of a watch.
#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct Query {
    /// Type of the watch: key, keyprefix, services, nodes, service, checks or event
    #[arg(long = "type", default_value = "", value_name = "TYPE")]
    pub(crate) kind: String,
    /// The key, for key
    #[arg(long, default_value = "")]
    pub(crate) key: String,
    /// The prefix, for keyprefix
    #[arg(long, default_value = "")]
    pub(crate) prefix: String,
    /// The service, for service and checks
    #[arg(long, default_value = "", value_name = "NAME")]
    pub(crate) service: String,
    /// Required tag of instances, for service; may be repeated
    #[arg(long)]
    pub(crate) tag: Vec<String>,
    /// Only healthy instances, for service
    #[arg(long, default_value = "", value_name = "BOOL")]
    pub(crate) passingonly: String,
    /// The status, for checks
    #[arg(long, default_value = "", value_name = "STATUS")]
    pub(crate) state: String,
    /// The name, for event
    #[arg(long, default_value = "")]
    pub(crate) name: String,
    /// Filter in Consul's filter language
    #[arg(long, default_value = "")]
    pub(crate) filter: String,
}

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    query: Query,
    /// Run the program with a shell
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_name = "BOOL")]
    shell: bool,
    /// PROGRAM, and its arguments
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Watches until the first result is printed, or forever if a program is given.
///
/// # Errors
///
/// If the type is missing, the request fails, or the program fails.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    options.query.check()?;
    let mut interrupt = Interrupt::listen()?;
    let api = options.api.connect()?;
    let leader = api.get("/v1/status/leader").ok().await;
    leader.context("Error querying Consul agent")?;
    options.watch(&api, &mut interrupt).await
}

impl Options {
    /// A signal ends the watch at once, unless the program is running, which is stopped first.
    async fn watch(&self, api: &Api, interrupt: &mut Interrupt) -> anyhow::Result<ExitCode> {
        let mut changes = Changes::default();
        loop {
            let change = tokio::select! {
                change = changes.next(&self.query, api, warn) => change,
                () = interrupt.wait() => return Ok(ExitCode::SUCCESS),
            };
            let (index, found) = change?;
            if !self.handle(index, &found, interrupt).await? {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Runs the program, or prints. Returns whether to continue.
    async fn handle(
        &self,
        index: u64,
        found: &Value,
        interrupt: &mut Interrupt,
    ) -> anyhow::Result<bool> {
        if self.arguments.is_empty() {
            line(&pretty(found, "    "))?;
            return Ok(false);
        }
        let command = subprocess::command(&self.arguments, self.shell)?;
        let stop = interrupt.wait();
        let Some(status) = run_handler(command, index, found, stop).await? else {
            return Ok(false);
        };
        ensure!(
            status.success(),
            "Error executing handler: {}",
            subprocess::shown(status)
        );
        Ok(true)
    }
}

/// Runs the program of a watch with a result as its input; `None` if `stop` completed first.
///
/// # Errors
///
/// If it cannot be started.
pub(crate) async fn run_handler(
    mut command: Command,
    index: u64,
    found: &Value,
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Option<ExitStatus>> {
    command.env("CONSUL_INDEX", index.to_string());
    let input = format!("{found}\n");
    subprocess::run(command, input.as_bytes(), stop).await
}

impl Query {
    /// Refuses a missing type, and invalid combinations of options.
    ///
    /// # Errors
    ///
    /// With Consul's words.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.kind.is_empty(), "Watch type must be specified");
        match self.kind.as_str() {
            "key" => ensure!(!self.key.is_empty(), "Must specify a single key to watch"),
            "keyprefix" => {
                ensure!(
                    !self.prefix.is_empty(),
                    "Must specify a single prefix to watch"
                );
            }
            "service" => {
                ensure!(
                    !self.service.is_empty(),
                    "Must specify a single service to watch"
                );
                self.passing()?;
            }
            "checks" => ensure!(
                self.service.is_empty() || self.state.is_empty(),
                "Cannot specify service and state"
            ),
            "services" | "nodes" | "event" => {}
            kind if kind.starts_with("connect_") || kind.starts_with("agent_") => {
                bail!("Type {kind} is not supported in the CLI tool")
            }
            kind => bail!("Unsupported watch type: {kind}"),
        }
        Ok(())
    }

    fn passing(&self) -> anyhow::Result<bool> {
        if self.passingonly.is_empty() {
            return Ok(false);
        }
        let value = crate::go_flags::boolean(&self.passingonly);
        value.with_context(|| {
            format!(
                "Failed to parse passingonly flag: {:?} is not a BOOL",
                self.passingonly
            )
        })
    }

    /// The query of the watch.
    fn ask<'a>(&self, api: &'a Api) -> anyhow::Result<Ask<'a>> {
        let ask = match self.kind.as_str() {
            "key" => return Ok(api.get(format!("/v1/kv/{}", encoded_path(&self.key)))),
            "keyprefix" => {
                let ask = api.get(format!("/v1/kv/{}", encoded_path(&self.prefix)));
                return Ok(ask.flag("recurse", true));
            }
            "event" => return Ok(api.get("/v1/event/list").maybe("name", &self.name)),
            "services" => api.get("/v1/catalog/services"),
            "nodes" => api.get("/v1/catalog/nodes"),
            "service" => {
                let ask = api.get(format!("/v1/health/service/{}", encoded(&self.service)));
                let ask = self
                    .tag
                    .iter()
                    .fold(ask, |ask, tag| ask.query("tag", tag.as_str()));
                match self.passing()? {
                    true => ask.query("passing", "1"),
                    false => ask,
                }
            }
            _ if !self.service.is_empty() => {
                api.get(format!("/v1/health/checks/{}", encoded(&self.service)))
            }
            _ => {
                let state = if self.state.is_empty() {
                    "any"
                } else {
                    &self.state
                };
                api.get(format!("/v1/health/state/{}", encoded(state)))
            }
        };
        Ok(ask.maybe("filter", &self.filter))
    }

    /// The index and content of a response.
    async fn answer(&self, ask: Ask<'_>) -> anyhow::Result<(u64, Value)> {
        let answer = ask.send().await?;
        let missing = answer.status == http::StatusCode::NOT_FOUND && self.kind.starts_with("key");
        let value = match (missing, self.kind.as_str()) {
            (true, "keyprefix") => Value::Array(Vec::new()),
            (true, _) => Value::Null,
            (false, _) => answer.success().and_then(|()| answer.value())?,
        };
        let value = match self.kind.as_str() {
            "key" => value.get(0).cloned().unwrap_or_default(),
            _ => value,
        };
        Ok((answer.index(), with_sessions(value)))
    }
}

/// The results of a query, as they change.
#[derive(Default)]
pub(crate) struct Changes {
    index: u64,
    last: Option<Value>,
}

impl Changes {
    /// Waits until the result differs from the last one. Failed queries are reported and repeated. Cancel
    /// safe.
    ///
    /// # Errors
    ///
    /// If the query is invalid.
    pub(crate) async fn next(
        &mut self,
        query: &Query,
        api: &Api,
        report: impl Fn(&str),
    ) -> anyhow::Result<(u64, Value)> {
        let mut failures = 0;
        loop {
            let mut ask = query.ask(api)?.within(WAIT + SLACK);
            if self.index > 0 {
                ask = ask.query("index", self.index.to_string());
                ask = ask.query("wait", format!("{}s", WAIT.as_secs()));
            }
            let (index, found) = match query.answer(ask).await {
                Ok(answer) => answer,
                Err(error) => {
                    failures += 1;
                    let wait = (RETRY * failures * failures).min(LONGEST_RETRY);
                    let seconds = wait.as_secs();
                    report(&format!("Watch errored: {error:#}, retry in {seconds}s"));
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            failures = 0;
            let found = match query.kind.as_str() {
                "event" => newer(found, self.index),
                _ => found,
            };
            if index == self.index && self.last.is_some() {
                continue;
            }
            // An index that decreases resets the watch.
            self.index = if index < self.index { 0 } else { index };
            if self.last.as_ref() != Some(&found) {
                self.last = Some(found.clone());
                return Ok((index, found));
            }
        }
    }
}

/// Adds the field `Session` to keys without one, as Consul prints it.
fn with_sessions(mut value: Value) -> Value {
    let complete = |pair: &mut Value| {
        if pair.get("LockIndex").is_some() && pair.get("Session").is_none() {
            pair["Session"] = "".into();
        }
    };
    match &mut value {
        Value::Array(pairs) => pairs.iter_mut().for_each(complete),
        one => complete(one),
    }
    value
}

/// The events after the one with this index.
fn newer(events: Value, index: u64) -> Value {
    let Value::Array(events) = events else {
        return events;
    };
    let known = events
        .iter()
        .position(|event| event_index(text(event, "ID")) == Some(index));
    let from = known.map_or(0, |known| known + 1);
    events.into_iter().skip(from).collect()
}

/// The index of an event id: the XOR of both halves.
fn event_index(id: &str) -> Option<u64> {
    let digits = id.replace('-', "");
    if digits.len() != 32 {
        return None;
    }
    let (high, low) = digits.split_at_checked(16)?;
    Some(u64::from_str_radix(high, 16).ok()? ^ u64::from_str_radix(low, 16).ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_newer_events_count() {
        let id = |last: &str| format!("00000000-0000-0001-0000-00000000000{last}");
        assert_eq!(event_index(&id("3")), Some(2));
        let events = json!([{"ID": id("3")}, {"ID": id("5")}]);
        assert_eq!(newer(events.clone(), 2), json!([{"ID": id("5")}]));
        assert_eq!(newer(events.clone(), 9), events);
    }

    #[test]
    fn keys_have_a_session_field() {
        let pair = with_sessions(json!([{"Key": "a", "LockIndex": 0}]));
        assert_eq!(pair[0]["Session"], "");
        assert_eq!(with_sessions(json!({"web": []})), json!({"web": []}));
    }
}
