//! The folder of an Envoy that outlives the dataplane (`-envoy-state-dir`). It belongs to one proxy,
//! and to one dataplane at a time. Nothing here starts or ends a process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use legate_envoy::epochs::{FileError, Owner, Snapshot};
use tokio::time::{Instant, sleep};

use crate::settings::{Settings, XdsBind};

/// Files in the folder.
const LOCK: &str = "lock";
const SNAPSHOT: &str = "snapshot.json";
const PID_FILE: &str = "envoy.pid";
const BASE_ID: &str = "base-id";
const LOG: &str = "envoy.log";

/// How long the lock of a dataplane that was just killed may take to go: an Envoy that it was about to
/// start holds it until it runs its own program.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Most bytes that are read of what the holder of the lock says of itself.
const HOLDER_LIMIT: u64 = 4096;

/// Why the folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// It cannot be made, or the lock in it cannot.
    #[error("the folder {} (-envoy-state-dir) cannot be {verb}: {source}", path.display())]
    Unusable {
        /// The folder.
        path: PathBuf,
        /// What was tried.
        verb: &'static str,
        /// What the operating system says.
        source: io::Error,
    },
    /// Another dataplane has it.
    #[error(
        "the folder {} (-envoy-state-dir) is in use by {holder}; give every sidecar a folder of its \
         own",
        path.display()
    )]
    Held {
        /// The folder.
        path: PathBuf,
        /// What the other says of itself.
        holder: String,
    },
    /// Another proxy's Envoy runs.
    #[error(
        "the folder {} (-envoy-state-dir) has the Envoy that runs as process {pid} for {other}; this \
         is {own}: give every sidecar a folder of its own, or end that Envoy",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// The number of the Envoy's process.
        pid: u32,
        /// Whose Envoy it is.
        other: Box<Owner>,
        /// Who wants to use the folder.
        own: Box<Owner>,
    },
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] FileError),
}

/// A folder that no other dataplane uses meanwhile.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    owner: Owner,
    occupied: bool,
    /// Locked as long as it is open, which no program that is started from here inherits.
    _lock: File,
}

impl StateDir {
    /// Takes the folder that is configured, if one is.
    ///
    /// # Errors
    /// When it cannot be used, another dataplane uses it, or another proxy's Envoy runs from it.
    pub(super) async fn take(settings: &Settings) -> Result<Option<Self>, StateDirError> {
        let Some(path) = &settings.envoy.state_dir else {
            return Ok(None);
        };
        let unusable = |verb| {
            move |source| StateDirError::Unusable {
                path: path.clone(),
                verb,
                source,
            }
        };
        // Only its owner may look into it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(unusable("made"))?;
        let owner = owner(settings);
        let mut lock = open(path).map_err(unusable("locked"))?;
        if !locked(&lock).await.map_err(unusable("locked"))? {
            return Err(StateDirError::Held {
                path: path.clone(),
                holder: holder(&mut lock),
            });
        }
        let own = format!("process {}, the sidecar of {owner}\n", std::process::id());
        let noted = lock
            .set_len(0)
            .and_then(|()| lock.write_all(own.as_bytes()));
        noted.map_err(unusable("written"))?;
        let mut dir = Self {
            path: path.clone(),
            owner,
            occupied: false,
            _lock: lock,
        };
        dir.occupied = dir.living()?;
        Ok(Some(dir))
    }

    /// Whether an Envoy of this proxy runs, to be adopted.
    fn living(&self) -> Result<bool, StateDirError> {
        let Some(snapshot) = Snapshot::load(&self.snapshot())? else {
            return Ok(false);
        };
        let mut processes = snapshot.processes.iter().rev();
        let Some(living) = processes.find(|entry| entry.identity.verify().is_ok()) else {
            return Ok(false);
        };
        match snapshot.owner {
            Some(other) if !other.same_proxy(&self.owner) => Err(StateDirError::Foreign {
                path: self.path.clone(),
                pid: living.identity.pid,
                other: Box::new(other),
                own: Box::new(self.owner.clone()),
            }),
            _ => Ok(true),
        }
    }

    /// Whether an Envoy ran from it when it was taken.
    pub(super) fn occupied(&self) -> bool {
        self.occupied
    }

    /// For whom it is.
    pub(super) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What a supervisor leaves for the next.
    pub(super) fn snapshot(&self) -> PathBuf {
        self.path.join(SNAPSHOT)
    }

    /// The number of Envoy's process.
    pub(super) fn pid_file(&self) -> PathBuf {
        self.path.join(PID_FILE)
    }

    /// Where Envoy writes the base id that it has chosen.
    pub(super) fn base_id(&self) -> PathBuf {
        self.path.join(BASE_ID)
    }

    /// Envoy's log.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }
}

fn owner(settings: &Settings) -> Owner {
    let proxy = &settings.proxy;
    Owner {
        proxy: proxy.id.clone(),
        node_name: proxy.node_name.clone(),
        node_id: proxy.node_id.clone(),
        admin: settings.envoy.admin,
        xds: match &settings.xds {
            XdsBind::Tcp(address) => address.to_string(),
            XdsBind::Unix(path) => path.display().to_string(),
        },
    }
}

fn open(folder: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join(LOCK))
}

/// Whether the lock could be had.
async fn locked(file: &File) -> io::Result<bool> {
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= until => return Ok(false),
            Err(TryLockError::WouldBlock) => sleep(PAUSE).await,
        }
    }
}

/// What the holder of the lock wrote into it.
fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.take(HOLDER_LIMIT).read_to_string(&mut text);
    match (read, text.lines().next()) {
        (Ok(_), Some(holder)) => holder.to_owned(),
        _ => "another process".to_owned(),
    }
}
