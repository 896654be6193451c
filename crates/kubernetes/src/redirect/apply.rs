//! Applies the rules with `nft` or, if that fails, with `iptables-restore`. Both are found on `PATH` and
//! get their input on standard input. No files are written.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::config::Redirection;
use super::iptables::{self, Family, Jump};
use super::nftables;

/// The mechanism that holds the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Used {
    /// One nftables table.
    Nftables,
    /// Chains of iptables, for IPv4 and IPv6.
    Iptables,
}

impl fmt::Display for Used {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Used::Nftables => "nftables",
            Used::Iptables => "iptables",
        })
    }
}

/// Neither mechanism works.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pod's traffic cannot be redirected. {nft}. {iptables}. The container needs the capability \
     NET_ADMIN, and a kernel with nf_tables (CONFIG_NF_TABLES_INET, CONFIG_NFT_REDIR, CONFIG_NFT_NAT); \
     with iptables instead, it needs NET_RAW as well"
)]
pub struct ApplyError {
    nft: ProgramError,
    iptables: ProgramError,
}

/// A program failed.
#[derive(Debug, thiserror::Error)]
#[error("{program}: {message}")]
struct ProgramError {
    program: &'static str,
    message: String,
    /// Whether it is not installed.
    absent: bool,
}

/// Redirects the traffic of this process's network namespace.
///
/// # Errors
///
/// [`ApplyError`] if neither nftables nor iptables accepts the rules. nftables has then changed nothing;
/// iptables may have applied the IPv4 rules, which the next attempt replaces.
pub fn apply(redirection: &Redirection) -> Result<Used, ApplyError> {
    let nft = match call("nft", &["-f", "-"], &nftables::script(redirection)) {
        Ok(()) => return Ok(Used::Nftables),
        Err(error) => error,
    };
    tracing::warn!("nftables is not usable, trying iptables: {nft}");
    match by_iptables(redirection) {
        Ok(()) => Ok(Used::Iptables),
        Err(iptables) => Err(ApplyError { nft, iptables }),
    }
}

/// The programs of one family, those for the kernel's legacy interface first: if the new interface were
/// available, `nft` would have succeeded.
struct Programs {
    family: Family,
    legacy: [&'static str; 2],
    default: [&'static str; 2],
}

const PROGRAMS: [Programs; 2] = [
    Programs {
        family: Family::V4,
        legacy: ["iptables-legacy", "iptables-legacy-restore"],
        default: ["iptables", "iptables-restore"],
    },
    Programs {
        family: Family::V6,
        legacy: ["ip6tables-legacy", "ip6tables-legacy-restore"],
        default: ["ip6tables", "ip6tables-restore"],
    },
];

fn by_iptables(redirection: &Redirection) -> Result<(), ProgramError> {
    for programs in &PROGRAMS {
        // Without IPv6 in the kernel there is no traffic to redirect and no table to change.
        if programs.family == Family::V6 && !Path::new("/proc/net/if_inet6").exists() {
            continue;
        }
        match restore(redirection, programs.family, programs.legacy) {
            Err(error) if error.absent => restore(redirection, programs.family, programs.default)?,
            result => result?,
        }
    }
    Ok(())
}

fn restore(
    redirection: &Redirection,
    family: Family,
    [check, restore]: [&'static str; 2],
) -> Result<(), ProgramError> {
    // Every failure counts as "missing"; a real problem is reported by the program below.
    let is_missing = |jump: &Jump| {
        let args = ["-w", "5", "-t", "nat", "-C", jump.from, "-j", jump.to];
        call(check, &args, "").is_err()
    };
    let mut missing = vec![iptables::OUTPUT, iptables::PREROUTING];
    missing.retain(is_missing);
    let rules = iptables::script(redirection, family, &missing);
    call(restore, &["-w", "5", "--noflush"], &rules)
}

/// Runs a program to completion.
fn call(program: &'static str, args: &[&str], input: &str) -> Result<(), ProgramError> {
    let failed = |what: &str, error: &io::Error| ProgramError {
        program,
        message: format!("cannot be {what}: {error}"),
        absent: error.kind() == io::ErrorKind::NotFound,
    };
    let mut child = Command::new(program)
        .args(args)
        // No other process changes the tables of this pod, and the root file system is read-only.
        .env("XTABLES_LOCKFILE", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed("started", &error))?;
    // A program that exits before it has read its input has failed; its own error takes precedence.
    let written = match child.stdin.take() {
        Some(mut stdin) => stdin.write_all(input.as_bytes()),
        None => Ok(()),
    };
    let output = child
        .wait_with_output()
        .map_err(|error| failed("waited for", &error))?;
    if !output.status.success() {
        return Err(ProgramError {
            program,
            message: format!("{}: {}", output.status, first_lines(&output.stderr)),
            absent: false,
        });
    }
    written.map_err(|error| failed("given its rules", &error))
}

/// How much of a program's error output is shown.
const SHOWN: usize = 400;

/// The beginning of a program's error output, on one line.
fn first_lines(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(SHOWN).collect()
}
