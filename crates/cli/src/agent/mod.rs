//! `legate agent`: one server of the control plane, with the command line and configuration files of
//! `consul agent`.
//!
//! Everything that is asked for is served, taken with a line that says what happens instead, or refused
//! with the name of the flag, or the file and key. It runs the server of `legate-server` in this process and has no mesh logic of its own.

mod config;
mod flags;
mod keys;
mod resolve;
mod sockaddr;
mod sources;

use std::time::Duration;

use legate_runtime::logging;

pub(crate) use self::flags::{Flags, with_two_dashes};
use self::resolve::Resolved;

/// How long open requests and streams get to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Runs the server until SIGTERM, SIGINT, or a failure.
///
/// # Errors
///
/// When a setting is wrong or not served, or a part of the server cannot start or fails.
pub(crate) async fn run(flags: Flags) -> anyhow::Result<()> {
    let settings = sources::read(&flags)?;
    let notes = settings.notes.clone();
    let Resolved { server, log, .. } = resolve::resolve(settings, flags.dev)?;
    // It is kept to the end, so that the last line is written.
    let _log = logging::init(log)?;
    for note in notes {
        tracing::warn!("{note}");
    }
    legate_server::run(server, "legate agent", STOP_LIMIT).await
}
