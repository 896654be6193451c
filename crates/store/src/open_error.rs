//! Why a store cannot be opened, whatever keeps it.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be made or used.
    #[error("cannot use the data directory {path}: {source}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another server has it.
    #[error(
        "the data directory {directory} is in use by {by}: stop that server, or give this one \
         another directory",
        directory = directory.display()
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// Who has it.
        by: String,
    },
    /// The database file cannot be read or written.
    #[error("cannot open {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What is in the file is not what was written.
    #[error(
        "{store} is damaged ({reason}) and was left as it is: move it away, start the server with \
         an empty store and restore the last snapshot; check the disk"
    )]
    Damaged {
        /// The file, or the place.
        store: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A newer server wrote it.
    #[error(
        "this store was written by a newer Legate: its format is {found}, and this server knows \
         {known}: start the newer server again"
    )]
    Newer {
        /// The format of the store.
        found: u32,
        /// The newest format that this server knows.
        known: u32,
    },
    /// The key file cannot be used.
    #[error("cannot use the key file {path}: {reason}", path = path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The key that was made with the store is gone.
    #[error(
        "the key file {path} is missing, and the store has secrets that were encrypted with it: \
         put it back from your backup, or name the file that has it",
        path = path.display()
    )]
    MissingKey {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// Another key.
    #[error(
        "the store was encrypted with another key than the one in {path}: name the key file that \
         it was made with",
        path = path.display()
    )]
    WrongKey {
        /// The key file that was read.
        path: PathBuf,
    },
    /// A setting of etcd cannot be used.
    #[error("the settings of etcd cannot be used: {reason}")]
    EtcdSetting {
        /// What is wrong, and what to do.
        reason: String,
    },
    /// etcd cannot be read.
    #[error("cannot read the store in etcd ({members}): {reason}")]
    Etcd {
        /// The members that were asked.
        members: String,
        /// What the last one answered.
        reason: String,
    },
    /// The store has an older format and cannot be rewritten.
    #[error(
        "the store was written by an older Legate and cannot be brought to the format of this \
         server: {reason}"
    )]
    NotUpgraded {
        /// Why, and what to do.
        reason: String,
    },
    /// A new store cannot be written, or the server failed at it.
    #[error("the store cannot be made or opened: {reason}")]
    NotMade {
        /// Why, and what to do.
        reason: String,
    },
}
