//! `legate agent`: one server of the control plane, with the command line and configuration files of
//! `consul agent`.
//!
//! Every setting is served, ignored with a line about the actual behaviour, or refused with the name of
//! the flag, or the file and key. It runs the server of `legate-server` in this process and has no mesh
//! logic of its own.

mod config;
mod flags;
mod keys;
mod remote_exec;
mod resolve;
mod sockaddr;
mod sources;
mod watches;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use legate_model::ServiceDefinition;
use legate_runtime::logging::{self, Log};
use legate_runtime::rotating_file::RotatingFile;
use legate_server::{Definitions, Parts, Program, Reload, Server};

pub(crate) use self::flags::Flags;
pub(crate) use self::remote_exec::EVENT as EXEC_EVENT;
use self::resolve::Resolved;

/// The deadline for open requests and streams during shutdown.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The mode of the log file, as in Consul.
const LOG_MODE: u32 = 0o640;

/// Runs the server until SIGTERM, SIGINT, or a failure.
///
/// # Errors
///
/// If a setting is invalid or not supported, or a component of the server cannot start or fails.
pub(crate) async fn run(flags: Flags) -> anyhow::Result<()> {
    let sources = sources::read(&flags)?;
    let (notes, files) = (sources.notes.clone(), sources.files.clone());
    let resolved = resolve::resolve(sources, flags.dev)?;
    // Dropped last, so that the final line is written.
    let log = start_log(&resolved)?;
    for note in &notes {
        tracing::warn!("{note}");
    }
    let pid_file = resolved.pid_file.map(PidFile::write).transpose()?;
    let with_lines = !resolved.log.json;
    let flags = Arc::new(flags);
    let reread = flags.clone();
    let parts = Parts {
        reload: Some(Reload::new(move || definitions(&reread)).with_log(log.level())),
        ..Parts::default()
    };
    let program = Program {
        parts,
        leave_on_terminate: resolved.leave.on_terminate,
        leave_on_interrupt: resolved.leave.on_interrupt,
        changed: resolved
            .reload_by_itself
            .then(|| changed(flags, seen(&files))),
        started: Box::new(move |server| {
            let (config, spawner) = (server.config(), server.spawner());
            watches::start(resolved.watches, config, &spawner);
            if resolved.executes {
                remote_exec::start(config.agent.tokens.agent.clone(), config, &spawner);
            }
            started(server, with_lines);
        }),
        ..Program::new("legate agent", STOP_LIMIT)
    };
    let ended = program.run(resolved.server).await;
    drop(pid_file);
    ended
}

fn start_log(resolved: &Resolved) -> anyhow::Result<Log> {
    let Some(file) = &resolved.log_file else {
        return Ok(logging::init(resolved.log)?);
    };
    let opened = RotatingFile::open(file.path.clone(), LOG_MODE, file.rotation)
        .with_context(|| format!("the log file {} cannot be opened", file.path.display()))?;
    let both = logging::Both(io::stderr(), opened);
    Ok(logging::init_to(resolved.log, both)?)
}

/// Whether the program was started under the name `consul`. It then uses that name in its output,
/// because scripts wait for these lines.
fn is_consul() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.is_some_and(|name| name.file_name().is_some_and(|name| name == "consul"))
}

/// Prints the startup lines that users and scripts wait for.
fn started(server: &Server, with_lines: bool) {
    let name = if is_consul() { "Consul" } else { "Legate" };
    tracing::info!("{name} agent running!");
    if !with_lines {
        return;
    }
    let config = server.config();
    let port = |api: Option<std::net::SocketAddr>| api.map_or(-1, |api| i32::from(api.port()));
    let ip = config
        .http
        .or(config.https)
        .map_or_else(String::new, |api| api.ip().to_string());
    let text = format!(
        "==> {name} agent running!\n         Node name: '{}'\n        Datacenter: '{}'\n            \
         Server: true\n       Client Addr: [{ip}] (HTTP: {}, HTTPS: {}, gRPC: {}, gRPC-TLS: {}, DNS: \
         {})\n      Cluster Addr: {}\n       ACL Enabled: {}\n",
        config.node_name,
        config.datacenter,
        port(config.http),
        port(config.https),
        port(config.grpc),
        port(config.grpc_tls),
        port(config.dns),
        config.advertise,
        config.acl.enabled,
    );
    // Standard output may be closed.
    let _ = io::stdout().write_all(text.as_bytes());
    let _ = io::stdout().flush();
}

/// The current settings of the files that can be reloaded. All files must be valid, including settings
/// that apply at startup only.
fn definitions(flags: &Flags) -> Result<Definitions, String> {
    let read = sources::read(flags).and_then(|sources| resolve::resolve(sources, flags.dev));
    let resolved = read.map_err(|error| format!("{error:#}"))?;
    let log_level = Some(resolved.log.level);
    let server = resolved.server;
    Ok(Definitions {
        services: server.agent.services,
        checks: server.agent.checks,
        tokens: server.agent.tokens,
        request_limits: server.request_limits,
        dns: server.dns_settings,
        log_level,
    })
}

/// The files with their modification times.
type FileTimes = BTreeMap<PathBuf, Option<SystemTime>>;

/// Returns a function that reports whether the files have changed since its last call.
fn changed(flags: Arc<Flags>, mut known: FileTimes) -> Box<dyn FnMut() -> bool + Send> {
    Box::new(move || {
        // Read errors are reported when something has changed.
        let Ok(files) = sources::list(&flags) else {
            return false;
        };
        let now = seen(&files);
        let changed = now != known;
        known = now;
        changed
    })
}

/// The modification time of each file.
fn seen(files: &[PathBuf]) -> FileTimes {
    let changed = |file: &Path| {
        std::fs::metadata(file)
            .and_then(|known| known.modified())
            .ok()
    };
    files
        .iter()
        .map(|file| (file.clone(), changed(file)))
        .collect()
}

/// A file with the process id, removed on drop.
struct PidFile(PathBuf);

impl PidFile {
    fn write(path: PathBuf) -> anyhow::Result<Self> {
        let failed = || format!("cannot write the pid file {}", path.display());
        std::fs::write(&path, std::process::id().to_string()).with_context(failed)?;
        Ok(Self(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // Another process may have removed it.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn of_files(files: Vec<PathBuf>) -> Flags {
    let mut flags = Flags::default();
    flags.config_file = files;
    flags
}

/// Checks whether an agent could run with these files and directories, with everything that an agent does
/// with them at its start.
///
/// # Errors
///
/// Names the file and the key that cannot be used, or the definition.
pub(crate) async fn validate(files: Vec<PathBuf>) -> anyhow::Result<()> {
    let settings = sources::read(&of_files(files))?;
    let resolved = resolve::resolve(settings, false)?;
    Ok(legate_server::rehearse(&resolved.server).await?)
}

/// The services defined in files and directories.
///
/// # Errors
///
/// As [`validate`], for the files read.
pub(crate) fn services(files: Vec<PathBuf>) -> anyhow::Result<Vec<ServiceDefinition>> {
    Ok(sources::read(&of_files(files))?.services)
}
