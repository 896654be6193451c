//! Code shared by the commands of all `acl` nouns: requests, messages and output. Each noun's specifics are
//! in its module.

use anyhow::{Context, bail};
use serde_json::Value;

use super::table::{Given, Verb, with_flags};
use crate::output::{Format, line, list, print_json, quoted, text};
use crate::server_api::{Api, encoded};

/// An object type with create, read, update, delete and list.
pub(super) struct Noun {
    /// Its name in command lines and paths.
    pub(super) command: &'static str,
    pub(super) about: &'static str,
    /// Its plural in paths and messages, with dashes.
    pub(super) plural: &'static str,
    /// The field with the id.
    pub(super) id: &'static str,
    /// Names that stand for ids.
    pub(super) builtin: &'static [(&'static str, &'static str)],
    /// Formats an object, with metadata and as an element of a list, if so wanted.
    pub(super) shown: fn(&Value, bool, bool) -> String,
    /// The separator between objects in a list.
    pub(super) between: &'static str,
    pub(super) commands: &'static [Verb],
}

impl Noun {
    /// Its name in messages.
    fn name(&self) -> String {
        self.command.replace('-', " ")
    }

    /// The command with its subcommands.
    pub(super) fn subcommand(&self) -> clap::Command {
        let command = clap::Command::new(self.command).about(self.about);
        let command = command
            .subcommand_required(true)
            .arg_required_else_help(true);
        let (name, plural) = (self.name(), self.plural.replace('-', " "));
        let article = if name.starts_with('a') { "an" } else { "a" };
        self.commands
            .iter()
            .fold(command, |command, (verb, flags, _)| {
                let about = match *verb {
                    "clone" => "Create a token with the permissions of another".to_owned(),
                    "create" => format!("Create {article} {name}"),
                    "delete" => format!("Delete {article} {name}"),
                    "list" => format!("Print all {plural}"),
                    "preview" => "Print the policy that a template generates".to_owned(),
                    "read" => format!("Print {article} {name}"),
                    _ => format!("Update {article} {name}"),
                };
                command.subcommand(with_flags(verb, &about, flags))
            })
    }

    /// The path for creation.
    fn path(&self) -> String {
        format!("/v1/acl/{}", self.command)
    }

    /// The path of an object.
    pub(super) fn one(&self, key: &str) -> String {
        format!("{}/{}", self.path(), encoded(key))
    }

    /// The path of the list.
    pub(super) fn all(&self) -> String {
        format!("/v1/acl/{}", self.plural)
    }

    /// Resolves an id, the prefix of one, or a name that stands for one. A complete id is not looked up.
    pub(super) async fn whole_id(&self, api: &Api, partial: &str) -> anyhow::Result<String> {
        if let Some((_, id)) = self.builtin.iter().find(|(name, _)| *name == partial) {
            return Ok((*id).to_owned());
        }
        if partial.len() == 36 {
            return Ok(partial.to_owned());
        }
        let all = api.get(self.all()).value().await?;
        let ids = all.as_array().into_iter().flatten();
        let ids = ids.map(|one| text(one, self.id));
        let matching: Vec<&str> = ids.filter(|id| id.starts_with(partial)).collect();
        match (matching.as_slice(), self.command) {
            ([id], _) => Ok((*id).to_owned()),
            // Consul has other texts for these.
            ([], "binding-rule") => bail!("no such rule ID with prefix: {partial}: ACL not found"),
            (_, "binding-rule") => bail!("Partial rule ID is not unique"),
            ([], name) => bail!("No such {name} ID with prefix: {partial}"),
            (_, name) => bail!("Partial {name} ID is not unique"),
        }
    }

    /// Like [`Self::whole_id`]; the error says what failed.
    pub(super) async fn determined_id(&self, api: &Api, partial: &str) -> anyhow::Result<String> {
        let id = self.whole_id(api, partial).await;
        id.with_context(|| format!("Error determining {} ID", self.name()))
    }

