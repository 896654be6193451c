//! `intention`: manages intentions.

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use time::macros::{datetime, format_description};

use crate::input;
use crate::output::{self, columns, line, number, quoted, text, warn};
use crate::server_api::{Api, ApiFlags, encoded};

/// Subcommands of `intention`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Check whether a service may call another: exit code 0 if allowed, 1 if denied
    Check(Arguments),
    /// Create intentions
    Create(Create),
    /// Delete an intention
    Delete(Arguments),
    /// Print an intention
    Get(Arguments),
    /// Print all intentions
    List(Arguments),
    /// Print the intentions of a service
    Match(Match),
}

/// Options of subcommands without flags of their own.
#[derive(Args)]
pub(crate) struct Arguments {
    /// SOURCE and DESTINATION, or a single ID
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Allow; the default
    #[arg(long)]
    allow: bool,
    /// Deny
    #[arg(long)]
    deny: bool,
    /// The arguments are JSON files with one intention each
    #[arg(long)]
    file: bool,
    /// Replace an existing intention
    #[arg(long)]
    replace: bool,
    /// Metadata; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    /// SOURCE and DESTINATION
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Match {
    /// Intentions with the service as source
    #[arg(long)]
    source: bool,
    /// Intentions with the service as destination; the default
    #[arg(long)]
    destination: bool,
    /// SERVICE
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Check(options) => check(options).await,
        Command::Create(options) => options.run().await,
        Command::Delete(options) => delete(options).await,
        Command::Get(options) => get(options).await,
        Command::List(options) => list(options).await,
        Command::Match(options) => options.run().await,
    }
}

