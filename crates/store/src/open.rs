//! Opens a store with durable rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use legate_identity::SealingKey;
use legate_runtime::Spawner;

use crate::backend::disk::{Directory, Disk};
use crate::backend::etcd::{Etcd, EtcdConfig};
use crate::backend::{Backend, Loaded, NotCommitted, blocking};
use crate::codec::{Codec, Header};
use crate::commit::Queue;
use crate::committer::Committer;
use crate::key_file;
use crate::open_error::OpenError;
use crate::origin::Origin;
use crate::replicas::Shared;
use crate::replicas::links::Listening;
use crate::replicas::machine::Machine;
use crate::state::State;
use crate::store::Store;

/// The backend of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreConfig {
    /// In memory: lost when the process ends.
    Memory,
    /// In local files, for one server.
    Disk {
        /// The directory. Created if it does not exist. Only one server may use it at a time.
        directory: PathBuf,
        /// The file with the key that seals secrets: 32 bytes in hexadecimal or base64. Default:
        /// `store.key` in the directory, which is generated for a new store.
        key_file: Option<PathBuf>,
    },
    /// In etcd, for several servers.
    Etcd(EtcdConfig),
}

impl Store {
    /// Opens a store and starts the task that writes to it.
    ///
    /// When the scope stops, the write in flight is completed, and later writes fail with
    /// [`crate::Unavailable`]; reads still work.
    ///
    /// # Errors
    /// [`OpenError`]; the stored data is unchanged.
    pub async fn open(config: StoreConfig, spawner: &Spawner) -> Result<Self, OpenError> {
        match config {
            StoreConfig::Memory => Ok(Self::new()),
            StoreConfig::Disk {
                directory,
                key_file,
            } => {
                let opened = blocking(move || open_disk(&directory, key_file)).await;
                let (disk, loaded, origin) = opened.unwrap_or_else(|| Err(panicked()))?;
                Self::start(disk, loaded, origin, None, spawner).await
            }
            StoreConfig::Etcd(config) => {
                let path = config.key_file.clone();
                let read = blocking(move || key_file::read(&path)).await;
                let key = read.unwrap_or_else(|| Err(panicked()))?;
                let (mut etcd, mut loaded) = Etcd::open(&config, spawner).await?;
                if loaded.is_none() {
                    // The follower starts from an existing store.
                    make_new(&mut etcd, &key).await?;
                    etcd.close().await;
                    (etcd, loaded) = Etcd::open(&config, spawner).await?;
                }
                let listening = Listening::bind(config.listen, config.advertise).await?;
                let lead = etcd.elect(listening.address.clone());
                let shared = Shared {
                    lead: lead.clone(),
                    health: etcd.health(),
                    members: etcd.members(),
                    links: listening.start(&key, lead, spawner)?,
                };
                let leadership = etcd.leadership();
                let origin = Origin {
                    store: etcd.name(),
                    key,
                    key_file: config.key_file,
                };
                let started = Self::start(etcd, loaded, origin, Some(shared), spawner);
                let store = started.await?;
                Ok(store.led_by(leadership))
            }
        }
    }

    /// Starts the committer with an open backend.
    pub(crate) async fn start(
        mut backend: impl Backend,
        loaded: Option<Loaded>,
        origin: Origin,
        shared: Option<Shared>,
        spawner: &Spawner,
    ) -> Result<Self, OpenError> {
        let loaded = match loaded {
            Some(loaded) => loaded,
            None => make_new(&mut backend, &origin.key).await?,
        };
        let header = loaded.header.clone();
        let (state, origin) = blocking(move || Ok((read_all(loaded, &origin)?, origin)))
            .await
            .unwrap_or_else(|| Err(panicked()))?;
        let codec = Codec {
            key: origin.key.clone(),
        };
        let (queue, waiting) = Queue::new();
        let store = Self::committed_by(state, queue, codec.clone());
        let rows = backend.rows_at_once();
        let tables = Arc::clone(&store.inner.tables);
        let limits = (rows, shared.is_some());
        let machine = Machine::new((codec, origin), header, tables, limits);
        let mut committer = Committer { backend, machine };
        committer.upgrade().await?;
        let token = spawner.token();
        spawner.spawn("store", committer.run(waiting, shared, token));
        Ok(store)
    }
}

fn panicked() -> OpenError {
    OpenError::NotMade {
        reason: "opening it panicked; this is a defect of the server".to_owned(),
    }
}

fn open_disk(
    directory: &Path,
    configured: Option<PathBuf>,
) -> Result<(Disk, Option<Loaded>, Origin), OpenError> {
    let locked = Directory::lock(directory)?;
    let (disk, loaded) = Disk::open(locked)?;
    let default = key_file::default_path(directory);
    let (path, key) = match configured {
        Some(path) => (path.clone(), key_file::read(&path)?),
        None if default.exists() => (default.clone(), key_file::read(&default)?),
        None if loaded.is_none() => (default.clone(), key_file::create(&default)?),
        None => return Err(OpenError::MissingKey { path: default }),
    };
    let origin = Origin {
        store: disk.name(),
        key,
        key_file: path,
    };
    Ok((disk, loaded, origin))
}

async fn make_new(backend: &mut impl Backend, key: &SealingKey) -> Result<Loaded, OpenError> {
    let failed = |reason: String| OpenError::NotMade { reason };
    let header = Header::new(key).map_err(|error| failed(error.to_string()))?;
    let header = serde_json::to_vec(&header).map_err(|error| failed(error.to_string()))?;
    let loaded = Arc::new(Loaded {
        header,
        index: State::empty().index(),
        rows: Vec::new(),
    });
    match backend.replace(0, Arc::clone(&loaded)).await {
        Ok(()) => Ok(Loaded::clone(&loaded)),
        // Another server was faster.
        Err(NotCommitted::Lost) => loop {
            if let crate::backend::Change::Everything(theirs) = backend.changed().await {
                return Ok(Loaded::clone(&theirs));
            }
        },
        Err(NotCommitted::Unavailable(error) | NotCommitted::TooLarge(error)) => {
            Err(failed(error.reason.to_string()))
        }
    }
}

/// The stored state.
fn read_all(loaded: Loaded, origin: &Origin) -> Result<State, OpenError> {
    origin.check(&loaded.header)?;
    let codec = Codec {
        key: origin.key.clone(),
    };
    let rows = loaded.rows.into_iter();
    let rows = rows.map(|(key, value)| codec.decode(key, &value));
    let rows: Vec<_> = rows
        .collect::<Result<_, _>>()
        .map_err(|error| origin.damaged(format!("a row cannot be read: {error}")))?;
    Ok(State::restored(loaded.index, rows))
}
