//! Reaps orphans if this is process 1 of a container. Without it, zombies accumulate until no
//! process can be started.
//!
//! It never reaps a child that this program waits for: those leave the process table at once, so
//! only a zombie that is seen in two consecutive scans is an orphan.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use legate_runtime::Spawner;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};
use tokio::time::{MissedTickBehavior, interval};

/// Interval between scans. A zombie costs only a process table entry, so there is no hurry.
const PERIOD: Duration = Duration::from_secs(5);

/// Reaps orphans until the scope of `spawner` stops. Does nothing unless this is process 1.
pub(crate) fn start(spawner: &Spawner) {
    if getpid() != Pid::from_raw(1) {
        return;
    }
    spawner.spawn_until_stop("reaper", async {
        let mut scans = interval(PERIOD);
        scans.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut orphans = Orphans::default();
        loop {
            scans.tick().await;
            orphans.scan(zombies());
        }
    });
}

/// Zombies that the previous scan found.
#[derive(Debug, Default)]
struct Orphans {
    seen: BTreeSet<i32>,
}

impl Orphans {
    /// Reaps zombies that the previous scan found too, and remembers the others for the next scan.
    fn scan(&mut self, zombies: BTreeSet<i32>) {
        for pid in zombies.intersection(&self.seen) {
            match waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG)) {
                Ok(status) => tracing::debug!(?status, "collected an orphan"),
                // The child has been reaped elsewhere.
                Err(Errno::ECHILD) => {}
                Err(error) => tracing::debug!(pid, %error, "an orphan was not collected"),
            }
        }
        self.seen = zombies;
    }
}

/// Children of this process that have exited but are not reaped.
fn zombies() -> BTreeSet<i32> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return BTreeSet::new();
    };
    let children = tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    children
        .flat_map(|list| {
            let pids = list.split_whitespace().map(str::parse);
            pids.flatten().collect::<Vec<i32>>()
        })
        .filter(|pid| is_zombie(*pid))
        .collect()
}

/// The state follows the program's name, which is in parentheses and may contain any character.
fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('Z'))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_without_a_waiter_is_reaped_by_the_second_scan() {
        let child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while !is_zombie(pid) {
            std::thread::yield_now();
        }
        assert!(zombies().contains(&pid));
        let mut orphans = Orphans::default();
        orphans.scan(BTreeSet::from([pid]));
        assert!(is_zombie(pid), "there may still be a waiter");
        orphans.scan(BTreeSet::from([pid]));
        assert!(!is_zombie(pid), "it is still there");
        drop(child);
    }
}
