//! The data directory of a server, locked against other servers.
//!
//! The directory itself is locked, so that the lock holds whatever is removed from it. The lock file
//! names the holder. It is locked too: network file systems have no locks of directories.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::open_error::OpenError;

/// The lock file. It contains the process id of the lock's holder.
const LOCK: &str = "store.lock";

/// A locked directory. Dropping the value releases the locks, and so does any end of the process.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The directory and the lock file, open and locked.
    locked: [File; 2],
}

impl Directory {
    /// Creates the directory if needed, accessible only to this user, and locks it.
    ///
    /// Blocks.
    pub(crate) fn lock(path: &Path) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Directory {
            path: path.to_owned(),
            source,
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(failed)?;
        let in_use = || OpenError::InUse {
            directory: path.to_owned(),
            by: holder(&path.join(LOCK)),
        };
        let itself = File::open(path).map_err(failed)?;
        // Any other error: the file system has no locks of directories.
        if let Err(TryLockError::WouldBlock) = itself.try_lock() {
            return Err(in_use());
        }
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut lock = options.open(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(in_use()),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Ignored: the directory may be read-only or the disk full, but reads still work.
        let _ = name_holder(&mut lock);
        Ok(Self {
            path: path.to_owned(),
            locked: [itself, lock],
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    /// Unlocks explicitly: a child process holds a copy of every open file between fork and exec,
    /// which would otherwise keep the lock.
    fn drop(&mut self) {
        for file in &self.locked {
            let _ = file.unlock();
        }
    }
}

fn name_holder(lock: &mut File) -> io::Result<()> {
    lock.set_len(0)?;
    writeln!(lock, "{}", std::process::id())
}

fn holder(lock: &Path) -> String {
    let id = File::open(lock).and_then(|file| {
        let mut id = String::new();
        file.take(16).read_to_string(&mut id)?;
        Ok(id)
    });
    let id = id.ok().and_then(|id| id.trim().parse::<u32>().ok());
    id.map_or_else(
        || "another process".to_owned(),
        |id| format!("process {id}"),
    )
}

/// Makes a directory entry survive a power failure.
pub(crate) fn sync_directory(of: &Path) -> io::Result<()> {
    let directory = of.parent().unwrap_or(of);
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_released_despite_copies_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let first = Directory::lock(folder.path()).unwrap();
        // As a child process has between fork and exec.
        let _copies = first
            .locked
            .each_ref()
            .map(|file| file.try_clone().unwrap());
        Directory::lock(folder.path()).unwrap_err();
        drop(first);
        Directory::lock(folder.path()).unwrap();
    }

    #[test]
    fn a_directory_stays_locked_whatever_is_removed_from_it() {
        let folder = tempfile::tempdir().unwrap();
        let (data, moved) = (folder.path().join("data"), folder.path().join("moved"));
        let first = Directory::lock(&data).unwrap();
        std::fs::remove_file(data.join(LOCK)).unwrap();
        let refused = Directory::lock(&data).unwrap_err();
        assert!(matches!(refused, OpenError::InUse { .. }), "{refused}");
        assert_eq!(std::fs::read_dir(&data).unwrap().count(), 0);
        std::fs::rename(&data, &moved).unwrap();
        Directory::lock(&moved).unwrap_err();
        drop(first);
        Directory::lock(&moved).unwrap();
    }
}
