//! The control groups that this process is in, of either version. Reads files of the kernel.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of the groups in which a controller counts this process: its own, then those around
/// it, which may be limited as well.
pub(crate) fn folders(controller: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folders = groups.lines().flat_map(|line| of_line(controller, line));
    folders.collect()
}

/// Those of a line in the kernel's list.
fn of_line(controller: &str, line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    // The second version has one tree for all.
    if !controllers.is_empty() && !controllers.split(',').any(|name| name == controller) {
        return Vec::new();
    }
    let root = Path::new("/sys/fs/cgroup").join(controllers);
    let group = root.join(path.trim_start_matches('/'));
    let around = group.ancestors();
    let around = around.take_while(|folder| folder.starts_with(&root));
    around.map(Path::to_path_buf).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_around_count_too() {
        let paths = |line| of_line("memory", line);
        let unified = paths("0::/a/b");
        let expected = ["/sys/fs/cgroup/a/b", "/sys/fs/cgroup/a", "/sys/fs/cgroup"];
        assert_eq!(unified, expected.map(PathBuf::from));
        assert_eq!(paths("4:memory:/")[0], Path::new("/sys/fs/cgroup/memory"));
        assert!(paths("8:pids:/").is_empty() && paths("nonsense").is_empty());
    }
}
