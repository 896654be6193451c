//! `acl binding-rule`: manages binding rules.

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::ids::rule_id;
use super::noun::{Asked, Delete, Noun, Read};
use super::printed::Printed;
use super::shown;
use crate::input;
use crate::server_api::Api;

/// The only bind type with variables.
const TEMPLATED: &str = "templated-policy";

/// Subcommands of `acl binding-rule`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a binding rule
    Create(Create),
    /// Delete a binding rule
    Delete(Delete<Which>),
    /// Print all binding rules
    List(List),
    /// Print a binding rule
    Read(Read<Which>),
    /// Update a binding rule
    Update(Update),
}

/// The fields of a rule.
#[derive(Args)]
struct Fields {
    /// Description
    #[arg(long, default_value = "")]
    description: String,
    /// Selector of logins, in Consul's filter language
    #[arg(long)]
    selector: Option<String>,
    /// Type of the bound object: service, node, role, policy or templated-policy
    #[arg(long, default_value = "service", value_name = "TYPE")]
    bind_type: String,
    /// Name of the bound object; may contain variables such as ${value.name}
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
    #[command(flatten)]
    asked: Asked,
}

/// Selects a rule.
#[derive(Args)]
pub(crate) struct Which {
    /// Id of the rule, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
}

#[derive(Args)]
pub(crate) struct List {
    /// Only rules of this auth method
    #[arg(long, default_value = "", value_name = "NAME")]
    method: String,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Args)]
pub(crate) struct Update {
    /// Id of the rule, or a unique prefix
    #[arg(long, default_value = "")]
    id: String,
    #[command(flatten)]
    fields: Fields,
    /// Replace all fields, including those not given
    #[arg(long)]
    no_merge: bool,
    #[command(flatten)]
    printed: Printed,
    #[command(flatten)]
    asked: Asked,
}

const NOUN: Noun = Noun {
    name: "binding rule",
    path: "/v1/acl/binding-rule",
    all: "/v1/acl/binding-rules",
    shown: shown::binding_rule,
    listed: shown::listed_binding_rule,
    between: "",
};

pub(super) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Create(options) => options.run().await,
        Command::Delete(options) => {
            let id = &options.which.id;
            ensure!(!id.is_empty(), "Must specify the -id parameter");
            let api = options.asked.api.connect()?;
            NOUN.delete(&api, &whole_id(&api, id).await?).await
        }
        Command::List(options) => {
            let api = options.asked.api.connect()?;
            let ask = api.get(NOUN.all).maybe("authmethod", &options.method);
            NOUN.print_list(ask.value().await, &options.printed)
        }
        Command::Read(options) => {
            let id = &options.which.id;
            ensure!(!id.is_empty(), "Must specify the -id parameter.");
            let api = options.asked.api.connect()?;
            let rule = NOUN.read(&api, "ID", &whole_id(&api, id).await?).await?;
            NOUN.print(&rule, &options.printed)
        }
        Command::Update(options) => options.run().await,
    }
}

async fn whole_id(api: &Api, id: &str) -> anyhow::Result<String> {
    let id = rule_id(api, id).await;
    id.context("Error determining binding rule ID")
}

impl Fields {
    /// The variables; only one name is supported.
    fn variables(&self) -> Option<Value> {
        let mut names = self.bind_vars.iter().rev();
        let name = names.find(|(key, _)| key.eq_ignore_ascii_case("name"));
        match self.bind_vars.is_empty() {
            true => None,
            false => Some(json!({"Name": name.map_or("", |(_, value)| value)})),
        }
    }

    /// Refuses an incomplete rule.
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
        let api = self.asked.api.connect()?;
        let made = NOUN.create(&api, &rule).await?;
        NOUN.print(&made, &self.printed)
    }
}

impl Update {
    async fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.id.is_empty(),
            "Cannot update a binding rule without specifying the -id parameter"
        );
        let api = self.asked.api.connect()?;
        let id = whole_id(&api, &self.id).await?;
        let known = NOUN.current(&api, "ID", &id).await?;
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
        let written = NOUN.update(&api, &id, &rule).await?;
        NOUN.print(&written, &self.printed)
    }

    /// The existing rule with the given fields. As in Consul, the bind type is always replaced; its
    /// default is service.
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
