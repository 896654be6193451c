//! `kv`: reads and writes the key-value store.

use std::process::ExitCode;

use anyhow::{Context, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::input;
use crate::output::{self, line, list, number, tabbed, text};
use crate::server_api::{Api, ApiFlags, encoded_path};

/// Subcommands of `kv`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print the value of a key, or all keys with a prefix
    Get(Get),
    /// Set the value of a key
    Put(Put),
    /// Delete a key, or all keys with a prefix
    Delete(Delete),
    /// Print all keys with a prefix as JSON
    Export(Export),
    /// Write keys from the JSON output of `kv export`
    Import(Import),
}

#[derive(Args)]
pub(crate) struct Get {
    /// Print values in base64
    #[arg(long)]
    base64: bool,
    /// Print all fields of the key
    #[arg(long)]
    detailed: bool,
    /// Print the keys with the prefix, without values
    #[arg(long)]
    keys: bool,
    /// Print all keys with the prefix
    #[arg(long)]
    recurse: bool,
    /// With -keys, the separator after which keys are truncated
    #[arg(long, default_value = "/")]
    separator: String,
    /// KEY or PREFIX
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Put {
    /// Write only if the key has the modify index of -modify-index; 0: only if it does not exist
    #[arg(long)]
    cas: bool,
    /// A number stored with the value
    #[arg(long, default_value_t = 0)]
    flags: u64,
    /// The value is in base64
    #[arg(long)]
    base64: bool,
    /// Modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Session for -acquire and -release
    #[arg(long, default_value = "")]
    session: String,
    /// Acquire the lock of the key
    #[arg(long)]
    acquire: bool,
    /// Release the lock of the key
    #[arg(long)]
    release: bool,
    /// KEY and value: text, @FILE, or - for standard input
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Delete {
    /// Delete only if the key has the modify index of -modify-index
    #[arg(long)]
    cas: bool,
    /// Modify index for -cas
    #[arg(long, default_value_t = 0)]
    modify_index: u64,
    /// Delete all keys with the prefix
    #[arg(long)]
    recurse: bool,
    /// KEY or PREFIX
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Export {
    /// PREFIX
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Import {
    /// Prefix added to every key
    #[arg(long, default_value = "")]
    prefix: String,
    /// The JSON: text, @FILE, or - for standard input
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
        Command::Get(get) => get.run().await?,
        Command::Put(put) => put.run().await?,
        Command::Delete(delete) => delete.run().await?,
        Command::Export(export) => export.run().await?,
        Command::Import(import) => import.run().await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The path of a key, without a leading slash.
fn path(key: &str) -> String {
    format!("/v1/kv/{}", encoded_path(key))
}

fn key_of(arguments: &[String]) -> anyhow::Result<&str> {
    let key = input::at_most_one(arguments)?;
    Ok(key.strip_prefix('/').unwrap_or(key))
}

/// All pairs with a prefix.
async fn pairs(api: &Api, prefix: &str) -> anyhow::Result<Vec<Value>> {
    let found = api.get(path(prefix)).flag("recurse", true).found().await;
    let found = found.context("Error querying Consul agent")?;
    Ok(match found {
        Some(Value::Array(pairs)) => pairs,
        _ => Vec::new(),
    })
}

fn value_of(pair: &Value) -> anyhow::Result<Vec<u8>> {
    let value = STANDARD.decode(text(pair, "Value"));
    value.context("the server sent a value that is not base64")
}

impl Get {
    async fn run(self) -> anyhow::Result<()> {
        let key = key_of(&self.arguments)?;
        ensure!(
            !key.is_empty() || self.recurse || self.keys,
            "Error! Missing KEY argument"
        );
        let api = self.api.connect()?;
        if self.keys && !self.recurse {
            let ask = api.get(path(key)).flag("keys", true);
            let keys = ask
                .query("separator", self.separator.as_str())
                .found()
                .await;
            let keys = keys.context("Error querying Consul agent")?;
            for key in keys.iter().flat_map(|keys| keys.as_array()).flatten() {
                line(key.as_str().unwrap_or_default())?;
            }
            return Ok(());
        }
        if self.recurse {
            let pairs = pairs(&api, key).await?;
            for (i, pair) in pairs.iter().enumerate() {
                if i > 0 && self.detailed {
                    line("")?;
                }
                self.print(pair, true)?;
            }
            return Ok(());
        }
        let found = api.get(path(key)).found().await;
        let found = found.context("Error querying Consul agent")?;
        let found = found.unwrap_or_default();
        let pair = found.get(0);
        let pair = pair.ok_or_else(|| anyhow!("Error! No key exists at: {key}"))?;
        self.print(pair, false)
    }

    /// Prints one pair; `several` if it is one of several.
    fn print(&self, pair: &Value, several: bool) -> anyhow::Result<()> {
        let key = text(pair, "Key");
        let value = match self.base64 {
            true => text(pair, "Value").as_bytes().to_vec(),
            false => value_of(pair)?,
        };
        let shown = match (self.detailed, several, self.keys) {
            (true, _, false) if value.is_empty() => {
                format!("{}\nValue", detailed(pair)).into_bytes()
            }
            (true, _, false) => {
                [detailed(pair).as_bytes(), b"\nValue            ", &value].concat()
            }
            (true, _, true) => format!("{}\n", detailed(pair)).into_bytes(),
            (false, true, true) => key.as_bytes().to_vec(),
            (false, true, false) => [key.as_bytes(), b":", &value].concat(),
            (false, false, _) => value,
        };
        output::bytes(&shown)
    }
}

/// Formats all fields of a pair except its value.
fn detailed(pair: &Value) -> String {
    let session = match text(pair, "Session") {
        "" => "-",
        session => session,
    };
    let number = |field: &str| number(pair, field).to_string();
    let mut rows = vec![
        ["CreateIndex", &number("CreateIndex")].map(str::to_owned),
        ["Flags", &number("Flags")].map(str::to_owned),
        ["Key", text(pair, "Key")].map(str::to_owned),
        ["LockIndex", &number("LockIndex")].map(str::to_owned),
        ["ModifyIndex", &number("ModifyIndex")].map(str::to_owned),
        ["Session", session].map(str::to_owned),
    ];
    for field in ["Partition", "Namespace"] {
        let value = text(pair, field);
        if !value.is_empty() {
            rows.push([field, value].map(str::to_owned));
        }
    }
    tabbed(&rows)
}

/// Prefixes an input error like other errors of this command.
fn in_words_of_kv(error: anyhow::Error) -> anyhow::Error {
    anyhow!("Error! {error:#}")
}

impl Put {
    async fn run(self) -> anyhow::Result<()> {
        let (key, mut value) = match self.arguments.as_slice() {
            [] => bail!("Error! Missing KEY argument"),
            [key] => (key, Vec::new()),
            [key, value] => (key, input::bytes_or_file(value).map_err(in_words_of_kv)?),
            more => bail!(
                "Error! Too many arguments (expected 1 or 2, got {})",
                more.len()
            ),
        };
        if self.base64 {
            let decoded = STANDARD.decode(&value);
            value =
                decoded.map_err(|error| anyhow!("Error! Cannot base 64 decode data: {error}"))?;
        }
        ensure!(
            !self.session.is_empty() || !(self.acquire || self.release),
            "Error! Missing -session (required with -acquire and -release)"
        );
        ensure!(
            !key.starts_with('/'),
            "Error! Failed writing data: Invalid key. Key must not begin with a '/': {key}"
        );
        let api = self.api.connect()?;
        let mut ask = api.put(path(key)).bytes(value);
        if self.flags != 0 {
            ask = ask.query("flags", self.flags.to_string());
        }
        if self.cas {
            let written = ask.query("cas", self.modify_index.to_string()).value();
            let written = written.await;
            let written = written.with_context(|| format!("Error! Did not write to {key}"))?;
            ensure!(
                written == true || self.modify_index != 0,
                "Error! Did not write to {key}: CAS performed with index=0 and key already exists."
            );
            ensure!(written == true, "Error! Did not write to {key}: CAS failed");
            return line(&format!("Success! Data written to: {key}"));
        }
        let session = self.session.as_str();
        let (ask, done, refused) = match (self.acquire, self.release) {
            (true, _) => (
                ask.query("acquire", session),
                "Lock acquired on",
                "Error! Did not acquire lock",
            ),
            (_, true) => (
                ask.query("release", session),
                "Lock released on",
                "Error! Did not release lock",
            ),
            _ => (ask, "Data written to", ""),
        };
        let written = ask.value().await.context("Error! Failed writing data")?;
        ensure!(written == true || refused.is_empty(), "{refused}");
        line(&format!("Success! {done}: {key}"))
    }
}

impl Delete {
    async fn run(self) -> anyhow::Result<()> {
        let key = key_of(&self.arguments)?;
        ensure!(
            !key.is_empty() || self.recurse,
            "Error! Missing KEY argument"
        );
        ensure!(
            !self.cas || self.modify_index != 0,
            "Cannot delete a key that does not exist. Provide a -modify-index greater than than 0."
        );
        ensure!(
            self.modify_index == 0 || self.cas,
            "Cannot specify -modify-index without -cas!"
        );
        ensure!(
            !(self.recurse && self.cas),
            "Cannot specify both -cas and -recurse!"
        );
        let api = self.api.connect()?;
        let ask = api.delete(path(key));
        if self.recurse {
            let deleted = ask.flag("recurse", true).ok().await;
            deleted.with_context(|| format!("Error! Did not delete prefix {key}"))?;
            return line(&format!("Success! Deleted keys with prefix: {key}"));
        }
        if self.cas {
            let ask = ask.query("cas", self.modify_index.to_string());
            let deleted = ask.value().await;
            let deleted = deleted.with_context(|| format!("Error! Did not delete key {key}"))?;
            ensure!(
                deleted == true,
                "Error! Did not delete key {key}: CAS failed"
            );
        } else {
            let deleted = ask.ok().await;
            deleted.with_context(|| format!("Error deleting key {key}"))?;
        }
        line(&format!("Success! Deleted key: {key}"))
    }
}

impl Export {
    async fn run(self) -> anyhow::Result<()> {
        let key = key_of(&self.arguments)?;
        let pairs = pairs(&self.api.connect()?, key).await?;
        let exported: Vec<String> = pairs.iter().map(exported).collect();
        match exported.is_empty() {
            true => line("[]"),
            false => line(&format!("[\n{}\n]", exported.join(",\n"))),
        }
    }
}

/// Formats a pair for `kv import`, with its fields in the usual order.
fn exported(pair: &Value) -> String {
    let mut fields = vec![
        format!("\"key\": {}", pair["Key"]),
        format!("\"flags\": {}", number(pair, "Flags")),
        format!("\"value\": {}", Value::from(text(pair, "Value"))),
    ];
    for (name, field) in [("namespace", "Namespace"), ("partition", "Partition")] {
        if !text(pair, field).is_empty() {
            fields.push(format!("\"{name}\": {}", pair[field]));
        }
    }
    format!("\t{{\n\t\t{}\n\t}}", fields.join(",\n\t\t"))
}

impl Import {
    async fn run(self) -> anyhow::Result<()> {
        let data = match self.arguments.as_slice() {
            [] => bail!("Error! Missing DATA argument"),
            [data] if data.is_empty() => bail!("Error! Empty DATA argument"),
            [data] => input::text_or_file(data).map_err(in_words_of_kv)?,
            more => bail!("Error! Too many arguments (expected 1, got {})", more.len()),
        };
        let data: Value = serde_json::from_str(&data).context("Cannot unmarshal data")?;
        let entries = json!({ "entries": data });
        ensure!(data.is_array(), "Cannot unmarshal data: it is not a list");
        let api = self.api.connect()?;
        for entry in list(&entries, "entries") {
            let key = text(entry, "key");
            let value = STANDARD.decode(text(entry, "value"));
            let value =
                value.with_context(|| format!("Error base 64 decoding value for key {key}"))?;
            let key = with_prefix(&self.prefix, key);
            let mut ask = api.put(path(&key)).bytes(value);
            match number(entry, "flags") {
                0 => {}
                flags => ask = ask.query("flags", flags.to_string()),
            }
            let ask = ask.maybe("ns", text(entry, "namespace"));
            let written = ask.ok().await;
            written.with_context(|| format!("Error! Failed writing data for key {key}"))?;
            line(&format!("Imported: {key}"))?;
        }
        Ok(())
    }
}

/// Joins prefix and key with one slash.
fn with_prefix(prefix: &str, key: &str) -> String {
    match prefix.trim_end_matches('/') {
        "" => key.to_owned(),
        prefix => format!("{prefix}/{}", key.trim_start_matches('/')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_shown_as_consul_shows_them() {
        let pair = json!({"Key": "a", "Value": "Yg==", "Flags": 0, "CreateIndex": 18,
            "ModifyIndex": 18, "LockIndex": 0});
        assert_eq!(
            detailed(&pair),
            "CreateIndex      18\nFlags            0\nKey              a\n\
             LockIndex        0\nModifyIndex      18\nSession          -"
        );
        assert_eq!(
            exported(&pair),
            "\t{\n\t\t\"key\": \"a\",\n\t\t\"flags\": 0,\n\t\t\"value\": \"Yg==\"\n\t}"
        );
    }

    #[test]
    fn prefixes_are_joined_with_one_slash() {
        assert_eq!(with_prefix("", "a/"), "a/");
        assert_eq!(with_prefix("x/", "a/b"), "x/a/b");
    }
}
