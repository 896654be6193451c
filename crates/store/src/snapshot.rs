//! Snapshots: backups of all rows of a store at one index.
//!
//! Secrets remain sealed with the store's key. So a snapshot discloses none, but restoring it on
//! another machine also requires the key file. Store the two separately. A store in memory has no key:
//! its snapshots are sealed with a random one that they contain, and any store can restore them.
//!
//! ```text
//! "legate snapshot\n"
//! length (4 bytes) and JSON: format, proof of the key, index, number of rows; in memory also the key
//! each row: length and key, length and value
//! SHA-256 of everything before
//! ```
//! Lengths are big-endian.

use std::io::{self, BufReader, Read, Seek, Write};
use std::sync::Arc;

use legate_identity::SealingKey;
use legate_model::{ConfigEntry, Invalid, Secret};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::codec::{Codec, FORMAT, Header, StoredRow};
use crate::gateways::{GatewayEndpointsRow, GatewayListenerRow, GatewayRow};
use crate::key::Key;
use crate::row::Stored;
use crate::rows::InstanceRow;
use crate::state::State;
use crate::upgrade::upgraded;

const MAGIC: &[u8; 16] = b"legate snapshot\n";

/// The maximum length of a key or row, in bytes. The largest rows are values of `/v1/kv`: 64 MiB at most, which
/// are 86 MiB as base64.
const LONGEST: u32 = 128 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
struct About {
    #[serde(flatten)]
    header: Header,
    index: u64,
    rows: u64,
    /// The key, of a store without its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key: Option<Secret>,
}

impl About {
    /// The codec of the key that the snapshot contains.
    fn codec(&self) -> Result<Option<Codec>, SnapshotError> {
        let key = self.key.as_ref();
        key.map(|key| match SealingKey::from_text(key.expose()) {
            Ok(key) => Ok(Codec { key }),
            Err(error) => Err(damaged(format!("its key cannot be read: {error}"))),
        })
        .transpose()
    }
}

/// A snapshot that was read completely and can be restored.
pub struct Snapshot {
    /// The index of the saved state.
    pub(crate) index: u64,
    /// The rows in stored form; empty for a store in memory.
    pub(crate) stored: Vec<StoredRow>,
    pub(crate) rows: Vec<(Key, Stored)>,
}

/// Why a snapshot cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Writing or reading failed.
    #[error("the snapshot could not be transferred: {0}")]
    Io(#[from] io::Error),
    /// Its secrets are sealed with a key that a store in memory does not have.
    #[error(
        "the secrets in this snapshot are encrypted, and a server in memory has no key: start the \
         server with a data directory and the key file of the store that it was created from"
    )]
    InMemory,
    /// Not a complete snapshot.
    #[error("this is not a complete snapshot: {0}")]
    Damaged(String),
    /// A newer server made it.
    #[error(
        "this snapshot was created by a newer Legate: its format is {found}, and this server supports \
         up to {FORMAT}"
    )]
    Newer {
        /// The format of the snapshot.
        found: u32,
    },
    /// A row is one that this server does not accept from users either.
    #[error("this snapshot cannot be restored: {what}: {reason}")]
    Refused {
        /// The row.
        what: String,
        /// The reason.
        reason: Invalid,
    },
    /// Its secrets are sealed with another key.
    #[error(
        "this snapshot was created with another key: start the server with the key file of the \
         store that it was created from"
    )]
    WrongKey,
}

/// The target size of a part of a snapshot, in bytes. A larger row is a part by itself.
const PART: usize = 256 * 1024;

/// A snapshot that is being written, part by part, so that it is never in memory as a whole. The state
/// that it is taken from does not change meanwhile.
pub struct Saving {
    state: Arc<State>,
    codec: Codec,
    digest: Sha256,
    next: Next,
}

/// What the next part starts with.
enum Next {
    Header(Vec<u8>),
    /// The row after this key.
    After(Option<Key>),
    Nothing,
}

impl Saving {
    /// Without a codec, secrets are sealed with a key that the snapshot contains.
    pub(crate) fn new(state: Arc<State>, codec: Option<Codec>) -> Result<Self, SnapshotError> {
        let (codec, key) = match codec {
            Some(codec) => (codec, None),
            None => {
                let key = SealingKey::generate().map_err(io::Error::other)?;
                let text = Secret::new(key.to_text());
                (Codec { key }, Some(text))
            }
        };
        let header = Header::new(&codec.key).map_err(io::Error::other)?;
        let about = About {
            header,
            index: state.index(),
            rows: state.rows() as u64,
            key,
        };
        let mut header = MAGIC.to_vec();
        let about = serde_json::to_vec(&about).map_err(io::Error::other)?;
        write_part(&mut header, &about)?;
        Ok(Self {
            state,
            codec,
            digest: Sha256::new(),
            next: Next::Header(header),
        })
    }

