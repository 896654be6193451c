//! `config`: manages config entries with the flags of `consul config`, and previews writes.

mod dry_run;
mod gateways;

use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use legate_model::{ConfigEntry, hcl, json};
use serde_json::Value;

use crate::input;
use crate::output::{line, print_json, text, warn};
use crate::server_api::{ApiFlags, ApiOptions, encoded};

/// The maximum size of an entry, in bytes, which is that of the servers.
const ENTRY_LIMIT: usize = 512 * 1024;

/// Subcommands of `config`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Write a config entry from a file in HCL or JSON
    Write(Write),
    /// Print a config entry as JSON
    Read(Read),
    /// Print the names of the config entries of a kind
    List(List),
    /// Delete a config entry
    Delete(Delete),
}

#[derive(Args)]
pub(crate) struct Write {
    /// Write only if the stored entry has the modify index of -modify-index; 0: only if it does not
    /// exist
    #[arg(long)]
    cas: bool,
    /// Modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Print the effects of the write without writing
    #[arg(long)]
    dry_run: bool,
    /// FILE, or - for standard input
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Read {
    /// Kind of the entry, such as service-router
    #[arg(long, default_value = "")]
    kind: String,
    /// Name of the entry
    #[arg(long, default_value = "")]
    name: String,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct List {
    /// Kind of the entries, such as service-router
    #[arg(long, default_value = "")]
    kind: String,
    /// Filter in Consul's filter language
    #[arg(long, default_value = "")]
    filter: String,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Delete {
    /// File with the entry, instead of -kind and -name; - for standard input
    #[arg(long, default_value = "", value_name = "FILE")]
    filename: String,
    /// Kind of the entry, such as service-router
    #[arg(long, default_value = "")]
    kind: String,
    /// Name of the entry
    #[arg(long, default_value = "")]
    name: String,
    /// Delete only if the entry has the modify index of -modify-index
    #[arg(long)]
    cas: bool,
    /// Modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Print the effects of the removal without removing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    api: ApiOptions,
}

/// Runs the command and prints the outcome.
///
/// # Errors
///
/// If the file cannot be read, the request fails, or the server refuses.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Write(options) => write(options).await?,
        Command::Read(options) => read(options).await?,
        Command::List(options) => list(options).await?,
        Command::Delete(options) => delete(options).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn write(options: Write) -> anyhow::Result<()> {
    let [file] = options.arguments.as_slice() else {
        anyhow::bail!(
            "Must provide exactly one positional argument to specify the config entry to write"
        );
    };
    let data = input::file_or_stdin(file).context("Failed to load data")?;
    let entry = entry_of(&data).context("Failed to decode config entry input")?;
    let named = format!("{}/{}", text(&entry, "Kind"), text(&entry, "Name"));
    let api = options.api.connect()?;
    let mut ask = api.put("/v1/config").flag("dry-run", options.dry_run);
    if options.cas {
        ask = ask.query("cas", options.modify_index.to_string());
    }
    let written = ask.json(&entry).value().await;
    let written = written.with_context(|| format!("Error writing config entry {named}"))?;
    if options.dry_run {
        return line(dry_run::text(&written).trim_end());
    }
    ensure!(written != false, "Config entry not updated: {named}");
    line(&format!("Config entry written: {named}"))?;
    if let Some(warning) = warning(&entry) {
        warn(&format!("WARNING: {warning}"));
    }
    gateways::warn_of_missing(&api, &entry).await;
    Ok(())
}

/// A warning about an insecure entry.
fn warning(entry: &Value) -> Option<&'static str> {
    let permissive = entry["MutualTLSMode"] == "permissive";
    match text(entry, "Kind") {
        "service-defaults" if permissive => Some(
            "MutualTLSMode=permissive is insecure: unencrypted traffic from unauthenticated callers \
             reaches the service. Set it to `strict` once no caller needs it.",
        ),
        "proxy-defaults" if permissive => Some(
            "MutualTLSMode=permissive is insecure: it applies to every service. Set it to `strict`, and \
             to permissive in service-defaults of single services only.",
        ),
        "mesh" if entry["AllowEnablingPermissiveMutualTLS"] == true => Some(
            "AllowEnablingPermissiveMutualTLS=true allows proxy-defaults and service-defaults to set \
             MutualTLSMode=permissive, which is insecure.",
        ),
        _ => None,
    }
}

async fn read(options: Read) -> anyhow::Result<()> {
    let (kind, name) = (options.kind, options.name);
    ensure!(!kind.is_empty(), "Must specify the -kind parameter");
    ensure!(!name.is_empty(), "Must specify the -name parameter");
    let entry = options.api.connect()?.get(path(&kind, &name)).value().await;
    let mut entry = entry.with_context(|| format!("Error reading config entry {kind}/{name}"))?;
    if let Some(fields) = entry.as_object_mut() {
        // It is not a field of an entry; a write with it would be refused.
        fields.remove("Hash");
    }
    print_json(&entry)
}

async fn list(options: List) -> anyhow::Result<()> {
    let kind = options.kind;
    ensure!(!kind.is_empty(), "Must specify the -kind parameter");
    let api = options.api.connect()?;
    let ask = api.get(format!("/v1/config/{}", encoded(&kind)));
    let entries = ask.maybe("filter", &options.filter).value().await;
    let entries =
        entries.with_context(|| format!("Error listing config entries for kind \"{kind}\""))?;
    for entry in entries.as_array().into_iter().flatten() {
        line(text(entry, "Name"))?;
    }
    Ok(())
}

async fn delete(options: Delete) -> anyhow::Result<()> {
    let (mut kind, mut name) = (options.kind, options.name);
    if !options.filename.is_empty() {
        ensure!(
            kind.is_empty() && name.is_empty(),
            "filename can't be used with kind or name"
        );
        let data = input::file_or_stdin(&options.filename).context("Failed to load data")?;
        let entry = entry_of(&data).context("Failed to decode config entry input")?;
        kind = text(&entry, "Kind").to_owned();
        name = text(&entry, "Name").to_owned();
    }
    ensure!(!kind.is_empty(), "Must specify the -kind parameter");
    ensure!(!name.is_empty(), "Must specify the -name parameter");
    ensure!(
        !options.cas || options.modify_index != 0,
        "Must specify a -modify-index greater than 0 with -cas"
    );
    ensure!(
        options.cas || options.modify_index == 0,
        "Cannot specify -modify-index without -cas"
    );
    let api = options.api.connect()?;
    let mut ask = api
        .delete(path(&kind, &name))
        .flag("dry-run", options.dry_run);
    if options.cas {
        ask = ask.query("cas", options.modify_index.to_string());
    }
    let deleted = ask.value().await;
    let deleted = deleted.with_context(|| format!("Error deleting config entry {kind}/{name}"))?;
    if options.dry_run {
        return line(dry_run::text(&deleted).trim_end());
    }
    ensure!(deleted != false, "Config entry not deleted: {kind}/{name}");
    line(&format!("Config entry deleted: {kind}/{name}"))
}

fn path(kind: &str, name: &str) -> String {
    format!("/v1/config/{}/{}", encoded(kind), encoded(name))
}

fn entry_of(text: &str) -> anyhow::Result<Value> {
    ensure!(
        text.len() <= ENTRY_LIMIT,
        "it exceeds the servers' limit of {ENTRY_LIMIT} bytes"
    );
    let value = hcl::to_json(text)?;
    let entry = json::from_hcl::<ConfigEntry>(value)?;
    Ok(serde_json::to_value(entry.value)?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn entries_are_read_in_both_languages_and_spellings() {
        let hcl = r#"
            Kind = "service-router"
            Name = "web"
            Routes = [
              {
                Match { HTTP { PathPrefix = "/x" } }
                Destination { Service = "api" }
              },
            ]
        "#;
        let blocks = r#"
            kind = "service-splitter"
            name = "web"
            splits { weight = 90 }
            splits { weight = 10 service = "canary" }
        "#;
        let entry = entry_of(hcl).expect("an entry");
        assert_eq!(entry["Routes"][0]["Destination"]["Service"], "api");
        let entry = entry_of(blocks).expect("an entry");
        assert_eq!(entry["Kind"], "service-splitter");
        assert_eq!(entry["Splits"][1]["Service"], "canary");
        let text = json!({"kind": "service-defaults", "name": "web", "protocol": "http"});
        assert_eq!(
            entry_of(&text.to_string()).expect("one")["Protocol"],
            "http"
        );
        let error = entry_of("Kind = \"service-defaults\" Name = \"web\" Protcol = \"http\"");
        assert!(format!("{error:?}").contains("Protcol"), "{error:?}");
    }

    #[test]
    fn permissive_is_warned_about() {
        let entry = json!({"Kind": "service-defaults", "MutualTLSMode": "permissive"});
        assert!(warning(&entry).is_some());
        let entry = json!({"Kind": "service-defaults", "MutualTLSMode": "strict"});
        assert_eq!(warning(&entry), None);
    }
}
