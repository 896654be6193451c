//! Checks whether the control group has room for a second Envoy: threads and memory. At the limit,
//! the kernel would kill the serving Envoy with all its connections. Reads kernel files and changes
//! nothing.

use std::fs;
use std::path::Path;

use crate::cgroup::folders;

/// Threads of an Envoy in addition to its workers, with a margin.
const OWN_THREADS: u64 = 12;

const MIB: u64 = 1024 * 1024;

/// A cgroup controller with the names of its limit and usage files in version 2 and version 1.
type Controller = (&'static str, [&'static str; 2], [&'static str; 2]);

const THREADS: Controller = ("pids", ["pids.max"; 2], ["pids.current"; 2]);
const MEMORY: Controller = (
    "memory",
    ["memory.max", "memory.limit_in_bytes"],
    ["memory.current", "memory.usage_in_bytes"],
);

/// Why there is no room for the threads of a second Envoy with this concurrency, not even of one that
/// only validates.
pub(super) fn too_few_threads(concurrency: u32) -> Option<String> {
    let needed = u64::from(concurrency) + OWN_THREADS;
    let room = room(&THREADS).filter(|room| *room < needed)?;
    Some(format!(
        "only {room} more threads may run here (pids.max), a second Envoy needs {needed}"
    ))
}

/// Why there is no room for an Envoy that uses as much memory as the process `running`.
pub(super) fn too_little_memory(running: u32) -> Option<String> {
    let needed = memory_of(running)?;
    let room = room(&MEMORY).filter(|room| *room < needed)?;
    Some(format!(
        "only {} MiB more memory may be used here (its control group's limit), a second Envoy may \
         need {} MiB",
        room / MIB,
        needed.div_ceil(MIB)
    ))
}

/// Remaining capacity in the most limited of this process's groups.
fn room(controller: &Controller) -> Option<u64> {
    let groups = folders(controller.0).into_iter();
    groups.filter_map(|group| room_in(&group, controller)).min()
}

fn room_in(group: &Path, (_, limit, used): &Controller) -> Option<u64> {
    let number = |names: [&str; 2]| -> Option<u64> {
        names.iter().find_map(|name| {
            let text = fs::read_to_string(group.join(name)).ok()?;
            text.trim().parse().ok()
        })
    };
    let (limit, used) = (number(*limit)?, number(*used)?);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable(group))))
}

/// Memory of the group that the kernel reclaims before it kills: the page cache of inactive files.
fn reclaimable(group: &Path) -> u64 {
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let value = |name: &str| -> Option<u64> {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    value("total_inactive_file")
        .or_else(|| value("inactive_file"))
        .unwrap_or_default()
}

/// Anonymous memory of a process, in bytes.
fn memory_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
        }
    }

    #[test]
    fn cgroup_limits_of_both_versions_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let group = folder.path();
        write(group, &[("pids.max", "max\n"), ("pids.current", "40\n")]);
        assert_eq!(room_in(group, &THREADS), None);
        write(group, &[("pids.max", "42\n")]);
        assert_eq!(room_in(group, &THREADS), Some(2));
        write(
            group,
            &[("memory.max", "1000\n"), ("memory.current", "900\n")],
        );
        assert_eq!(room_in(group, &MEMORY), Some(100));
        write(
            group,
            &[("memory.stat", "anon 5\ninactive_file 300\nactive_file 7\n")],
        );
        assert_eq!(room_in(group, &MEMORY), Some(400));
        let old = tempfile::tempdir().unwrap();
        let files = [
            ("memory.limit_in_bytes", "1000"),
            ("memory.usage_in_bytes", "1200"),
            ("memory.stat", "inactive_file 1\ntotal_inactive_file 50\n"),
        ];
        write(old.path(), &files);
        assert_eq!(room_in(old.path(), &MEMORY), Some(0));
    }

    #[test]
    fn the_memory_of_a_process_is_known() {
        let own = memory_of(std::process::id()).unwrap();
        assert!(own > 100 * 1024 && own < 1024 * MIB, "{own}");
        assert_eq!(memory_of(u32::MAX), None);
    }
}
