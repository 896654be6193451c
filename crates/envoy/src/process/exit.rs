//! How a process ended, in words that help to find the cause: exit code, signal, or the kernel's
//! out-of-memory killer if the control group counted a kill.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::{fmt, fs};

use nix::sys::signal::Signal;

use crate::cgroup::folders;

/// How Envoy ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It exited with this code.
    Code(i32),
    /// It was killed by a signal: its name and possible cause.
    Signal(String),
    /// The exit status is unknown, for this reason.
    Unobserved(String),
}

impl ExitReason {
    /// Whether the process exited with code 0.
    pub fn success(&self) -> bool {
        *self == Self::Code(0)
    }

    /// `ours`: whether this program sent SIGKILL. `oom_kills`: value of the counter at the start of
    /// the process.
    pub(super) fn from_status(status: ExitStatus, ours: bool, oom_kills: Option<u64>) -> Self {
        if let Some(code) = status.code() {
            return Self::Code(code);
        }
        let signal = status.signal().unwrap_or_default();
        let mut text = match Signal::try_from(signal) {
            Ok(signal) => signal.to_string(),
            Err(_) => format!("signal {signal}"),
        };
        if status.core_dumped() {
            text += " (core dumped)";
        }
        if signal == Signal::SIGKILL as i32 && !ours {
            text += verdict(oom_kills);
        }
        Self::Signal(text)
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal(signal) => write!(f, "killed by {signal}"),
            Self::Unobserved(why) => write!(f, "ended in a way that could not be observed: {why}"),
        }
    }
}

/// Whether the kernel has killed a process for lack of memory since the counter was `before`.
/// Contains a question mark if the counter cannot be read.
fn verdict(before: Option<u64>) -> &'static str {
    match (before, oom_kills()) {
        (Some(before), Some(now)) if now > before => ": out of memory",
        (Some(_), Some(_)) => "",
        _ => ": out of memory?",
    }
}

/// Number of out-of-memory kills in this process's control group.
pub(super) fn oom_kills() -> Option<u64> {
    folders("memory").iter().find_map(|group| {
        let files = ["memory.events", "memory.oom_control"].iter();
        let mut texts = files.filter_map(|file| fs::read_to_string(group.join(file)).ok());
        texts.find_map(|text| count(&text))
    })
}

/// The counter in the file of either version.
fn count(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(signal: i32, ours: bool, counter: Option<u64>) -> ExitReason {
        ExitReason::from_status(ExitStatus::from_raw(signal), ours, counter)
    }

    #[test]
    fn reasons_read_like_sentences() {
        let unknown = None;
        let exit =
            |code: i32| ExitReason::from_status(ExitStatus::from_raw(code << 8), false, unknown);
        assert_eq!(exit(1).to_string(), "exited with code 1");
        assert!(exit(0).success() && !exit(1).success());
        assert_eq!(
            killed(9, false, unknown).to_string(),
            "killed by SIGKILL: out of memory?"
        );
        assert_eq!(killed(9, true, unknown).to_string(), "killed by SIGKILL");
        assert_eq!(
            killed(11 | 0x80, false, unknown).to_string(),
            "killed by SIGSEGV (core dumped)"
        );
        assert_eq!(killed(15, false, unknown).to_string(), "killed by SIGTERM");
    }

    #[test]
    fn counts_are_read_from_both_versions() {
        assert_eq!(
            count("low 0\noom 4\noom_kill 3\noom_group_kill 0\n"),
            Some(3)
        );
        assert_eq!(
            count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"),
            Some(7)
        );
        assert_eq!(count("low 0\n"), None);
    }
}
