//! The database and its log in memory, with the operations on them.

use std::io;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use crate::backend::Loaded;
use crate::backend::disk::file::{File, Unopened};
use crate::backend::disk::log::Log;

/// The bytes of the database and of the log.
pub(super) type Files = [Vec<u8>; 2];

#[derive(Debug, Clone)]
pub(super) enum Step {
    Write(usize, Vec<u8>),
    Length(usize),
    Sync,
}

impl Step {
    pub(super) fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => {
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[*at..at + data.len()].copy_from_slice(data);
            }
            Self::Length(length) => bytes.resize(*length, 0),
            Self::Sync => {}
        }
    }
}

/// Both files. Clones are handles to the same files.
#[derive(Debug, Clone)]
pub(super) struct Memory(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    files: Files,
    /// What was done to which file.
    steps: Vec<(usize, Step)>,
    /// The number of steps after which the disk is full.
    full_after: Option<usize>,
}

/// One of the files.
#[derive(Debug)]
struct OneFile(Memory, usize);

impl Memory {
    pub(super) fn new(files: Files) -> Self {
        let recorded = Recorded {
            files,
            ..Recorded::default()
        };
        Self(Arc::new(Mutex::new(recorded)))
    }

    pub(super) fn open(&self) -> Result<(Loaded, Result<File, redb::Error>), Unopened> {
        let log = Log::of(OneFile(self.clone(), 1)).map_err(Unopened::Io)?;
        let database = OneFile(self.clone(), 0);
        File::read(database, Some(log), || unreachable!("there is one"))
    }

    pub(super) fn steps(&self) -> Vec<(usize, Step)> {
        self.0.lock().unwrap().steps.clone()
    }

    /// From this number of steps on, nothing can be written.
    pub(super) fn fill_after(&self, steps: Option<usize>) {
        self.0.lock().unwrap().full_after = steps;
    }
}

impl OneFile {
    fn step(&self, step: Step) -> io::Result<()> {
        let mut recorded = self.0.0.lock().unwrap();
        let steps = recorded.steps.len();
        if recorded.full_after.is_some_and(|full| steps >= full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        step.apply(&mut recorded.files[self.1]);
        recorded.steps.push((self.1, step));
        Ok(())
    }
}

impl StorageBackend for OneFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.0.lock().unwrap().files[self.1].len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        let recorded = self.0.0.lock().unwrap();
        let bytes = recorded.files[self.1].get(offset..offset + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step(Step::Length(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.step(Step::Sync)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.step(Step::Write(offset as usize, data.to_vec()))
    }
}
