//! What process 1 of a container owes the others: collecting children that it did not start and
//! whose parents are gone. Without it they stay as zombies until no process can be started.
//!
//! It never collects a process that somebody here waits for: those are gone from the process table
//! at once, so only a zombie that is seen in two looks in a row is nobody's.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use legate_runtime::Spawner;
use nix::errno::Errno;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpid};
use tokio::time::{MissedTickBehavior, interval};

/// Between two looks. Zombies cost a table entry each, so there is no hurry.
const PERIOD: Duration = Duration::from_secs(5);

/// Collects orphans until the scope of `spawner` stops, if this is process 1.
pub(crate) fn start(spawner: &Spawner) {
    if getpid() != Pid::from_raw(1) {
        return;
    }
    spawner.spawn_until_stop("reaper", async {
        let mut looks = interval(PERIOD);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut orphans = Orphans::default();
        loop {
            looks.tick().await;
            orphans.look(zombies());
        }
    });
}

/// The zombies of the last look.
#[derive(Debug, Default)]
struct Orphans {
    seen: BTreeSet<i32>,
}

impl Orphans {
    /// Collects what was there at the last look too, and notes the rest for the next.
    fn look(&mut self, zombies: BTreeSet<i32>) {
        for pid in zombies.intersection(&self.seen) {
            match waitpid(Pid::from_raw(*pid), Some(WaitPidFlag::WNOHANG)) {
                Ok(status) => tracing::debug!(?status, "collected an orphan"),
                // Somebody was faster.
                Err(Errno::ECHILD) => {}
                Err(error) => tracing::debug!(pid, %error, "an orphan was not collected"),
            }
        }
        self.seen = zombies;
    }
}

/// Children of this process that have ended and wait to be collected.
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

/// The state follows the program's name, which is in parentheses and may hold any character.
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
    fn a_child_that_nobody_waits_for_is_collected_at_the_second_look() {
        let child = Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        while !is_zombie(pid) {
            std::thread::yield_now();
        }
        assert!(zombies().contains(&pid));
        let mut orphans = Orphans::default();
        orphans.look(BTreeSet::from([pid]));
        assert!(is_zombie(pid), "somebody may still be about to wait for it");
        orphans.look(BTreeSet::from([pid]));
        assert!(!is_zombie(pid), "it is still there");
        drop(child);
    }
}
