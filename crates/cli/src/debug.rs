//! `debug`: collects information about an agent for a limited time, in a folder or an archive.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::{ArgAction, Args};
use flate2::Compression;
use flate2::write::GzEncoder;
use legate_model::duration;
use legate_runtime::Clock;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::macros::format_description;
use tokio::time::Instant;

use crate::input;
use crate::output::{json as pretty, line, text, warn};
use crate::server_api::{Api, ApiOptions};
use crate::signals::Interrupt;

/// The sources of information.
const TARGETS: [&str; 6] = ["metrics", "logs", "pprof", "host", "agent", "members"];
/// The maximum size of a collected file, in bytes.
const LARGEST: u64 = 256 << 20;
const SHORTEST: Duration = Duration::from_secs(10);
const SHORTEST_INTERVAL: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The servers' limit for CPU profiles.
const LONGEST_PROFILE: Duration = Duration::from_secs(300);
/// The additional time for the response.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Args)]
pub(crate) struct Options {
    /// Source: metrics, logs, pprof, host, agent or members; may be repeated [default: all]
    #[arg(long, value_name = "WHAT")]
    capture: Vec<String>,
    /// Interval between samples of metrics and profiles
    #[arg(long, default_value = "30s", value_parser = input::duration, value_name = "DURATION")]
    interval: Duration,
    /// Duration of the collection
    #[arg(long, default_value = "5m", value_parser = input::duration, value_name = "DURATION")]
    duration: Duration,
    /// Create an archive
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "true",
        default_missing_value = "true", value_name = "BOOL")]
    archive: bool,
    /// Folder, and base name of the archive [default: consul-debug-TIME]
    #[arg(long, value_name = "PATH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    api: ApiOptions,
}

/// Runs the collection.
///
/// # Errors
///
/// If the agent is unreachable, or the folder exists already.
pub(crate) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    let done = capture(options).await;
    done.map_err(|error| anyhow!("==> {error:#}"))?;
    Ok(ExitCode::SUCCESS)
}

async fn capture(options: Options) -> anyhow::Result<()> {
    ensure!(
        options.api.arguments.is_empty(),
        "debug: Too many arguments provided, expected 0"
    );
    let mut interrupt = Interrupt::listen()?;
    let api = options.api.connect()?;
    let (folder, targets, version) = prepare(&options, &api).await?;
    let archive = PathBuf::from(format!("{}.tar.gz", folder.display()));
    let saved = if options.archive { &archive } else { &folder };
    line("==> Starting debugger and capturing static information...")?;
    line(&format!("     Agent Version: '{version}'"))?;
    line(&format!(
        "          Interval: '{}'",
        duration::format(options.interval)
    ))?;
    line(&format!(
        "          Duration: '{}'",
        duration::format(options.duration)
    ))?;
    line(&format!("            Output: '{}'", saved.display()))?;
    line(&format!("           Capture: '{}'", targets.join(", ")))?;

    for (target, path) in [
        ("host", "/v1/agent/host"),
        ("agent", "/v1/agent/self"),
        ("members", "/v1/agent/members?wan=1"),
    ] {
        if !targets.contains(&target) {
            continue;
        }
        match api.get(path).value().await {
            Ok(value) => write_json(&folder.join(format!("{target}.json")), &value)?,
            Err(error) => warn(&format!("Static capture failed: {error:#}")),
        }
    }
    let wants = |target| targets.contains(&target);
    if wants("metrics") || wants("logs") || wants("pprof") {
        let until = Instant::now() + options.duration;
        let collecting = async {
            tokio::join!(
                collect(wants("metrics").then(|| metrics(&api, &folder, options.interval, until))),
                collect(wants("logs").then(|| logs(&api, &folder, until))),
                collect(wants("pprof").then(|| profiles(&api, &folder, &options, until))),
            )
        };
        tokio::select! {
            ((), (), ()) = collecting => {}
            () = interrupt.wait() => {
                return Err(anyhow!(
                    "Error encountered during collection: stopping collection due to shutdown signal"
                ));
            }
        }
    }
    let index = json!({
        "Version": 1,
        "AgentVersion": version,
        "Interval": duration::format(options.interval),
        "Duration": duration::format(options.duration),
        "Targets": targets,
    });
    write_json(&folder.join("index.json"), &index).context("Error creating index document")?;
    if options.archive {
        pack(&folder, &archive).context("Archive creation failed")?;
    }
    line(&format!("    Saved debug archive: {}", saved.display()))?;
    Ok(())
}

/// Runs one of the collections over time and reports its error.
async fn collect(work: Option<impl Future<Output = anyhow::Result<()>>>) {
    if let Some(work) = work
        && let Err(error) = work.await
    {
        warn(&format!("Capture failed: {error:#}"));
    }
}