    /// Creates an object and prints it.
    pub(super) async fn create(
        &self,
        api: &Api,
        value: &Value,
        given: &Given,
    ) -> anyhow::Result<()> {
        let made = api.put(self.path()).json(value).value().await;
        let made = made.with_context(|| format!("Failed to create new {}", self.name()))?;
        self.print(&made, given)
    }

    /// Replaces an object and prints it.
    pub(super) async fn update(
        &self,
        api: &Api,
        key: &str,
        value: &Value,
        given: &Given,
    ) -> anyhow::Result<()> {
        let written = api.put(self.one(key)).json(value).value().await;
        let written =
            written.with_context(|| format!("Error updating {} {}", self.name(), quoted(key)))?;
        self.print(&written, given)
    }

    /// Deletes an object and prints a confirmation.
    pub(super) async fn delete(&self, api: &Api, key: &str) -> anyhow::Result<()> {
        let (name, key_shown) = (self.name(), quoted(key));
        let deleted = api.delete(self.one(key)).ok().await;
        deleted.with_context(|| format!("Error deleting {name} {key_shown}"))?;
        let name = capitalised(&name);
        line(&format!("{name} {key_shown} deleted successfully"))
    }

    /// Prints the object at a path; `by` is the kind of the key, for messages.
    pub(super) async fn read(
        &self,
        api: &Api,
        path: String,
        (by, key): (&str, &str),
        given: &Given,
    ) -> anyhow::Result<()> {
        let (name, shown) = (self.name(), quoted(key));
        let read = api.get(path).found().await;
        let read = read.with_context(|| format!("Error reading {name} {shown}"))?;
        let missing = || format!("{} not found with {by} {shown}", capitalised(&name));
        self.print(&read.with_context(missing)?, given)
    }

    /// Reads an object for an update.
    pub(super) async fn current(&self, api: &Api, by: &str, key: &str) -> anyhow::Result<Value> {
        let name = self.name();
        let known = api.get(self.one(key)).found().await;
        let known = known.with_context(|| format!("Error when retrieving current {name}"))?;
        known.with_context(|| format!("{} not found with {by} {}", capitalised(&name), quoted(key)))
    }

    /// Prints all objects, or those that match a parameter of the request.
    pub(super) async fn list(
        &self,
        given: Given,
        (parameter, value): (&str, &str),
    ) -> anyhow::Result<()> {
        let api = given.connect()?;
        let all = api.get(self.all()).maybe(parameter, value).value().await;
        let all = all.with_context(|| format!("Failed to retrieve the {} list", self.name()))?;
        let shown = |all: &Value, meta| {
            let all = all.as_array().into_iter().flatten();
            let texts: Vec<String> = all.map(|value| (self.shown)(value, meta, true)).collect();
            texts.join(self.between)
        };
        print(&all, &given, shown)
    }

    pub(super) fn print(&self, value: &Value, given: &Given) -> anyhow::Result<()> {
        let mut value = value.clone();
        if self.command == "policy" && value.get("Datacenters").is_none() {
            // Servers omit the field if it is empty.
            value["Datacenters"] = Value::Null;
        }
        print(&value, given, |value, meta| {
            (self.shown)(value, meta, false)
        })
    }
}

fn capitalised(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}

/// Prints a value as JSON, or as text formatted by `pretty`, with metadata if so wanted.
pub(super) fn print(
    value: &Value,
    given: &Given,
    pretty: impl Fn(&Value, bool) -> String,
) -> anyhow::Result<()> {
    if given.format() == Format::Json {
        return print_json(&with_names(value.clone()));
    }
    match pretty(value, given.is_set("meta")) {
        text if text.is_empty() => Ok(()),
        text => line(&text),
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

/// Adds an element to a list, which may be absent, or replaces the first that is the same.
pub(super) fn put(to: &mut Value, field: &str, element: Value, same: impl Fn(&Value) -> bool) {
    let mut all = list(to, field).to_vec();
    match all.iter().position(same) {
        Some(at) => all[at] = element,
        None => all.push(element),
    }
    to[field] = all.into();
}