    /// The index of the saved state.
    pub fn index(&self) -> u64 {
        self.state.index()
    }

    /// The next bytes; `None` at the end. Encodes about 256 KiB of rows: call it on the blocking
    /// thread pool.
    ///
    /// # Errors
    /// [`SnapshotError::Io`] if a row cannot be encoded.
    pub fn next_part(&mut self) -> Result<Option<Vec<u8>>, SnapshotError> {
        let (mut part, after) = match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::Header(header) => (header, None),
            Next::After(key) => (Vec::with_capacity(PART), key),
            Next::Nothing => return Ok(None),
        };
        let mut last = None;
        for (key, row) in self.state.rows_after(after.as_ref()) {
            let row = self.codec.encode(key, row).map_err(io::Error::other)?;
            write_part(&mut part, &key.to_bytes())?;
            write_part(&mut part, &row)?;
            last = Some(key.clone());
            if part.len() >= PART {
                break;
            }
        }
        self.digest.update(&part);
        if last.is_some() {
            self.next = Next::After(last);
        } else {
            part.extend(self.digest.clone().finalize());
        }
        Ok(Some(part))
    }
}

impl std::fmt::Debug for Saving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Saving")
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}

impl Snapshot {
    /// Reads a snapshot for a store with this codec. It must be sealed with the same key, or contain its
    /// key.
    pub(crate) fn read(
        mut from: impl Read + Seek,
        codec: Option<&Codec>,
    ) -> Result<Self, SnapshotError> {
        let is_readable = |about: &About| {
            let format = about.header.format;
            if format > FORMAT {
                return Err(SnapshotError::Newer { found: format });
            }
            let own = about.codec()?;
            let key = &own.as_ref().or(codec).ok_or(SnapshotError::InMemory)?.key;
            match about.header.is_sealed_with(key) {
                true => Ok(()),
                false if own.is_some() => Err(damaged("its key is not that of its rows")),
                false => Err(SnapshotError::WrongKey),
            }
        };
        // First without keeping the rows.
        walk(BufReader::new(&mut from), is_readable, |_, _| {})?;
        from.rewind()?;
        let mut stored: Vec<StoredRow> = Vec::new();
        let about = walk(BufReader::new(from), is_readable, |key, value| {
            stored.push((Arc::from(key), value));
        })?;
        let own = about.codec()?;
        let reads = own.as_ref().or(codec).ok_or(SnapshotError::InMemory)?;
        let snapshot = Self::decoded(about.index, stored, reads)?;
        for (_, row) in &snapshot.rows {
            refuse_invalid(row)?;
        }
        let is_old = about.header.format < FORMAT;
        match codec {
            Some(_) if own.is_none() && !is_old => Ok(snapshot),
            codec => snapshot.settled(is_old, codec),
        }
    }

    /// The index of the saved state.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("index", &self.index)
            .field("rows", &self.rows.len())
            .finish_non_exhaustive()
    }
}

/// Metadata of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotAbout {
    /// The format of keys and rows.
    pub format: u32,
    /// The index of the saved state.
    pub index: u64,
}

/// Reads a snapshot without its key: `row` is called with the table number and the size of each
/// row. Checks that the snapshot is complete, but not that a server can restore it.
///
/// # Errors
/// [`SnapshotError::Io`] and [`SnapshotError::Damaged`].
pub fn survey_snapshot(
    from: impl Read,
    mut row: impl FnMut(u8, u64),
) -> Result<SnapshotAbout, SnapshotError> {
    let about = walk(
        from,
        |_| Ok(()),
        |key, value| {
            let table = key.first().copied().unwrap_or_default();
            row(table, (key.len() + value.len()) as u64);
        },
    )?;
    Ok(SnapshotAbout {
        format: about.header.format,
        index: about.index,
    })
}

