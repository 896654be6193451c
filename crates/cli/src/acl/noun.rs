//! Code shared by the commands of all `acl` nouns: options, requests and messages. Each noun's specifics
//! are in its module.

use anyhow::Context;
use clap::Args;
use serde_json::Value;

use super::printed::Printed;
use crate::output::{line, quoted};
use crate::server_api::{Api, ApiFlags, encoded};

/// The options for the request. Like Consul's, these commands accept arguments without meaning.
#[derive(Args)]
pub(crate) struct Asked {
    #[arg(hide = true)]
    arguments: Vec<String>,
    #[command(flatten)]
    pub(super) api: ApiFlags,
}

/// Options of `delete`.
#[derive(Args)]
pub(crate) struct Delete<W: Args> {
    #[command(flatten)]
    pub(super) which: W,
    #[command(flatten)]
    pub(super) asked: Asked,
}

/// Options of `list` without filters.
#[derive(Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(super) printed: Printed,
    #[command(flatten)]
    pub(super) asked: Asked,
}

/// Options of `read`.
#[derive(Args)]
pub(crate) struct Read<W: Args> {
    #[command(flatten)]
    pub(super) which: W,
    #[command(flatten)]
    pub(super) printed: Printed,
    #[command(flatten)]
    pub(super) asked: Asked,
}

/// An object type with create, read, update, delete and list.
pub(super) struct Noun {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// The path for creation; objects are below, by key.
    pub(super) path: &'static str,
    /// The path of the list.
    pub(super) all: &'static str,
    /// Formats an object.
    pub(super) shown: fn(&Value, bool) -> String,
    /// Formats an object in a list.
    pub(super) listed: fn(&Value, bool) -> String,
    /// The separator between objects in a list.
    pub(super) between: &'static str,
}

impl Noun {
    /// The path of an object.
    pub(super) fn one(&self, key: &str) -> String {
        format!("{}/{}", self.path, encoded(key))
    }

    pub(super) fn print(&self, value: &Value, printed: &Printed) -> anyhow::Result<()> {
        printed.print(value, self.shown)
    }

    /// Creates an object.
    pub(super) async fn create(&self, api: &Api, value: &Value) -> anyhow::Result<Value> {
        let made = api.put(self.path).json(value).value().await;
        made.with_context(|| format!("Failed to create new {}", self.name))
    }

    /// Replaces an object.
    pub(super) async fn update(
        &self,
        api: &Api,
        key: &str,
        value: &Value,
    ) -> anyhow::Result<Value> {
        let written = api.put(self.one(key)).json(value).value().await;
        written.with_context(|| format!("Error updating {} {}", self.name, quoted(key)))
    }

    /// Deletes an object and prints a confirmation.
    pub(super) async fn delete(&self, api: &Api, key: &str) -> anyhow::Result<()> {
        let (name, key_shown) = (self.name, quoted(key));
        let deleted = api.delete(self.one(key)).ok().await;
        deleted.with_context(|| format!("Error deleting {name} {key_shown}"))?;
        let name = capitalised(name);
        line(&format!("{name} {key_shown} deleted successfully"))
    }

    /// Reads an object by key; `by` is the kind of key for messages.
    pub(super) async fn read(&self, api: &Api, by: &str, key: &str) -> anyhow::Result<Value> {
        self.read_at(api, self.one(key), by, key).await
    }

    /// Reads the object at a path; `key` is for messages.
    pub(super) async fn read_at(
        &self,
        api: &Api,
        path: String,
        by: &str,
        key: &str,
    ) -> anyhow::Result<Value> {
        let (name, shown) = (self.name, quoted(key));
        let read = api.get(path).found().await;
        let read = read.with_context(|| format!("Error reading {name} {shown}"))?;
        read.with_context(|| format!("{} not found with {by} {shown}", capitalised(name)))
    }

    /// Reads an object for an update.
    pub(super) async fn current(&self, api: &Api, by: &str, key: &str) -> anyhow::Result<Value> {
        let name = self.name;
        let known = api.get(self.one(key)).found().await;
        let known = known.with_context(|| format!("Error when retrieving current {name}"))?;
        known.with_context(|| format!("{} not found with {by} {}", capitalised(name), quoted(key)))
    }

    /// Prints all objects.
    pub(super) async fn list(&self, options: List) -> anyhow::Result<()> {
        let api = options.asked.api.connect()?;
        let all = api.get(self.all).value().await;
        self.print_list(all, &options.printed)
    }

    /// Prints the objects of a list.
    pub(super) fn print_list(
        &self,
        all: anyhow::Result<Value>,
        printed: &Printed,
    ) -> anyhow::Result<()> {
        let all = all.with_context(|| format!("Failed to retrieve the {} list", self.name))?;
        printed.print_list(&all, self.between, self.listed)
    }
}

fn capitalised(name: &str) -> String {
    let (first, rest) = name.split_at(1);
    format!("{}{rest}", first.to_uppercase())
}
