//! The database file: rows, the index and the header in one redb database, continued by a log.
//!
//! Everything here blocks. The callers decide what is written, and when.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, TransactionError, WriteTransaction,
};

use super::directory::sync_directory;
use super::guarded::Guarded;
use super::log::{Log, Named, Replayed};
use crate::backend::{Batch, Loaded, Rows};

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const ABOUT: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("about");
const HEADER: &str = "header";
const INDEX: &str = "index";
/// The generations of the log. Databases of older servers have none.
const LOG: &str = "log";

/// Cache for pages of the file, in bytes. All rows are in memory, so the file is read for writes only.
const CACHE: usize = 1024 * 1024;

/// An open database file and its log.
pub(super) struct File {
    database: Database,
    log: Log,
    /// The index of the last commit.
    pub(super) index: u64,
    /// The rows of the records in the log.
    pending: Rows,
}

/// Why a file cannot be opened.
#[derive(Debug)]
pub(super) enum Unopened {
    /// An IO error.
    Io(io::Error),
    /// The contents are corrupt.
    Damaged(String),
}

impl File {
    /// Opens a file with its log and reads all rows. Files that cannot be read completely are not
    /// changed.
    ///
    /// The inner error means that the rows were read, but nothing can be written, for example on a
    /// full disk after a crash.
    pub(super) fn open(path: &Path) -> Result<(Loaded, Result<Self, redb::Error>), Unopened> {
        let file = std::fs::File::options().read(true).write(true).open(path);
        let file = FileBackend::new(file.map_err(Unopened::Io)?)?;
        let log = Log::open(path).map_err(Unopened::Io)?;
        // A killed process may have replaced the database a moment ago.
        sync_directory(path).map_err(Unopened::Io)?;
        Self::read(file, log, || Log::open_or_create(path))
    }

    /// The same for open files. The log is created if there was none.
    pub(super) fn read(
        file: impl StorageBackend,
        log: Option<Log>,
        create: impl FnOnce() -> io::Result<Log>,
    ) -> Result<(Loaded, Result<Self, redb::Error>), Unopened> {
        // redb would take an empty file for a new database.
        if file.len().map_err(Unopened::Io)? == 0 {
            return Err(Unopened::Damaged("it is empty".to_owned()));
        }
        let file = Guarded::new(file);
        let (database, mut loaded, named) = check(&file)?;
        let replayed = Log::replay(log.as_ref(), named, loaded.index)?;
        apply(&mut loaded, &replayed);
        let writable = || {
            file.release()?;
            let mut file = Self {
                database,
                log: log.map_or_else(create, Ok)?,
                index: replayed.index,
                pending: replayed.rows,
            };
            // What a killed process has written may not be on disk yet.
            if !replayed.is_fresh {
                file.checkpoint()?;
            }
            Ok(file)
        };
        Ok((loaded, writable()))
    }

    /// Creates a file with contents, or replaces an existing one.
    pub(super) fn create(path: &Path, contents: &Loaded) -> Result<Self, redb::Error> {
        let unfinished = unfinished(path);
        let mut log = Log::open_or_create(path)?;
        let named = Named::after(&log);
        let database = Self::write_new(&unfinished, contents, named);
        let renamed = database.and_then(|database| {
            std::fs::rename(&unfinished, path)?;
            sync_directory(path)?;
            Ok(database)
        });
        if renamed.is_err() {
            // Frees its space, which may be what is missing. The next attempt creates it again.
            let _ = std::fs::remove_file(&unfinished);
        }
        let database = renamed?;
        log.restart(named.current)?;
        Ok(Self {
            database,
            log,
            index: contents.index,
            pending: Rows::new(),
        })
    }

