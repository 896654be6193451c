//! Entry point: settings, log, signals, exit code. Everything else is in the library.

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use legate_dataplane::running::{self, Answer, HEALTH_TIMEOUT};
use legate_dataplane::settings::{self, Environment, Invocation, Settings, SettingsError};
use legate_dataplane::signals;
use legate_runtime::logging::{self, LogOptions};
use legate_runtime::{Scope, file_limit};
use time::OffsetDateTime;
use time::macros::format_description;
use tokio::time::Instant;

fn main() -> ExitCode {
    let started = Instant::now();
    match settings::load(std::env::args_os().skip(1), Environment::of_process()) {
        Ok(Invocation::Version) => {
            out(&format!(
                "Legate Dataplane v{}\nRevision {}",
                env!("CARGO_PKG_VERSION"),
                option_env!("LEGATE_REVISION").unwrap_or("unknown")
            ));
            ExitCode::SUCCESS
        }
        Ok(Invocation::CheckHealth(addresses)) => {
            out("Checking envoy proxy health");
            match running::envoy_health(&addresses, HEALTH_TIMEOUT).map(|status| status.as_u16()) {
                Ok(200..=399) => {
                    out("Envoy proxy is ready.");
                    return ExitCode::SUCCESS;
                }
                Ok(status) => err(&format!(
                    "Envoy proxy is not ready. Received status code: {status}"
                )),
                Err(error) => err(&error.to_string()),
            }
            ExitCode::FAILURE
        }
        Ok(Invocation::Status { addresses, json }) => match running::status(&addresses) {
            Ok(status) => {
                match json {
                    true => out(&format!("{status:#}")),
                    false => out(running::text(&status).trim_end()),
                }
                ExitCode::from(u8::from(!running::is_ready(&status)))
            }
            Err(error) => unreachable_dataplane(&error),
        },
        Ok(Invocation::Restart(addresses)) => answered(running::restart(&addresses)),
        Ok(Invocation::Drain { addresses, accept }) => answered(running::drain(&addresses, accept)),
        Ok(Invocation::Run { settings, warnings }) => logged(*settings, &warnings, started),
        Err(error) => {
            if let SettingsError::Flag(message) = &error {
                err(message);
            }
            if matches!(error, SettingsError::Flag(_) | SettingsError::Help) {
                err(settings::usage().trim_end());
            }
            fatal(&error.to_string())
        }
    }
}

/// Runs with logging. The last line of the log is the error, if there is one.
fn logged(settings: Settings, warnings: &[String], started: Instant) -> ExitCode {
    let (level, json) = (settings.logging.level, settings.logging.json);
    let log = match logging::init(LogOptions {
        name: "legate-dataplane",
        level,
        json,
    }) {
        Ok(log) => log,
        Err(error) => return fatal(&error.to_string()),
    };
    match run(settings, warnings, started) {
        Ok(()) => ExitCode::SUCCESS,
        // Every error of the workspace already includes its cause.
        Err(error) => {
            log.line(&last_line(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Runs on this thread only. The kernel kills Envoy when the thread that started it ends, and one
/// thread suffices for one sidecar's configuration traffic.
fn run(settings: Settings, warnings: &[String], started: Instant) -> anyhow::Result<()> {
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "started legate-dataplane process"
    );
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    // Envoy inherits the raised limit, which is intended: it opens far more files than this
    // process, can use all of them, and current versions raise their own limit in the same way.
    if let Err(error) = file_limit::raise() {
        tracing::warn!(%error, "cannot raise the soft limit of open files");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    legate_runtime::block_on(runtime, async {
        let scope = Scope::new("process");
        let (stop, signals) = signals::channel();
        scope.spawn(
            "signals",
            signals::from_process(stop.clone(), scope.token())?,
        );
        legate_dataplane::run(settings, started, stop, signals, scope).await
    })
}

fn fatal(message: &str) -> ExitCode {
    err(&last_line(message));
    ExitCode::FAILURE
}

/// The line with the reason why the process ends, in the format of Go's `log` package, as Consul's
/// dataplane prints it; never JSON.
fn last_line(message: &str) -> String {
    let format = format_description!("[year]/[month]/[day] [hour]:[minute]:[second]");
    let now = OffsetDateTime::from(SystemTime::now())
        .format(format)
        .unwrap_or_default();
    format!("{now} {message}")
}

/// Prints the answer of a running dataplane.
fn answered(answer: anyhow::Result<Answer>) -> ExitCode {
    match answer {
        Ok(Ok(text)) => {
            out(&text);
            ExitCode::SUCCESS
        }
        Ok(Err(text)) => {
            err(&text);
            ExitCode::FAILURE
        }
        Err(error) => unreachable_dataplane(&error),
    }
}

/// No dataplane could be reached. The exit code differs from that of a negative answer.
fn unreachable_dataplane(error: &anyhow::Error) -> ExitCode {
    err(&error.to_string());
    ExitCode::from(2)
}

/// Prints a line. A closed pipe is not an error.
fn out(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn err(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
