//! The write-ahead log of the database: a file next to it with the commits that it does not contain
//! yet.
//!
//! A commit of redb writes several pages in different places. A record at the end of a file of which
//! the blocks exist is the least work for the disk. So a commit is one record, and the database gets
//! the rows of many records in one commit of its own, a checkpoint.
//!
//! The log has a fixed size and is filled with zeros, so that a record changes none of the file's
//! metadata, which would have to be written as well. Each record has pages of its own: no page of an
//! acknowledged record is written again, whatever a disk does to pages that it is writing when the
//! power fails.
//!
//! A log has a generation, a random number at the beginning of each record. The database names the
//! generation that continues it. A checkpoint names the next one in the same commit; then the log
//! begins again with that, and records of other generations do not count. What the file begins with
//! decides what it is:
//!
//! - the generation that the database names: its records continue the database;
//! - the one before: the server stopped between the two steps of a checkpoint, and all records are
//!   in the database;
//! - anything else: a log of another database, or of an older or newer copy of this one. It is
//!   refused.
//!
//! A commit that never finished leaves an incomplete record at the end. A damaged record looks the
//! same, and an acknowledged commit would be lost silently. So the generation is also written behind
//! each record that is on disk, without waiting for the disk: a record that cannot be read is damaged
//! if the generation stands anywhere behind it.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use prost::Message as _;
use redb::StorageBackend;
use redb::backends::FileBackend;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::directory::sync_directory;
use super::file::Unopened;
use crate::backend::{Batch, Rows};

/// The name of the file next to `store.redb`.
pub(super) const NAME: &str = "store.wal";

/// The unit of records, and of what disks write.
pub(super) const PAGE: usize = 4096;

/// The size of the file. A checkpoint of small records takes some milliseconds. In tests, they come
/// often.
pub(super) const SIZE: usize = PAGE * if cfg!(test) { 16 } else { 1024 };

/// The size of what is in front of the body of a record: generation, digest and length.
const HEAD: usize = 16 + 32 + 4;

/// Distinguishes the records of a log from all others.
pub(super) type Generation = [u8; 16];

/// The generation of a file to which no log was written yet.
const NONE: Generation = [0; 16];

/// The generations that a database names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Named {
    /// Of the log that continues it.
    pub(super) current: Generation,
    /// Of the log whose records it contains.
    pub(super) previous: Generation,
}

/// An open log.
#[derive(Debug)]
pub(super) struct Log {
    file: Box<dyn StorageBackend>,
    /// What the file begins with.
    generation: Generation,
    /// The offset of the next record.
    end: usize,
}

/// What a log adds to its database.
#[derive(Debug)]
pub(super) struct Replayed {
    /// The rows of all records.
    pub(super) rows: Rows,
    /// The index of the last record, or of the database.
    pub(super) index: u64,
    /// The log has no records, and the next one can be written.
    pub(super) is_fresh: bool,
}

impl Named {
    /// What a database names in a commit that contains all records of a log.
    pub(super) fn after(log: &Log) -> Self {
        Self {
            current: Uuid::new_v4().into_bytes(),
            previous: log.generation,
        }
    }

    pub(super) fn to_bytes(self) -> Vec<u8> {
        [self.current, self.previous].concat()
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (current, previous) = bytes.split_first_chunk()?;
        Some(Self {
            current: *current,
            previous: previous.try_into().ok()?,
        })
    }
}