    fn write_new(path: &Path, contents: &Loaded, named: Named) -> Result<Database, redb::Error> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let mut options = std::fs::File::options();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let file = FileBackend::new(options.open(path)?)?;
        let mut builder = Database::builder();
        let database = builder.set_cache_size(CACHE).create_with_backend(file)?;
        let mut txn = database.begin_write()?;
        txn.set_two_phase_commit(true);
        {
            let mut rows = txn.open_table(ROWS)?;
            for (key, value) in &contents.rows {
                rows.insert(&**key, value.as_slice())?;
            }
            let mut about = txn.open_table(ABOUT)?;
            about.insert(HEADER, contents.header.as_slice())?;
            about.insert(INDEX, &contents.index.to_be_bytes()[..])?;
            about.insert(LOG, named.to_bytes().as_slice())?;
        }
        txn.commit()?;
        Ok(database)
    }

    /// Stores a batch. After `Ok` it survives a power failure.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let is_logged = self.log.append(batch)?;
        self.index = batch.index;
        let rows = batch.rows.iter();
        self.pending
            .extend(rows.map(|(key, value)| (Arc::clone(key), value.clone())));
        if is_logged { Ok(()) } else { self.checkpoint() }
    }

    /// Stores what is pending in the database, and empties the log.
    fn checkpoint(&mut self) -> Result<(), redb::Error> {
        let named = Named::after(&self.log);
        let txn = self.database.begin_write()?;
        // In one phase: the checksums of the new version show whether it was complete at a power
        // failure, so no second fsync is needed. Until the log begins again, it has the rows of a
        // version that is not complete; from then on it does not continue the version before. The
        // second phase would also protect from writers of values who can choose which sectors are on
        // disk at the power failure, which no client can.
        write(&txn, &self.pending, self.index, named)?;
        txn.commit()?;
        self.log.restart(named.current)?;
        self.pending.clear();
        Ok(())
    }

    /// Closes the file. Afterwards its log is empty.
    pub(super) fn close(mut self) -> Result<(), redb::Error> {
        if self.log.has_records() {
            self.checkpoint()?;
        }
        Ok(self.database.close()?)
    }
}

/// Opens a database and reads all rows; any inconsistency is an error.
fn check<B: StorageBackend>(
    file: &Guarded<B>,
) -> Result<(Database, Loaded, Option<Named>), Unopened> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    // Otherwise only files that were not closed cleanly are checked.
    builder.set_check_integrity_on_open(true);
    let database = builder.create_with_backend(file.clone())?;
    let (loaded, named) = load(&database)?;
    Ok((database, loaded, named))
}

fn write(
    txn: &WriteTransaction,
    changed: &Rows,
    index: u64,
    named: Named,
) -> Result<(), redb::Error> {
    let mut rows = txn.open_table(ROWS)?;
    for (key, value) in changed {
        match value {
            Some(value) => rows.insert(&**key, value.as_slice())?,
            None => rows.remove(&**key)?,
        };
    }
    let mut about = txn.open_table(ABOUT)?;
    about.insert(INDEX, &index.to_be_bytes()[..])?;
    about.insert(LOG, named.to_bytes().as_slice())?;
    Ok(())
}

fn load(database: &Database) -> Result<(Loaded, Option<Named>), Unopened> {
    let missing = |what: &str| Unopened::Damaged(format!("its {what} is missing"));
    let txn = database.begin_read()?;
    let about = txn.open_table(ABOUT)?;
    let header = about.get(HEADER)?.ok_or_else(|| missing("header"))?;
    let index = about.get(INDEX)?.ok_or_else(|| missing("index"))?;
    let index = <[u8; 8]>::try_from(index.value()).map_err(|_| missing("index"))?;
    let named = match about.get(LOG)? {
        Some(named) => Some(Named::from_bytes(named.value()).ok_or_else(|| missing("log"))?),
        None => None,
    };
    let mut rows = Vec::new();
    for row in txn.open_table(ROWS)?.iter()? {
        let (key, value) = row?;
        rows.push((Arc::from(key.value()), value.value().to_vec()));
    }
    let loaded = Loaded {
        header: header.value().to_vec(),
        index: u64::from_be_bytes(index),
        rows,
    };
    Ok((loaded, named))
}

/// Adds the rows of the log.
fn apply(loaded: &mut Loaded, replayed: &Replayed) {
    loaded.index = replayed.index;
    if replayed.rows.is_empty() {
        return;
    }
    let mut rows: BTreeMap<_, _> = std::mem::take(&mut loaded.rows).into_iter().collect();
    for (key, value) in &replayed.rows {
        match value {
            Some(value) => rows.insert(Arc::clone(key), value.clone()),
            None => rows.remove(key),
        };
    }
    loaded.rows = rows.into_iter().collect();
}

/// The path of a new file until it replaces the old one.
fn unfinished(path: &Path) -> PathBuf {
    path.with_extension("new")
}

impl From<redb::Error> for Unopened {
    fn from(error: redb::Error) -> Self {
        match error {
            // A read beyond the end of the file.
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::Damaged("it is truncated".to_owned())
            }
            redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
                Self::Damaged("it is not a redb database".to_owned())
            }
            redb::Error::Io(error) => Self::Io(error),
            redb::Error::Corrupted(reason) => Self::Damaged(reason),
            other => Self::Damaged(other.to_string()),
        }
    }
}

macro_rules! unopened {
    ($($error:ty),*) => {$(
        impl From<$error> for Unopened {
            fn from(error: $error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}

unopened!(DatabaseError, TransactionError, TableError, StorageError);
