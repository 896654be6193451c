//! Gives the rules to the kernel, through `nft` or, where that does not work, `iptables-restore`. Both are
//! looked for on `PATH`, and get their input by standard input. It writes no file.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use super::config::Redirection;
use super::iptables::{self, Family, Jump};
use super::nftables;

/// What holds the rules now.
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

/// Neither way works.
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

/// A program did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{program}: {message}")]
struct ProgramError {
    program: &'static str,
    message: String,
    /// It is not installed.
    absent: bool,
}

/// Redirects the traffic of the network namespace of this process.
///
/// # Errors
///
/// [`ApplyError`] where neither nftables nor iptables takes the rules. nftables has then changed
/// nothing; iptables may have taken those of IPv4, and takes them again the next time.
pub fn apply(redirection: &Redirection) -> Result<Used, ApplyError> {
    let nft = match call("nft", &["-f", "-"], &nftables::script(redirection)) {
        Ok(()) => return Ok(Used::Nftables),
        Err(error) => error,
    };
    tracing::warn!("nftables does not work here, iptables is tried: {nft}");
    match by_iptables(redirection) {
        Ok(()) => Ok(Used::Iptables),
        Err(iptables) => Err(ApplyError { nft, iptables }),
    }
}

/// The programs of one family: those for the kernel's old interface first, because where the new one
/// worked, `nft` would have done the work.
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
        // Without IPv6 in the kernel there is no traffic to redirect, and no table to do it with.
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
    // Every failure counts as "not there": if it means more, the program below reports it.
    let is_missing = |jump: &Jump| {
        let args = ["-w", "5", "-t", "nat", "-C", jump.from, "-j", jump.to];
        call(check, &args, "").is_err()
    };
    let mut missing = vec![iptables::OUTPUT, iptables::PREROUTING];
    missing.retain(is_missing);
    let rules = iptables::script(redirection, family, &missing);
    call(restore, &["-w", "5", "--noflush"], &rules)
}

/// Runs a program to its end.
fn call(program: &'static str, args: &[&str], input: &str) -> Result<(), ProgramError> {
    let failed = |what: &str, error: &io::Error| ProgramError {
        program,
        message: format!("it cannot be {what}: {error}"),
        absent: error.kind() == io::ErrorKind::NotFound,
    };
    let mut child = Command::new(program)
        .args(args)
        // Nobody else changes the tables of this pod, and the root file system is read-only.
        .env("XTABLES_LOCKFILE", "/dev/null")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed("started", &error))?;
    // A program that ends before it has read everything says why, and is not believed to have worked.
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

/// How much of a program's error is shown.
const SHOWN: usize = 400;

/// The beginning of a program's error, in one line.
fn first_lines(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let words: Vec<&str> = text.split_whitespace().collect();
    words.join(" ").chars().take(SHOWN).collect()
}
