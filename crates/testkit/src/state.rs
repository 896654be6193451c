//! The storage backend of servers in tests.
//!
//! `LEGATE_TEST_STORE` is `memory` (the default), `file` or `etcd`; any other value fails the test.
//! The tests of one process share an etcd, in which every [`State`] has a prefix of its own.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use tempfile::TempDir;
use tokio::sync::Mutex;

use crate::etcd::Cluster;

/// The kind of store of the test's servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The server's memory.
    Memory,
    /// A file in a directory.
    File,
    /// A real etcd of one member.
    Etcd,
}

impl Backend {
    /// The backend selected by `LEGATE_TEST_STORE`.
    ///
    /// # Panics
    ///
    /// If the value is invalid.
    #[must_use]
    #[expect(
        clippy::disallowed_methods,
        reason = "the environment selects the store of tests"
    )]
    pub fn from_env() -> Self {
        let value = std::env::var_os("LEGATE_TEST_STORE").unwrap_or_default();
        Self::of_name(&value.to_string_lossy())
    }

    fn of_name(name: &str) -> Self {
        match name {
            "" | "memory" => Self::Memory,
            "file" => Self::File,
            "etcd" => Self::Etcd,
            other => panic!("LEGATE_TEST_STORE is {other:?}: use memory, file or etcd"),
        }
    }
}

/// The state of one server, which outlives the server. It is removed on drop.
#[derive(Debug)]
pub struct State {
    place: Location,
    /// Kept alive while a test of this process uses it.
    _etcd: Option<Arc<Cluster>>,
    _folder: Option<TempDir>,
}

/// The location of a [`State`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// In the server's memory.
    Memory,
    /// In a directory of its own.
    Directory(PathBuf),
    /// In etcd.
    Etcd {
        /// The members as `http://host:port`.
        endpoints: Vec<String>,
        /// The unique prefix of the server's keys.
        prefix: String,
        /// The file with the encryption key for secrets.
        key_file: PathBuf,
    },
}

impl State {
    /// An empty state with the backend selected by `LEGATE_TEST_STORE`.
    ///
    /// # Panics
    ///
    /// If there is no temporary folder or no etcd, or the variable is invalid.
    pub async fn new() -> Self {
        Self::of(Backend::from_env()).await
    }

    /// The same, with a file instead of memory, for tests of persistence after the server has
    /// ended.
    ///
    /// # Panics
    ///
    /// As [`State::new`].
    pub async fn durable() -> Self {
        match Backend::from_env() {
            Backend::Memory => Self::of(Backend::File).await,
            other => Self::of(other).await,
        }
    }

    async fn of(backend: Backend) -> Self {
        match backend {
            Backend::Memory => Self {
                place: Location::Memory,
                _etcd: None,
                _folder: None,
            },
            Backend::File => {
                let folder = TempDir::new().expect("a temporary folder");
                Self {
                    place: Location::Directory(folder.path().join("data")),
                    _etcd: None,
                    _folder: Some(folder),
                }
            }
            Backend::Etcd => {
                static NEXT: AtomicU32 = AtomicU32::new(0);
                let etcd = shared_etcd().await;
                let number = NEXT.fetch_add(1, Ordering::Relaxed);
                Self {
                    place: Location::Etcd {
                        endpoints: etcd.endpoints(),
                        prefix: format!("test-{number}"),
                        key_file: etcd.key_file(),
                    },
                    _etcd: Some(etcd),
                    _folder: None,
                }
            }
        }
    }

    /// Its location.
    #[must_use]
    pub fn place(&self) -> &Location {
        &self.place
    }

    /// The flags of `legate-server` for it.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        match &self.place {
            Location::Memory => vec!["--in-memory".to_owned()],
            Location::Directory(path) => vec![format!("--data-dir={}", path.display())],
            Location::Etcd {
                endpoints,
                prefix,
                key_file,
            } => vec![
                format!("--etcd-endpoints={}", endpoints.join(",")),
                format!("--etcd-prefix={prefix}"),
                format!("--encryption-key-file={}", key_file.display()),
                "--node-name=legate".to_owned(),
                "--server-port=0".to_owned(),
            ],
        }
    }
}

/// The etcd of this process, started on first use and stopped with the last state.
async fn shared_etcd() -> Arc<Cluster> {
    static ETCD: Mutex<Weak<Cluster>> = Mutex::const_new(Weak::new());
    let mut shared = ETCD.lock().await;
    if let Some(running) = shared.upgrade() {
        return running;
    }
    let started = Arc::new(Cluster::start(1).await);
    *shared = Arc::downgrade(&started);
    started
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "use memory, file or etcd")]
    fn an_unknown_store_is_refused() {
        assert_eq!(Backend::of_name(""), Backend::Memory);
        Backend::of_name("redb");
    }

    #[tokio::test]
    async fn states_share_an_etcd_and_no_key() {
        let [one, other] = [
            State::of(Backend::Etcd).await,
            State::of(Backend::Etcd).await,
        ];
        let flags = [one.flags(), other.flags()];
        assert_eq!(flags[0][0], flags[1][0], "endpoints");
        assert_ne!(flags[0][1], flags[1][1], "prefixes");
    }
}