async fn check(options: Arguments) -> anyhow::Result<ExitCode> {
    // Code 1 means that the call is denied.
    let failed = ExitCode::from(2);
    let [source, destination] = options.arguments.as_slice() else {
        warn("Error: command requires exactly two arguments: src and dst");
        return Ok(failed);
    };
    let api = options.api.connect()?;
    let ask = api.get("/v1/connect/intentions/check");
    let ask = ask.query("source", source.as_str());
    let ask = ask.query("destination", destination.as_str());
    match ask.query("source-type", "consul").value().await {
        Ok(answer) if answer["Allowed"] == true => {
            line("Allowed")?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => {
            line("Denied")?;
            Ok(ExitCode::FAILURE)
        }
        Err(error) => {
            warn(&format!("Error checking the connection: {error:#}"));
            Ok(failed)
        }
    }
}

/// Parses a service with its tenant, `[[PARTITION/]NAMESPACE/]NAME`, as fields of an intention.
fn target(input: &str, side: &str) -> anyhow::Result<Value> {
    let parts: Vec<&str> = input.split('/').collect();
    let (partition, namespace, name) = match parts.as_slice() {
        [name] => ("", "", *name),
        [namespace, name] => ("", *namespace, *name),
        [partition, namespace, name] => (*partition, *namespace, *name),
        _ => bail!("input can contain at most two '/'"),
    };
    let mut fields = json!({ format!("{side}Name"): name });
    for (field, value) in [("NS", namespace), ("Partition", partition)] {
        if !value.is_empty() {
            fields[format!("{side}{field}")] = value.into();
        }
    }
    Ok(fields)
}

/// Formats one side of an intention.
fn side(intention: &Value, side: &str) -> String {
    let of = |field: &str| text(intention, &format!("{side}{field}"));
    let name = of("Name");
    let namespace = match (of("NS"), of("Partition")) {
        (namespace, partition) if !partition.is_empty() && partition != "default" => {
            let namespace = if namespace.is_empty() {
                "default"
            } else {
                namespace
            };
            return format!("{partition}/{namespace}/{name}");
        }
        ("" | "default", _) => return name.to_owned(),
        (namespace, _) => namespace,
    };
    format!("{namespace}/{name}")
}

/// Formats an intention on one line, as Consul does.
fn shown(intention: &Value) -> String {
    let what = match intention["Permissions"].as_array() {
        Some(permissions) if permissions.len() == 1 => "1 permission".to_owned(),
        Some(permissions) if !permissions.is_empty() => {
            format!("{} permissions", permissions.len())
        }
        _ => text(intention, "Action").to_owned(),
    };
    let source = match text(intention, "SourcePeer") {
        "" => side(intention, "Source"),
        peer => format!("peer({peer})/{}", side(intention, "Source")),
    };
    format!("{source} => {} ({what})", side(intention, "Destination"))
}

/// Reads the intention between two services; `None` if there is none.
async fn exact(api: &Api, source: &str, destination: &str) -> anyhow::Result<Option<Value>> {
    let ask = api
        .get("/v1/connect/intentions/exact")
        .query("source", source);
    ask.query("destination", destination).found().await
}

impl Create {
    async fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(
            !(self.allow && self.deny),
            "Only one of -allow or -deny may be specified."
        );
        let intentions = self.intentions().context("Error")?;
        let api = self.api.connect()?;
        for intention in intentions {
            let (source, destination) =
                (side(&intention, "Source"), side(&intention, "Destination"));
            let between = format!(
                "with source {} and destination {}",
                quoted(&source),
                quoted(&destination)
            );
            if self.replace {
                let old = exact(&api, &source, &destination).await;
                let old = old.with_context(|| {
                    format!("Error looking up intention for replacement {between}")
                })?;
                if let Some(old) = old {
                    replace(&api, &intention, &old)
                        .await
                        .with_context(|| format!("Error replacing intention {between}"))?;
                    continue;
                }
            }
            let created = api
                .post("/v1/connect/intentions")
                .json(&intention)
                .ok()
                .await;
            let shown = shown(&intention);
            created.with_context(|| format!("Error creating intention {}", quoted(&shown)))?;
            line(&format!("Created: {shown}"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn intentions(&self) -> anyhow::Result<Vec<Value>> {
        if self.file {
            return self.arguments.iter().map(|path| of_file(path)).collect();
        }
        let [source, destination] = self.arguments.as_slice() else {
            bail!("Must specify two arguments: source and destination");
        };
        let mut intention = target(source, "Source").context("Invalid intention source")?;
        let destination = target(destination, "Destination");
        let destination = destination.context("Invalid intention destination")?;
        for (field, value) in destination.as_object().into_iter().flatten() {
            intention[field] = value.clone();
        }
        intention["SourceType"] = "consul".into();
        intention["Action"] = if self.deny { "deny" } else { "allow" }.into();
        if !self.meta.is_empty() {
            intention["Meta"] = input::object(&self.meta);
        }
        Ok(vec![intention])
    }
}

fn of_file(path: &str) -> anyhow::Result<Value> {
    let intention = input::file_text(path)?;
    let intention: Value =
        serde_json::from_str(&intention).with_context(|| format!("{path} is not JSON"))?;
    let permissions = intention["Permissions"].as_array();
    ensure!(
        permissions.is_none_or(Vec::is_empty),
        "cannot create L7 intention from file {path:?} using this CLI; use 'consul config write' \
         instead"
    );
    Ok(intention)
}

async fn replace(api: &Api, intention: &Value, old: &Value) -> anyhow::Result<()> {
    match text(old, "ID") {
        "" => {
            let ask = api.put("/v1/connect/intentions/exact");
            let ask = ask.query("source", side(intention, "Source"));
            let ask = ask.query("destination", side(intention, "Destination"));
            ask.json(intention).ok().await?;
        }
        id => {
            let mut with_id = intention.clone();
            with_id["ID"] = id.into();
            let path = format!("/v1/connect/intentions/{}", encoded(id));
            api.put(path).json(&with_id).ok().await?;
        }
    }
    Ok(())
}

async fn delete(options: Arguments) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let ask = match options.arguments.as_slice() {
        [id] => api.delete(format!("/v1/connect/intentions/{}", encoded(id))),
        [source, destination] => api
            .delete("/v1/connect/intentions/exact")
            .query("source", source.as_str())
            .query("destination", destination.as_str()),
        _ => bail!("command requires exactly 1 or 2 arguments"),
    };
    ask.ok().await.context("Error deleting the intention")?;
    line("Intention deleted.")?;
    Ok(ExitCode::SUCCESS)
}

async fn get(options: Arguments) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let found = match options.arguments.as_slice() {
        [id] => {
            let found = api
                .get(format!("/v1/connect/intentions/{}", encoded(id)))
                .found();
            let found = found.await.context("Error reading the intention")?;
            found.with_context(|| format!("Intention not found with ID {}", quoted(id)))?
        }
        [source, destination] => {
            let found = exact(&api, source, destination).await;
            let found = found.context("Error reading the intention")?;
            found.with_context(|| {
                format!(
                    "Intention not found with source {} and destination {}",
                    quoted(source),
                    quoted(destination)
                )
            })?
        }
        _ => bail!("command requires exactly 1 or 2 arguments"),
    };
    line(&columns(&fields(&found)))?;
    if found["Permissions"]
        .as_array()
        .is_some_and(|all| !all.is_empty())
    {
        let permissions = output::json(&found["Permissions"], "  ");
        line(&format!("Permissions:\n{permissions}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Go's zero time, which Consul prints if there is no time.
const NO_TIME: OffsetDateTime = datetime!(0001-01-01 00:00 UTC);

/// The rows of an intention's table.
fn fields(intention: &Value) -> Vec<[String; 2]> {
    let mut rows = vec![
        ["Source:".to_owned(), side(intention, "Source")],
        ["Destination:".to_owned(), side(intention, "Destination")],
    ];
    for (title, field) in [
        ("Action:", "Action"),
        ("ID:", "ID"),
        ("Description:", "Description"),
    ] {
        let value = text(intention, field);
        if !value.is_empty() {
            rows.push([title.to_owned(), value.to_owned()]);
        }
    }
    for (key, value) in intention["Meta"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default().to_owned();
        rows.push([format!("Meta[{key}]:"), value]);
    }
    rows.push([
        "Created At:".to_owned(),
        created(text(intention, "CreatedAt")),
    ]);
    rows
}

/// A time in RFC 850 format, in UTC, because the local time zone may differ from the server's.
fn created(time: &str) -> String {
    let format = format_description!(
        "[weekday], [day]-[month repr:short]-[year repr:last_two] [hour]:[minute]:[second] UTC"
    );
    let time = OffsetDateTime::parse(time, &Rfc3339).unwrap_or(NO_TIME);
    let time = time.to_offset(time::UtcOffset::UTC);
    time.format(&format).unwrap_or_default()
}

async fn list(options: Arguments) -> anyhow::Result<ExitCode> {
    let api = options.api.connect()?;
    let intentions = api.get("/v1/connect/intentions").value().await;
    let intentions = intentions.context("Failed to retrieve the intentions list")?;
    let intentions = intentions.as_array().map_or(&[][..], Vec::as_slice);
    if intentions.is_empty() {
        warn("There are no intentions.");
        return Ok(ExitCode::from(2));
    }
    let titles = ["ID", "Source", "Action", "Destination", "Precedence"];
    let mut rows = vec![titles.map(str::to_owned)];
    rows.extend(intentions.iter().map(|one| {
        [
            text(one, "ID").to_owned(),
            text(one, "SourceName").to_owned(),
            text(one, "Action").to_owned(),
            text(one, "DestinationName").to_owned(),
            number(one, "Precedence").to_string(),
        ]
    }));
    line(&columns(&rows))?;
    Ok(ExitCode::SUCCESS)
}

impl Match {
    async fn run(self) -> anyhow::Result<ExitCode> {
        let [name] = self.arguments.as_slice() else {
            bail!("Error: command requires exactly one argument: src or dst");
        };
        ensure!(
            !(self.source && self.destination),
            "Error: only one of -source or -destination may be specified"
        );
        let by = if self.source { "source" } else { "destination" };
        let api = self.api.connect()?;
        let ask = api.get("/v1/connect/intentions/match").query("by", by);
        let matches = ask.query("name", name.as_str()).value().await;
        let matches = matches.context("Error matching the connection")?;
        for intention in matches[name.as_str()].as_array().into_iter().flatten() {
            line(&shown(intention))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_are_written_where_they_are_not_the_default() {
        let mut intention = target("web", "Source").unwrap();
        assert_eq!(intention, json!({"SourceName": "web"}));
        intention["DestinationName"] = "db".into();
        intention["DestinationNS"] = "n".into();
        intention["DestinationPartition"] = "p".into();
        intention["Action"] = "deny".into();
        assert_eq!(shown(&intention), "web => p/n/db (deny)");
        let parsed = target("p/n/db", "Destination").unwrap();
        assert_eq!(parsed["DestinationPartition"], "p");
        assert!(target("a/b/c/d", "Source").is_err());
    }

    #[test]
    fn times_have_the_weekday() {
        assert_eq!(
            created("2026-11-23T01:32:59.5Z"),
            "Monday, 23-Nov-26 01:32:59 UTC"
        );
        assert_eq!(created(""), "Monday, 01-Jan-01 00:00:00 UTC");
    }
}
