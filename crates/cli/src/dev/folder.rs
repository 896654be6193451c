//! The temporary folder of one run.
//!
//! A run holds a lock on its folder. The kernel releases the lock however the run ends, so that the
//! next run can detect abandoned folders and remove them.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::Context;
use nix::fcntl::OFlag;
use tempfile::TempDir;

/// The prefix of the folders' names.
const PREFIX: &str = "legate-dev-";
/// How often to retry if another run removes the new folder before it is locked.
const ATTEMPTS: usize = 10;

/// A folder that is removed on drop, or else by the next run.
pub(crate) struct Folder {
    folder: TempDir,
    /// Fields are dropped in order, so the lock is held until the folder is removed.
    _lock: File,
}

impl Folder {
    /// Creates a folder in `within`, the directory for temporary files, and removes abandoned ones
    /// there.
    ///
    /// # Errors
    ///
    /// If no folder can be created there.
    pub(crate) fn make(within: &Path) -> anyhow::Result<Self> {
        sweep(within);
        let made = (0..ATTEMPTS).find_map(|_| attempt(within).transpose());
        made.unwrap_or_else(|| Err(io::Error::other("other runs keep removing it")))
            .with_context(|| format!("cannot make a temporary folder in {}", within.display()))
    }

    /// The path of the folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// `None` if another run removed the folder before it was locked.
fn attempt(within: &Path) -> io::Result<Option<Folder>> {
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(within)?;
    let lock = match open(folder.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // Another holder of the lock is removing the folder.
    lock.lock()?;
    let kept = folder.path().is_dir();
    Ok(kept.then_some(Folder {
        folder,
        _lock: lock,
    }))
}

/// Removes abandoned folders. Folders that cannot be removed, such as those of other users, stay.
fn sweep(within: &Path) {
    let entries = fs::read_dir(within).into_iter().flatten().flatten();
    for entry in entries {
        if entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
            && let Ok(lock) = open(&entry.path())
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Opens a directory; fails for other file types.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_abandoned_folders_are_removed() {
        let within = tempfile::tempdir().unwrap();
        let at = |name: &str| within.path().join(name);
        let running = Folder::make(within.path()).unwrap();
        fs::create_dir_all(at("legate-dev-gone/below")).unwrap();
        fs::write(at("legate-dev-gone/below/log"), "old").unwrap();
        fs::create_dir(at("another-program")).unwrap();
        fs::write(at("legate-dev-file"), "").unwrap();
        std::os::unix::fs::symlink(at("another-program"), at("legate-dev-link")).unwrap();

        let next = Folder::make(within.path()).unwrap();
        assert!(!at("legate-dev-gone").exists());
        for kept in ["another-program", "legate-dev-file", "legate-dev-link"] {
            assert!(at(kept).exists(), "{kept}");
        }
        assert!(running.path().is_dir() && next.path().is_dir());
        let paths = [running.path().to_owned(), next.path().to_owned()];
        drop((running, next));
        assert!(!paths[0].exists() && !paths[1].exists());
    }

    #[test]
    fn a_failed_creation_names_the_directory() {
        let error = Folder::make(Path::new("/nope")).err().unwrap();
        assert!(format!("{error:#}").contains("/nope"), "{error:#}");
    }
}
