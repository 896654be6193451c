//! `legate-server`: reads flags, starts one server, and stops it on SIGTERM or SIGINT.

mod options;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use legate_runtime::logging;

use crate::options::{Options, Secrets};

/// The server allocates and frees many small values on all cores. jemalloc needs less CPU time and memory for
/// that than the C library's allocator.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let options = Options::parse();
    // Held until the end of `main`, so that the last log lines are flushed.
    let _log = match logging::init(options.log()) {
        Ok(log) => log,
        Err(error) => {
            // The log is not set up yet. If standard error is closed, there is nowhere left to report to.
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| legate_runtime::block_on(runtime, run(options)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(options: Options) -> anyhow::Result<()> {
    let stop_timeout = options.stop_timeout;
    let config = options.config(Secrets::from_environment()?)?;
    legate_server::run(config, "legate-server", stop_timeout).await
}
