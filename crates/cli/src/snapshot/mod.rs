//! `snapshot`: saves, restores and inspects the state of servers.

mod file;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::Instant;

use self::file::Contents;
use crate::input;
use crate::output::{Format, json as pretty, line, list, tabbed, text};
use crate::server_api::{Api, ApiFlags, index};

/// The timeout of a transfer.
const TRANSFER: Duration = Duration::from_secs(10 * 60);
/// The servers' limit for a snapshot, in bytes.
const LIMIT: u64 = 1 << 30;

/// Subcommands of `snapshot`.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Save the state of the servers to a file
    Save(Save),
    /// Restore the state of the servers from a file
    Restore(Restore),
    /// Print a summary of a file
    Inspect(Inspect),
    /// Print the records of a file as JSON lines
    Decode(Decode),
}

#[derive(Args)]
pub(crate) struct Save {
    /// Suffixes of the file name: version, dc, or both separated by a comma
    #[arg(long, default_value = "", value_name = "WORDS")]
    append_filename: String,
    /// FILE
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Restore {
    /// FILE
    arguments: Vec<String>,
    #[command(flatten)]
    api: ApiFlags,
}

#[derive(Args)]
pub(crate) struct Inspect {
    /// Not supported: keys are encrypted in a snapshot
    #[arg(long)]
    kvdetails: bool,
    /// For -kvdetails
    #[arg(long, default_value_t = 2)]
    kvdepth: u32,
    /// For -kvdetails
    #[arg(long, default_value = "")]
    kvfilter: String,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    /// FILE
    arguments: Vec<String>,
}

#[derive(Args)]
pub(crate) struct Decode {
    /// FILE
    arguments: Vec<String>,
}

/// Runs the command.
///
/// # Errors
///
/// If the command fails; the texts are Consul's.
pub(crate) async fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Save(options) => options.run().await?,
        Command::Restore(options) => options.run().await?,
        Command::Inspect(options) => options.run()?,
        Command::Decode(options) => {
            let contents = contents(name(&options.arguments)?)?;
            let header = json!({"Type": "SnapshotHeader", "Data": contents.meta()});
            line(&header.to_string())?;
            bail!(
                "the records of a snapshot are not printed: they are encrypted with the key of the \
                 server; `snapshot inspect` counts them"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn name(arguments: &[String]) -> anyhow::Result<&str> {
    let name = input::at_most_one(arguments)?;
    ensure!(!name.is_empty(), "Missing FILE argument");
    Ok(name)
}

fn open(name: &str) -> anyhow::Result<File> {
    let opened = File::open(name);
    opened.map_err(|error| {
        anyhow!(
            "Error opening snapshot file: open {name}: {}",
            input::reason(&error)
        )
    })
}

fn contents(name: &str) -> anyhow::Result<Contents> {
    Contents::read(open(name)?).context("Error reading snapshot")
}

impl Save {
    async fn run(self) -> anyhow::Result<()> {
        let api = self.api.connect()?;
        let path = PathBuf::from(name(&self.arguments)?);
        let path = self.with_words(path, &api).await?;
        let saving = "Error saving snapshot";
        let ask = api.get("/v1/snapshot").within(TRANSFER);
        let mut reply = ask.stream().await.context(saving)?;
        let saved_at = index(&reply.headers);
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let writing = "Error writing unverified snapshot file";
        // Only the owner may read the file.
        let mut unverified = tempfile::NamedTempFile::new_in(folder).context(writing)?;
        let deadline = Instant::now() + TRANSFER;
        while let Some(piece) = reply.piece(deadline).await.context(saving)? {
            unverified.write_all(&piece).context(writing)?;
        }
        unverified.as_file().sync_all().context(writing)?;
        let again = unverified
            .reopen()
            .context("Error opening snapshot file for verify")?;
        Contents::read(again).context("Error verifying snapshot file")?;
        let shown = path.display().to_string();
        unverified
            .persist(&path)
            .with_context(|| format!("Error renaming to {shown:?}"))?;
        line(&format!("Saved and verified snapshot to index {saved_at}"))
    }

    /// The file name with the requested suffixes.
    async fn with_words(&self, path: PathBuf, api: &Api) -> anyhow::Result<PathBuf> {
        let mut added = String::new();
        for word in self
            .append_filename
            .split(',')
            .filter(|word| !word.is_empty())
        {
            let own = api.get("/v1/agent/self").value().await;
            let own = own.context("Error connecting to Consul agent")?;
            added.push('-');
            added.push_str(match word {
                "version" => text(&own["Config"], "Version"),
                "dc" => text(&own["Config"], "Datacenter"),
                other => bail!("-append-filename {other:?} is neither version nor dc"),
            });
        }
        if added.is_empty() {
            return Ok(path);
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let ending = path
            .extension()
            .map(|ending| format!(".{}", ending.to_string_lossy()));
        Ok(path.with_file_name(format!("{stem}{added}{}", ending.unwrap_or_default())))
    }
}

impl Restore {
    async fn run(self) -> anyhow::Result<()> {
        let name = name(&self.arguments)?;
        let api = self.api.connect()?;
        let file = open(name)?;
        let restoring = "Error restoring snapshot";
        let length = file.metadata().context(restoring)?.len();
        ensure!(
            length <= LIMIT,
            "{restoring}: {name} exceeds the servers' limit of {LIMIT} bytes"
        );
        let content = std::fs::read(name).context(restoring)?;
        let done = api
            .put("/v1/snapshot")
            .bytes(Bytes::from(content))
            .within(TRANSFER)
            .ok();
        done.await.context(restoring)?;
        line("Restored snapshot")
    }
}

impl Inspect {
    fn run(self) -> anyhow::Result<()> {
        ensure!(
            !self.kvdetails && self.kvfilter.is_empty() && self.kvdepth > 0,
            "-kvdetails is not supported: keys are encrypted in a snapshot"
        );
        let contents = contents(name(&self.arguments)?)?;
        let shown = json!({
            "Meta": contents.meta(),
            "Stats": contents.stats(),
            "StatsKV": null,
            "TotalSize": contents.size,
            "TotalSizeKV": 0,
        });
        match self.format {
            Format::Json => line(&pretty(&shown, "   ")),
            Format::Pretty => line(&table(&shown)),
        }
    }
}

/// Formats a snapshot's content as tables.
fn table(shown: &Value) -> String {
    let fields = ["ID", "Size", "Index", "Term", "Version"];
    let head = fields.map(|field| {
        let value = match &shown["Meta"][field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        [field.to_owned(), value]
    });
    let rule = ["----"; 3].map(str::to_owned);
    let mut rows = vec![["Type", "Count", "Size"].map(str::to_owned), rule.clone()];
    for stat in list(shown, "Stats") {
        let size = stat["Sum"].as_u64().unwrap_or_default();
        rows.push([
            text(stat, "Name").to_owned(),
            stat["Count"].to_string(),
            byte_size(size),
        ]);
    }
    let total = byte_size(shown["TotalSize"].as_u64().unwrap_or_default());
    rows.extend([rule, ["Total".to_owned(), String::new(), total]]);
    let indented = |table: String| -> String {
        let lines: Vec<String> = table.lines().map(|line| format!(" {line}")).collect();
        lines.join("\n")
    };
    format!("{}\n\n{}", indented(tabbed(&head)), indented(tabbed(&rows)))
}

/// Formats a number of bytes with a unit and at most one decimal digit.
fn byte_size(bytes: u64) -> String {
    if bytes == 0 {
        return "0".to_owned();
    }
    let units = ["B", "KB", "MB", "GB", "TB"];
    let step = (bytes.ilog2() / 10).min(4);
    let unit = units.get(step as usize).copied().unwrap_or_default();
    let tenths = (u128::from(bytes) * 10 + (1 << (10 * step)) / 2) >> (10 * step);
    match tenths % 10 {
        0 => format!("{}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{unit}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (bytes, expected) in [
            (0, "0"),
            (512, "512B"),
            (1024, "1KB"),
            (1536, "1.5KB"),
            (5 << 20, "5MB"),
        ] {
            assert_eq!(byte_size(bytes), expected, "{bytes}");
        }
    }

    #[test]
    fn a_snapshot_is_shown_as_consul_shows_it() {
        let shown = json!({
            "Meta": {"ID": "i", "Size": 9, "Index": 3, "Term": 0, "Version": 1},
            "Stats": [{"Name": "ConfigEntry", "Count": 2, "Sum": 2048}],
            "TotalSize": 2048,
        });
        let text = table(&shown);
        assert!(
            text.starts_with(" ID           i\n Size         9\n"),
            "{text}"
        );
        assert!(
            text.contains("\n\n Type             Count      Size\n"),
            "{text}"
        );
        assert!(
            text.contains("\n ConfigEntry      2          2KB\n"),
            "{text}"
        );
        assert!(
            text.ends_with("\n Total                       2KB"),
            "{text}"
        );
    }
}
