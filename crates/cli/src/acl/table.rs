//! `acl` commands as tables of their flags and functions, and the command lines that are parsed with them.

use std::pin::Pin;

use anyhow::ensure;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, value_parser};
use legate_model::{Secret, duration};
use serde_json::Value;

use crate::input;
use crate::output::Format;
use crate::server_api::{Api, ApiFlags};

/// A flag: its name, its value and its help.
pub(super) type Flag = (&'static str, Takes, &'static str);

/// The value of a flag. The text stands for it in the help.
#[derive(Clone, Copy)]
pub(super) enum Takes {
    Switch,
    Text(&'static str),
    /// Texts: the flag may be repeated.
    Many(&'static str),
    /// `KEY=VALUE`; the flag may be repeated.
    Pairs,
    Duration,
    Secret(&'static str),
    Format,
}

use Takes::{Switch, Text};

/// A command: its name, its flags besides those of every command, and what it does.
pub(super) type Verb = (
    &'static str,
    &'static [&'static [Flag]],
    fn(Given) -> Running,
);

/// A running command.
pub(super) type Running = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

pub(super) const FORMAT: &[Flag] = &[("format", Takes::Format, "Output format")];
pub(super) const META: &[Flag] = &[("meta", Switch, "Print hashes and indexes as well")];
pub(super) const NO_MERGE: &[Flag] = &[(
    "no-merge",
    Switch,
    "Replace all fields, including those not given",
)];
pub(super) const ID: &[Flag] = &[("id", Text("ID"), "Its id, or a unique prefix")];
pub(super) const NAME: &[Flag] = &[("name", Text("NAME"), "Its name")];
pub(super) const DESCRIPTION: &[Flag] = &[("description", Text("TEXT"), "Its description")];

/// A command with its flags, arguments without meaning, which Consul's commands accept, and the flags for the
/// server.
pub(super) fn with_flags(name: &'static str, about: &str, flags: &[&[Flag]]) -> clap::Command {
    let mut command = clap::Command::new(name);
    for (name, takes, help) in flags.iter().copied().flatten() {
        let arg = Arg::new(*name).long(*name).help(*help);
        command = command.arg(match *takes {
            Switch => arg.action(ArgAction::SetTrue),
            Text(value) => arg.value_name(value),
            Takes::Many(value) => arg.value_name(value).action(ArgAction::Append),
            Takes::Pairs => {
                let arg = arg.value_name("KEY=VALUE").action(ArgAction::Append);
                arg.value_parser(input::pair)
            }
            Takes::Duration => arg.value_name("DURATION").value_parser(input::duration),
            Takes::Secret(value) => arg.value_name(value).value_parser(input::secret),
            Takes::Format => {
                let arg = arg.value_name("FORMAT").default_value("pretty");
                arg.value_parser(value_parser!(Format))
            }
        });
    }
    let arguments = Arg::new("arguments").hide(true);
    let command = command.arg(arguments.action(ArgAction::Append).num_args(1..));
    // Last, because these flags bring their own.
    ApiFlags::augment_args(command).about(about.to_owned())
}

/// The flags and arguments of a command line. A flag that the command does not have counts as not given.
pub(crate) struct Given(pub(super) ArgMatches);

impl Given {
    fn one<T: Clone + Send + Sync + 'static>(&self, flag: &str) -> Option<&T> {
        self.0.try_get_one(flag).ok().flatten()
    }

    fn many<T: Clone + Send + Sync + 'static>(&self, flag: &str) -> Vec<&T> {
        let values = self.0.try_get_many(flag).ok().flatten();
        values.into_iter().flatten().collect()
    }

    pub(super) fn get(&self, flag: &str) -> Option<&str> {
        self.one::<String>(flag).map(String::as_str)
    }

    /// The value of a flag; empty if it is not given.
    pub(super) fn text(&self, flag: &str) -> &str {
        self.get(flag).unwrap_or_default()
    }

    /// The values of a flag that may be repeated.
    pub(super) fn all(&self, flag: &str) -> Vec<&str> {
        let values = self.many::<String>(flag).into_iter();
        values.map(String::as_str).collect()
    }

    pub(super) fn pairs(&self, flag: &str) -> Vec<&(String, String)> {
        self.many(flag)
    }

    pub(super) fn is_set(&self, flag: &str) -> bool {
        self.one(flag).copied().unwrap_or(false)
    }

    /// A duration as text, unless it is zero.
    pub(super) fn duration(&self, flag: &str) -> Option<String> {
        let given = self.one(flag).copied();
        given
            .filter(|given: &std::time::Duration| !given.is_zero())
            .map(duration::format)
    }

    pub(super) fn secret(&self, flag: &str) -> Option<&Secret> {
        self.one(flag)
    }

    pub(super) fn format(&self) -> Format {
        self.one("format").copied().unwrap_or_default()
    }

    /// The value of a flag that must not be empty.
    pub(super) fn required(&self, flag: &str, missing: &'static str) -> anyhow::Result<&str> {
        let given = self.text(flag);
        ensure!(!given.is_empty(), missing);
        Ok(given)
    }

    /// Sets the fields whose flags are given and not empty.
    pub(super) fn set(&self, to: &mut Value, fields: &[(&str, &str)]) {
        for (flag, field) in fields {
            let given = self.text(flag);
            if !given.is_empty() {
                to[*field] = given.into();
            }
        }
    }

    pub(super) fn connect(&self) -> anyhow::Result<Api> {
        ApiFlags::from_arg_matches(&self.0)?.connect()
    }
}
