//! Reads settings from their sources: files in the order of the command line, then `-hcl`, then
//! flags. Later values win; lists of services, checks and entries are concatenated.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use legate_model::json::{DecodeError, Request, from_hcl, same_key};
use legate_model::{CheckType, ConfigEntry, ServiceDefinition, hcl};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::config::{REGISTERED, Registered, Settings, merge};
use super::flags::{Flags, Form};
use super::keys;
use super::watches::Watch;

/// The maximum size of a file, in bytes.
const MAX_FILE: u64 = 4 * 1024 * 1024;
/// The maximum number of files.
const MAX_FILES: usize = 4096;

/// The settings from all sources.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) settings: Settings,
    pub(super) services: Vec<ServiceDefinition>,
    pub(super) checks: Vec<CheckType>,
    pub(super) config_entries: Vec<ConfigEntry>,
    pub(super) watches: Vec<Watch>,
    /// A line for each ignored key, with the actual behaviour.
    pub(super) notes: Vec<String>,
    /// The files that were read, in order.
    pub(super) files: Vec<PathBuf>,
}

/// # Errors
/// Names the file or flag, and the key.
pub(super) fn read(flags: &Flags) -> anyhow::Result<Sources> {
    let mut sources = Sources::default();
    let mut merged = Value::Object(Map::new());
    let form = flags.form()?;
    sources.files = files(flags, form)?;
    for file in sources.files.clone() {
        let text = read_file(&file)?;
        let name = file.display().to_string();
        if form == Some(Form::Json) && !text.trim_start().starts_with('{') {
            bail!("{name} cannot be read as JSON, the format of -config-format");
        }
        sources.add(&name, &text, &mut merged)?;
    }
    for text in &flags.hcl {
        sources.add("-hcl", text, &mut merged)?;
    }
    let Value::Object(given) = flags.settings()? else {
        bail!("the command line is not an object")
    };
    sources.add_settings("the command line", given, &mut merged)?;
    sources.settings = serde_json::from_value(merged)?;
    Ok(sources)
}

/// The files to read, as they exist now.
///
/// # Errors
/// If a directory cannot be read.
pub(super) fn list(flags: &Flags) -> anyhow::Result<Vec<PathBuf>> {
    files(flags, flags.form()?)
}

impl Sources {
    fn add(&mut self, source: &str, text: &str, merged: &mut Value) -> anyhow::Result<()> {
        let value = hcl::to_json(text);
        let value = value.with_context(|| format!("{source} cannot be read as HCL or JSON"))?;
        let Value::Object(fields) = value else {
            bail!("{source} is not an object")
        };
        let (registered, rest): (Map<_, _>, Map<_, _>) = fields
            .into_iter()
            .partition(|(key, _)| REGISTERED.iter().any(|one| same_key(one, key)));
        self.add_settings(source, rest, merged)?;

        let registered: Registered = self.decode(source, Value::Object(registered))?;
        self.services.extend(registered.service);
        self.services.extend(registered.services);
        self.checks.extend(registered.check);
        self.checks.extend(registered.checks);
        for (i, entry) in registered.config_entries.bootstrap.into_iter().enumerate() {
            let place = format!("{source}: config_entries.bootstrap[{i}]");
            let entry = self.decode(&place, entry)?;
            self.config_entries.push(entry);
        }
        for (i, watch) in registered.watches.into_iter().enumerate() {
            let place = || format!("{source}: watches[{i}]");
            self.watches.push(watch.checked().with_context(place)?);
        }
        Ok(())
    }

    fn add_settings(
        &mut self,
        source: &str,
        mut fields: Map<String, Value>,
        merged: &mut Value,
    ) -> anyhow::Result<()> {
        let notes = keys::settle(&mut fields).map_err(|error| anyhow!("{source}: {error}"))?;
        for note in notes {
            // A note that several files cause is reported once.
            if !self.notes.iter().any(|known| known.ends_with(&note)) {
                self.notes.push(format!("{source}: {note}"));
            }
        }
        let settings: Settings = self.decode(source, Value::Object(fields))?;
        settings.check().with_context(|| source.to_owned())?;
        merge(merged, serde_json::to_value(settings)?);
        Ok(())
    }

    /// Decodes a part of a file. As in the API, fields without effect are accepted and reported.
    fn decode<T: DeserializeOwned>(&mut self, source: &str, value: Value) -> anyhow::Result<T> {
        let request: Request<T> = match from_hcl(value) {
            Ok(request) => request,
            Err(DecodeError::UnknownFields { fields }) => {
                let fields = fields.iter();
                let named = fields.map(|key| format!("invalid config key {key}"));
                let named = named.collect::<Vec<_>>().join(", ");
                bail!("{source}: {named}: no such setting exists; see docs/agent.md")
            }
            Err(error) => bail!("{source}: {error}"),
        };
        for field in request.not_served {
            let reason = match field.ends_with(".Token") {
                true => "the agent registers everything in its files: they are trusted",
                false => "it is stored, and nothing uses it",
            };
            let note = format!("{source}: {field} has no effect: {reason}");
            self.notes.push(note);
        }
        Ok(request.value)
    }
}

/// The files in the order in which they are read.
fn files(flags: &Flags, form: Option<Form>) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    // Consul reads both kinds of arguments in the order of the command line; with a mix of both the
    // order is defined here: directories first.
    for path in flags.config_dir.iter().chain(&flags.config_file) {
        if path.is_dir() {
            files.extend(in_directory(path, form)?);
            continue;
        }
        if !is_configuration(path, form) {
            bail!(
                "{}: a configuration file must exist and end in .hcl or .json",
                path.display()
            );
        }
        files.push(path.clone());
    }
    if files.len() > MAX_FILES {
        bail!(
            "there are {} configuration files: at most {MAX_FILES} are read",
            files.len()
        );
    }
    Ok(files)
}

fn in_directory(path: &Path, form: Option<Form>) -> anyhow::Result<Vec<PathBuf>> {
    let failed = || format!("cannot list the configuration directory {}", path.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).with_context(failed)? {
        let file = entry.with_context(failed)?.path();
        if is_configuration(&file, form) && !file.is_dir() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn is_configuration(path: &Path, form: Option<Form>) -> bool {
    form.is_some()
        || path
            .extension()
            .is_some_and(|ending| ending == "hcl" || ending == "json")
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    let failed = || format!("cannot read the configuration file {}", path.display());
    let length = std::fs::metadata(path).with_context(failed)?.len();
    if length > MAX_FILE {
        bail!("{}: it is larger than {MAX_FILE} bytes", path.display());
    }
    std::fs::read_to_string(path).with_context(failed)
}
