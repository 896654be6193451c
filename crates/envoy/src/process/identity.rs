//! Which process a number stands for. A process id alone may belong to a stranger by now; together
//! with the boot, the start time and the program file it does not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A process that can be found again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its number.
    pub pid: u32,
    /// When it started, in clock ticks since the machine's start.
    pub start_time: u64,
    /// Which start of the machine that is.
    pub boot: String,
    /// The program file, for people.
    pub executable: PathBuf,
    /// The program file's device.
    pub device: u64,
    /// The program file's number on that device.
    pub inode: u64,
}

impl Identity {
    /// The process that has the number `pid` now; nothing when there is none that can be looked at.
    pub fn of(pid: u32) -> Option<Self> {
        let start_time = start_time(pid)?;
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        // Through the link, so that a program file that was replaced meanwhile is still found.
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

    /// Whether the process has not ended, whichever program it runs by now: a script may have put
    /// one in its place.
    ///
    /// # Errors
    /// Says what is different.
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

    /// Whether the process still runs, and the same program.
    ///
    /// # Errors
    /// Says what is different.
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

/// The start of a process that has not ended, also when nobody has collected it yet.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name stands in parentheses and may hold anything, so that only the last one ends it.
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
    fn a_process_is_itself_and_nobody_else() {
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
    fn a_process_that_only_waits_to_be_collected_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        while Identity::of(pid).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }
}
