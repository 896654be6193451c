//! The file with the key that seals secrets.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use legate_identity::SealingKey;

use crate::backend::disk::sync_directory;
use crate::open_error::OpenError;

/// The name of the key file that is generated in the data directory by default.
const FILE: &str = "store.key";

/// The maximum length: key files are short.
const LONGEST: u64 = 4096;

/// The default path of the key file of a store in this directory.
pub(crate) fn default_path(directory: &Path) -> PathBuf {
    directory.join(FILE)
}

/// Reads a key. Blocks.
pub(crate) fn read(path: &Path) -> Result<SealingKey, OpenError> {
    let failed = |reason: String| OpenError::KeyFile {
        path: path.to_owned(),
        reason,
    };
    let text = read_text(path).map_err(|error| failed(error.to_string()))?;
    SealingKey::from_text(&text).map_err(|error| failed(error.to_string()))
}

fn read_text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    io::Read::read_to_string(&mut io::Read::take(File::open(path)?, LONGEST), &mut text)?;
    Ok(text)
}

/// Generates a key file that only this user can read. Never replaces one. Blocks.
pub(crate) fn create(path: &Path) -> Result<SealingKey, OpenError> {
    let failed = |reason: String| OpenError::KeyFile {
        path: path.to_owned(),
        reason,
    };
    let key = SealingKey::generate().map_err(|error| failed(error.to_string()))?;
    write(path, &key).map_err(|error| failed(error.to_string()))?;
    Ok(key)
}

/// Syncs the complete key to disk before the file gets its name.
fn write(path: &Path, key: &SealingKey) -> io::Result<()> {
    let unfinished = path.with_extension("key.new");
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    writeln!(file, "{}", key.to_text())?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)?;
    sync_directory(path)
}