impl Log {
    /// Opens the log next to a database. `None` if there is none.
    pub(super) fn open(database: &Path) -> io::Result<Option<Self>> {
        let mut options = fs::File::options();
        match options.read(true).write(true).open(path(database)) {
            Ok(file) => Self::of_file(file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(named(&error)),
        }
    }

    /// Opens the log next to a database, or creates an empty file.
    pub(super) fn open_or_create(database: &Path) -> io::Result<Self> {
        let mut options = fs::File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let file = options.mode(0o600).open(path(database));
        let file = file.map_err(|error| named(&error))?;
        sync_directory(database)?;
        Self::of_file(file)
    }

    fn of_file(file: fs::File) -> io::Result<Self> {
        Self::of(FileBackend::new(file).map_err(io::Error::other)?)
    }

    pub(super) fn of(file: impl StorageBackend) -> io::Result<Self> {
        let mut generation = NONE;
        if file.len()? >= generation.len() as u64 {
            file.read(0, &mut generation)?;
        }
        Ok(Self {
            file: Box::new(file),
            generation,
            end: 0,
        })
    }

    pub(super) fn has_records(&self) -> bool {
        self.end > 0
    }

    /// What a log, if there is one, adds to a database with this index, which names these generations,
    /// if there was a log before. Changes nothing.
    pub(super) fn replay(
        log: Option<&Self>,
        named: Option<Named>,
        index: u64,
    ) -> Result<Replayed, Unopened> {
        let nothing = Replayed {
            rows: Rows::new(),
            index,
            is_fresh: false,
        };
        let Some(log) = log else {
            return match named {
                None => Ok(nothing),
                Some(_) => Err(unusable("is missing")),
            };
        };
        let bytes = log.read()?;
        if bytes.is_empty() {
            return Ok(nothing);
        }
        let Some(named) = named else {
            return Err(unusable("belongs to another database"));
        };
        if log.generation == named.current {
            return replay(&bytes, &named.current, index);
        }
        let is_continued = bytes
            .chunks(PAGE)
            .any(|page| page.starts_with(&named.current));
        if log.generation != named.previous || is_continued {
            return Err(unusable(
                "is damaged, or belongs to another database or to another copy of it",
            ));
        }
        Ok(nothing)
    }

    fn read(&self) -> Result<Vec<u8>, Unopened> {
        let length = self.file.len().map_err(Unopened::Io)?;
        // A file to which no log was written may be incomplete.
        if length != SIZE as u64 && (self.generation != NONE || length > SIZE as u64) {
            return Err(unusable(&format!("has {length} bytes, not {SIZE}")));
        }
        let mut bytes = vec![0; length as usize];
        self.file.read(0, &mut bytes).map_err(Unopened::Io)?;
        Ok(bytes)
    }

    /// Appends a commit. After `Ok(true)` it survives a power failure. `Ok(false)`: it does not fit,
    /// and nothing was written.
    pub(super) fn append(&mut self, batch: &Batch) -> io::Result<bool> {
        let record = encode(&self.generation, batch);
        let end = self.end + record.len();
        // There is always a page for the generation behind the record.
        if end + PAGE > SIZE {
            return Ok(false);
        }
        self.file.write(self.end as u64, &record)?;
        self.file.sync_data()?;
        self.end = end;
        self.begin()?;
        Ok(true)
    }

    /// Removes all records. The database contains them, and names the new generation.
    pub(super) fn restart(&mut self, generation: Generation) -> io::Result<()> {
        if self.file.len()? != SIZE as u64 {
            self.file.set_len(SIZE as u64)?;
            self.file.write(0, &vec![0; SIZE])?;
            self.file.sync_data()?;
        }
        self.generation = generation;
        self.end = 0;
        self.begin()?;
        self.file.sync_data()
    }

    /// Writes the generation where the next record will be.
    fn begin(&self) -> io::Result<()> {
        let mut page = vec![0; PAGE];
        page[..self.generation.len()].copy_from_slice(&self.generation);
        self.file.write(self.end as u64, &page)
    }
}

fn path(database: &Path) -> std::path::PathBuf {
    database.with_extension("wal")
}

/// An error that says which of the two files it is about.
fn named(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{NAME}: {error}"))
}

fn unusable(why: &str) -> Unopened {
    Unopened::Damaged(format!(
        "its log {NAME} {why}; the log has the last writes: if it cannot be put back, an empty file \
         in its place makes the server continue without them"
    ))
}

/// The rows of the records of a generation.
fn replay(bytes: &[u8], generation: &Generation, base: u64) -> Result<Replayed, Unopened> {
    let mut rows = Rows::new();
    let mut index = base;
    let mut rest = bytes;
    while let Some((record, length)) = decode(generation, rest) {
        if record.base != index {
            return Err(unusable(&format!(
                "continues index {}, not {index}",
                record.base
            )));
        }
        index = record.index;
        let changed = record.rows.into_iter();
        rows.extend(changed.map(|row| (Arc::from(row.key), row.value)));
        rest = &rest[length..];
    }
    let mut behind = rest.chunks(PAGE).skip(1);
    if behind.any(|page| page.starts_with(generation)) {
        return Err(unusable(&format!(
            "is damaged after index {index}, and later writes were acknowledged"
        )));
    }
    Ok(Replayed {
        rows,
        index,
        is_fresh: rest.len() == bytes.len(),
    })
}

/// A record, filled up to whole pages.
fn encode(generation: &Generation, batch: &Batch) -> Vec<u8> {
    let rows = batch.rows.iter().map(|(key, value)| Row {
        key: key.to_vec(),
        value: value.clone(),
    });
    let body = Record {
        base: batch.base,
        index: batch.index,
        rows: rows.collect(),
    };
    let body = body.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut record = Vec::with_capacity((HEAD + body.len()).next_multiple_of(PAGE));
    record.extend(generation);
    record.extend(digest(generation, &body));
    record.extend(length.to_be_bytes());
    record.extend(body);
    record.resize(record.len().next_multiple_of(PAGE), 0);
    record
}

/// The record at the beginning of some pages, and its length. `None` if there is none, or not all of
/// it.
fn decode(generation: &Generation, pages: &[u8]) -> Option<(Record, usize)> {
    let rest = pages.strip_prefix(generation)?;
    let (expected, rest) = rest.split_first_chunk::<32>()?;
    let (length, rest) = rest.split_first_chunk()?;
    let body = rest.get(..u32::from_be_bytes(*length) as usize)?;
    if digest(generation, body) != *expected {
        return None;
    }
    let record = Record::decode(body).ok()?;
    Some((record, (HEAD + body.len()).next_multiple_of(PAGE)))
}

fn digest(generation: &Generation, body: &[u8]) -> [u8; 32] {
    let digest = Sha256::new().chain_update(generation).chain_update(body);
    digest.finalize().into()
}

/// The body of a record: a batch.
#[derive(Clone, PartialEq, prost::Message)]
struct Record {
    #[prost(uint64, tag = "1")]
    base: u64,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(message, repeated, tag = "3")]
    rows: Vec<Row>,
}

/// A changed row; without a value it was removed.
#[derive(Clone, PartialEq, prost::Message)]
struct Row {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", optional, tag = "2")]
    value: Option<Vec<u8>>,
}
