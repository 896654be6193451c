//! `legate-k8s`: reads flags, starts the log, runs one subcommand.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use legate_kubernetes::{acl_init, context, operator, redirect};
use legate_runtime::logging::{self, Level, LogOptions};

/// The mesh on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "legate-k8s", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Least level that is logged: trace, debug, info, warn or error. Injected sidecars log from
    /// the same level on.
    #[arg(long, global = true, env = "LEGATE_K8S_LOG_LEVEL", default_value = "info", value_parser = level)]
    log_level: Level,

    /// Log one JSON object a line; injected sidecars do so too.
    #[arg(long, global = true, env = "LEGATE_K8S_LOG_JSON", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    log_json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Injects sidecars, keeps the catalog in step with pods, writes config entries.
    Operator(Box<context::Options>),
    /// Redirects the traffic of a pod to its sidecar; runs in an init container of the pod.
    Redirect(redirect::Options),
    /// Gives the servers their first token, and what pods and the operator log in with; then ends.
    AclInit(Box<acl_init::Options>),
}

fn level(text: &str) -> Result<Level, logging::UnknownLevel> {
    text.parse()
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let log = LogOptions {
        name: "legate-k8s",
        level: cli.log_level,
        json: cli.log_json,
    };
    // It is kept to the end, so that the last line is written.
    let _log = match logging::init(log) {
        Ok(log) => log,
        Err(error) => {
            // There is no log to tell it to, and a closed standard error changes nothing.
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Operator(options) => operator::run(*options, log),
        Command::Redirect(options) => redirect::run(&options),
        Command::AclInit(options) => acl_init::run(*options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
