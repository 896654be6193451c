//! Commands for the local agent: `info`, `monitor`, `reload`, `leave`, `join`, `force-leave` and `maint`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::Value;
use tokio::time::Instant;

use crate::input;
use crate::output::{self, line, quoted, text, warn};
use crate::server_api::{Api, ApiFlags, ApiOptions, encoded, encoded_path};
use crate::signals::Interrupt;

/// The timeout of `monitor` for the next line, practically unlimited.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3600);

/// Options of `info`, `reload` and `leave`.
#[derive(Args)]
pub(crate) struct Plain {
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Monitor {
    /// Minimum level: trace, debug, info, warn or error
    #[arg(long, default_value = "INFO", value_name = "LEVEL")]
    log_level: String,
    /// Print JSON objects instead of text
    #[arg(long)]
    log_json: bool,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Join {
    /// Join servers of other datacenters
    #[arg(long)]
    wan: bool,
    /// ADDRESS of one or more agents
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct ForceLeave {
    /// Remove the node from the list of members
    #[arg(long)]
    prune: bool,
    /// Also remove it from the list of all datacenters
    #[arg(long)]
    wan: bool,
    /// NODE
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Maint {
    /// Enable maintenance
    #[arg(long)]
    enable: bool,
    /// Disable maintenance
    #[arg(long)]
    disable: bool,
    /// Reason, as a comment
    #[arg(long, default_value = "")]
    reason: String,
    /// Id of a service [default: the node]
    #[arg(long, default_value = "", value_name = "ID")]
    service: String,
    #[command(flatten)]
    api: ApiOptions,
}

/// The name of the agent's node, which proves that the agent is reachable.
///
/// # Errors
///
/// If the request fails.
pub(crate) async fn node_name(api: &Api) -> anyhow::Result<String> {
    let own = api.get("/v1/agent/self").value().await;
    let own = own.context("Error querying Consul agent")?;
    Ok(text(&own["Config"], "NodeName").to_owned())
}

/// `info`: prints the agent's runtime counters.
///
/// # Errors
///
/// If the request fails.
pub(crate) async fn info(options: Plain) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let own = api.get("/v1/agent/self").value().await;
    let own = own.context("Error querying agent")?;
    let Some(stats) = own["Stats"].as_object() else {
        bail!("Agent response did not contain 'Stats' key");
    };
    for (name, values) in stats {
        line(&format!("{name}:"))?;
        for (key, value) in values.as_object().into_iter().flatten() {
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            line(&format!("\t{key} = {value}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `reload`: reloads the agent's configuration.
///
/// # Errors
///
/// If the agent refuses.
pub(crate) async fn reload(options: Plain) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let done = api.put("/v1/agent/reload").ok().await;
    done.context("Error reloading")?;
    line("Configuration reload triggered")?;
    Ok(ExitCode::SUCCESS)
}

/// `leave`: stops the agent gracefully.
///
/// # Errors
///
/// If the agent refuses.
pub(crate) async fn leave(options: Plain) -> anyhow::Result<ExitCode> {
    ensure!(
        options.api.arguments.is_empty(),
        "Error found unexpected args: [{}]",
        options.api.arguments.join(" ")
    );
    let api = options.api.connect()?;
    let done = api.put("/v1/agent/leave").ok().await;
    done.context("Error leaving")?;
    line("Graceful leave complete")?;
    Ok(ExitCode::SUCCESS)
}

/// `join`: joins the agent to others.
///
/// # Errors
///
/// If it joined none.
pub(crate) async fn join(options: Join) -> anyhow::Result<ExitCode> {
    ensure!(
        !options.arguments.is_empty(),
        "At least one address to join must be specified."
    );
    let api = options.api.connect()?;
    let mut joined = 0;
    for address in &options.arguments {
        let mut ask = api.put(format!("/v1/agent/join/{}", encoded(address)));
        if options.wan {
            ask = ask.query("wan", "1");
        }
        match ask.ok().await {
            Ok(_) => joined += 1,
            Err(error) => warn(&format!("Error joining address '{address}': {error:#}")),
        }
    }
    ensure!(joined > 0, "Failed to join any nodes.");
    line(&format!(
        "Successfully joined cluster by contacting {joined} nodes."
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// `force-leave`: removes a failed node.
///
/// # Errors
///
/// If the agent refuses.
pub(crate) async fn force_leave(options: ForceLeave) -> anyhow::Result<ExitCode> {
    let [node] = options.arguments.as_slice() else {
        bail!("A single node name must be specified to force leave.");
    };
    let api = options.api.connect()?;
    let mut ask = api.put(format!("/v1/agent/force-leave/{}", encoded(node)));
    for (name, set) in [("prune", options.prune), ("wan", options.wan)] {
        if set {
            ask = ask.query(name, "1");
        }
    }
    ask.ok().await.context("Error force leaving")?;
    Ok(ExitCode::SUCCESS)
}

/// `monitor`: prints the agent's log until the agent or this program ends.
///
/// # Errors
///
/// If the agent refuses, or standard output is closed.
pub(crate) async fn monitor(options: Monitor) -> anyhow::Result<ExitCode> {
    let mut interrupt = Interrupt::listen()?;
    let api = options.api.connect()?;
    let level = options.log_level.to_ascii_lowercase();
    let mut ask = api.get("/v1/agent/monitor").query("loglevel", level);
    if options.log_json {
        ask = ask.query("logjson", "true");
    }
    let reply = ask.stream().await;
    let mut reply = reply.context(match options.log_json {
        true => "Error starting JSON monitor",
        false => "Error starting monitor",
    })?;
    loop {
        let piece = tokio::select! {
            piece = reply.piece(Instant::now() + FOREVER) => piece,
            () = interrupt.wait() => return Ok(ExitCode::SUCCESS),
        };
        match piece {
            Ok(Some(piece)) => output::raw(&piece)?,
            Ok(None) | Err(_) => break,
        }
    }
    line(
        "\nRemote side ended the monitor! This usually means that the\n\
         remote side has exited or crashed.",
    )?;
    Ok(ExitCode::SUCCESS)
}

/// `maint`: enables, disables or prints maintenance mode of the node or of a service.
///
/// # Errors
///
/// If flags contradict each other, or the agent refuses.
pub(crate) async fn maint(options: Maint) -> anyhow::Result<ExitCode> {
    let (enable, disable) = (options.enable, options.disable);
    let (reason, service) = (options.reason.as_str(), options.service.as_str());
    ensure!(
        !(enable && disable),
        "Only one of -enable or -disable may be provided"
    );
    ensure!(
        enable || reason.is_empty(),
        "Reason may only be provided with -enable"
    );
    ensure!(
        enable || disable || service.is_empty(),
        "Service requires either -enable or -disable"
    );
    let api = options.api.connect()?;
    if !enable && !disable {
        let node = node_name(&api).await?;
        let checks = api.get("/v1/agent/checks").value().await;
        let checks = checks.context("Error getting checks")?;
        let shown = maintained(&node, &checks);
        if !shown.is_empty() {
            line(&shown)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (path, what, of) = match service {
        "" => ("/v1/agent/maintenance".to_owned(), "node", String::new()),
        id => (
            format!("/v1/agent/service/maintenance/{}", encoded_path(id)),
            "service",
            format!(" for {}", quoted(id)),
        ),
    };
    let (doing, done) = match enable {
        true => ("enabling", "enabled"),
        false => ("disabling", "disabled"),
    };
    let ask = api.put(path).query("enable", enable.to_string());
    let ask = ask.maybe("reason", reason);
    let answered = ask.ok().await;
    answered.with_context(|| format!("Error {doing} {what} maintenance"))?;
    let what = match service {
        "" => "Node",
        _ => "Service",
    };
    line(&format!("{what} maintenance is now {done}{of}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Lists nodes and services in maintenance mode, by their maintenance checks.
fn maintained(node: &str, checks: &Value) -> String {
    let mut shown = Vec::new();
    for check in checks.as_object().into_iter().flatten().map(|it| it.1) {
        let id = text(check, "CheckID");
        let notes = text(check, "Notes");
        if id == "_node_maintenance" {
            shown.push(format!("Node:\n  Name:   {node}\n  Reason: {notes}\n"));
        } else if id.starts_with("_service_maintenance:") {
            let service = text(check, "ServiceID");
            shown.push(format!(
                "Service:\n  ID:     {service}\n  Reason: {notes}\n"
            ));
        }
    }
    shown.join("\n")
}

#[derive(Args)]
pub(crate) struct Event {
    /// Name of the event
    #[arg(long, default_value = "")]
    name: String,
    /// Regular expression for the names of target nodes
    #[arg(long, default_value = "", value_name = "REGEX")]
    node: String,
    /// Regular expression for services on the target nodes
    #[arg(long, default_value = "", value_name = "REGEX")]
    service: String,
    /// Regular expression for tags of the services
    #[arg(long, default_value = "", value_name = "REGEX")]
    tag: String,
    /// PAYLOAD
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// `event`: fires an event.
///
/// # Errors
///
/// If it has no name, a filter is not a regular expression, or the agent refuses.
pub(crate) async fn event(options: Event) -> anyhow::Result<ExitCode> {
    ensure!(!options.name.is_empty(), "Event name must be specified");
    for (what, expression) in [
        ("node", &options.node),
        ("service", &options.service),
        ("tag", &options.tag),
    ] {
        let compiled = regex::Regex::new(expression);
        compiled.with_context(|| format!("Failed to compile {what} filter regexp"))?;
    }
    ensure!(
        options.tag.is_empty() || !options.service.is_empty(),
        "Cannot provide tag filter without service filter."
    );
    ensure!(
        options.arguments.len() <= 1,
        "Too many command line arguments."
    );
    let payload = input::at_most_one(&options.arguments)?.to_owned();
    let api = options.api.connect()?;
    node_name(&api).await?;
    let ask = api.put(format!("/v1/event/fire/{}", encoded(&options.name)));
    let ask = ask
        .maybe("node", &options.node)
        .maybe("service", &options.service);
    let fired = ask.maybe("tag", &options.tag).bytes(payload).value().await;
    let fired = fired.context("Error firing event")?;
    line(&format!("Event ID: {}", text(&fired, "ID")))?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn maintenance_is_shown_by_its_checks() {
        let checks = json!({
            "_node_maintenance": {"CheckID": "_node_maintenance", "Notes": "disk"},
            "_service_maintenance:web": {"CheckID": "_service_maintenance:web",
                "ServiceID": "web", "Notes": "update"},
            "other": {"CheckID": "other"},
        });
        assert_eq!(
            maintained("n", &checks),
            "Node:\n  Name:   n\n  Reason: disk\n\nService:\n  ID:     web\n  Reason: update\n"
        );
    }
}
