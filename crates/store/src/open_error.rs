//! Why a store cannot be opened, for all backends.

use std::io;
use std::path::PathBuf;

/// Why a store cannot be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory cannot be created or accessed.
    #[error("cannot use the data directory {path}: {source}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another server uses it.
    #[error(
        "the data directory {directory} is in use by {by}: stop that server, or give this one \
         another directory",
        directory = directory.display()
    )]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// The process that uses it.
        by: String,
    },
    /// The database file cannot be read or written.
    #[error("cannot open {path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It cannot listen for other servers.
    #[error("cannot listen at {at} for other servers: {source}; is --server-port in use?")]
    Listen {
        /// The address.
        at: std::net::SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The stored data is corrupt.
    #[error(
        "{store} is damaged ({reason}) and was not changed: move it away, start the server with \
         an empty store and restore the last snapshot; check the disk"
    )]
    Damaged {
        /// The file, or the description of the store.
        store: String,
        /// The kind of damage.
        reason: String,
    },
    /// A newer server wrote it.
    #[error(
        "this store was written by a newer Legate: its format is {found}, and this server supports \
         up to {known}: start the newer server again"
    )]
    Newer {
        /// The format of the store.
        found: u32,
        /// The newest format that this server supports.
        known: u32,
    },
    /// The key file cannot be used.
    #[error("cannot use the key file {path}: {reason}", path = path.display())]
    KeyFile {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The key that was generated with the store is missing.
    #[error(
        "the key file {path} is missing, and the store has secrets that were encrypted with it: \
         restore it from your backup, or configure its path",
        path = path.display()
    )]
    MissingKey {
        /// The path where it was expected.
        path: PathBuf,
    },
    /// The store is sealed with another key.
    #[error(
        "the store was encrypted with another key than the one in {path}: configure the key file \
         that it was created with",
        path = path.display()
    )]
    WrongKey {
        /// The key file that was read.
        path: PathBuf,
    },
    /// A setting of etcd is invalid.
    #[error("the settings of etcd cannot be used: {reason}")]
    EtcdSetting {
        /// The reason, and what to do.
        reason: String,
    },
    /// etcd cannot be read.
    #[error("cannot read the store in etcd ({members}): {reason}")]
    Etcd {
        /// The configured members.
        members: String,
        /// The error of the last one.
        reason: String,
    },
    /// The store has an older format and cannot be rewritten.
    #[error(
        "the store was written by an older Legate and cannot be upgraded to the format of this \
         server: {reason}"
    )]
    NotUpgraded {
        /// The reason, and what to do.
        reason: String,
    },
    /// A new store cannot be written, or opening it failed in the server.
    #[error("the store cannot be created or opened: {reason}")]
    NotMade {
        /// The reason, and what to do.
        reason: String,
    },
}
