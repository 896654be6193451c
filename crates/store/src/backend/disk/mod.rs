//! Stores rows in a local file, for one server.
//!
//! A commit is a record in a write-ahead log, with one fsync; a redb database gets the rows of many
//! commits together. After a failure (a full disk) the files are closed, because the outcome of the
//! commit is unknown. The next commit opens them again to determine the outcome.

mod directory;
mod file;
mod guarded;
mod log;

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::{Backend, Batch, Change, Loaded, NotCommitted, blocking};
use crate::open_error::OpenError;
use crate::outcome::Unavailable;
use file::{File, Unopened};

pub(crate) use directory::{Directory, sync_directory};

/// The name of the database file in the data directory.
const FILE: &str = "store.redb";

/// High, because the cost is proportional to the rows.
const ROWS_AT_ONCE: usize = 16 * 1024;

/// The disk backend.
pub(crate) struct Disk {
    /// `None` while an operation runs, and forever after one panicked.
    inner: Option<Inner>,
    /// Commits found after a failure, to be returned by `changed`.
    found: VecDeque<Change>,
}

struct Inner {
    path: PathBuf,
    /// `None` before the first commit, and after a failure.
    file: Option<File>,
    /// The index of the last commit that the committer has. 0 if there is no file.
    index: u64,
    /// The first commit that failed, whose outcome is unknown.
    unsettled: Option<Change>,
    /// Keeps the directory locked until the file is closed.
    _directory: Directory,
}

impl Disk {
    /// Opens the file in a directory and reads all rows. The contents are `None` if there is no
    /// file yet.
    ///
    /// Blocks.
    pub(crate) fn open(directory: Directory) -> Result<(Self, Option<Loaded>), OpenError> {
        let path = directory.path().join(FILE);
        let damaged = |reason| OpenError::Damaged {
            store: path.display().to_string(),
            reason,
        };
        let unreadable = |source| OpenError::File {
            path: path.clone(),
            source,
        };
        let (loaded, file) = if path.try_exists().map_err(unreadable)? {
            let opened = catch_unwind(|| File::open(&path))
                .unwrap_or_else(|_| Err(Unopened::Damaged("reading it panicked".to_owned())));
            let (loaded, writable) = opened.map_err(|error| match error {
                Unopened::Io(source) => unreadable(source),
                Unopened::Damaged(reason) => damaged(reason),
            })?;
            if let Err(error) = &writable {
                tracing::warn!(path = %path.display(), %error, "the store is read-only");
            }
            (Some(loaded), writable.ok())
        } else {
            (None, None)
        };
        let inner = Inner {
            path,
            file,
            index: loaded.as_ref().map_or(0, |loaded| loaded.index),
            unsettled: None,
            _directory: directory,
        };
        let disk = Self {
            inner: Some(inner),
            found: VecDeque::new(),
        };
        Ok((disk, loaded))
    }

    /// The file's path.
    pub(crate) fn name(&self) -> String {
        let inner = self.inner.as_ref();
        inner.map_or_else(String::new, |inner| inner.path.display().to_string())
    }

    /// Runs an operation on the file on the blocking thread pool.
    async fn with_file(
        &mut self,
        base: u64,
        change: Change,
        write: impl FnOnce(&mut Inner) -> Result<(), redb::Error> + Send + 'static,
    ) -> Result<(), NotCommitted> {
        let Some(mut inner) = self.inner.take() else {
            return Err(unavailable(
                "writing to the store panicked: restart the server",
            ));
        };
        let worked = blocking(move || {
            let worked = catch_unwind(AssertUnwindSafe(|| inner.write(base, change, write)));
            worked.map(|(result, found)| (inner, result, found))
        });
        let Some(Ok((inner, result, found))) = worked.await else {
            return Err(unavailable(
                "writing to the store panicked: restart the server",
            ));
        };
        self.inner = Some(inner);
        self.found.extend(found);
        result
    }
}

