//! Power failures at any step: of the writes since the last fsync, any sectors may be on disk.
//! Everything acknowledged is there, and no commit in part.

use std::io;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use redb::StorageBackend;

use super::{after, batch, first};
use crate::backend::disk::file::File;

const SECTOR: usize = 512;

/// A file in memory that records its operations.
#[derive(Debug, Clone, Default)]
struct Recorder(Arc<Mutex<Recorded>>);

#[derive(Debug, Default)]
struct Recorded {
    bytes: Vec<u8>,
    log: Vec<Step>,
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, Vec<u8>),
    Length(usize),
    Sync,
}

fn apply(bytes: &mut Vec<u8>, step: &Step) {
    match step {
        Step::Write(at, data) => bytes[*at..at + data.len()].copy_from_slice(data),
        Step::Length(length) => bytes.resize(*length, 0),
        Step::Sync => {}
    }
}

impl Recorder {
    fn of(bytes: Vec<u8>) -> Self {
        let log = Vec::new();
        Self(Arc::new(Mutex::new(Recorded { bytes, log })))
    }

    fn step(&self, step: Step) -> io::Result<()> {
        let mut recorded = self.0.lock().unwrap();
        apply(&mut recorded.bytes, &step);
        recorded.log.push(step);
        Ok(())
    }

    fn steps(&self) -> usize {
        self.0.lock().unwrap().log.len()
    }
}

impl StorageBackend for Recorder {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = offset as usize;
        let recorded = self.0.lock().unwrap();
        out.copy_from_slice(&recorded.bytes[offset..offset + out.len()]);
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

/// The bytes on disk after a power failure after some steps.
fn image(start: &[u8], log: &[Step], random: &mut StdRng) -> Vec<u8> {
    let synced = log.iter().rposition(|step| matches!(step, Step::Sync));
    let (safe, unsafe_steps) = log.split_at(synced.map_or(0, |at| at + 1));
    let mut bytes = start.to_vec();
    for step in safe {
        apply(&mut bytes, step);
    }
    // Another share of sectors each time.
    let share = random.random_range(0.0..=1.0);
    for step in unsafe_steps {
        let Step::Write(at, data) = step else {
            // A new length is on disk at the latest with data beyond the old one.
            apply(&mut bytes, step);
            continue;
        };
        for (number, sector) in data.chunks(SECTOR).enumerate() {
            if random.random_bool(share) {
                let at = at + number * SECTOR;
                apply(&mut bytes, &Step::Write(at, sector.to_vec()));
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn acknowledged_commits_survive_and_none_is_partial(
        sizes in prop::collection::vec(1..40_u32, 1..8), seed in any::<u64>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        drop(File::create(&path, &first()).unwrap().close());
        let start = std::fs::read(&path).unwrap();

        let recorder = Recorder::of(start.clone());
        let (loaded, file) = File::read(recorder.clone(), None).unwrap();
        let mut file = file.unwrap();
        let mut versions = vec![loaded];
        // The number of steps after which the commit of each version was acknowledged.
        let mut acknowledged = vec![0];
        for rows in sizes {
            let last = versions.last().unwrap();
            let batch = batch(last.index + 1, rows);
            let next = after(last, &batch);
            file.commit(&batch).unwrap();
            acknowledged.push(recorder.steps());
            versions.push(next);
        }
        drop(file);

        let log = recorder.0.lock().unwrap().log.clone();
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..16 {
            let cut = random.random_range(0..=log.len());
            let bytes = image(&start, &log[..cut], &mut random);
            let known = acknowledged.iter().rposition(|steps| *steps <= cut).unwrap();
            let noted = Some(versions[known].index);
            let (found, _file) = File::read(Recorder::of(bytes), noted).unwrap();
            let possible = &versions[known..versions.len().min(known + 2)];
            prop_assert!(possible.contains(&found), "index {} after {cut} steps", found.index);
        }
    }
}

#[test]
fn a_commit_waits_for_the_disk_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    drop(File::create(&path, &first()).unwrap().close());
    let recorder = Recorder::of(std::fs::read(&path).unwrap());
    let (_, file) = File::read(recorder.clone(), None).unwrap();
    let mut file = file.unwrap();
    // The file grows at first, and stays as it is.
    for index in 2..20 {
        file.commit(&batch(index, 1)).unwrap();
    }
    let syncs = || {
        let recorded = recorder.0.lock().unwrap();
        let syncs = recorded
            .log
            .iter()
            .filter(|step| matches!(step, Step::Sync));
        syncs.count()
    };
    let before = syncs();
    for index in 20..30 {
        file.commit(&batch(index, 1)).unwrap();
    }
    assert_eq!(syncs() - before, 10);
}