/// Validates the options and creates the folder.
async fn prepare(
    options: &Options,
    api: &Api,
) -> anyhow::Result<(PathBuf, Vec<&'static str>, String)> {
    let failed = "Capture validation failed";
    let (whole, interval) = (options.duration, options.interval);
    let shown = duration::format;
    ensure!(
        whole >= SHORTEST,
        "{failed}: duration must be longer than {}",
        shown(SHORTEST)
    );
    ensure!(
        whole <= LONGEST,
        "{failed}: duration must be at most {}",
        shown(LONGEST)
    );
    ensure!(
        interval >= SHORTEST_INTERVAL,
        "{failed}: interval must be longer than {}",
        shown(SHORTEST_INTERVAL)
    );
    ensure!(
        whole >= interval,
        "{failed}: duration ({}) must be longer than interval ({})",
        shown(whole),
        shown(interval)
    );
    let mut targets = Vec::new();
    for wanted in &options.capture {
        // A deprecated name.
        let wanted = if wanted == "cluster" {
            "members"
        } else {
            wanted
        };
        let target = TARGETS.iter().find(|target| **target == wanted);
        targets.push(*target.with_context(|| format!("{failed}: target not found: {wanted}"))?);
    }
    if options.capture.is_empty() {
        targets = TARGETS.to_vec();
    }
    let own = api.get("/v1/agent/self").value().await;
    let own = own.with_context(|| {
        format!("{failed}: error querying target agent. verify connectivity and agent address")
    })?;
    let version = text(&own["Config"], "Version").to_owned();
    if own["DebugConfig"]["EnableDebug"] != true && targets.contains(&"pprof") {
        targets.retain(|target| *target != "pprof");
        warn(
            "[WARN] Unable to capture pprof. Set enable_debug to true on target agent to enable \
             profiling.",
        );
    }
    let folder = options.output.clone().unwrap_or_else(default_folder);
    ensure!(
        !folder.exists(),
        "{failed}: output directory already exists: {}",
        folder.display()
    );
    let made = std::fs::create_dir_all(&folder);
    made.with_context(|| format!("{failed}: could not create output directory"))?;
    Ok((folder, targets, version))
}

fn default_folder() -> PathBuf {
    format!("consul-debug-{}", moment()).into()
}

/// The current time in a form for file names.
fn moment() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z");
    let now = OffsetDateTime::from(Clock::system().now());
    now.format(&format).unwrap_or_default()
}

fn write_json(path: &Path, value: &Value) -> anyhow::Result<()> {
    let text = pretty(value, "\t");
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Collects metrics, one JSON document per line.
async fn metrics(
    api: &Api,
    folder: &Path,
    interval: Duration,
    until: Instant,
) -> anyhow::Result<()> {
    let mut file = File::create(folder.join("metrics.json"))?;
    let mut written = 0;
    loop {
        let metrics = api.get("/v1/agent/metrics").value().await?;
        let text = format!("{metrics}\n");
        written += text.len() as u64;
        ensure!(
            written <= LARGEST,
            "the metrics are larger than {LARGEST} bytes"
        );
        file.write_all(text.as_bytes())?;
        let next = Instant::now() + interval;
        if next > until {
            tokio::time::sleep_until(until).await;
            return Ok(());
        }
        tokio::time::sleep_until(next).await;
    }
}

/// Collects a CPU profile over the whole duration, and heap and goroutine profiles at each interval.
async fn profiles(
    api: &Api,
    folder: &Path,
    options: &Options,
    until: Instant,
) -> anyhow::Result<()> {
    let time = options.duration.min(LONGEST_PROFILE);
    let whole = async {
        let ask = api.get("/debug/pprof/profile");
        let ask = ask.query("seconds", time.as_secs().to_string());
        let profile = ask.within(time + GRACE).ok().await?;
        std::fs::write(folder.join("profile.prof"), &profile.body)?;
        anyhow::Ok(())
    };
    let moments = async {
        loop {
            let place = folder.join(moment());
            std::fs::create_dir_all(&place)?;
            for name in ["heap", "goroutine"] {
                let profile = api.get(format!("/debug/pprof/{name}")).ok().await?;
                std::fs::write(place.join(format!("{name}.prof")), &profile.body)?;
            }
            let next = Instant::now() + options.interval;
            if next > until {
                return anyhow::Ok(());
            }
            tokio::time::sleep_until(next).await;
        }
    };
    let (whole, moments) = tokio::join!(whole, moments);
    whole.and(moments)
}

/// Collects the log stream.
async fn logs(api: &Api, folder: &Path, until: Instant) -> anyhow::Result<()> {
    let ask = api.get("/v1/agent/monitor").query("loglevel", "trace");
    let mut reply = ask.stream().await?;
    let mut file = File::create(folder.join("consul.log"))?;
    let mut written = 0;
    // At the deadline the next read fails.
    while let Ok(Some(piece)) = reply.piece(until).await {
        written += piece.len() as u64;
        ensure!(written <= LARGEST, "the log is larger than {LARGEST} bytes");
        file.write_all(&piece)?;
    }
    Ok(())
}

/// Creates an archive of a folder and removes the folder.
fn pack(folder: &Path, archive: &Path) -> anyhow::Result<()> {
    let place = match archive.parent() {
        Some(place) if !place.as_os_str().is_empty() => place,
        _ => Path::new("."),
    };
    let mut file = tempfile::NamedTempFile::new_in(place)?;
    let name = folder.file_name().unwrap_or_default();
    let mut tar = tar::Builder::new(GzEncoder::new(file.as_file_mut(), Compression::default()));
    tar.append_dir_all(name, folder)?;
    tar.into_inner()?.finish()?;
    file.as_file().sync_all()?;
    file.persist(archive)?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_replaces_the_folder() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("d");
        std::fs::create_dir(&folder).unwrap();
        write_json(&folder.join("index.json"), &json!({"Version": 1})).unwrap();
        let archive = place.path().join("d.tar.gz");
        pack(&folder, &archive).unwrap();
        assert!(!folder.exists());
        let content = flate2::read::GzDecoder::new(File::open(&archive).unwrap());
        let mut tar = tar::Archive::new(content);
        let names: Vec<PathBuf> = tar
            .entries()
            .unwrap()
            .map(|one| one.unwrap().path().unwrap().into_owned())
            .collect();
        assert!(names.contains(&PathBuf::from("d/index.json")), "{names:?}");
    }
}
