//! `legate-k8s`: parses flags, initializes the log, runs one subcommand.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgAction, Parser, Subcommand};
use legate_kubernetes::{acl_init, connect_init, context, operator, redirect};
use legate_runtime::logging::{self, Level, LogOptions};

/// The mesh on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "legate-k8s", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Minimum level of log lines: trace, debug, info, warn or error. Also applies to injected
    /// sidecars.
    #[arg(long, global = true, env = "LEGATE_K8S_LOG_LEVEL", default_value = "info", value_parser = level)]
    log_level: Level,

    /// Log one JSON object per line; also applies to injected sidecars.
    #[arg(long, global = true, env = "LEGATE_K8S_LOG_JSON", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    log_json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Injects sidecars, syncs pods to the catalog, writes config entries.
    Operator(Box<context::Options>),
    /// Redirects the traffic of a pod to its sidecar; runs in an init container.
    Redirect(redirect::Options),
    /// Writes files of the mesh for containers of a pod; runs in an init container.
    ConnectInit(connect_init::Options),
    /// Bootstraps the servers' ACLs and creates the auth methods of pods and the operator; then
    /// exits.
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
    // Dropped last, so that the final line is written.
    let _log = match logging::init(log) {
        Ok(log) => log,
        Err(error) => {
            // Logging is not available, and an error of standard error can be ignored.
            let _ = writeln!(std::io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Operator(options) => operator::run(*options, log),
        Command::Redirect(options) => redirect::run(&options),
        Command::ConnectInit(options) => connect_init::run(&options),
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
