//! `acl`: manages tokens and what grants their permissions.

mod auth_method;
mod binding_rule;
mod links;
mod noun;
mod policy;
mod role;
mod shown;
mod templated_policy;
mod token;
mod token_update;

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::input;
use crate::output::{Format, line, print_json, quoted, text};
use crate::server_api::{Api, ApiFlags};

/// Subcommands of `acl`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create the first token, a management token
    Bootstrap(Bootstrap),
    /// Set a token of an agent
    SetAgentToken(SetAgentToken),
    /// Manage tokens
    #[command(subcommand)]
    Token(Box<token::Command>),
    /// Manage policies: named rules
    #[command(subcommand)]
    Policy(policy::Command),
    /// Manage roles: named sets of policies and identities
    #[command(subcommand)]
    Role(Box<role::Command>),
    /// Manage auth methods: trusted sources of identities for logins
    #[command(subcommand)]
    AuthMethod(Box<auth_method::Command>),
    /// Manage binding rules: the permissions that logins get
    #[command(subcommand)]
    BindingRule(binding_rule::Command),
    /// Show policies that are generated from templates
    #[command(subcommand)]
    TemplatedPolicy(templated_policy::Command),
}

#[derive(Args)]
pub(crate) struct Bootstrap {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// FILE with the token's secret, or - for standard input
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct SetAgentToken {
    /// TYPE (default, agent, recovery, replication, config_file_service_registration or dns) and TOKEN
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

/// Output options.
#[derive(Args)]
pub(crate) struct Printed {
    /// Print hashes and indexes as well
    #[arg(long)]
    pub(crate) meta: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    pub(crate) format: Format,
}

impl Printed {
    /// Prints a value as JSON, or as text formatted by `pretty`.
    fn print(&self, value: &Value, pretty: impl Fn(&Value, bool) -> String) -> anyhow::Result<()> {
        if self.format == Format::Json {
            return print_json(&with_names(value.clone()));
        }
        match pretty(value, self.meta) {
            text if text.is_empty() => Ok(()),
            text => line(&text),
        }
    }

    /// Prints a list, each element formatted by `pretty` and separated by `between`.
    fn print_list(
        &self,
        values: &Value,
        between: &str,
        pretty: impl Fn(&Value, bool) -> String,
    ) -> anyhow::Result<()> {
        let all = |values: &Value, meta| {
            let values = values.as_array().into_iter().flatten();
            let texts: Vec<String> = values.map(|value| pretty(value, meta)).collect();
            texts.join(between)
        };
        self.print(values, all)
    }
}

/// Renames variables to what Consul's command line prints; servers write them in lower case.
fn with_names(mut value: Value) -> Value {
    match &mut value {
        Value::Array(values) => values
            .iter_mut()
            .for_each(|one| *one = with_names(one.take())),
        Value::Object(fields) => {
            // Servers generate the id of a template, and no command prints it.
            fields.remove("TemplateID");
            for (key, field) in fields.iter_mut() {
                *field = with_names(field.take());
                let variables = matches!(key.as_str(), "TemplateVariables" | "BindVars");
                if let Some(variables) = field.as_object_mut().filter(|_| variables)
                    && let Some(name) = variables.remove("name")
                {
                    variables.insert("Name".to_owned(), name);
                }
            }
        }
        _ => {}
    }
    value
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bootstrap(options) => bootstrap(options).await?,
        Command::SetAgentToken(options) => set_agent_token(options).await?,
        Command::Token(command) => token::run(*command).await?,
        Command::Policy(command) => policy::run(command).await?,
        Command::Role(command) => role::run(*command).await?,
        Command::AuthMethod(command) => auth_method::run(*command).await?,
        Command::BindingRule(command) => binding_rule::run(command).await?,
        Command::TemplatedPolicy(command) => templated_policy::run(command).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn bootstrap(options: Bootstrap) -> anyhow::Result<()> {
    let secret = match options.arguments.as_slice() {
        [] => String::new(),
        [file] => input::file_or_stdin(file).context("Error reading provided token")?,
        _ => bail!("This command takes up to one argument"),
    };
    let api = options.api.connect()?;
    let mut ask = api.put("/v1/acl/bootstrap");
    if !secret.trim().is_empty() {
        ask = ask.json(&json!({"BootstrapSecret": secret.trim()}));
    }
    let token = ask.value().await.context("Failed ACL bootstrapping")?;
    let printed = Printed {
        meta: false,
        format: options.format,
    };
    printed.print(&token, shown::token)
}

async fn set_agent_token(options: SetAgentToken) -> anyhow::Result<()> {
    let (kind, token) = match options.arguments.as_slice() {
        [] => bail!("Error! Missing TYPE and TOKEN arguments"),
        [kind] => match kind.as_str() {
            "default" | "agent" | "recovery" | "replication" => {
                bail!("Error! Missing TOKEN argument")
            }
            _ => bail!("Error! MISSING TYPE argument"),
        },
        [kind, token] => (kind.as_str(), input::text_or_file(token).context("Error!")?),
        more => bail!("Error! Too many arguments: expected 2 got {}", more.len()),
    };
    let path = match kind {
        "default" | "agent" | "recovery" | "replication" | "dns" => kind,
        "config_file_service_registration" => kind,
        _ => bail!("Unknown token type"),
    };
    let api = options.api.connect()?;
    let ask = api.put(format!("/v1/agent/token/{path}"));
    let done = ask.json(&json!({"Token": token.trim()})).ok().await;
    done.with_context(|| format!("Failed to set ACL token {}", quoted(kind)))?;
    line(&format!("ACL token {} set successfully", quoted(kind)))
}

/// Resolves the prefix of an id, given in `field`, to the only match in a list. A complete id is not
/// looked up.
async fn whole_id(
    api: &Api,
    list: &str,
    field: &str,
    partial: &str,
    what: &str,
) -> anyhow::Result<String> {
    if partial.len() == 36 {
        return Ok(partial.to_owned());
    }
    let all = api.get(list).value().await?;
    let ids = all
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| text(one, field));
    let matching: Vec<&str> = ids.filter(|id| id.starts_with(partial)).collect();
    match matching.as_slice() {
        [] => bail!("No such {what} ID with prefix: {partial}"),
        [id] => Ok((*id).to_owned()),
        _ => bail!("Partial {what} ID is not unique"),
    }
}

async fn token_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    match partial {
        "anonymous" => Ok("00000000-0000-0000-0000-000000000002".to_owned()),
        _ => whole_id(api, "/v1/acl/tokens", "AccessorID", partial, "token").await,
    }
}

async fn policy_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    match partial {
        "global-management" => Ok("00000000-0000-0000-0000-000000000001".to_owned()),
        "builtin/global-read-only" => Ok("00000000-0000-0000-0000-000000000002".to_owned()),
        _ => whole_id(api, "/v1/acl/policies", "ID", partial, "policy").await,
    }
}

async fn role_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    whole_id(api, "/v1/acl/roles", "ID", partial, "role").await
}

async fn rule_id(api: &Api, partial: &str) -> anyhow::Result<String> {
    let found = whole_id(api, "/v1/acl/binding-rules", "ID", partial, "rule").await;
    // Consul has other texts for these.
    found.map_err(
        |error| match error.to_string().strip_prefix("No such rule ID") {
            Some(rest) => anyhow!("no such rule ID{rest}: ACL not found"),
            None => error,
        },
    )
}
