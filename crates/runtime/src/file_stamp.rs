//! Detects changes of files without reading their contents.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The maximum number of entries of a directory that are included.
const MAX_ENTRIES: usize = 1024;

/// The status of files at one time. Links are followed, since Kubernetes updates mounted secrets by
/// changing a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStamp(Vec<(PathBuf, Option<Status>)>);

/// Device, inode, length, and modification time in seconds and nanoseconds.
type Status = (u64, u64, u64, i64, i64);

impl FileStamp {
    /// The stamp of files, and of directories with their entries.
    pub fn of<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut stamps = Vec::new();
        for path in paths {
            stamps.push(stamp(path.to_owned()));
            let Ok(entries) = fs::read_dir(path) else {
                continue;
            };
            let entries = entries.flatten().take(MAX_ENTRIES);
            let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            entries.sort();
            stamps.extend(entries.into_iter().map(stamp));
        }
        Self(stamps)
    }
}

fn stamp(path: PathBuf) -> (PathBuf, Option<Status>) {
    let file = fs::metadata(&path).ok();
    let status = file.map(|it| (it.dev(), it.ino(), it.size(), it.ctime(), it.ctime_nsec()));
    (path, status)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_replaced_file_a_swapped_link_and_a_new_entry_are_changes() {
        let folder = TempDir::new().unwrap();
        let (first, second) = (folder.path().join("1"), folder.path().join("2"));
        fs::create_dir(&first).unwrap();
        fs::create_dir(&second).unwrap();
        for version in [&first, &second] {
            fs::write(version.join("ca.pem"), "same length").unwrap();
        }
        // As Kubernetes mounts a secret: a link to a version, which is replaced.
        let current = folder.path().join("..data");
        symlink(&first, &current).unwrap();
        let file = current.join("ca.pem");
        let stamp = || FileStamp::of([file.as_path()]);
        let before = stamp();
        assert_eq!(stamp(), before, "looking changes nothing");
        fs::remove_file(&current).unwrap();
        assert_ne!(stamp(), before, "a file that is gone");
        symlink(&second, &current).unwrap();
        assert_ne!(stamp(), before, "another file of the same name");
        let directory = || FileStamp::of([first.as_path()]);
        let before = directory();
        fs::write(first.join("other.pem"), "x").unwrap();
        assert_ne!(directory(), before);
    }
}
