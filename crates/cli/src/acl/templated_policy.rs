//! `acl templated-policy`: shows policies that are generated from templates.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use super::links::templated_policies;
use super::noun::Asked;
use super::printed::Printed;
use super::shown;
use crate::output::{Format, quoted, text};
use crate::server_api::encoded_path;

/// Subcommands of `acl templated-policy`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the names of all templated policies
    List(List),
    /// Print a templated policy
    Read(Read),
    /// Print the policy that a template generates
    Preview(Preview),
}

#[derive(Args)]
pub(crate) struct List {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
pub(crate) struct Read {
    /// Name, such as builtin/service
    #[arg(long, default_value = "")]
    name: String,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
pub(crate) struct Preview {
    /// Name, such as builtin/service
    #[arg(long, default_value = "")]
    name: String,
    /// File with a templated policy, in HCL or JSON
    #[arg(long, default_value = "")]
    file: String,
    /// Variable; may be repeated
    #[arg(long, value_name = "NAME:VALUE")]
    var: Vec<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[command(flatten)]
    asked: Asked,
}

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::List(options) => options.run().await,
        Command::Read(options) => options.run().await,
        Command::Preview(options) => options.run().await,
    }
}

fn printed(format: Format) -> Printed {
    Printed {
        meta: false,
        format,
    }
}

impl List {
    async fn run(self) -> anyhow::Result<()> {
        let api = self.asked.api.connect()?;
        let policies = api.get("/v1/acl/templated-policies").value().await;
        let policies = policies.context("Failed to retrieve the templated policies list")?;
        let names = |policies: &Value, _| {
            let policies = policies.as_object().into_iter().flatten();
            let mut names: Vec<String> = policies
                .map(|(_, policy)| format!("{}\n", text(policy, "TemplateName")))
                .collect();
            names.sort();
            names.concat()
        };
        printed(self.format).print(&policies, names)
    }
}

impl Read {
    async fn run(self) -> anyhow::Result<()> {
        let name = &self.name;
        ensure!(!name.is_empty(), "Must specify the -name parameter");
        let path = format!("/v1/acl/templated-policy/name/{}", encoded_path(name));
        let policy = self.asked.api.connect()?.get(path).found().await;
        let policy =
            policy.with_context(|| format!("Error reading templated policy {}", quoted(name)))?;
        let policy = policy
            .with_context(|| format!("Templated policy not found with name {}", quoted(name)))?;
        self.printed.print(&policy, shown::templated_policy)
    }
}

impl Preview {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.name.is_empty() || !self.file.is_empty(),
            "Cannot preview a templated policy without specifying -name or -file"
        );
        let policies = templated_policies(&self.name, &self.file, &self.var)?;
        let [policy] = policies.as_slice() else {
            bail!("Can only preview a single templated policy at a time.");
        };
        let name = encoded_path(text(policy, "TemplateName"));
        let ask = format!("/v1/acl/templated-policy/preview/{name}");
        let api = self.asked.api.connect()?;
        let made = api
            .post(ask)
            .json(&policy["TemplateVariables"])
            .value()
            .await;
        let made = made.context("Failed to generate the templated policy preview")?;
        printed(self.format).print(&made, shown::policy)
    }
}
