//! The folder of an Envoy that outlives the dataplane (`-envoy-state-dir`). It belongs to one proxy,
//! and to one dataplane at a time. Nothing here starts or ends a process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use legate_envoy::supervision::{Owner, Snapshot};
use tokio::time::{Instant, sleep};

use crate::settings::{Settings, XdsAddress};

/// The file that the dataplane locks which uses the folder.
const LOCK: &str = "lock";
/// What a supervisor leaves for the next.
pub(super) const SNAPSHOT: &str = "snapshot.json";
/// The number of Envoy's process.
pub(super) const PID_FILE: &str = "envoy.pid";
/// Where Envoy writes the base id that it has chosen.
pub(super) const BASE_ID: &str = "base-id";
/// Envoy's log.
pub(super) const LOG: &str = "envoy.log";

/// How long the lock of a dataplane that was just killed may take to go: an Envoy that it was about to
/// start holds it until it runs its own program.
const PATIENCE: Duration = Duration::from_secs(2);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Most bytes that are read of what the holder of the lock says of itself.
const HOLDER_LIMIT: u64 = 4096;

/// A folder that no other dataplane uses meanwhile.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    /// For whom it is.
    pub(super) owner: Owner,
    /// Whether an Envoy ran from it when it was taken.
    pub(super) occupied: bool,
    /// Locked as long as it is open, which no program that is started from here inherits.
    _lock: File,
}

impl StateDir {
    /// Takes the folder that is configured, if one is.
    ///
    /// # Errors
    /// When it cannot be used, another dataplane uses it, or another proxy's Envoy runs from it.
    pub(super) async fn take(settings: &Settings) -> anyhow::Result<Option<Self>> {
        let Some(path) = settings.envoy.state_dir.clone() else {
            return Ok(None);
        };
        let owner = owner(settings);
        let folder = || format!("the folder {} (-envoy-state-dir)", path.display());
        let unusable = |verb: &'static str| {
            let folder = folder();
            move |error: io::Error| anyhow!("{folder} cannot be {verb}: {error}")
        };
        // Only its owner may look into it.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(unusable("made"))?;
        let mut lock = open(&path).map_err(unusable("locked"))?;
        if !locked(&lock).await.map_err(unusable("locked"))? {
            bail!(
                "{} is in use by {}; give every sidecar a folder of its own",
                folder(),
                holder(&lock)
            );
        }
        let own = format!("process {}, the sidecar of {owner}\n", std::process::id());
        let noted = lock
            .set_len(0)
            .and_then(|()| lock.write_all(own.as_bytes()));
        noted.map_err(unusable("written"))?;
        let snapshot = Snapshot::load(&path.join(SNAPSHOT))?;
        let living = snapshot.as_ref().and_then(|snapshot| {
            let mut processes = snapshot.processes.iter().rev();
            processes.find(|entry| entry.identity.verify().is_ok())
        });
        let other = snapshot.as_ref().and_then(|it| it.owner.as_ref());
        if let (Some(living), Some(other)) = (living, other)
            && !other.same_proxy(&owner)
        {
            bail!(
                "{} has the Envoy that runs as process {} for {other}; this is {owner}: give every \
                 sidecar a folder of its own, or end that Envoy",
                folder(),
                living.identity.pid
            );
        }
        Ok(Some(Self {
            occupied: living.is_some(),
            path,
            owner,
            _lock: lock,
        }))
    }

    /// A file in it.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
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
            XdsAddress::Tcp(address) => address.to_string(),
            XdsAddress::Unix(path) => path.display().to_string(),
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
fn holder(lock: &File) -> String {
    let text = io::read_to_string(lock.take(HOLDER_LIMIT)).unwrap_or_default();
    let holder = text.lines().next();
    holder.unwrap_or("another process").to_owned()
}
