//! `namespace` and `partition`: manages tenants, with the commands of Consul Enterprise.

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::input;
use crate::output::{Format, joined, line, list, number, pairs, print_json, quoted, text};
use crate::server_api::{Api, ApiFlags, ApiOptions, encoded};

/// A kind of tenants.
pub(crate) struct Kind {
    path: &'static str,
    all: &'static str,
    name: &'static str,
}

/// Namespaces.
pub(crate) const NAMESPACE: Kind = Kind {
    path: "/v1/namespace",
    all: "/v1/namespaces",
    name: "namespace",
};

/// Admin partitions.
pub(crate) const PARTITION: Kind = Kind {
    path: "/v1/partition",
    all: "/v1/partitions",
    name: "partition",
};

/// Subcommands of `namespace` and `partition`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create one
    Create(Create),
    /// Delete one
    Delete(Named),
    /// Print all
    List(List),
    /// Print one
    Read(Named),
    /// Update one
    Update(Update),
    /// Write one from a file in HCL or JSON
    Write(Write),
}

/// The fields of a tenant.
#[derive(Args)]
struct Fields {
    /// Name
    #[arg(long, default_value = "")]
    name: String,
    /// Description
    #[arg(long, default_value = "")]
    description: String,
    /// Metadata; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    meta: Vec<(String, String)>,
    /// Id of a default policy for all tokens of the namespace; may be repeated
    #[arg(long, value_name = "ID")]
    default_policy_id: Vec<String>,
    /// Name of a default policy for all tokens of the namespace; may be repeated
    #[arg(long, value_name = "NAME")]
    default_policy_name: Vec<String>,
    /// Id of a default role for all tokens of the namespace; may be repeated
    #[arg(long, value_name = "ID")]
    default_role_id: Vec<String>,
    /// Name of a default role for all tokens of the namespace; may be repeated
    #[arg(long, value_name = "NAME")]
    default_role_name: Vec<String>,
    /// Print indexes as well
    #[arg(long)]
    show_meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
}

