//! How a process ended, in words that say where to look: code, signal, or the kernel's
//! out-of-memory killer when the control group counted one.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;

use nix::sys::signal::Signal;

/// How Envoy ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExitReason {
    /// It ended by itself with this code.
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether a core dump was written.
        core: bool,
        /// Whether the kernel's out-of-memory killer sent it.
        out_of_memory: OutOfMemory,
    },
    /// The operating system did not tell how; with what it said instead.
    Unobserved(String),
    /// It was sent SIGKILL and was still there after the last deadline, so the kernel holds it.
    Unkillable,
}

/// Whether the kernel's out-of-memory killer ended the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfMemory {
    /// The control group counted a kill while the process ran.
    Yes,
    /// It counted none, the signal was another one, or the supervisor sent it.
    No,
    /// The count cannot be read.
    Unknown,
}

impl ExitReason {
    /// Whether the process ended by itself with code 0.
    pub fn success(&self) -> bool {
        *self == Self::Code(0)
    }

    pub(super) fn from_status(status: ExitStatus, killed_by_us: bool, oom: &OomCounter) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => {
                let signal = signal.unwrap_or_default();
                let out_of_memory = if signal == Signal::SIGKILL as i32 && !killed_by_us {
                    oom.verdict()
                } else {
                    OutOfMemory::No
                };
                Self::Signal {
                    signal,
                    core: status.core_dumped(),
                    out_of_memory,
                }
            }
        }
    }
}

impl fmt::Display for ExitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exited with code {code}"),
            Self::Signal {
                signal,
                core,
                out_of_memory,
            } => {
                match Signal::try_from(*signal) {
                    Ok(signal) => write!(f, "killed by {signal}")?,
                    Err(_) => write!(f, "killed by signal {signal}")?,
                }
                if *core {
                    f.write_str(" (core dumped)")?;
                }
                match out_of_memory {
                    OutOfMemory::Yes => f.write_str(": out of memory"),
                    OutOfMemory::Unknown => f.write_str(": out of memory?"),
                    OutOfMemory::No => Ok(()),
                }
            }
            Self::Unobserved(why) => write!(f, "ended in a way that could not be observed: {why}"),
            Self::Unkillable => f.write_str("did not end after SIGKILL"),
        }
    }
}

/// How many kills for lack of memory this process's control group had counted when Envoy started.
#[derive(Debug)]
pub(super) struct OomCounter(Option<u64>);

impl OomCounter {
    /// Reads the count, best effort.
    pub(super) fn read() -> Self {
        Self(oom_kills())
    }

    fn verdict(&self) -> OutOfMemory {
        match (self.0, oom_kills()) {
            (Some(before), Some(now)) if now > before => OutOfMemory::Yes,
            (Some(_), Some(_)) => OutOfMemory::No,
            _ => OutOfMemory::Unknown,
        }
    }
}

fn oom_kills() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let file = |path: &Path| {
        std::fs::read_to_string(path)
            .ok()
            .and_then(|text| count(&text))
    };
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?.trim_start_matches('/'));
        match controllers {
            "" => file(&Path::new("/sys/fs/cgroup").join(path).join("memory.events")),
            "memory" => file(
                &Path::new("/sys/fs/cgroup/memory")
                    .join(path)
                    .join("memory.oom_control"),
            ),
            _ => None,
        }
    })
}

/// The count in either version's file.
fn count(text: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(signal: i32, ours: bool, counter: &OomCounter) -> ExitReason {
        ExitReason::from_status(ExitStatus::from_raw(signal), ours, counter)
    }

    #[test]
    fn reasons_read_like_sentences() {
        let unknown = OomCounter(None);
        let exit =
            |code: i32| ExitReason::from_status(ExitStatus::from_raw(code << 8), false, &unknown);
        assert_eq!(exit(1).to_string(), "exited with code 1");
        assert!(exit(0).success() && !exit(1).success());
        assert_eq!(
            killed(9, false, &unknown).to_string(),
            "killed by SIGKILL: out of memory?"
        );
        assert_eq!(killed(9, true, &unknown).to_string(), "killed by SIGKILL");
        assert_eq!(
            killed(11 | 0x80, false, &unknown).to_string(),
            "killed by SIGSEGV (core dumped)"
        );
        assert_eq!(killed(15, false, &unknown).to_string(), "killed by SIGTERM");
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
