//! The state folder of an Envoy that outlives the dataplane (`-envoy-state-dir`). It belongs to one
//! proxy, and to one dataplane at a time. This module starts and ends no process.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{anyhow, bail};
use legate_envoy::supervision::{Owner, Snapshot};
use tokio::time::{Instant, sleep};

use crate::settings::{Settings, XdsAddress};

/// Locked by the dataplane that uses the folder.
const LOCK: &str = "lock";
/// State that a supervisor leaves for the next one.
pub(super) const SNAPSHOT: &str = "snapshot.json";
/// The id of Envoy's process.
pub(super) const PID_FILE: &str = "envoy.pid";
/// The base id that Envoy has chosen, written by Envoy.
pub(super) const BASE_ID: &str = "base-id";
/// Envoy's log.
pub(super) const LOG: &str = "envoy.log";

/// How long the lock of a dataplane that was just killed may still be held: an Envoy that it was about
/// to start holds it until it executes its own program.
const PATIENCE: Duration = Duration::from_secs(2);
/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Maximum number of bytes read from the lock file.
const HOLDER_LIMIT: u64 = 4096;

/// A folder that this process holds exclusively.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    /// The proxy that it belongs to.
    pub(super) owner: Owner,
    /// Whether an Envoy was running from it when it was taken.
    pub(super) occupied: bool,
    /// Holds the lock while it is open. Child processes do not inherit it.
    _lock: File,
}

impl StateDir {
    /// Takes the configured folder, if there is one.
    ///
    /// # Errors
    /// When it cannot be used, another dataplane uses it, or the Envoy of another proxy runs from it.
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
        // Accessible to its owner only.
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
        let written = lock
            .set_len(0)
            .and_then(|()| lock.write_all(own.as_bytes()));
        written.map_err(unusable("written"))?;
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

    /// The path of a file in the folder.
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

/// Whether the lock was acquired.
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

/// The holder's description of itself in the lock file.
fn holder(lock: &File) -> String {
    let text = io::read_to_string(lock.take(HOLDER_LIMIT)).unwrap_or_default();
    let holder = text.lines().next();
    holder.unwrap_or("another process").to_owned()
}
