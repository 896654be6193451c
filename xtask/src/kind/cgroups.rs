//! The node's changes outside of its namespaces: a control group in every hierarchy, and kernel
//! settings that the kubelet sets for the whole machine. Both are restored when the node has ended.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};

use super::retry::retry;

/// The mount point of control groups.
const GROUPS: &str = "/sys/fs/cgroup";
/// The name, which is also `cgroupRoot` in the kubelet's configuration.
const NAME: &str = "legate-kind";
/// The settings that the kubelet changes.
const SETTINGS: [&str; 6] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// Creates the groups.
pub(super) fn make() -> anyhow::Result<()> {
    let hierarchies = hierarchies("tasks")?;
    ensure!(
        !hierarchies.is_empty(),
        "{GROUPS} has the second version of control groups only, which this node does not run with: \
         install docker and kind, or set KUBECONFIG to a cluster"
    );
    for hierarchy in hierarchies {
        let group = hierarchy.join(NAME);
        fs::create_dir_all(&group)
            .with_context(|| format!("cannot make {}: root is required", group.display()))?;
        // A new group has no processors until these are set.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let above = hierarchy.join(file);
            if above.is_file() {
                fs::write(group.join(file), fs::read(above)?)?;
            }
        }
    }
    Ok(())
}

/// Removes the groups with everything below. A process leaves its group shortly after it has exited.
pub(super) fn remove() -> anyhow::Result<()> {
    retry(
        Duration::from_secs(10),
        "control groups of the node",
        || {
            // The container runtime creates another group if the second version is also mounted.
            for hierarchy in hierarchies("cgroup.procs")? {
                remove_below(&hierarchy.join(NAME))?;
            }
            Ok(())
        },
    )
}

/// Hierarchies with this file: `tasks` exists in the first version only.
fn hierarchies(file: &str) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(GROUPS).with_context(|| format!("cannot read {GROUPS}"))?;
    let paths = entries.flatten().map(|entry| entry.path());
    Ok(paths.filter(|path| path.join(file).is_file()).collect())
}

/// Removing a group also removes its files.
fn remove_below(group: &Path) -> anyhow::Result<()> {
    if !group.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(group)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_below(&path)?;
        }
    }
    fs::remove_dir(group).with_context(|| format!("cannot remove {}", group.display()))
}

/// Saves the current settings.
pub(super) fn save_settings(file: &Path) -> anyhow::Result<()> {
    let mut text = String::new();
    for name in SETTINGS {
        let value = fs::read_to_string(Path::new("/proc/sys").join(name))?;
        text += &format!("{name} {}\n", value.trim());
    }
    Ok(fs::write(file, text)?)
}

/// Restores the settings, if they were saved.
pub(super) fn restore_settings(file: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(file).unwrap_or_default();
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        let path = Path::new("/proc/sys").join(name);
        // Writing requires permission even if nothing would change.
        if fs::read_to_string(&path)?.trim() != value {
            fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    Ok(())
}
