//! The database file: rows, the index and the header in one redb database.
//!
//! Everything here blocks. The callers decide what is written, and when.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, StorageError,
    TableDefinition, TableError, TransactionError, WriteTransaction,
};

use super::acknowledged::Acknowledged;
use super::directory::sync_directory;
use super::guarded::Guarded;
use super::header::{FLAGS, flags_for_newer};
use crate::backend::{Batch, Loaded};

const ROWS: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("rows");
const ABOUT: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("about");
const HEADER: &str = "header";
const INDEX: &str = "index";

/// Cache for pages of the file, in bytes. All rows are in memory, so the file is read for writes only.
const CACHE: usize = 1024 * 1024;

/// An open database file.
pub(super) struct File {
    database: Database,
    /// The index of the last commit.
    pub(super) index: u64,
    acknowledged: Acknowledged,
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
    /// Opens a file and reads all rows. A file that cannot be read completely is not changed.
    ///
    /// The inner error means that the rows were read, but nothing can be written, for example on a
    /// full disk after a crash.
    pub(super) fn open(path: &Path) -> Result<(Loaded, io::Result<Self>), Unopened> {
        let file = std::fs::File::options().read(true).write(true).open(path);
        let file = file.map_err(Unopened::Io)?;
        let (loaded, file) = Self::read(FileBackend::new(file)?, Acknowledged::read(path))?;
        let file = file.map(|file| Self {
            acknowledged: Acknowledged::open(path),
            ..file
        });
        Ok((loaded, file))
    }

    /// The same for an open file with this index of the last acknowledged commit, if it is known.
    pub(super) fn read(
        file: impl StorageBackend,
        acknowledged: Option<u64>,
    ) -> Result<(Loaded, io::Result<Self>), Unopened> {
        // redb would take an empty file for a new database.
        if file.len().map_err(Unopened::Io)? == 0 {
            return Err(Unopened::Damaged("it is empty".to_owned()));
        }
        let file = Arc::new(file);
        let mut guarded = Guarded::new(&file);
        let (mut database, mut loaded) = check(&guarded)?;
        if let Some(flags) = flags_for_newer(&*file) {
            let newer = Guarded::new(&file);
            // Data of a killed process may not be on disk yet.
            let marked = newer
                .sync_data()
                .and_then(|()| newer.write(FLAGS, &[flags]));
            marked.map_err(Unopened::Io)?;
            if let Ok(checked) = check(&newer) {
                (database, loaded) = checked;
                guarded = newer;
            }
        }
        let index = loaded.index;
        if let Some(acknowledged) = acknowledged.filter(|acknowledged| *acknowledged > index) {
            return Err(Unopened::Damaged(format!(
                "its last complete commit is {index}, and {acknowledged} was acknowledged; if this is \
                 an older copy that is to be used, remove {}",
                Acknowledged::NAME
            )));
        }
        let writable = guarded.release().map(|()| Self {
            database,
            index,
            acknowledged: Acknowledged::default(),
        });
        Ok((loaded, writable))
    }

    /// Creates a file with contents, or replaces an existing one.
    pub(super) fn create(path: &Path, contents: &Loaded) -> Result<Self, redb::Error> {
        let unfinished = unfinished(path);
        let database = Self::write_new(&unfinished, contents);
        let renamed = database.and_then(|database| {
            Acknowledged::forget(path)?;
            std::fs::rename(&unfinished, path)?;
            sync_directory(path)?;
            Ok(database)
        });
        if renamed.is_err() {
            // Frees its space, which may be what is missing. The next attempt creates it again.
            let _ = std::fs::remove_file(&unfinished);
        }
        let index = contents.index;
        renamed.map(|database| {
            let acknowledged = Acknowledged::open(path);
            acknowledged.note(index);
            Self {
                database,
                index,
                acknowledged,
            }
        })
    }

    fn write_new(path: &Path, contents: &Loaded) -> Result<Database, redb::Error> {
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
        }
        txn.commit()?;
        Ok(database)
    }

    /// Stores a batch. After `Ok` it survives a power failure.
    pub(super) fn commit(&mut self, batch: &Batch) -> Result<(), redb::Error> {
        let txn = self.database.begin_write()?;
        // In one phase: the checksums of the new version show whether it was complete at a power
        // failure, so no second fsync is needed. That it was acknowledged is noted separately. The
        // second phase would also protect from writers of values who can choose which sectors are on
        // disk at the power failure, which no client can.
        write(&txn, batch)?;
        txn.commit()?;
        self.index = batch.index;
        self.acknowledged.note(batch.index);
        Ok(())
    }

    pub(super) fn close(self) -> Result<(), DatabaseError> {
        self.database.close()
    }
}

/// Opens a database and reads all rows; any inconsistency is an error.
fn check<B: StorageBackend>(file: &Guarded<B>) -> Result<(Database, Loaded), Unopened> {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE);
    // Otherwise only files that were not closed cleanly are checked.
    builder.set_check_integrity_on_open(true);
    let database = builder.create_with_backend(file.clone())?;
    let loaded = load(&database)?;
    Ok((database, loaded))
}

fn write(txn: &WriteTransaction, batch: &Batch) -> Result<(), redb::Error> {
    let mut rows = txn.open_table(ROWS)?;
    for (key, value) in &batch.rows {
        match value {
            Some(value) => rows.insert(&**key, value.as_slice())?,
            None => rows.remove(&**key)?,
        };
    }
    let mut about = txn.open_table(ABOUT)?;
    about.insert(INDEX, &batch.index.to_be_bytes()[..])?;
    Ok(())
}

fn load(database: &Database) -> Result<Loaded, Unopened> {
    let missing = |what: &str| Unopened::Damaged(format!("its {what} is missing"));
    let txn = database.begin_read()?;
    let about = txn.open_table(ABOUT)?;
    let header = about.get(HEADER)?.ok_or_else(|| missing("header"))?;
    let index = about.get(INDEX)?.ok_or_else(|| missing("index"))?;
    let index = <[u8; 8]>::try_from(index.value()).map_err(|_| missing("index"))?;
    let mut rows = Vec::new();
    for row in txn.open_table(ROWS)?.iter()? {
        let (key, value) = row?;
        rows.push((Arc::from(key.value()), value.value().to_vec()));
    }
    Ok(Loaded {
        header: header.value().to_vec(),
        index: u64::from_be_bytes(index),
        rows,
    })
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