/// Reads a whole snapshot: its header, which `judge` checks before any row, and its rows in stored
/// form.
fn walk(
    from: impl Read,
    judge: impl FnOnce(&About) -> Result<(), SnapshotError>,
    mut row: impl FnMut(Vec<u8>, Vec<u8>),
) -> Result<About, SnapshotError> {
    let mut from = Digesting {
        inner: from,
        digest: Sha256::new(),
    };
    let mut magic = [0; MAGIC.len()];
    read_exact(&mut from, &mut magic)?;
    if magic != *MAGIC {
        return Err(damaged("it has no snapshot header"));
    }
    let about: About = serde_json::from_slice(&read_part(&mut from)?)
        .map_err(|error| damaged(format!("its header cannot be read: {error}")))?;
    judge(&about)?;
    for _ in 0..about.rows {
        let key = read_part(&mut from)?;
        row(key, read_part(&mut from)?);
    }
    let Digesting { mut inner, digest } = from;
    let mut expected = [0; 32];
    read_exact(&mut inner, &mut expected)?;
    if digest.finalize()[..] != expected {
        return Err(damaged("its checksum does not match"));
    }
    Ok(about)
}

impl Snapshot {
    fn decoded(index: u64, stored: Vec<StoredRow>, codec: &Codec) -> Result<Self, SnapshotError> {
        let ordered = stored.is_sorted_by(|(one, _), (next, _)| one < next);
        if !ordered {
            return Err(damaged("its rows are out of order"));
        }
        let rows = stored.iter();
        let rows = rows.map(|(key, value)| codec.decode(Arc::clone(key), value));
        let rows: Result<_, _> = rows.collect();
        Ok(Self {
            index,
            rows: rows.map_err(|error| damaged(format!("a row cannot be read: {error}")))?,
            stored,
        })
    }

    /// The rows in the current format, and in the stored form of a store with this codec.
    fn settled(self, is_old: bool, codec: Option<&Codec>) -> Result<Self, SnapshotError> {
        let mut state = State::restored(self.index, self.rows);
        if is_old {
            (state, _) = upgraded(&state);
        }
        let rows = state.all();
        let stored = codec.map(|codec| codec.encode_all(&state)).transpose();
        Ok(Self {
            index: self.index,
            rows: rows.map(|(key, row)| (key.clone(), row.clone())).collect(),
            stored: stored.map_err(io::Error::other)?.unwrap_or_default(),
        })
    }
}

/// What writing refuses: other servers may have accepted it, such as settings that are nested too
/// deeply for the sidecars that get them. A store that has it is read all the same.
fn refuse_invalid(row: &Stored) -> Result<(), SnapshotError> {
    let (what, judged) = if let Some(row) = row.get::<InstanceRow>() {
        let InstanceRow { node, instance } = &*row;
        let what = format!("service {:?} on node {node:?}", instance.id);
        (what, instance.validate_nesting())
    } else if let Some(entry) = row.get::<ConfigEntry>()
        && let ConfigEntry::ProxyDefaults(entry) = &*entry
    {
        (
            "config entry proxy-defaults".to_owned(),
            entry.validate_nesting(),
        )
    } else if let Some(row) = row.get::<GatewayListenerRow>() {
        let what = format!("port {} of gateway {:?}", row.serves.port(), row.gateway);
        (what, row.serves.validate())
    } else if let Some(row) = row.get::<GatewayRow>()
        && let Some(frontend) = &row.frontend
    {
        let what = format!("frontend {:?}", row.name);
        (what, frontend.validate())
    } else if let Some(row) = row.get::<GatewayEndpointsRow>() {
        let what = format!("endpoints of gateway {:?}", row.gateway);
        (what, row.validate())
    } else {
        return Ok(());
    };
    judged.map_err(|reason| SnapshotError::Refused { what, reason })
}

fn damaged(reason: impl Into<String>) -> SnapshotError {
    SnapshotError::Damaged(reason.into())
}

fn write_part(to: &mut impl Write, part: &[u8]) -> io::Result<()> {
    let length = u32::try_from(part.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(part)
}

fn read_part(from: &mut impl Read) -> Result<Vec<u8>, SnapshotError> {
    let mut length = [0; 4];
    read_exact(from, &mut length)?;
    let length = u32::from_be_bytes(length);
    if length > LONGEST {
        return Err(damaged("a row is too long"));
    }
    // Allocates for the bytes received, not for the announced length.
    let mut part = Vec::new();
    from.take(length.into()).read_to_end(&mut part)?;
    if part.len() < length as usize {
        return Err(damaged("it ends too early"));
    }
    Ok(part)
}

fn read_exact(from: &mut impl Read, buffer: &mut [u8]) -> Result<(), SnapshotError> {
    from.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends too early"),
        _ => error.into(),
    })
}

/// Forwards bytes and computes their digest.
struct Digesting<I> {
    inner: I,
    digest: Sha256,
}

impl<R: Read> Read for Digesting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.digest.update(&buffer[..read]);
        Ok(read)
    }
}
