//! The folder outside of the checkout for the programs of a cluster and the state of a node:
//! `LEGATE_KIND_CACHE`, or `legate/kind` in the user's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::workspace::variable;

/// The folder, which exists.
#[derive(Clone)]
pub(super) struct Cache {
    pub(super) folder: PathBuf,
}

impl Cache {
    /// Finds and creates the folder.
    pub(super) fn find() -> anyhow::Result<Self> {
        let own = variable("LEGATE_KIND_CACHE").map(PathBuf::from);
        let user = || variable("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
        let folder = own
            .or_else(|| Some(user().or_else(home)?.join("legate/kind")))
            .context(
                "there is no HOME: set LEGATE_KIND_CACHE to a folder for the cluster's programs",
            )?;
        fs::create_dir_all(&folder).with_context(|| {
            format!(
                "cannot make {}: set LEGATE_KIND_CACHE to another folder",
                folder.display()
            )
        })?;
        // Absolute, because components run in folders of their own.
        let folder = folder.canonicalize()?;
        Ok(Self { folder })
    }

    /// Acquires an exclusive lock, which is held until the file is dropped or the process ends.
    pub(super) fn lock(&self, name: &str) -> anyhow::Result<File> {
        let path = self.folder.join(format!("{name}.lock"));
        let file =
            File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        if file.try_lock().is_err() {
            println!("waiting for another process that holds {}", path.display());
            file.lock()?;
        }
        Ok(file)
    }
}
