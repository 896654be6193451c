//! `acl`: manages tokens and what grants their permissions.

mod auth_method;
mod binding_rule;
mod links;
mod noun;
mod policy;
mod role;
mod shown;
mod table;
mod templated_policy;
mod token;
mod token_update;

use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{ArgMatches, FromArgMatches, Subcommand};
use serde_json::json;

use self::noun::{Noun, print};
use self::table::{FORMAT, Flag, Given, Running, Verb, with_flags};
use crate::input;
use crate::output::{line, quoted};

const NOUNS: [&Noun; 6] = [
    &token::NOUN,
    &policy::NOUN,
    &role::NOUN,
    &auth_method::NOUN,
    &binding_rule::NOUN,
    &templated_policy::NOUN,
];

/// The commands without a noun.
const COMMANDS: &[(Verb, &str)] = &[
    (
        ("bootstrap", &[FORMAT], |given| Box::pin(bootstrap(given))),
        "Create the first token, a management token, with the secret in FILE or a random one",
    ),
    (
        ("set-agent-token", &[] as &[&[Flag]], |given| {
            Box::pin(set_agent_token(given))
        }),
        "Set a token of an agent, by TYPE (default, agent, recovery, replication, \
         config_file_service_registration or dns) and TOKEN",
    ),
];

/// A subcommand of `acl`.
pub(crate) struct Command {
    run: fn(Given) -> Running,
    given: Given,
}

impl Subcommand for Command {
    fn augment_subcommands(command: clap::Command) -> clap::Command {
        let commands = COMMANDS
            .iter()
            .map(|((name, flags, _), about)| with_flags(name, about, flags));
        command
            .subcommands(commands)
            .subcommands(NOUNS.map(Noun::subcommand))
    }

    fn augment_subcommands_for_update(command: clap::Command) -> clap::Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        let mut commands = COMMANDS.iter().map(|((name, ..), _)| *name);
        commands.any(|known| known == name) || NOUNS.iter().any(|noun| noun.command == name)
    }
}

impl FromArgMatches for Command {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (name, matches) = subcommand(matches)?;
        let Some(noun) = NOUNS.iter().find(|noun| noun.command == name) else {
            return Self::of(COMMANDS.iter().map(|(command, _)| command), name, matches);
        };
        let (verb, matches) = subcommand(matches)?;
        Self::of(noun.commands.iter(), verb, matches)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn subcommand(matches: &ArgMatches) -> Result<(&str, &ArgMatches), clap::Error> {
    let missing = || clap::Error::new(clap::error::ErrorKind::MissingSubcommand);
    matches.subcommand().ok_or_else(missing)
}

impl Command {
    fn of(
        mut commands: impl Iterator<Item = &'static Verb>,
        name: &str,
        matches: &ArgMatches,
    ) -> Result<Self, clap::Error> {
        let unknown = || clap::Error::new(clap::error::ErrorKind::InvalidSubcommand);
        let (.., run) = commands
            .find(|(verb, ..)| *verb == name)
            .ok_or_else(unknown)?;
        let given = Given(matches.clone());
        Ok(Self { run: *run, given })
    }
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    (command.run)(command.given).await?;
    Ok(ExitCode::SUCCESS)
}

async fn bootstrap(given: Given) -> anyhow::Result<()> {
    let secret = match given.all("arguments").as_slice() {
        [] => String::new(),
        [file] => input::file_or_stdin(file).context("Error reading provided token")?,
        _ => bail!("This command takes up to one argument"),
    };
    let api = given.connect()?;
    let mut ask = api.put("/v1/acl/bootstrap");
    if !secret.trim().is_empty() {
        ask = ask.json(&json!({"BootstrapSecret": secret.trim()}));
    }
    let token = ask.value().await.context("Failed ACL bootstrapping")?;
    print(&token, &given, shown::token)
}

async fn set_agent_token(given: Given) -> anyhow::Result<()> {
    const SHORT: &[&str] = &["default", "agent", "recovery", "replication"];
    let (kind, token) = match given.all("arguments")[..] {
        [] => bail!("Error! Missing TYPE and TOKEN arguments"),
        [kind] if SHORT.contains(&kind) => bail!("Error! Missing TOKEN argument"),
        [_] => bail!("Error! MISSING TYPE argument"),
        [kind, token] => (kind, input::text_or_file(token).context("Error!")?),
        ref more => bail!("Error! Too many arguments: expected 2 got {}", more.len()),
    };
    if !SHORT.contains(&kind) && !matches!(kind, "dns" | "config_file_service_registration") {
        bail!("Unknown token type");
    }
    let api = given.connect()?;
    let ask = api.put(format!("/v1/agent/token/{kind}"));
    let done = ask.json(&json!({"Token": token.trim()})).ok().await;
    done.with_context(|| format!("Failed to set ACL token {}", quoted(kind)))?;
    line(&format!("ACL token {} set successfully", quoted(kind)))
}