impl Inner {
    fn write(
        &mut self,
        base: u64,
        change: Change,
        write: impl FnOnce(&mut Inner) -> Result<(), redb::Error>,
    ) -> (Result<(), NotCommitted>, Option<Change>) {
        match self.settle() {
            Ok(None) => {}
            Ok(found) => return (Err(NotCommitted::Lost), found),
            Err(reason) => return (Err(unavailable(reason)), None),
        }
        if base != self.index {
            let reason = format!(
                "{} holds index {}, not {base}",
                self.path.display(),
                self.index
            );
            return (Err(unavailable(reason)), None);
        }
        let index = change.index();
        match write(self) {
            Ok(()) => {
                self.index = index;
                (Ok(()), None)
            }
            Err(error) => {
                self.file = None;
                self.unsettled = Some(change);
                (Err(unavailable(reason(&self.path, &error))), None)
            }
        }
    }

    /// Opens the file again after a failure. If it contains the failed commit, the commit is
    /// returned, and everything is written once more: after a failed fsync, what can be read is not
    /// known to be on disk.
    fn settle(&mut self) -> Result<Option<Change>, String> {
        if self.file.is_some() || self.index == 0 && !self.path.exists() {
            return Ok(None);
        }
        let (loaded, file) = File::open(&self.path).map_err(|error| match error {
            Unopened::Io(error) => reason(&self.path, &redb::Error::Io(error)),
            Unopened::Damaged(what) => format!("{} is damaged: {what}", self.path.display()),
        })?;
        let file = file.map_err(|error| reason(&self.path, &error))?;
        if file.index == self.index {
            self.unsettled = None;
            self.file = Some(file);
            return Ok(None);
        }
        let found = self.unsettled.clone();
        let Some(found) = found.filter(|found| found.index() == file.index) else {
            let path = self.path.display();
            return Err(format!(
                "another process changed {path}: restart the server"
            ));
        };
        drop(file);
        let file = File::create(&self.path, &loaded).map_err(|error| reason(&self.path, &error))?;
        self.index = file.index;
        self.file = Some(file);
        self.unsettled = None;
        Ok(Some(found))
    }
}

impl Backend for Disk {
    fn rows_at_once(&self) -> usize {
        ROWS_AT_ONCE
    }

    async fn commit(&mut self, batch: Arc<Batch>) -> Result<(), NotCommitted> {
        let change = Change::Batch(Arc::clone(&batch));
        self.with_file(batch.base, change, move |inner| match &mut inner.file {
            Some(file) => file.commit(&batch),
            None => Err(io::Error::from(io::ErrorKind::NotFound).into()),
        })
        .await
    }

    async fn replace(&mut self, base: u64, contents: Arc<Loaded>) -> Result<(), NotCommitted> {
        let change = Change::Everything(Arc::clone(&contents));
        self.with_file(base, change, move |inner| {
            inner.file = Some(File::create(&inner.path, &contents)?);
            Ok(())
        })
        .await
    }

    async fn changed(&mut self) -> Change {
        match self.found.pop_front() {
            Some(change) => change,
            // There are no other writers.
            None => std::future::pending().await,
        }
    }

    async fn close(self) {
        let closed = blocking(move || self.inner.and_then(|inner| inner.file).map(File::close));
        if let Some(Some(Err(error))) = closed.await {
            // Everything acknowledged is stored; only the next opening takes longer.
            tracing::warn!(%error, "the store's file was not closed cleanly");
        }
    }
}

fn unavailable(reason: impl Into<Arc<str>>) -> NotCommitted {
    NotCommitted::Unavailable(Unavailable::new(reason))
}

/// The error for the writer.
fn reason(path: &Path, error: &redb::Error) -> String {
    let path = path.display();
    match error {
        redb::Error::Io(error) if is_full(error) => format!(
            "there is no room for {path} ({error}): make room on its disk; writes then work again"
        ),
        error => format!("{path} cannot be written: {error}; check the disk"),
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests;