#[derive(Args)]
pub(crate) struct Create {
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Update {
    #[command(flatten)]
    fields: Fields,
    /// Replace all fields, including those not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Named {
    /// Print indexes as well
    #[arg(long)]
    meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// NAME
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct List {
    /// Print indexes as well
    #[arg(long)]
    meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    api: ApiOptions,
}

#[derive(Args)]
pub(crate) struct Write {
    /// Print indexes as well
    #[arg(long)]
    meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// FILE, or - for standard input
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails.
pub(crate) async fn run(kind: &Kind, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Create(options) => {
            let tenant = options
                .fields
                .apply(kind, json!({"Name": options.fields.name}))?;
            let api = options.api.connect()?;
            let made = api.put(kind.path).json(&tenant).value().await;
            let made = made.with_context(|| format!("Failed to create new {}", kind.name))?;
            print(&made, options.fields.format, options.fields.show_meta)?;
        }
        Command::Update(options) => {
            let name = &options.fields.name;
            let api = options.api.connect()?;
            let known = match options.no_merge {
                true => json!({"Name": name}),
                false => read(kind, &api, name).await?,
            };
            let tenant = options.fields.apply(kind, known)?;
            let written = put(kind, &api, &tenant).await?;
            print(&written, options.fields.format, options.fields.show_meta)?;
        }
        Command::Write(options) => {
            let [file] = options.arguments.as_slice() else {
                bail!(
                    "Must provide exactly one positional argument to specify the {}",
                    kind.name
                );
            };
            let data = input::file_or_stdin(file).context("Failed to load data")?;
            let tenant = legate_model::hcl::to_json(&data).context("Failed to decode data")?;
            let written = put(kind, &options.api.connect()?, &tenant).await?;
            print(&written, options.format, options.meta)?;
        }
        Command::Read(options) => {
            let name = options.name(kind)?;
            let tenant = read(kind, &options.api.connect()?, name).await?;
            print(&tenant, options.format, options.meta)?;
        }
        Command::List(options) => {
            let all = options.api.connect()?.get(kind.all).value().await;
            let all = all.with_context(|| format!("Failed to retrieve the {} list", kind.name))?;
            match (options.format, all.as_array()) {
                (Format::Pretty, Some(all)) => {
                    let shown = |one| shown(one, options.meta);
                    line(
                        all.iter()
                            .map(shown)
                            .collect::<Vec<_>>()
                            .join("\n")
                            .trim_end(),
                    )?;
                }
                _ => print_json(&all)?,
            }
        }
        Command::Delete(options) => {
            let name = options.name(kind)?;
            let api = options.api.connect()?;
            let deleted = api
                .delete(format!("{}/{}", kind.path, encoded(name)))
                .ok()
                .await;
            let (what, name) = (kind.name, quoted(name));
            deleted.with_context(|| format!("Error deleting {what} {name}"))?;
            line(&format!("{} {name} was successfully deleted", title(what)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn title(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

impl Named {
    fn name(&self, kind: &Kind) -> anyhow::Result<&str> {
        match self.arguments.as_slice() {
            [name] if !name.is_empty() => Ok(name),
            _ => bail!("Must specify the name of exactly one {}", kind.name),
        }
    }
}

async fn read(kind: &Kind, api: &Api, name: &str) -> anyhow::Result<Value> {
    ensure!(!name.is_empty(), "Missing required '-name' flag");
    let found = api
        .get(format!("{}/{}", kind.path, encoded(name)))
        .found()
        .await;
    let (what, name) = (kind.name, quoted(name));
    let found = found.with_context(|| format!("Error reading {what} {name}"))?;
    found.with_context(|| format!("{} not found with name {name}", title(what)))
}

async fn put(kind: &Kind, api: &Api, tenant: &Value) -> anyhow::Result<Value> {
    let name = text(tenant, "Name");
    ensure!(!name.is_empty(), "the {} has no Name", kind.name);
    let path = format!("{}/{}", kind.path, encoded(name));
    let written = api.put(path).json(tenant).value().await;
    written.with_context(|| format!("Failed to update {} {}", kind.name, quoted(name)))
}

impl Fields {
    /// Applies the given fields.
    fn apply(&self, kind: &Kind, mut tenant: Value) -> anyhow::Result<Value> {
        ensure!(!self.name.is_empty(), "Missing required '-name' flag");
        if !self.description.is_empty() {
            tenant["Description"] = self.description.as_str().into();
        }
        if !self.meta.is_empty() {
            tenant["Meta"] = input::object(&self.meta);
        }
        for (field, ids, names) in [
            (
                "PolicyDefaults",
                &self.default_policy_id,
                &self.default_policy_name,
            ),
            (
                "RoleDefaults",
                &self.default_role_id,
                &self.default_role_name,
            ),
        ] {
            if ids.is_empty() && names.is_empty() {
                continue;
            }
            ensure!(
                kind.path == NAMESPACE.path,
                "-default-policy-* and -default-role-* are for namespaces, not for partitions"
            );
            let ids = ids.iter().map(|id| json!({"ID": id}));
            let names = names.iter().map(|name| json!({"Name": name}));
            tenant["ACLs"][field] = ids.chain(names).collect();
        }
        Ok(tenant)
    }
}

fn print(tenant: &Value, format: Format, meta: bool) -> anyhow::Result<()> {
    match format {
        Format::Json => print_json(tenant),
        Format::Pretty => line(shown(tenant, meta).trim_end()),
    }
}

/// Formats a tenant.
fn shown(tenant: &Value, meta: bool) -> String {
    let mut out = format!("{}:\n", text(tenant, "Name"));
    let mut field = |title: &str, value: &str| {
        out.push_str(&format!("   {title:15}{value}\n"));
    };
    let partition = text(tenant, "Partition");
    if !partition.is_empty() {
        field("Partition:", partition);
    }
    field("Description:", text(tenant, "Description"));
    if !text(tenant, "DeletedAt").is_empty() {
        field("Deleted At:", text(tenant, "DeletedAt"));
    }
    if tenant["Meta"]
        .as_object()
        .is_some_and(|meta| !meta.is_empty())
    {
        field("Meta:", &pairs(&tenant["Meta"]).join(", "));
    }
    for (title, name) in [("Policies:", "PolicyDefaults"), ("Roles:", "RoleDefaults")] {
        let names = list(&tenant["ACLs"], name)
            .iter()
            .map(|link| text(link, "Name"));
        let names: Vec<&str> = names.collect();
        if !names.is_empty() {
            field(title, &names.join(", "));
        }
    }
    let datacenters = joined(tenant, "Datacenters", ", ");
    if !datacenters.is_empty() {
        field("Datacenters:", &datacenters);
    }
    if meta {
        field("Create Index:", &number(tenant, "CreateIndex").to_string());
        field("Modify Index:", &number(tenant, "ModifyIndex").to_string());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_shown_with_its_links() {
        let tenant = json!({"Name": "n", "Description": "d",
            "ACLs": {"PolicyDefaults": [{"ID": "1", "Name": "p"}]}});
        assert_eq!(
            shown(&tenant, false),
            "n:\n   Description:   d\n   Policies:      p\n"
        );
        assert_eq!(title("namespace"), "Namespace");
    }
}
