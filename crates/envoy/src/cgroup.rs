//! The control groups of this process, version 1 or 2. Reads kernel files.

use std::fs;
use std::path::{Path, PathBuf};

/// The folders of this process's group for a controller and of all its ancestors, which may have
/// limits, too.
pub(crate) fn folders(controller: &str) -> Vec<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let folders = groups.lines().flat_map(|line| of_line(controller, line));
    folders.collect()
}

/// The folders for one line of the kernel's list.
fn of_line(controller: &str, line: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
        return Vec::new();
    };
    // Version 2 has one tree for all controllers.
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
