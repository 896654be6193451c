//! `legate`: the command line program.
//!
//! It composes the products and calls their public APIs; it has no mesh logic of its own. Started under
//! the name `consul` it is the same program and accepts the same commands.
#![expect(
    clippy::print_stdout,
    reason = "a command line tool prints to its user"
)]

mod acl;
mod agent;
mod catalog;
mod commands;
mod completion;
mod config;
mod connect;
mod debug;
mod dev;
mod exec;
mod go_flags;
mod http_client;
mod input;
mod intention;
mod keygen;
mod kubernetes;
mod kv;
mod local_agent;
mod lock;
mod login;
mod members;
mod not_served;
mod operator;
mod output;
mod peering;
mod rtt;
mod server_api;
mod services;
mod signals;
mod snapshot;
mod subprocess;
mod tenants;
mod tls;
mod validate;
mod version;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use commands::Args;

/// The exit code that shells report for a process killed by SIGPIPE.
const NOBODY_READS: u8 = 141;
/// Consul's exit code for a missing or unknown command.
const NO_COMMAND: u8 = 127;

/// As in `legate-server`, because `agent` and `dev` are whole servers.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let line: Vec<OsString> = std::env::args_os().collect();
    let program = line.first().cloned().unwrap_or_default();
    let consul = version::is_consul(&program);
    let asks_version = |word: &OsString| word == "-v" || word == "-version" || word == "--version";
    if line.get(1).is_some_and(asks_version) {
        return ended(output::line(&version::text(consul)).map(|()| ExitCode::SUCCESS));
    }
    let install = line.get(1).and_then(|word| word.to_str()).and_then(|word| {
        match word.trim_start_matches('-') {
            "autocomplete-install" => Some(true),
            "autocomplete-uninstall" => Some(false),
            _ => None,
        }
    });
    if let Some(on) = install {
        let home = server_api::environment("HOME").unwrap_or_default();
        return ended(completion::install(&program, home.as_ref(), on));
    }
    let args = match parsed(line) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let result = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            legate_runtime::block_on(runtime, commands::run(args.command, &program))
        });
    ended(result)
}

fn ended(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| failed(&error))
}

fn failed(error: &anyhow::Error) -> ExitCode {
    let gone = |cause: &(dyn std::error::Error + 'static)| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::BrokenPipe)
    };
    // The reader has closed the pipe.
    if error.downcast_ref::<output::Gone>().is_some() && error.chain().any(gone) {
        return ExitCode::from(NOBODY_READS);
    }
    output::warn(&format!("{error:#}"));
    ExitCode::FAILURE
}

/// Parses the command line. Errors are printed, and the exit code is returned.
fn parsed(line: Vec<OsString>) -> Result<Args, ExitCode> {
    // If a flag is repeated, the last value wins.
    let mut command = Args::command().mut_subcommands(override_self);
    command.build();
    let known = command.get_subcommands().any(|known| {
        let word = line.get(1).and_then(|word| word.to_str());
        word.is_some_and(|word| known.get_name() == word)
    });
    let words = line.len();
    let line = go_flags::translated(line, &command, commands::is_consuls);
    let line = line.map_err(|error| failed(&error))?;
    let matches = command.try_get_matches_from_mut(line);
    let args = matches.and_then(|matches| Args::from_arg_matches(&matches));
    args.map_err(|error| {
        // The terminal may be closed.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ if words < 2 || !known => ExitCode::from(NO_COMMAND),
            _ => ExitCode::FAILURE,
        }
    })
}

fn override_self(command: clap::Command) -> clap::Command {
    let command = command.args_override_self(true);
    command.mut_subcommands(override_self)
}
