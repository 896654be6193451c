//! `acl policy`: manages policies.

use anyhow::{Context, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::ids::policy_id;
use super::noun::{Asked, Delete, List, Noun, Read};
use super::printed::Printed;
use super::shown;
use crate::input;
use crate::output::{quoted, text};
use crate::server_api::{Api, encoded};

/// Subcommands of `acl policy`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a policy
    Create(Create),
    /// Delete a policy
    Delete(Delete<Which>),
    /// Print all policies
    List(List),
    /// Print a policy
    Read(Read<Which>),
    /// Update a policy
    Update(Update),
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the policy
    #[arg(long, default_value = "")]
    name: String,
    /// Description
    #[arg(long, default_value = "")]
    description: String,
    /// Datacenter in which it is valid; may be repeated [default: all]
    #[arg(long, value_name = "NAME")]
    valid_datacenter: Vec<String>,
    /// Rules: text, @FILE, or - for standard input
    #[arg(long, default_value = "")]
    rules: String,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

/// Selects a policy.
#[derive(Args)]
pub(crate) struct Which {
    /// Id of the policy, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
    /// Name of the policy
    #[arg(long, default_value = "")]
    name: String,
}

#[derive(Args)]
pub(crate) struct Update {
    /// Id of the policy, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
    /// New name; without -id the name of the policy
    #[arg(long)]
    name: Option<String>,
    /// New description
    #[arg(long)]
    description: Option<String>,
    /// Datacenter in which it is valid; may be repeated
    #[arg(long, value_name = "NAME")]
    valid_datacenter: Vec<String>,
    /// New rules: text, @FILE, or - for standard input
    #[arg(long)]
    rules: Option<String>,
    /// Replace all fields, including those not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

const NOUN: Noun = Noun {
    name: "policy",
    path: "/v1/acl/policy",
    all: "/v1/acl/policies",
    shown: shown::policy,
    listed: shown::listed_policy,
    between: "",
};

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => delete(options).await,
        Command::List(options) => NOUN.list(options).await,
        Command::Read(options) => read(options).await,
        Command::Update(options) => options.run().await,
    }
}

/// Reads a policy by name; `None` if it does not exist.
async fn by_name(api: &Api, name: &str) -> anyhow::Result<Option<Value>> {
    let found = api
        .get(format!("/v1/acl/policy/name/{}", encoded(name)))
        .found();
    let found = found.await;
    found.with_context(|| format!("Failed to find policy with name {name}"))
}

async fn id_of(api: &Api, id: &str, name: &str) -> anyhow::Result<String> {
    if !id.is_empty() {
        return policy_id(api, id).await;
    }
    match by_name(api, name).await? {
        Some(policy) => Ok(text(&policy, "ID").to_owned()),
        None => bail!("No such policy with name: {name}"),
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.name.is_empty(), "Missing required '-name' flag");
        let api = self.asked.api.connect()?;
        let rules = input::text_or_file(&self.rules).context("Error loading rules")?;
        let mut policy = json!({
            "Name": self.name,
            "Description": self.description,
            "Rules": rules,
        });
        if !self.valid_datacenter.is_empty() {
            policy["Datacenters"] = self.valid_datacenter.into();
        }
        let made = NOUN.create(&api, &policy).await?;
        NOUN.print(&whole(made), &self.printed)
    }
}

impl Which {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            !self.id.is_empty() || !self.name.is_empty(),
            "Must specify either the -id or -name parameters"
        );
        Ok(())
    }
}

async fn delete(options: Delete<Which>) -> anyhow::Result<()> {
    options.which.check()?;
    let api = options.asked.api.connect()?;
    let id = id_of(&api, &options.which.id, &options.which.name).await;
    NOUN.delete(&api, &id.context("Error determining policy ID")?)
        .await
}

async fn read(options: Read<Which>) -> anyhow::Result<()> {
    options.which.check()?;
    let Which { id, name } = &options.which;
    let api = options.asked.api.connect()?;
    let policy = if id.is_empty() {
        let found = by_name(&api, name).await;
        let what = quoted(&format!("name:{name}"));
        let found = found.with_context(|| format!("Error reading policy {what}"))?;
        found.with_context(|| format!("Error policy not found: {name}"))?
    } else {
        let id = policy_id(&api, id).await;
        let id = id.context("Error determining policy ID")?;
        let found = api.get(NOUN.one(&id)).value().await;
        let what = quoted(&format!("id:{id}"));
        found.with_context(|| format!("Error reading policy {what}"))?
    };
    NOUN.print(&whole(policy), &options.printed)
}

/// Adds the `Datacenters` field that servers omit if it is empty.
fn whole(mut policy: Value) -> Value {
    if policy.get("Datacenters").is_none() {
        policy["Datacenters"] = Value::Null;
    }
    policy
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        let name = self.name.clone().unwrap_or_default();
        ensure!(
            !self.id.is_empty() || !name.is_empty(),
            "Must specify either the -id or -name parameters"
        );
        let api = self.asked.api.connect()?;
        let id = id_of(&api, &self.id, &name).await;
        let id = id.context("Error determining policy ID")?;
        let rules = self.rules.as_deref().map(input::text_or_file).transpose();
        let rules = rules.context("Error loading data source")?;
        let mut policy = json!({"ID": id, "Name": "", "Description": "", "Rules": ""});
        if !self.no_merge {
            let known = api.get(NOUN.one(&id)).value().await;
            let known = known.with_context(|| format!("Error reading policy {}", quoted(&id)))?;
            for field in ["Name", "Description", "Rules", "Datacenters"] {
                policy[field] = known[field].clone();
            }
        }
        for (field, value) in [
            ("Name", self.name),
            ("Description", self.description),
            ("Rules", rules),
        ] {
            if let Some(value) = value {
                policy[field] = value.into();
            }
        }
        if !self.valid_datacenter.is_empty() {
            policy["Datacenters"] = self.valid_datacenter.into();
        }
        let written = NOUN.update(&api, &id, &policy).await?;
        NOUN.print(&whole(written), &self.printed)
    }
}
