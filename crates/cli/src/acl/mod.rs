//! `acl`: manages tokens and what grants their permissions.

mod auth_method;
mod binding_rule;
mod ids;
mod links;
mod noun;
mod policy;
mod printed;
mod role;
mod shown;
mod templated_policy;
mod token;
mod token_update;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use serde_json::json;

use self::printed::Printed;
use crate::input;
use crate::output::{Format, line, quoted};
use crate::server_api::ApiFlags;

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
