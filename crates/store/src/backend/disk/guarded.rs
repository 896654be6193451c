//! Protects the database file from writes until it has been read completely.
//!
//! Opening a database writes to it: flags, and the repair after a crash. A damaged file must stay
//! unchanged, so that data can be recovered from it. So writes during opening are buffered in
//! memory, and are applied only after the whole file was read.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// A file whose writes are buffered until [`Guarded::release`]. Clones are handles to the same
/// file.
#[derive(Debug)]
pub(super) struct Guarded<B>(Arc<Inner<B>>);

#[derive(Debug)]
struct Inner<B> {
    file: B,
    mode: Mutex<Mode>,
}

#[derive(Debug)]
enum Mode {
    /// Writes are buffered. There are few: a header, and some pages after a crash.
    Held(Vec<Write>),
    Released,
    /// The release failed halfway. The file is as after a crash.
    Broken,
}

#[derive(Debug)]
enum Write {
    Bytes { offset: u64, bytes: Vec<u8> },
    Length(u64),
    Sync,
}

impl<B> Clone for Guarded<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B: StorageBackend> Guarded<B> {
    pub(super) fn new(file: B) -> Self {
        Self(Arc::new(Inner {
            file,
            mode: Mutex::new(Mode::Held(Vec::new())),
        }))
    }

    /// Applies the buffered writes in order, and stops buffering.
    pub(super) fn release(&self) -> io::Result<()> {
        let mut mode = self.mode();
        let Mode::Held(held) = std::mem::replace(&mut *mode, Mode::Broken) else {
            return Ok(());
        };
        for write in held {
            match write {
                Write::Bytes { offset, bytes } => self.0.file.write(offset, &bytes)?,
                Write::Length(length) => self.0.file.set_len(length)?,
                Write::Sync => self.0.file.sync_data()?,
            }
        }
        *mode = Mode::Released;
        Ok(())
    }

    fn mode(&self) -> MutexGuard<'_, Mode> {
        // No code under the lock panics between dependent steps.
        self.0.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change now, or buffers it.
    fn change(
        &self,
        now: impl FnOnce(&B) -> io::Result<()>,
        later: impl FnOnce() -> Write,
    ) -> io::Result<()> {
        match &mut *self.mode() {
            Mode::Held(held) => {
                held.push(later());
                Ok(())
            }
            Mode::Released => now(&self.0.file),
            Mode::Broken => Err(io::Error::other("the file is closed")),
        }
    }

    fn read_through(&self, held: &[Write], offset: u64, out: &mut [u8]) -> io::Result<()> {
        let in_file = self.0.file.len()?.saturating_sub(offset);
        let in_file = usize::try_from(in_file).map_or(out.len(), |bytes| bytes.min(out.len()));
        out[in_file..].fill(0);
        if in_file > 0 {
            self.0.file.read(offset, &mut out[..in_file])?;
        }
        for write in held {
            match write {
                Write::Bytes { offset: at, bytes } => overlay(out, offset, bytes, *at),
                Write::Length(length) => {
                    let kept = usize::try_from(length.saturating_sub(offset));
                    let kept = kept.map_or(out.len(), |kept| kept.min(out.len()));
                    out[kept..].fill(0);
                }
                Write::Sync => {}
            }
        }
        Ok(())
    }
}

/// Copies the overlap of `bytes` (at offset `at`) into `out` (at offset `offset`).
fn overlay(out: &mut [u8], offset: u64, bytes: &[u8], at: u64) {
    let start = offset.max(at);
    let end = (offset + out.len() as u64).min(at + bytes.len() as u64);
    if start < end {
        let within = |origin: u64| (start - origin) as usize..(end - origin) as usize;
        out[within(offset)].copy_from_slice(&bytes[within(at)]);
    }
}

impl<B: StorageBackend> StorageBackend for Guarded<B> {
    fn len(&self) -> io::Result<u64> {
        if let Mode::Held(held) = &*self.mode() {
            let set = held.iter().rev().find_map(|write| match write {
                Write::Length(length) => Some(*length),
                _ => None,
            });
            if let Some(length) = set {
                return Ok(length);
            }
        }
        self.0.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if offset + out.len() as u64 > self.len()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Mode::Held(held) = &*self.mode() {
            return self.read_through(held, offset, out);
        }
        self.0.file.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| file.set_len(len), || Write::Length(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(StorageBackend::sync_data, || Write::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(
            |file| file.write(offset, data),
            || Write::Bytes {
                offset,
                bytes: data.to_vec(),
            },
        )
    }
}
