//! The folder outside of the checkout where the programs of a cluster are kept and a node has its
//! state: `LEGATE_KIND_CACHE`, else `legate/kind` in the user's cache.

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
    /// Finds it and makes it.
    pub(super) fn find() -> anyhow::Result<Self> {
        let own = variable("LEGATE_KIND_CACHE").map(PathBuf::from);
        let user = || variable("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
        let folder = own
            .or_else(|| Some(user().or_else(home)?.join("legate/kind")))
            .context(
                "there is no HOME: name a folder for the cluster's programs in LEGATE_KIND_CACHE",
            )?;
        fs::create_dir_all(&folder).with_context(|| {
            format!(
                "cannot make {}: name another folder in LEGATE_KIND_CACHE",
                folder.display()
            )
        })?;
        // Components run in folders of their own, where a relative path means something else.
        let folder = folder.canonicalize()?;
        Ok(Self { folder })
    }

    /// Waits until nobody else has this lock. It is held until the file is dropped, also by the end
    /// of the process.
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
