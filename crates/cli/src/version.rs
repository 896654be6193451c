//! `version`: prints the version. Under the name `consul` it prints the version of Consul whose APIs and
//! commands are implemented, because clients compare it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use legate_server::CONSUL_VERSION as CONSUL;
use serde_json::{Value, json};

use crate::output::{Format, json as pretty, line};

const OWN: &str = env!("CARGO_PKG_VERSION");
/// A placeholder for Consul's build date: clients parse the field but do not depend on it.
const BUILT: &str = "1970-01-01T00:00:01Z";

#[derive(Args)]
pub(crate) struct Options {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Pretty)]
    format: Format,
    #[arg(hide = true)]
    arguments: Vec<String>,
}

/// Prints the version. `program` is the name under which the program was started.
///
/// # Errors
///
/// If standard output is closed.
pub(crate) fn run(options: &Options, program: &OsStr) -> anyhow::Result<ExitCode> {
    let consul = is_consul(program);
    match options.format {
        Format::Pretty => line(&text(consul))?,
        Format::Json => line(&pretty(&document(consul), "   "))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the program was started as `consul`.
pub(crate) fn is_consul(program: &OsStr) -> bool {
    Path::new(program).file_name() == Some(OsStr::new("consul"))
}

/// The text, which ends with an empty line like Consul's.
pub(crate) fn text(consul: bool) -> String {
    match consul {
        true => format!(
            "Consul v{CONSUL}\nRevision legate-{OWN}\nBuild Date {BUILT}\n\
             Protocol 2 spoken by default, understands 2 to 3\n"
        ),
        false => format!("Legate v{OWN}\nSpeaks the APIs and commands of Consul v{CONSUL}\n"),
    }
}

fn document(consul: bool) -> Value {
    json!({
        "Version": if consul { CONSUL } else { OWN },
        "Revision": if consul { format!("legate-{OWN}") } else { String::new() },
        "Prerelease": "",
        "BuildDate": BUILT,
        "RPC": {"Default": 2, "Min": 2, "Max": 3},
        "Consul": CONSUL,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_the_name_consul_it_prints_consuls_version() {
        assert!(is_consul(OsStr::new("/usr/bin/consul")));
        assert!(!is_consul(OsStr::new("legate")));
        assert!(text(true).starts_with("Consul v1.21."));
        assert!(text(false).starts_with("Legate v"));
        assert_eq!(document(true)["Version"], CONSUL);
    }
}
