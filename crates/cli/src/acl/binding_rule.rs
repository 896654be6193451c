//! `acl binding-rule`: what a login gives.

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{Printed, rule_id, shown};
use crate::input;
use crate::output::{line, quoted};
use crate::server_api::{ApiFlags, encoded};

/// The only type of which rules have variables.
const TEMPLATED: &str = "templated-policy";

/// What is done with binding rules.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Make a binding rule
    Create(Create),
    /// Delete a binding rule
    Delete(Delete),
    /// Print all binding rules
    List(List),
    /// Print a binding rule
    Read(Read),
    /// Change a binding rule
    Update(Update),
}

/// What a rule says.
#[derive(Args)]
struct Fields {
    /// Description, for people
    #[arg(long, default_value = "")]
    description: String,
    /// Which logins it is for, in Consul's filter language
    #[arg(long)]
    selector: Option<String>,
    /// What is bound: service, node, role, policy or templated-policy
    #[arg(long, default_value = "service", value_name = "TYPE")]
    bind_type: String,
    /// Name of what is bound; may have variables, as ${value.name}
    #[arg(long, default_value = "", value_name = "NAME")]
    bind_name: String,
    /// Variable of a templated policy; may be repeated
    #[arg(long, value_parser = input::pair, value_name = "KEY=VALUE")]
    bind_vars: Vec<(String, String)>,
}

#[derive(Args)]
pub(crate) struct Create {
    /// Name of the auth method
    #[arg(long, default_value = "")]
    method: String,
    #[command(flatten)]
    fields: Fields,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Delete {
    /// Id of the rule, or its beginning
    #[arg(long, default_value = "")]
    id: String,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct List {
    /// Only rules of this auth method
    #[arg(long, default_value = "", value_name = "NAME")]
    method: String,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Read {
    /// Id of the rule, or its beginning
    #[arg(long, default_value = "")]
    id: String,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Update {
    /// Id of the rule, or its beginning
    #[arg(long, default_value = "")]
    id: String,
    #[command(flatten)]
    fields: Fields,
    /// Replace all fields, also those that are not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    printed: Printed,
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => options.run().await,
        Command::List(options) => {
            let api = options.api.connect()?;
            let ask = api
                .get("/v1/acl/binding-rules")
                .maybe("authmethod", &options.method);
            let rules = ask.value().await;
            let rules = rules.context("Failed to retrieve the binding rule list")?;
            options
                .printed
                .print_list(&rules, "", shown::listed_binding_rule)
        }
        Command::Read(options) => options.run().await,
        Command::Update(options) => options.run().await,
    }
}

fn path(id: &str) -> String {
    format!("/v1/acl/binding-rule/{}", encoded(id))
}

impl Fields {
    /// The variables; only one is known.
    fn variables(&self) -> Option<Value> {
        let mut names = self.bind_vars.iter().rev();
        let name = names.find(|(key, _)| key.eq_ignore_ascii_case("name"));
        match self.bind_vars.is_empty() {
            true => None,
            false => Some(json!({"Name": name.map_or("", |(_, value)| value)})),
        }
    }

    /// Refuses a whole rule that lacks something.
    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            !self.bind_type.is_empty(),
            "Missing required '-bind-type' flag"
        );
        ensure!(
            !self.bind_name.is_empty(),
            "Missing required '-bind-name' flag"
        );
        ensure!(
            self.bind_type == TEMPLATED || self.bind_vars.is_empty(),
            "Cannot specify -bind-vars when -bind-type is not templated-policy"
        );
        Ok(())
    }

    fn rule(&self) -> Value {
        let mut rule = json!({
            "Description": self.description,
            "BindType": self.bind_type,
            "BindName": self.bind_name,
            "Selector": self.selector.as_deref().unwrap_or_default(),
        });
        if let Some(variables) = self.variables() {
            rule["BindVars"] = variables;
        }
        rule
    }
}

impl Create {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.method.is_empty(), "Missing required '-method' flag");
        self.fields.check()?;
        let mut rule = self.fields.rule();
        rule["AuthMethod"] = self.method.as_str().into();
        let api = self.api.connect()?;
        let made = api.put("/v1/acl/binding-rule").json(&rule).value().await;
        let made = made.context("Failed to create new binding rule")?;
        self.printed.print(&made, shown::binding_rule)
    }
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.id.is_empty(), "Must specify the -id parameter");
        let api = self.api.connect()?;
        let id = rule_id(&api, &self.id).await;
        let id = id.context("Error determining binding rule ID")?;
        let deleted = api.delete(path(&id)).ok().await;
        deleted.with_context(|| format!("Error deleting binding rule {}", quoted(&id)))?;
        line(&format!(
            "Binding rule {} deleted successfully",
            quoted(&id)
        ))
    }
}

impl Read {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(!self.id.is_empty(), "Must specify the -id parameter.");
        let api = self.api.connect()?;
        let id = rule_id(&api, &self.id).await;
        let id = id.context("Error determining binding rule ID")?;
        let rule = api.get(path(&id)).found().await;
        let rule = rule.with_context(|| format!("Error reading binding rule {}", quoted(&id)))?;
        let rule =
            rule.with_context(|| format!("Binding rule not found with ID {}", quoted(&id)))?;
        self.printed.print(&rule, shown::binding_rule)
    }
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.id.is_empty(),
            "Cannot update a binding rule without specifying the -id parameter"
        );
        let api = self.api.connect()?;
        let id = rule_id(&api, &self.id).await;
        let id = id.context("Error determining binding rule ID")?;
        let known = api.get(path(&id)).found().await;
        let known = known.context("Error when retrieving current binding rule")?;
        let known =
            known.with_context(|| format!("Binding rule not found with ID {}", quoted(&id)))?;
        let rule = match self.no_merge {
            true => {
                self.fields.check()?;
                let mut rule = self.fields.rule();
                rule["ID"] = id.as_str().into();
                rule["AuthMethod"] = known["AuthMethod"].clone();
                rule
            }
            false => self.merged(known),
        };
        let written = api.put(path(&id)).json(&rule).value().await;
        let written =
            written.with_context(|| format!("Error updating binding rule {}", quoted(&id)))?;
        self.printed.print(&written, shown::binding_rule)
    }

    /// The rule that there is with what is given. As in Consul, the type is always given: by default it
    /// is that of a service.
    fn merged(&self, mut rule: Value) -> Value {
        let fields = &self.fields;
        for (field, value) in [
            ("Description", &fields.description),
            ("BindType", &fields.bind_type),
            ("BindName", &fields.bind_name),
        ] {
            if !value.is_empty() {
                rule[field] = value.as_str().into();
            }
        }
        if let Some(selector) = &fields.selector {
            rule["Selector"] = selector.as_str().into();
        }
        match fields.bind_type == TEMPLATED {
            true => rule["BindVars"] = fields.variables().unwrap_or(rule["BindVars"].clone()),
            false => rule["BindVars"] = Value::Null,
        }
        rule
    }
}
