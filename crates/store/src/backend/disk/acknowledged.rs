//! The index of the last acknowledged commit, in a file next to the database file.
//!
//! After a crash, redb takes a newest version that is incomplete for one whose commit never finished,
//! and uses the version before it. A damaged version looks the same, and an acknowledged commit would
//! be lost silently. So every commit that is on disk is noted here, without waiting for the disk: the
//! note is never ahead of the database file, and survives the end of the process. A database file
//! that is behind it is damaged.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The index, and its bits inverted, so that a torn note is recognised.
const LENGTH: usize = 16;

/// Notes the indexes of commits.
#[derive(Debug, Default)]
pub(super) struct Acknowledged(Option<fs::File>);

impl Acknowledged {
    /// The name of the file next to `store.redb`.
    pub(super) const NAME: &str = "store.acknowledged";

    /// The last note for a database file. `None` if there is none that can be read.
    pub(super) fn read(database: &Path) -> Option<u64> {
        let bytes = fs::read(path(database)).ok()?;
        let bytes = <[u8; LENGTH]>::try_from(bytes).ok()?;
        let [index, inverted] = [&bytes[..8], &bytes[8..]].map(|half| {
            let half = half.iter();
            half.fold(0, |number, byte| number << 8 | u64::from(*byte))
        });
        (index == !inverted).then_some(index)
    }

    /// Opens the file. Notes nothing if that fails, for example on a full disk: commits do not depend
    /// on it.
    pub(super) fn open(database: &Path) -> Self {
        let mut options = fs::File::options();
        let options = options.write(true).create(true).truncate(false).mode(0o600);
        Self(options.open(path(database)).ok())
    }

    /// Removes the note of an earlier database file.
    pub(super) fn forget(database: &Path) -> io::Result<()> {
        match fs::remove_file(path(database)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes a commit that is on disk.
    pub(super) fn note(&self, index: u64) {
        if let Some(file) = &self.0 {
            let bytes = [index.to_be_bytes(), (!index).to_be_bytes()].concat();
            // Without the note, damage of this commit may not be found after a crash.
            let _ = file.write_all_at(&bytes, 0);
        }
    }
}

fn path(database: &Path) -> PathBuf {
    database.with_extension("acknowledged")
}
