//! Identifies a process. A process id alone may have been reused; together with boot id, start time
//! and program file it is unique.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Identity of a process that can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// Start time, in clock ticks since boot.
    pub start_time: u64,
    /// The boot id of the machine.
    pub boot: String,
    /// The path of the program file, for humans.
    pub executable: PathBuf,
    /// The program file's device.
    pub device: u64,
    /// The program file's inode on that device.
    pub inode: u64,
}

impl Identity {
    /// The process that currently has the id `pid`; `None` if there is none that can be inspected.
    pub fn of(pid: u32) -> Option<Self> {
        let start_time = start_time(pid)?;
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        // Resolved through the link, so that it works even if the program file has been replaced.
        let file = fs::metadata(&link).ok()?;
        Some(Self {
            pid,
            start_time,
            boot: boot()?,
            executable: fs::read_link(&link).ok()?,
            device: file.dev(),
            inode: file.ino(),
        })
    }

    /// Checks that the process has not ended, whichever program it runs: a script may have executed
    /// another one.
    ///
    /// # Errors
    /// When it has ended; the text says what differs.
    pub(super) fn lives(&self) -> Result<(), String> {
        let pid = self.pid;
        if boot().is_some_and(|boot| boot != self.boot) {
            return Err(format!("process {pid} ran before the machine's last start"));
        }
        let found = start_time(pid).ok_or_else(|| gone(pid))?;
        if found != self.start_time {
            let expected = self.start_time;
            return Err(format!(
                "process {pid} started at another time (tick {found}, expected {expected})"
            ));
        }
        Ok(())
    }

    /// Checks that the process is still running the same program.
    ///
    /// # Errors
    /// When it is not; the text says what differs.
    pub fn verify(&self) -> Result<(), String> {
        self.lives()?;
        let pid = self.pid;
        let found = Self::of(pid).ok_or_else(|| gone(pid))?;
        if (found.device, found.inode) != (self.device, self.inode) {
            let (found, expected) = (found.executable, &self.executable);
            return Err(format!(
                "process {pid} runs {found:?}, expected {expected:?}"
            ));
        }
        Ok(())
    }
}

fn gone(pid: u32) -> String {
    format!("no process {pid} runs")
}

fn boot() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

/// Start time of a process that has not ended. A zombie counts as ended.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain any character, so only the last one ends it.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_matches_only_its_process() {
        let own = Identity::of(std::process::id()).unwrap();
        own.verify().unwrap();
        let earlier = Identity {
            start_time: own.start_time - 1,
            ..own.clone()
        };
        assert!(earlier.verify().unwrap_err().contains("another time"));
        let other = Identity {
            inode: own.inode + 1,
            ..own.clone()
        };
        let refusal = other.verify().unwrap_err();
        assert!(refusal.contains(" runs "), "{refusal}");
        let before = Identity {
            boot: "another".to_owned(),
            ..own.clone()
        };
        assert!(before.verify().unwrap_err().contains("last start"));
        let gone = Identity {
            pid: u32::MAX,
            ..own
        };
        assert!(gone.verify().unwrap_err().starts_with("no process"));
    }

    #[test]
    fn a_zombie_counts_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while Identity::of(pid).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
